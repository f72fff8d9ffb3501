"""What a person has set for themselves in the ``skyward.toml`` of their home: how the app looks, its keys, what calls
them. A project's file, which somebody else may have written, has no say in that: what is set here runs a command
of the person's, and says which key accepts what.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from skyward_core.store.state_folder import SETTINGS_FILE, state_home
from skyward_core.util.user_files import (
    MAX_SETTINGS_BYTES,
    exists,
    is_file,
    parse_toml,
    read_text,
    resolve_path,
)

KEYS_TABLE = "keys"  # the table of the app's keys, which knows what they may be
SETTINGS_TABLES = ("app", KEYS_TABLE, "notify")
MAX_MEGABYTES = 64_000


class UserSetting(NamedTuple):
    """One thing that a person may set.

    Attributes:
        name: its table and its name in there.
        kind: "theme" is a theme's name, "flag" true or false, "command" the words of one, "seconds" and "megabytes" a
            number of them.
        default: what holds where nothing is set.
        help: what it does, in a sentence.
    """

    name: str
    kind: Literal["theme", "flag", "command", "seconds", "megabytes"]
    default: str | bool | float
    help: str


SETTINGS = (
    UserSetting(
        "app.theme",
        "theme",
        "",
        "The app's colours; what is chosen in the palette holds until this changes",
    ),
    UserSetting("app.ascii", "flag", False, "Paint plain ASCII, and nothing else"),
    UserSetting("app.motion", "flag", True, "What has just changed stands out for a moment, and lists scroll smoothly"),
    UserSetting(
        "app.memory_of_logs",
        "megabytes",
        64.0,
        "What lines of a pool's logs may take in memory; files hold all",
    ),
    UserSetting("notify.command", "command", "", "A command of yours that is run when a run has ended, or needs you"),
    UserSetting("notify.bell", "flag", True, "Ring the terminal's bell then"),
    UserSetting("notify.terminal", "flag", True, "Have the terminal show a notification then, where it knows that"),
    UserSetting("notify.after", "seconds", 10.0, "What took no longer is not told to who looks at the terminal"),
)


class NotifySettings(NamedTuple):
    """How a person hears that a run has ended, or needs them.

    Attributes:
        command: the words of a command; none for no command.
        bell: whether the terminal's bell rings.
        terminal: whether the terminal is asked to show a notification (OSC 9).
        after: seconds; what took no longer is not told to who looks at the terminal.
    """

    command: tuple[str, ...] = ()
    bell: bool = True
    terminal: bool = True
    after: float = 10.0


class UserSettings(NamedTuple):
    """What holds; for what cannot be used, the default.

    Attributes:
        theme: the name of the app's theme; "" for its own.
        ascii: whether the app is to paint nothing but plain ASCII.
        keys: keys of the app by the name of what they do; nobody has looked at them yet.
        notify: how the person is notified.
        refused: what is not used of the files, and why, in words; text of others.
        motion: whether what changes may stand out for a moment, and lists scroll smoothly.
        memory_of_logs: megabytes (10^6) that the lines of a pool's logs may take in the app; files hold them all.
    """

    theme: str = ""
    ascii: bool = False
    keys: Mapping[str, str] = MappingProxyType({})
    notify: NotifySettings = NotifySettings()
    refused: tuple[str, ...] = ()
    motion: bool = True
    memory_of_logs: float = 64.0


def load_user_settings() -> UserSettings:
    """Return what the user has set in the ``skyward.toml`` of the home alone.

    Raises:
        UsageError: There is no home.
    """
    return read_user_settings(state_home() / SETTINGS_FILE, Path(SETTINGS_FILE))


def read_user_settings(own: Path, project: Path) -> UserSettings:
    """Read them. Whatever is wrong with a file is told in ``refused`` and keeps nothing from starting.

    Args:
        own: the person's file; there may be none.
        project: a folder's file, of which is told what it cannot say.
    """
    reader = _SettingsFile(own)
    tables = {name: reader.table(name) for name in SETTINGS_TABLES}
    held = {
        each.name: reader.take(tables[each.name.partition(".")[0]], each.name, each.default, _PARSERS[each.kind])
        for each in SETTINGS
    }
    settings = UserSettings(
        theme=held["app.theme"],
        ascii=held["app.ascii"],
        motion=held["app.motion"],
        memory_of_logs=held["app.memory_of_logs"],
        keys={
            name: reader.take(tables[KEYS_TABLE], f"{KEYS_TABLE}.{name}", None, str)
            for name in list(tables[KEYS_TABLE])
        },
        notify=NotifySettings(
            command=held["notify.command"] or (),
            bell=held["notify.bell"],
            terminal=held["notify.terminal"],
            after=held["notify.after"],
        ),
    )
    reader.reject_unknown(tables)
    keys = {name: key for name, key in settings.keys.items() if key is not None}
    return settings._replace(keys=keys, refused=(*reader.problems, *_user_only_problems(own, project)))


class _SettingsFile:
    """One file, and what was wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self._found: dict[str, Any] = {}
        if exists(path):
            try:
                self._found = _read_toml(path)
            except (OSError, ValueError) as error:
                self.problems.append(f"{path} is not used: {error}")

    def table(self, name: str) -> dict[str, Any]:
        found = self._found.get(name, {})
        if isinstance(found, dict):
            return dict(found)
        self.problems.append(f"{self.path}: {name} has to be a table, [{name}]")
        return {}

    def take(self, table: dict[str, Any], name: str, default: Any, kind: Callable[[Any], Any]) -> Any:
        """Take a value out of a table; the default where it is not there, or is none of that kind."""
        key = name.partition(".")[2]
        if key not in table:
            return default
        value = table.pop(key)
        try:
            return parse_value(kind, value)
        except ValueError as error:
            self.problems.append(f"{self.path}: {name} is not used: {error}")
            return default

    def reject_unknown(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Name what nobody has taken."""
        for name, rest in tables.items():
            self.problems.extend(f"{self.path}: there is no setting {name}.{key}" for key in rest)


def parse_value(kind: Callable[[Any], Any], value: Any) -> Any:
    """A value as it is used.

    Raises:
        ValueError: it is none of that kind.
    """
    if isinstance(kind, type) and not isinstance(value, kind):
        raise ValueError(f"it has to be {_KIND_LABELS[kind]}")
    return kind(value)


_KIND_LABELS = {str: "a text in quotes", bool: "true or false"}


def _parse_command(command: Any) -> tuple[str, ...]:
    if not isinstance(command, str):
        raise ValueError("it has to be a text in quotes")
    words = shlex.split(command)
    if "\0" in command:
        raise ValueError("it holds a character that no command can")
    return tuple(words)


def _parse_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value >= 0):
        raise ValueError("it has to be a number of seconds, 0 or more")
    return float(value)


def _parse_megabytes(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_MEGABYTES:
        raise ValueError(f"it has to be a number of megabytes, from 1 to {MAX_MEGABYTES:,}")
    return float(value)


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "theme": str, "flag": bool, "command": _parse_command, "seconds": _parse_seconds,
    "megabytes": _parse_megabytes,
}  # fmt: skip


def validate(setting: UserSetting, value: Any) -> None:
    """See whether a setting may be this.

    Raises:
        ValueError: it may not.
    """
    parse_value(_PARSERS[setting.kind], value)


def _read_toml(path: Path) -> dict[str, Any]:
    """What a file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or no TOML.
    """
    return parse_toml(read_text(path, most=MAX_SETTINGS_BYTES))


def _user_only_problems(own: Path, project: Path) -> list[str]:
    """What a folder's file says that only the person may say."""
    if not is_file(project) or resolve_path(own) == resolve_path(project):
        return []
    try:
        found = _read_toml(project)
    except (OSError, ValueError):
        return []  # who wants hosts of it is told
    said = [f"[{name}]" for name in SETTINGS_TABLES if name in found]
    if not said:
        return []
    return [f"{' and '.join(said)} of {project.absolute()} is not used: that is taken from {own} alone"]
