"""The launches that the form was last used for, kept in the person's own folder."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from skyward_core.store.home import home

from .launch_plan import Form, path_of

MOST = 30


def recent() -> list[Form]:
    """They, newest first; none where the file is not there or makes no sense."""
    try:
        entries = json.loads(_file().read_text(encoding="utf-8"))
        return [_form(entry) for entry in entries]
    except (OSError, ValueError, TypeError, AttributeError):
        return []  # it only saves typing


def remember(form: Form) -> None:
    """Note a launch, in place of an earlier one of the same script, function and arguments.

    Raises:
        OSError: it cannot be written.
    """
    form = replace(form, script=str(path_of(form.script).absolute()), pool="")
    others = [other for other in recent() if _what(other) != _what(form)]
    handle, draft = tempfile.mkstemp(
        dir=home(), prefix="recent-"
    )  # nobody else's to read: arguments are in it
    try:
        with open(handle, "w", encoding="utf-8") as target:
            json.dump([asdict(each) for each in [form, *others][:MOST]], target)
        os.replace(draft, _file())  # noqa: PTH105
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise


def _what(form: Form) -> tuple[str, str, str]:
    return form.script, form.function, form.arguments


def _form(entry: dict[str, Any]) -> Form:
    if "hosts" in entry:  # as earlier releases wrote it
        entry = {"settings": {"hosts": entry["hosts"]}} | entry
    sample = asdict(Form()) | {"plugins": []}
    values = {name: value for name, value in entry.items() if name in sample}
    if any(type(value) is not type(sample[name]) for name, value in values.items()):
        raise TypeError(f"no launch: {entry!r:.80}")
    if not all(isinstance(text, str) for text in values.get("settings", {}).values()):
        raise TypeError(f"no settings: {entry!r:.80}")
    return Form(**values | {"plugins": tuple(values.get("plugins", ()))})


def _file() -> Path:
    return home() / "recent.json"
