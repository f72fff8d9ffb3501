"""What was asked for when a run was launched, kept beside the logs of its pool: a file for each run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .home import pool_path
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


def kept(pool: str, run: str) -> dict[str, Any] | None:
    """What was kept of a run; None where nothing is.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    try:
        text = _file(pool_path(pool) / FOLDER, run).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no launch")
    return found


def _file(folder: Path, run: str) -> Path:
    return folder / f"{run}.json"
