"""Launches that a person has given a name, in ``skyward.toml``: a ``launch_request.LaunchRequest`` each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from skyward_core.client.launch.image_options import parse_image_options
from skyward_core.client.launch.launch_records import invalid_fields, texts_in
from skyward_core.client.launch.launch_request import DEFAULTS, LaunchRequest
from skyward_core.client.launch.script_plugin_provider_discovery import available_plugins, parameter_fields
from skyward_core.client.settings_file import read_table, replace_text, set_table, settings_paths, write_table
from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.model.provider_capabilities import declared_settings
from skyward_core.providers import DEFAULT_PROVIDER, provider_class, provider_names
from skyward_core.store.state_folder import SETTINGS_FILE, require_current_folder
from skyward_core.tasks.script_inspection import find_function
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.util.user_files import is_file

PRESETS_TABLE = "presets"
MAX_NAME_LENGTH = 60  # characters of a name
NO_SCRIPT = str(Path())
"""The script of a request that names none."""

_TYPE_WORDS: Mapping[str, str] = {
    "str": "a text",
    "str | None": "a text",
    "float | None": "a number",
    "bool": "true or false",
    "int | None": "a whole number",
    "int | str | None": "a whole number or a text",
    "int | Literal['gpu'] | None": "a whole number or gpu",
    "Sequence[str]": "a list of texts",
    "Sequence[str] | None": "a list of texts",
    "Mapping[str, str]": "a table of texts",
}
"""Words for the types of a request's fields."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A launch by name.

    Attributes:
        file: the ``skyward.toml`` that it stands in.
        entry: what stands there.
    """

    name: str
    file: Path
    entry: Any

    def request(self) -> tuple[LaunchRequest, list[str]]:
        """What it asks for, and in words what of it there is not any more, or cannot be understood; all else is in
        the request. Its script and arguments are not looked at: see :func:`drop_unknown`."""
        if not isinstance(self.entry, dict):
            return LaunchRequest(script=NO_SCRIPT), [f"preset {sanitize_line(self.name)} is no table"]
        said: list[str] = []
        values = dict(_parse_entry(self.entry, said))
        if (provider := values.get("provider")) is not None and provider not in provider_names():
            said.append(f"there is no provider {sanitize_line(provider)}: its settings are left out, too")
            del values["provider"]
            values.pop("settings", None)
        if settings := values.get("settings"):
            values["settings"] = dict(_known_settings(values.get("provider") or DEFAULT_PROVIDER, settings, said))
        if plugins := values.get("plugins"):
            here = {each.name for each in available_plugins()}
            said += [f"there is no plugin {sanitize_line(name)}" for name in plugins if name not in here]
            values["plugins"] = tuple(name for name in plugins if name in here)
        if given := values.get("plugin_settings"):
            values["plugin_settings"] = dict(_known_parameters(values.get("plugins", ()), given, said))
        return LaunchRequest(**{"script": NO_SCRIPT, **values}), said


def presets() -> list[Preset]:
    """Those of the working folder and of the person's own settings, by name.

    Raises:
        UsageError: a ``skyward.toml`` cannot be used.
    """
    found = {
        name: Preset(name, path, entry)
        for path in settings_paths()
        for name, entry in read_table(path, PRESETS_TABLE)[1].items()
    }
    return [found[name] for name in sorted(found)]


def save(name: str, request: LaunchRequest) -> Path:
    """Keep a launch in the working folder's ``skyward.toml``, in place of one of that name; gives the file.

    Raises:
        UsageError: there can be none of that name, or the file cannot be used or changed.
        OSError: it cannot be written; it is as it was.
    """
    if not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise UsageError(f"a preset's name has 1 to {MAX_NAME_LENGTH} characters, all of which can be seen")
    parse_image_options(request.image_settings)  # no secret is kept
    values = {name: value for name, usual in DEFAULTS.items() if (value := getattr(request, name)) != usual}
    if request.script == NO_SCRIPT:
        values.pop("script", None)
    path = require_current_folder() / SETTINGS_FILE
    text, _ = read_table(path, PRESETS_TABLE)
    told = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    replace_text(path, text, set_table(text, (PRESETS_TABLE, name), told))
    return path


def delete(preset: Preset) -> None:
    """Take a preset out of its file.

    Raises:
        UsageError: the file cannot be used, or is not written so that this can be done.
        OSError: it cannot be written; it is as it was.
    """
    text, _ = read_table(preset.file, PRESETS_TABLE)
    write_table(preset.file, text, (PRESETS_TABLE, preset.name), {})


def drop_unknown(request: LaunchRequest) -> tuple[LaunchRequest, list[str]]:
    """A request without a function and arguments that its script does not have any more, and these in words. Of a
    script that is not there, nothing is known."""
    if request.script_args is not None or request.function is None:
        return request, []
    try:
        function = find_function(Path(request.script), request.function)
    except SkywardError:
        if not is_file(request.script):
            return request, []
        return replace(request, function=None, arguments=()), [
            f"{sanitize_line(request.script)} has no function {sanitize_line(request.function)}: its arguments "
            "are left out, too"
        ]
    if any(param.kind == "var_keyword" for param in function.params):
        return request, []
    known = {param.name for param in function.params}
    gone = [text for text in request.arguments if text.partition("=")[0].strip() not in known]
    left = [text for text in request.arguments if text not in gone]
    takes = [
        f"{function.name} takes no argument {sanitize_line(text.partition('=')[0].strip())} any more" for text in gone
    ]
    return replace(request, arguments=left), takes


def _parse_entry(entry: Mapping[str, Any], said: list[str]) -> Iterator[tuple[str, Any]]:
    types = {each.name: str(each.type) for each in fields(LaunchRequest)}
    values = {name: _with_texts(value) for name, value in entry.items()}
    wrong = invalid_fields(LaunchRequest, {"script": NO_SCRIPT} | values)
    for name, value in values.items():
        if name not in types:
            said.append(f"there is no {sanitize_line(name)} any more in a launch")
        elif name in wrong:
            said.append(f"{name} is {_TYPE_WORDS[types[name]]}, not {sanitize_line(repr(value))[:40]}")
        elif not all(map(str.isprintable, texts_in(value))):  # fields hand their text to the terminal as it is
            said.append(f"{name} holds characters that cannot be shown, and is left out")
        else:
            yield name, value


def _with_texts(value: Any) -> Any:
    """Return a value with the numbers of a table as texts: a user may leave out their quotation marks."""
    if not isinstance(value, dict):
        return value
    return {key: _as_text(each) if isinstance(each, int | float) else each for key, each in value.items()}


def _as_text(value: str | bool | float) -> str:
    """As it is typed: a person may leave out the quotation marks of a number."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _known_settings(provider: str, settings: Mapping[str, str], said: list[str]) -> Iterator[tuple[str, str]]:
    try:
        known = {each.name for each in declared_settings(provider_class(provider))}
    except SkywardError:  # whoever asks for the pool is told
        known = set(settings)
    for name, text in settings.items():
        if name in known:
            yield name, text
        else:
            said.append(f"provider {sanitize_line(provider)} has no setting {sanitize_line(name)} any more")


def _known_parameters(plugins: Sequence[str], given: Mapping[str, str], said: list[str]) -> Iterator[tuple[str, str]]:
    known = {each.name for each in parameter_fields(plugins)}
    for name, text in given.items():
        if name in known:
            yield name, text
        elif name.rpartition(".")[0] in plugins:
            said.append(f"there is no parameter {sanitize_line(name)} any more")
        else:
            said.append(f"{sanitize_line(name)} is a parameter of no plugin of this launch")
