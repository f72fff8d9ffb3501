"""Tables ``[presets.NAME]`` of ``skyward.toml``, in the working folder and in the home; the former's come first."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..model.errors import UsageError
from ..node.boot.host import doubt
from .edited_toml import TomlValue, with_table, without_table
from .home import home
from .whole_file import write_whole

TABLE = "presets"
FILE = "skyward.toml"
MOST = 1_000_000  # bytes of a file that a person wrote


def read() -> dict[str, tuple[Path, Any]]:
    """What is under each name, and in which file.

    Raises:
        UsageError: a file cannot be read or used, or somebody else could have written it.
    """
    found: dict[str, tuple[Path, Any]] = {}
    for path in (home() / FILE, Path(FILE).absolute()):
        table = _parsed(path, _text(path)).get(TABLE, {})
        if not isinstance(table, dict):
            raise UsageError(f"{path}: presets is no table; write each as [presets.NAME]")
        found |= {name: (path, entry) for name, entry in table.items()}
    return dict(sorted(found.items()))


def save(name: str, values: Mapping[str, TomlValue]) -> Path:
    """Write a preset into the working folder's file, in place of one of that name; gives its path.

    Raises:
        UsageError: the file cannot be used, or somebody else could have written it, or that table is written in a way
            that cannot be changed.
        OSError: it cannot be written; it is as it was.
    """
    path = Path(FILE).absolute()
    text = _text(path)
    _parsed(path, text)
    _write(path, text, with_table(text, (TABLE, name), values))
    return path


def delete(name: str, path: Path) -> None:
    """Take a preset out of a file.

    Raises:
        UsageError: as :func:`save`.
        OSError: as :func:`save`.
    """
    text = _text(path)
    _parsed(path, text)
    _write(path, text, without_table(text, (TABLE, name)))


def _text(path: Path) -> str:
    """What a file holds; nothing where there is none."""
    if why := doubt(str(path)):
        raise UsageError(f"{path} is not believed: {why}. Work in a folder of your own")
    try:
        with path.open("rb") as file:
            data = file.read(MOST + 1)
        if len(data) > MOST:
            raise UsageError(f"{path} is longer than {MOST:,} bytes, and is not read")
        return data.decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} does not parse: {error}") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} does not parse: {error}") from error


def _write(path: Path, before: str, text: str) -> None:
    """Put it in the file's place, where that still is what was read; a link stays one."""
    if _text(path) != before:
        raise UsageError(f"{path} was just changed by somebody else: try again")
    target = path.resolve()
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666
    write_whole(target, text.encode(), mode=mode)
