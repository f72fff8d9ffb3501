"""User settings in the ``skyward.toml`` of the state folder, and saved state of the app.

The file of a project cannot contain settings, because another user may have written it. Settings are sensitive: they
include a command to run, and keys that accept prompts.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from skyward_core.model.errors import UsageError, convert_errors
from skyward_core.store import state_folder
from skyward_core.store.debug_log import start_logging as start_logging
from skyward_core.store.state_folder import SETTINGS_FILE, state_home
from skyward_core.util.safe_file_access import MAX_SETTINGS_BYTES, exists, is_file, parse_toml, read_text, resolve_path

if TYPE_CHECKING:
    from skyward_core.client.settings_edits import TomlValue

KEYS_TABLE = "keys"  # name of the table with the app's key bindings, whose values the app validates
COMMANDS_TABLE = "commands"
SETTINGS_TABLES = ("app", KEYS_TABLE, "notify", COMMANDS_TABLE, "columns")
COMMAND_FIELDS = ("pool", "run", "rank", "script")  # names of the fields in braces that a user's command may contain
MAX_MEGABYTES = 64_000

SettingKind = Literal["theme", "flag", "command", "seconds", "megabytes"]
T = TypeVar("T")


def _setting(default: Any, kind: SettingKind, help: str) -> Any:
    """Declare a setting; its name in the file is the name of the dataclass field."""
    return field(default=default, metadata={"kind": kind, "help": help})


@dataclass(frozen=True)
class NotifySettings:
    """Table ``notify``: notifications about ended runs and prompts."""

    command: tuple[str, ...] = _setting((), "command", "Command to run when a run has ended or needs you")
    bell: bool = _setting(True, "flag", "Ring the terminal's bell")
    terminal: bool = _setting(True, "flag", "Show a notification of the terminal, if supported")
    after: float = _setting(10.0, "seconds", "Runs shorter than this do not notify while you watch")


class UserCommand(NamedTuple):
    """Command of the user, bound to a key of the app.

    Attributes:
        name: Name in the table ``commands``.
        key: The key, not validated.
        words: Program and arguments, with fields such as ``{pool}``.
        background: Whether the command runs without the terminal.
    """

    name: str
    key: str
    words: tuple[str, ...]
    background: bool = False

    def fill(self, values: Mapping[str, str]) -> list[str]:
        """Return the command's words with all fields filled in. The value of a field never becomes several words.

        Raises:
            KeyError: If a field has no value.
        """
        return [word.format_map(values) for word in self.words]


@dataclass(frozen=True)
class UserSettings:
    """Tables ``app``, ``notify``, ``keys``, ``commands`` and ``columns``; invalid values are replaced by defaults.

    Attributes:
        notify: Table ``notify``.
        keys: Keys of the app by action ID, not validated.
        commands: Table ``commands``.
        columns: Names of the metrics and arguments that have columns in the list of runs.
        refused: Messages about rejected values.
    """

    theme: str = _setting("", "theme", "Colour theme, until you choose another one in the palette")
    ascii: bool = _setting(False, "flag", "Use plain ASCII characters only")
    motion: bool = _setting(True, "flag", "Highlight recent changes and scroll lists smoothly")
    memory_of_logs: float = _setting(
        64.0, "megabytes", "Memory for the log lines of a pool, in MB; files keep all lines"
    )
    notify: NotifySettings = NotifySettings()
    keys: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[UserCommand, ...] = ()
    columns: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class UserSetting(NamedTuple):
    """Setting with its full name, such as ``notify.bell``, and its default in TOML notation."""

    name: str
    kind: SettingKind
    default: str | bool | float
    help: str


def _declared(kind: type[Any]) -> Iterator[Any]:
    return (each for each in fields(kind) if each.metadata)


SETTINGS = tuple(
    UserSetting(f"{table}.{each.name}", default="" if each.default == () else each.default, **each.metadata)
    for table, kind in (("app", UserSettings), ("notify", NotifySettings))
    for each in _declared(kind)
)


def load_user_settings() -> UserSettings:
    """Return the settings in the ``skyward.toml`` of the state folder.

    Raises:
        UsageError: If there is no state folder.
    """
    return read_user_settings(state_home() / SETTINGS_FILE, Path(SETTINGS_FILE))


def read_user_settings(own: Path, project: Path) -> UserSettings:
    """Read the user settings. Problems in a file are listed in ``refused``; none prevents the app from starting.

    Args:
        own: The user's file, which may be missing.
        project: File of the working folder, which must not contain settings.
    """
    reader = _SettingsFile(own)
    keys = {name: reader.take(KEYS_TABLE, name, None, str) for name in list(reader.tables[KEYS_TABLE])}
    commands = [
        reader.take(COMMANDS_TABLE, name, None, partial(_parse_user_command, name))
        for name in list(reader.tables[COMMANDS_TABLE])
    ]
    settings = replace(
        reader.take_fields("app", UserSettings),
        keys={name: key for name, key in keys.items() if key is not None},
        notify=reader.take_fields("notify", NotifySettings),
        commands=tuple(filter(None, commands)),
        columns=reader.take("columns", "runs", (), _parse_names),
    )
    for table, rest in reader.tables.items():
        reader.problems.extend(f"{reader.path}: unknown setting {table}.{key}" for key in rest)
    return replace(settings, refused=(*reader.problems, *_user_only_problems(own, project)))


class _SettingsFile:
    """Parser of a settings file, which collects problems instead of raising errors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        found: dict[str, Any] = {}
        if exists(path):
            try:
                found = _read_toml(path)
            except (OSError, ValueError) as error:
                self.problems.append(f"{path} is ignored: {error}")
        self.tables = {name: self._table(name, found.get(name, {})) for name in SETTINGS_TABLES}

    def _table(self, name: str, found: Any) -> dict[str, Any]:
        if isinstance(found, dict):
            return dict(found)
        self.problems.append(f"{self.path}: {name} must be a table, [{name}]")
        return {}

    def take_fields(self, table: str, kind: type[T]) -> T:
        """Return the settings of a table, which are fields of a dataclass."""
        return kind(
            **{
                each.name: self.take(table, each.name, each.default, _PARSERS[each.metadata["kind"]])
                for each in _declared(kind)
            }
        )

    def take(self, table: str, key: str, default: Any, kind: Callable[[Any], Any]) -> Any:
        """Remove a value from its parsed table and return it; the default if the value is missing or invalid."""
        if key not in self.tables[table]:
            return default
        try:
            return parse_value(kind, self.tables[table].pop(key))
        except ValueError as error:
            self.problems.append(f"{self.path}: {table}.{key} is ignored: {error}")
            return default


def parse_value(kind: Callable[[Any], Any], value: Any) -> Any:
    """Convert the value in the file to the value of a setting.

    Raises:
        ValueError: If the value has the wrong type or is invalid.
    """
    if isinstance(kind, type) and not isinstance(value, kind):
        raise ValueError(f"it must be {_KIND_LABELS[kind]}")
    return kind(value)


_KIND_LABELS = {str: "a text in quotes", bool: "true or false"}


def _parse_command(command: Any) -> tuple[str, ...]:
    if not isinstance(command, str):
        raise ValueError("it must be a text in quotes")
    words = shlex.split(command)
    if "\0" in command:
        raise ValueError("it contains a zero byte")
    return tuple(words)


def _parse_names(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, map(str.strip, parse_value(str, names).split(",")))))


def _parse_user_command(name: str, table: Any) -> UserCommand:
    if not isinstance(table, dict) or not {"key", "command"} <= table.keys() <= {"key", "command", "background"}:
        raise ValueError('it must be a table such as {key = "f7", command = "nvitop", background = false}')
    key, background = parse_value(str, table["key"]), parse_value(bool, table.get("background", False))
    if not (words := _parse_command(table["command"])):
        raise ValueError("its command is empty")
    for _, found, spec, conversion in (each for word in words for each in Formatter().parse(word)):
        if found is not None and (found not in COMMAND_FIELDS or spec or conversion):
            known = ", ".join(f"{{{each}}}" for each in COMMAND_FIELDS)
            raise ValueError(f"unknown field {{{found}}}. Known: {known}. Write {{{{ and }}}} for braces")
    return UserCommand(name, key, words, background)


def _parse_number(value: Any, *, least: float, most: float, label: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"it must be a number of {label}")
    return float(value)


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "theme": str, "flag": bool, "command": _parse_command,
    "seconds": partial(_parse_number, least=0, most=sys.float_info.max, label="seconds, 0 or more"),
    "megabytes": partial(_parse_number, least=1, most=MAX_MEGABYTES, label=f"megabytes, from 1 to {MAX_MEGABYTES:,}"),
}  # fmt: skip


def _read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file is too large, or not TOML.
    """
    return parse_toml(read_text(path, most=MAX_SETTINGS_BYTES))


def _user_only_problems(own: Path, project: Path) -> list[str]:
    """Return messages about settings in the working folder's file that only the user's own file may contain."""
    if not is_file(project) or resolve_path(own) == resolve_path(project):
        return []
    try:
        found = _read_toml(project)
    except (OSError, ValueError):
        return []  # the command that reads this file's host groups reports the error
    tables = [f"[{name}]" for name in SETTINGS_TABLES if name in found]
    return [f"{' and '.join(tables)} in {project.absolute()} is ignored. Move it to {own}"] if tables else []


def settings_path() -> Path:
    """Return the path of the user's settings file, which may not exist yet."""
    return state_home() / SETTINGS_FILE


def limit_log_memory(megabytes: float) -> None:
    """Limit the memory for log lines, per pool in this process."""
    from skyward_core.views.log_buffers_and_rank_activity import MemoryBudget

    MemoryBudget.total_bytes = int(megabytes * 1e6)


def user_values() -> dict[str, Any]:
    """Return the values in the user's file by table and name, whether valid or not.

    Raises:
        UsageError: If the file cannot be read or used.
    """
    from skyward_core.client.settings_edits import parse_settings, read_settings_text

    whole = parse_settings(settings_path(), read_settings_text(settings_path()))
    tables = {name: whole.get(name, {}) for name in SETTINGS_TABLES}
    return {
        f"{name}.{key}": value
        for name, table in tables.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }


def change(name: str, value: TomlValue) -> None:
    """Change one setting in the user's file, leaving the rest unchanged.

    Args:
        name: Name of a setting, or ``keys.`` followed by an action ID; the key of an action is not validated.

    Raises:
        UsageError: If the setting does not exist, the value is invalid, or the file cannot be used or changed.
        OSError: If the file cannot be written; the old file stays unchanged.
    """
    table, _, key = name.partition(".")
    if table != KEYS_TABLE:
        setting = next((each for each in SETTINGS if each.name == name), None)
        if setting is None:
            raise UsageError(f"unknown setting {name}")
        with convert_errors(f"invalid value of {name}", UsageError, ValueError):
            parse_value(_PARSERS[setting.kind], value)
    _write_table(table, {key: value})


def reset(name: str) -> None:
    """Remove a setting from the user's file, so that its default applies. Raises errors like :func:`change`."""
    table, _, key = name.partition(".")
    _write_table(table, {}, without=key)


def _write_table(table: str, values: dict[str, TomlValue], without: str = "") -> None:
    from skyward_core.client.settings_edits import read_table, write_table

    text, before = read_table(settings_path(), table)
    after = {key: value for key, value in before.items() if key != without} | values
    if after != before:
        write_table(settings_path(), text, (table,), after)


def load_state(name: str) -> str:
    """Return the text last saved by :func:`save_state` under a name.

    Raises:
        OSError: If no text was saved, or the file cannot be read.
        UnicodeDecodeError: If the file was damaged.
    """
    return read_text(_state_path(name))


def save_state(name: str, text: str) -> None:
    """Save a text in the state folder, in a file that only the user can read. The write is atomic.

    Raises:
        OSError: If the file cannot be written, or another process is writing it.
    """
    # Imported late, because a start of the app only reads this module's keys.
    from skyward_core.util.safe_file_access import write_atomic

    write_atomic(_state_path(name), text.encode())


def _state_path(name: str) -> Path:
    return state_folder.state_home() / f"{name}.json"
