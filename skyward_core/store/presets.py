"""Tables ``[presets.NAME]`` of ``skyward.toml``, in the working folder and in the home; the former's come first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..model.errors import UsageError
from .edited_toml import TomlValue, with_table, without_table
from .home import home
from .toml_file import FILE, parsed, put_text, text_of
from .working_folder import here, in_current

TABLE = "presets"


def read() -> dict[str, tuple[Path, Any]]:
    """What is under each name, and in which file.

    Raises:
        UsageError: a file cannot be read or used, or somebody else could have written it.
    """
    found: dict[str, tuple[Path, Any]] = {}
    for path in (home() / FILE, *in_current(FILE)):
        table = parsed(path, text_of(path)).get(TABLE, {})
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
    path = here() / FILE
    text = text_of(path)
    parsed(path, text)
    put_text(path, text, with_table(text, (TABLE, name), values))
    return path


def delete(name: str, path: Path) -> None:
    """Take a preset out of a file.

    Raises:
        UsageError: as :func:`save`.
        OSError: as :func:`save`.
    """
    text = text_of(path)
    parsed(path, text)
    put_text(path, text, without_table(text, (TABLE, name)))
