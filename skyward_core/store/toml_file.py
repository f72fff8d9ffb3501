"""A ``skyward.toml`` as text: read where nobody else could have written it, and written in its place as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..model.errors import UsageError
from ..node.boot.host import doubt
from .user_files import MOST_BY_HAND, exists, read_bytes, resolved, toml_of
from .whole_file import write_whole

FILE = "skyward.toml"


def text_of(path: Path) -> str:
    """What a file holds; nothing where there is none.

    Raises:
        UsageError: it cannot be read, or somebody else could have written it.
    """
    if why := doubt(str(path)):
        raise UsageError(f"{path} is not believed: {why}. Work in a folder of your own")
    try:
        return read_bytes(path, MOST_BY_HAND).decode()  # its ends of lines stay
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} does not parse: {error}") from error


def parsed(path: Path, text: str) -> dict[str, Any]:
    """What a text says.

    Raises:
        UsageError: it is no TOML; names the file.
    """
    try:
        return toml_of(text)
    except ValueError as error:
        raise UsageError(f"{path} does not parse: {error}") from error


def put_text(path: Path, before: str, text: str) -> None:
    """Put a text in the file's place, where that still is what was read; a link stays one.

    Raises:
        UsageError: somebody has changed it since.
        OSError: it cannot be written; it is as it was.
    """
    if text_of(path) != before:
        raise UsageError(f"{path} was just changed by somebody else: try again")
    target = resolved(path)
    mode = target.stat().st_mode & 0o777 if exists(target) else 0o666
    write_whole(target, text.encode(), mode=mode)
