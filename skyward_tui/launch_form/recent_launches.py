"""Recent launches, saved for the launch form and the file picker."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from textual.content import Content

from skyward_core.client import user_settings_and_app_state as settings
from skyward_core.client.launch.plugin_and_provider_catalog import MAX_SCRIPT_BYTES, has_functions, missing_frameworks
from skyward_core.model.errors import ScriptError
from skyward_core.util.safe_file_access import (
    current_folder,
    expand_user,
    is_file,
    list_entries,
    parse_json,
    read_bytes,
)
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.launch_form.form import (
    Form,
    example_paths,
    format_choice,
    path_of,
    script_argument,
    script_summary,
)
from skyward_tui.text.text_width_tables_and_ascii import fit_width, one_line

NAME = "recent"
MAX_STORED = 30


def recent_forms() -> list[Form]:
    """Return the recent launches, newest first. If their file is missing or invalid, return an empty list."""
    try:
        return [_parse_form(entry) for entry in parse_json(settings.load_state(NAME))]
    except (OSError, ValueError, TypeError, AttributeError):
        return []  # no error, because the form works without recent launches


def add_recent(form: Form) -> None:
    """Save a launch as the newest recent launch. It replaces an earlier launch with the same script, function and
    arguments.

    Raises:
        OSError: If the file cannot be written.
    """
    python, packages = _absolute_python(form.python), _absolute_packages(form.packages)
    form = replace(form, script=str(path_of(form.script).absolute()), python=python, packages=packages, pool="")
    others = [other for other in recent_forms() if _launch_key(other) != _launch_key(form)]
    settings.save_state(NAME, json.dumps([asdict(each) for each in [form, *others][:MAX_STORED]]))


def _absolute_python(python: str) -> str:
    """Make the path of an interpreter absolute. Leave a name without a folder unchanged, because such a name is
    searched for in PATH.
    """
    return str(expand_user(python.strip()).absolute()) if os.sep in python else python.strip()


def _absolute_packages(packages: str) -> str:
    """Make the path in a choice of packages absolute."""
    field, _, path = packages.partition(" ")
    return format_choice(field, str(expand_user(path).absolute()) if path else "")


def _launch_key(form: Form) -> tuple[str, str, str]:
    return form.script, form.function, form.arguments


def _parse_form(entry: dict[str, Any]) -> Form:
    sample = asdict(Form()) | {"plugins": []}
    values = {name: value for name, value in entry.items() if name in sample}
    if any(type(value) is not type(sample[name]) for name, value in values.items()):
        raise TypeError(f"no launch: {entry!r:.80}")
    for group in ("settings", "plugin_settings"):
        if not all(isinstance(text, str) for text in values.get(group, {}).values()):
            raise TypeError(f"no {group}: {entry!r:.80}")
    return Form(**values | {"plugins": tuple(values.get("plugins", ()))})


MAX_SHOWN = 8


def recent_row(form: Form) -> Content:
    """Return a recent launch as a row of the list of launches."""
    script = script_argument(form.script)
    called = script if script != form.script else Path(script).name
    label = f"  {called}:{form.function}  " if form.function else f"  {called}  "
    return Content.assemble(sanitize_line(label), (sanitize_line(one_line(form.arguments)), "$muted"))


def example_row(path: Path, lacks: str = "") -> Content:
    """Return a packaged example as a row, with its missing packages."""
    return Content.assemble(f"  {path.stem:<12}", (lacks, "$text-warning"), (script_summary(path), "$muted"))


MAX_SCRIPTS = 20  # maximum number of scripts of the working folder that the form lists
# files whose names begin with one of these are not offered for a launch
_NOT_LAUNCHED = ("_", ".", "test_", "conftest.", "setup.")
# a script that contains one of these texts needs torchrun
_TORCHRUN = (b"init_process_group", b"LOCAL_RANK", b"Accelerator(")


def folder_scripts() -> dict[Path, Content]:
    """Return rows for the scripts of the working folder: name, kind and docstring. No script is executed."""
    try:
        paths = sorted(each for each in list_entries(current_folder()) if each.suffix == ".py" and is_file(each))
    except OSError:  # the folder cannot be read, so no scripts are listed
        return {}
    rows = {}
    for path in [each for each in paths if not each.name.startswith(_NOT_LAUNCHED)][:MAX_SCRIPTS]:
        with suppress(ScriptError, OSError):  # skip files that cannot be read, or that are not valid Python
            uses_torchrun = any(each in read_bytes(path, MAX_SCRIPT_BYTES) for each in _TORCHRUN)
            kind = "function" if has_functions(path) else "torchrun" if uses_torchrun else "plain"
            name, text = fit_width(sanitize_line(path.name), 18), one_line(sanitize_line(script_summary(path)))
            rows[path] = Content.assemble(f"  {name} ", (f"{kind:<10}", "$text-accent"), (text, "$muted"))
    return rows


def missing_packages() -> dict[Path, str]:
    """Return a text about the missing packages of each packaged example; may start a Python interpreter."""
    return {path: _missing_text(path) for path in example_paths()}


def _missing_text(path: Path) -> str:
    try:
        missing = missing_frameworks(path)
    except ScriptError:  # no note about packages: picking the example reports the error
        return ""
    return f"needs {', '.join(missing)}  " if missing else ""
