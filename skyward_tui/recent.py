"""The launches that the form was last used for, kept in the person's own folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import Any

from skyward_core.front import settings
from skyward_core.front.user_files import expanded, json_of

from .launch_form import Form, path_of
from .launch_packages import choice_of

NAME = "recent"
MOST = 30


def recent() -> list[Form]:
    """They, newest first; none where the file is not there or makes no sense."""
    try:
        entries = json_of(settings.remembered(NAME))
        return [_form(entry) for entry in entries]
    except (OSError, ValueError, TypeError, AttributeError):
        return []  # it only saves typing


def remember(form: Form) -> None:
    """Note a launch, in place of an earlier one of the same script, function and arguments.

    Raises:
        OSError: it cannot be written.
    """
    form = replace(
        form,
        script=str(path_of(form.script).absolute()),
        python=_absolute(form.python),
        packages=_by_whole_path(form.packages),
        pool="",
    )
    others = [other for other in recent() if _what(other) != _what(form)]
    settings.remember(NAME, json.dumps([asdict(each) for each in [form, *others][:MOST]]))


def _absolute(python: str) -> str:
    """The same interpreter from every folder; a name is looked for in PATH."""
    return str(expanded(python.strip()).absolute()) if os.sep in python else python.strip()


def _by_whole_path(packages: str) -> str:
    """The same choice from every folder."""
    field, _, path = packages.partition(" ")
    return choice_of(field, str(expanded(path).absolute()) if path else "")


def _what(form: Form) -> tuple[str, str, str]:
    return form.script, form.function, form.arguments


def _form(entry: dict[str, Any]) -> Form:
    if "hosts" in entry:  # as earlier releases wrote it
        entry = {"settings": {"hosts": entry["hosts"]}} | entry
    sample = asdict(Form()) | {"plugins": []}
    values = {name: value for name, value in entry.items() if name in sample}
    if any(type(value) is not type(sample[name]) for name, value in values.items()):
        raise TypeError(f"no launch: {entry!r:.80}")
    for named in ("settings", "parameters"):
        if not all(isinstance(text, str) for text in values.get(named, {}).values()):
            raise TypeError(f"no {named}: {entry!r:.80}")
    return Form(**values | {"plugins": tuple(values.get("plugins", ()))})
