"""Sheets of trials (``views.trial_sheet``), kept beside the logs of the pool: a file for each run that is a sweep."""

from __future__ import annotations

import json

from ..views.trial_sheet import TrialSheet
from .home import pool_dir, pool_path
from .whole_file import write_whole

FOLDER = "trials"


def keep(pool: str, run: str, sheet: TrialSheet) -> None:
    """Keep the sheet of a run, before that begins.

    Args:
        pool: its key.

    Raises:
        OSError: it cannot be written.
    """
    folder = pool_dir(pool) / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    write_whole(folder / f"{run}.json", json.dumps(sheet.to_json()).encode())


def kept(pool: str, run: str) -> TrialSheet | None:
    """The sheet of a run; None where none is kept.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    try:
        text = (pool_path(pool) / FOLDER / f"{run}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return TrialSheet.from_json(json.loads(text))
