"""What was asked for when a run was launched, kept beside the logs of its pool: a file for each run, and one with what
differed from the script's commit."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from .home import pool_path
from .user_files import MOST_OF_OURS, json_of, read_bytes, read_text
from .whole_file import write_whole

FOLDER = "launches"


def keep(pool: str, run: str, launch: dict[str, Any]) -> None:
    """Keep what a run was asked for with.

    Args:
        pool: its key; a pool of which nothing is kept any more is passed by.

    Raises:
        OSError: it cannot be written.
    """
    folder = pool_path(pool)
    if not folder.is_dir():
        return
    launches = folder / FOLDER
    launches.mkdir(mode=0o700, exist_ok=True)
    write_whole(_file(launches, run), json.dumps(launch).encode())


def keep_diff(pool: str, run: str, diff: bytes) -> None:
    """Keep a patch beside it, which is yours alone.

    Raises:
        OSError: it cannot be written.
    """
    if (pool_path(pool) / FOLDER).is_dir():
        write_whole(diff_path(pool, run), diff)


def diff_path(pool: str, run: str) -> Path:
    """Where the patch is, where there is one."""
    return pool_path(pool) / FOLDER / f"{run}.diff"


def diff(pool: str, run: str) -> bytes:
    """The patch; nothing where there is none.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return read_bytes(diff_path(pool, run))
    except FileNotFoundError:
        return b""


def forget(pool: str, run: str) -> None:
    """A run that was to be launched never was."""
    with suppress(OSError):
        _file(pool_path(pool) / FOLDER, run).unlink(missing_ok=True)


def kept(pool: str, run: str) -> dict[str, Any] | None:
    """What was kept of a run; None where nothing is.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    try:
        text = read_text(_file(pool_path(pool) / FOLDER, run), most=MOST_OF_OURS)
    except FileNotFoundError:
        return None
    found = json_of(text)
    if not isinstance(found, dict):
        raise ValueError("it is no launch")
    return found


def _file(folder: Path, run: str) -> Path:
    return folder / f"{run}.json"
