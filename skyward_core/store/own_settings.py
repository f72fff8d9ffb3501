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
from typing import Any, NamedTuple

TABLES = ("app", "keys", "notify")
MOST = 1 << 20  # bytes of a file


class Notify(NamedTuple):
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


class OwnSettings(NamedTuple):
    """What holds; for what cannot be used, the default.

    Attributes:
        theme: the name of the app's theme; "" for its own.
        ascii: whether the app is to paint nothing but plain ASCII.
        keys: keys of the app by the name of what they do; nobody has looked at them yet.
        notify: how the person is notified.
        refused: what is not used of the files, and why, in words; text of others.
        motion: whether what changes may stand out for a moment, and lists scroll smoothly.
    """

    theme: str = ""
    ascii: bool = False
    keys: Mapping[str, str] = MappingProxyType({})
    notify: Notify = Notify()
    refused: tuple[str, ...] = ()
    motion: bool = True


def read_own(own: Path, project: Path) -> OwnSettings:
    """Read them. Whatever is wrong with a file is told in ``refused`` and keeps nothing from starting.

    Args:
        own: the person's file; there may be none.
        project: a folder's file, of which is told what it cannot say.
    """
    reader = _SettingsFile(own)
    tables = {name: reader.table(name) for name in TABLES}
    settings = OwnSettings(
        theme=reader.taken(tables["app"], "app.theme", "", str),
        ascii=reader.taken(tables["app"], "app.ascii", False, bool),
        motion=reader.taken(tables["app"], "app.motion", True, bool),
        keys={name: reader.taken(tables["keys"], f"keys.{name}", None, str) for name in list(tables["keys"])},
        notify=Notify(
            command=reader.taken(tables["notify"], "notify.command", (), _words),
            bell=reader.taken(tables["notify"], "notify.bell", True, bool),
            terminal=reader.taken(tables["notify"], "notify.terminal", True, bool),
            after=reader.taken(tables["notify"], "notify.after", 10.0, _seconds),
        ),
    )
    reader.refuse_the_rest(tables)
    keys = {name: key for name, key in settings.keys.items() if key is not None}
    return settings._replace(keys=keys, refused=(*reader.refused, *_not_for_projects(own, project)))


class _SettingsFile:
    """One file, and what was wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refused: list[str] = []
        self._found: dict[str, Any] = {}
        if path.exists():
            try:
                self._found = _parsed(path)
            except (OSError, ValueError) as error:
                self.refused.append(f"{path} is not used: {error}")

    def table(self, name: str) -> dict[str, Any]:
        found = self._found.get(name, {})
        if isinstance(found, dict):
            return dict(found)
        self.refused.append(f"{self.path}: {name} has to be a table, [{name}]")
        return {}

    def taken(self, table: dict[str, Any], name: str, default: Any, kind: Callable[[Any], Any]) -> Any:
        """Take a value out of a table; the default where it is not there, or is none of that kind."""
        key = name.partition(".")[2]
        if key not in table:
            return default
        value = table.pop(key)
        try:
            if isinstance(kind, type) and not isinstance(value, kind):
                raise ValueError(f"it has to be {_KINDS[kind]}")
            return kind(value)
        except ValueError as error:
            self.refused.append(f"{self.path}: {name} is not used: {error}")
            return default

    def refuse_the_rest(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Name what nobody has taken."""
        for name, rest in tables.items():
            self.refused.extend(f"{self.path}: there is no setting {name}.{key}" for key in rest)


_KINDS = {str: "a text in quotes", bool: "true or false"}


def _words(command: Any) -> tuple[str, ...]:
    if not isinstance(command, str):
        raise ValueError("it has to be a text in quotes")
    words = shlex.split(command)
    if "\0" in command:
        raise ValueError("it holds a character that no command can")
    return tuple(words)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value >= 0):
        raise ValueError("it has to be a number of seconds, 0 or more")
    return float(value)


def _parsed(path: Path) -> dict[str, Any]:
    """What a file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or no TOML.
    """
    import tomllib  # late: the app reads these while it starts, and most people have set nothing

    with open(path, "rb") as file:
        data = file.read(MOST + 1)
    if len(data) > MOST:
        raise ValueError(f"it has more than {MOST:,} bytes")
    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _not_for_projects(own: Path, project: Path) -> list[str]:
    """What a folder's file says that only the person may say."""
    if not project.is_file() or (own.exists() and own.samefile(project)):
        return []
    try:
        found = _parsed(project)
    except (OSError, ValueError):
        return []  # who wants hosts of it is told
    said = [f"[{name}]" for name in TABLES if name in found]
    if not said:
        return []
    return [f"{' and '.join(said)} of {project.absolute()} is not used: that is taken from {own} alone"]
