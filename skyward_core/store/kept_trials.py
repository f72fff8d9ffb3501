"""Sheets of trials (``views.trial_sheet``), kept beside the logs of the pool: a file for each run that is a sweep.

Of a sweep by gangs, of which each trial is a run, the first one's is the sheet, and those of the others name that.

Where a run goes on with what a sweep has no results of, that is kept beside the sweep's sheet before it begins: of
several processes that want to, one at a time may (:func:`claimed`), and the next one sees what went before it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ..views.trial_sheet import TrialSheet
from .home import pool_dir, pool_path
from .ledger_rows import RUN, process_lives
from .user_files import MOST_OF_OURS, json_of, read_text
from .whole_file import write_whole

FOLDER = "trials"


def keep(pool: str, run: str, sheet: TrialSheet) -> None:
    """Keep the sheet of a run, before that begins.

    Args:
        pool: its key.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(_folder(pool) / f"{run}.json", json.dumps(sheet.to_json()).encode())
    if sheet.after is not None:
        before, sweep = sheet.after
        write_whole(_folder(before) / f"{sweep}.next", json.dumps([pool, run]).encode())


def keep_part(pool: str, run: str, sweep: str) -> None:
    """Keep that a run is one of a sweep by gangs, before it begins.

    Args:
        pool: its key.
        sweep: what that is called, and its sheet.

    Raises:
        OSError: it cannot be written.
    """
    if run != sweep:
        write_whole(_folder(pool) / f"{run}.json", json.dumps({"of": sweep}).encode())


def over(pool: str, sweep: str) -> None:
    """A sweep by gangs begins no more runs.

    Raises:
        OSError: it cannot be written.
    """
    (_folder(pool) / f"{sweep}.over").touch()


def goes_on(pool: str, sheet: TrialSheet) -> bool:
    """Whether runs of a sweep by gangs may still be begun: its client is there, and has not done with it.

    Args:
        pool: its key.
    """
    marked = (pool_path(pool) / FOLDER / f"{sheet.name}.over").exists()
    return not marked and process_lives(sheet.client)


class Claimed(Exception):
    """Another process of this machine has it; says which, and since when, in words."""


@contextmanager
def claimed(pool: str, sweep: str) -> Iterator[None]:
    """Have what is missing of a sweep alone: until then, or the end of this process, however it ends.

    Args:
        pool: its key.
        sweep: the run that its sheet is kept under.

    Raises:
        Claimed: another process has it.
        OSError: it cannot be written.
    """
    path = pool_path(pool) / FOLDER / f"{sweep}.claim"
    with _for_locks(path) as file:
        # A process that finds the claim locked reads its owner's name. The turn ends once that name is written.
        with _for_locks(path.with_suffix(".turn")) as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Claimed(file.read(100)) from None
            file.truncate()
            file.write(f"another client (process {os.getpid()}, since {time.strftime('%H:%M:%S')})")
            file.flush()
        yield


def _for_locks(path: Path) -> IO[str]:
    """Open a file that stays, to lock it and to read or write it."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+", encoding="utf-8")


def gone_on_by(pool: str, sweep: str) -> tuple[str, str] | None:
    """The run that was to go on with a sweep, and may have begun: the key of its pool, and its id; None for none.

    Args:
        pool: the key of the sweep's.
        sweep: the run that its sheet is kept under.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    try:
        told = json_of(read_text(pool_path(pool) / FOLDER / f"{sweep}.next"))
    except FileNotFoundError:
        return None
    if not (isinstance(told, list) and len(told) == 2 and all(isinstance(each, str) for each in told)):
        raise ValueError("it is no run")
    return told[0], told[1]


def _folder(pool: str) -> Path:
    folder = pool_dir(pool) / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def kept(pool: str, run: str) -> TrialSheet | None:
    """The sheet of a run; None where none is kept.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    data = _read(pool, run)
    if isinstance(data, dict) and isinstance(sweep := data.get("of"), str) and RUN.fullmatch(sweep):
        data = _read(pool, sweep)
    if data is None:
        return None
    sheet = TrialSheet.from_json(data)
    if sheet.gang and not sheet.runs and sheet.tasks:  # of an earlier release, which kept a sheet of each run
        sheet = replace(sheet, runs={sheet.tasks[0]: run})
    return sheet


def all_kept(pool: str) -> Iterator[tuple[str, TrialSheet]]:
    """All sheets of a pool that can be read, each with the run that it is kept under.

    Args:
        pool: its key.
    """
    for path in sorted((pool_path(pool) / FOLDER).glob("*.json")):
        with suppress(OSError, ValueError):
            data = _read(pool, path.stem)
            if isinstance(data, dict) and "of" not in data:
                yield path.stem, TrialSheet.from_json(data)


def _read(pool: str, run: str) -> Any:
    try:
        text = read_text(pool_path(pool) / FOLDER / f"{run}.json", most=MOST_OF_OURS)
    except FileNotFoundError:
        return None
    return json_of(text)
