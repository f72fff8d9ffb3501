"""Named launches in ``skyward.toml``, each a ``launch_option_declarations.LaunchRequest``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from skyward_core.client.launch.image_option_parsing import parse_image_options
from skyward_core.client.launch.launch_option_declarations import DEFAULTS, NO_SCRIPT, LaunchRequest
from skyward_core.client.launch.launch_records_and_script_state import invalid_fields, texts_in
from skyward_core.client.launch.plugin_and_provider_catalog import available_plugins, parameter_fields
from skyward_core.client.settings_edits import read_table, replace_text, set_table, settings_paths, write_table
from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.model.provider_settings_schema import declared_settings
from skyward_core.providers import DEFAULT_PROVIDER, provider_class, provider_names
from skyward_core.store.default_and_forbidden_working_folders import require_current_folder
from skyward_core.store.state_folder import SETTINGS_FILE
from skyward_core.tasks.script_functions import find_function
from skyward_core.util.safe_file_access import is_file
from skyward_core.util.terminal_safe_text import sanitize_line

PRESETS_TABLE = "presets"
MAX_NAME_LENGTH = 60  # maximum characters of a preset's name


# Descriptions of the types of a request's fields, for errors.
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


@dataclass(frozen=True, slots=True)
class Preset:
    """Named launch options in a ``skyward.toml``.

    Attributes:
        file: The ``skyward.toml`` that contains the preset.
        entry: Content of the preset, not validated.
    """

    name: str
    file: Path
    entry: Any

    def request(self) -> tuple[LaunchRequest, list[str]]:
        """Return the request, without values that are invalid or no longer exist, and a message about each of these
        values.

        The script and its arguments are not checked: see :func:`drop_unknown`.
        """
        if not isinstance(self.entry, dict):
            return LaunchRequest(script=NO_SCRIPT), [f"preset {sanitize_line(self.name)} is not a table"]
        messages: list[str] = []
        values = dict(_parse_entry(self.entry, messages))
        if (provider := values.get("provider")) is not None and provider not in provider_names():
            messages.append(f"provider {sanitize_line(provider)} does not exist; its settings are ignored")
            del values["provider"]
            values.pop("settings", None)
        if settings := values.get("settings"):
            values["settings"] = dict(_known_settings(values.get("provider") or DEFAULT_PROVIDER, settings, messages))
        if plugins := values.get("plugins"):
            known = {each.name for each in available_plugins()}
            messages += [f"plugin {sanitize_line(name)} does not exist" for name in plugins if name not in known]
            values["plugins"] = tuple(name for name in plugins if name in known)
        if given := values.get("plugin_settings"):
            values["plugin_settings"] = dict(_known_parameters(values.get("plugins", ()), given, messages))
        return LaunchRequest(**{"script": NO_SCRIPT, **values}), messages


def presets() -> list[Preset]:
    """Return the presets of the working folder and of the user, sorted by name.

    Raises:
        UsageError: If a ``skyward.toml`` cannot be used.
    """
    found = {
        name: Preset(name, path, entry)
        for path in settings_paths()
        for name, entry in read_table(path, PRESETS_TABLE)[1].items()
    }
    return [found[name] for name in sorted(found)]


def save(name: str, request: LaunchRequest) -> Path:
    """Save a launch in the working folder's ``skyward.toml`` under a name, and return the file.

    Raises:
        UsageError: If the name is invalid, or the file cannot be used or changed.
        OSError: If the file cannot be written; the old file stays unchanged.
    """
    if not name.strip() or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise UsageError(f"a preset's name must have 1 to {MAX_NAME_LENGTH} printable characters")
    # Raises an error for texts with secrets, because the settings file must not contain them.
    parse_image_options(request.image_settings)
    values = {name: value for name, default in DEFAULTS.items() if (value := getattr(request, name)) != default}
    if request.script == NO_SCRIPT:
        values.pop("script", None)
    path = require_current_folder() / SETTINGS_FILE
    text, _ = read_table(path, PRESETS_TABLE)
    table = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    replace_text(path, text, set_table(text, (PRESETS_TABLE, name), table))
    return path


def delete(preset: Preset) -> None:
    """Remove a preset from its file.

    Raises:
        UsageError: If the file cannot be used, or its layout does not allow removing the preset.
        OSError: If the file cannot be written; the old file stays unchanged.
    """
    text, _ = read_table(preset.file, PRESETS_TABLE)
    write_table(preset.file, text, (PRESETS_TABLE, preset.name), {})


def drop_unknown(request: LaunchRequest) -> tuple[LaunchRequest, list[str]]:
    """Remove the function and the arguments that the script no longer has. Return the new request, and descriptions of
    the removed parts.

    If the script does not exist, nothing is removed.
    """
    if request.script_args is not None or request.function is None:
        return request, []
    try:
        function = find_function(Path(request.script), request.function)
    except SkywardError:
        if not is_file(request.script):
            return request, []
        return replace(request, function=None, arguments=()), [
            f"{sanitize_line(request.script)} has no function {sanitize_line(request.function)}; "
            "its arguments are ignored"
        ]
    if any(param.kind == "var_keyword" for param in function.params):
        return request, []
    known = {param.name for param in function.params}
    unknown = [text for text in request.arguments if text.partition("=")[0].strip() not in known]
    known_texts = [text for text in request.arguments if text not in unknown]
    messages = [
        f"{function.name} no longer has argument {sanitize_line(text.partition('=')[0].strip())}" for text in unknown
    ]
    return replace(request, arguments=known_texts), messages


def _parse_entry(entry: Mapping[str, Any], messages: list[str]) -> Iterator[tuple[str, Any]]:
    types = {each.name: str(each.type) for each in fields(LaunchRequest)}
    values = {name: _with_texts(value) for name, value in entry.items()}
    invalid = invalid_fields(LaunchRequest, {"script": NO_SCRIPT} | values)
    for name, value in values.items():
        if name not in types:
            messages.append(f"launch option {sanitize_line(name)} no longer exists")
        elif name in invalid:
            messages.append(f"{name} must be {_TYPE_WORDS[types[name]]}, not {sanitize_line(repr(value))[:40]}")
        elif not all(map(str.isprintable, texts_in(value))):
            # Reject unprintable characters, because the launch form writes texts to the terminal unfiltered.
            messages.append(f"{name} contains unprintable characters and is ignored")
        else:
            yield name, value


def _with_texts(value: Any) -> Any:
    """Return a value with numbers in tables converted to texts, because users may omit quotation marks."""
    if not isinstance(value, dict):
        return value
    return {key: _as_text(each) if isinstance(each, int | float) else each for key, each in value.items()}


def _as_text(value: str | bool | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _known_settings(provider: str, settings: Mapping[str, str], messages: list[str]) -> Iterator[tuple[str, str]]:
    try:
        known = {each.name for each in declared_settings(provider_class(provider))}
    except SkywardError:  # if a provider is unavailable, its settings stay unchanged; the start of the pool reports it
        known = set(settings)
    for name, text in settings.items():
        if name in known:
            yield name, text
        else:
            messages.append(f"provider {sanitize_line(provider)} no longer has setting {sanitize_line(name)}")


def _known_parameters(
    plugins: Sequence[str], given: Mapping[str, str], messages: list[str]
) -> Iterator[tuple[str, str]]:
    known = {each.name for each in parameter_fields(plugins)}
    for name, text in given.items():
        if name in known:
            yield name, text
        elif name.rpartition(".")[0] in plugins:
            messages.append(f"plugin parameter {sanitize_line(name)} no longer exists")
        else:
            messages.append(f"{sanitize_line(name)} is not a parameter of a plugin of this launch")
