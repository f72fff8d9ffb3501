"""Files of sweeps on the client: trial sheets, locks of sweeps that are continued, and marks of finished sweeps."""

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

from skyward_core.store.ledger_rows import RUN_ID, is_process_alive
from skyward_core.store.state_folder import ensure_pool_folder, pool_path
from skyward_core.util.safe_file_access import read_own_json, try_lock, write_atomic
from skyward_core.views.sweep_argument_combinations import TrialSheet

TRIALS_FOLDER = "trials"


def save_trials(pool: str, run: str, sheet: TrialSheet) -> None:
    """Save the trial sheet of a run before the run begins.

    Args:
        pool: Key of the pool.
        run: Id of the run.
        sheet: The trial sheet.

    Raises:
        OSError: If the file cannot be written.
    """
    write_atomic(_trials_folder(pool) / f"{run}.json", json.dumps(sheet.to_json()).encode())
    if sheet.after is not None:
        before, sweep = sheet.after
        write_atomic(_trials_folder(before) / f"{sweep}.next", json.dumps([pool, run]).encode())


def save_sweep_part(pool: str, run: str, sweep: str) -> None:
    """Record that a run belongs to a sweep by gangs, before the run begins.

    Args:
        pool: Key of the pool.
        run: Id of the run.
        sweep: Id of the sweep and of its sheet.

    Raises:
        OSError: If the file cannot be written.
    """
    if run != sweep:
        write_atomic(_trials_folder(pool) / f"{run}.json", json.dumps({"of": sweep}).encode())


def mark_sweep_finished(pool: str, sweep: str) -> None:
    """Record that a sweep by gangs starts no more runs.

    Raises:
        OSError: If the file cannot be written.
    """
    (_trials_folder(pool) / f"{sweep}.over").touch()


def is_sweep_active(pool: str, sheet: TrialSheet) -> bool:
    """Check whether a sweep by gangs may start more runs: its client is running and has not finished the sweep.

    Args:
        pool: Key of the pool.
        sheet: Trial sheet of the sweep.
    """
    return not (pool_path(pool) / TRIALS_FOLDER / f"{sheet.name}.over").exists() and is_process_alive(sheet.client)


class SweepLocked(Exception):
    """Another process of this machine continues the sweep. The message names the process and its start time."""


@contextmanager
def lock_sweep(pool: str, sweep: str) -> Iterator[None]:
    """Acquire the exclusive right to run the missing trials of a sweep. The lock is also released if the process dies.

    Args:
        pool: Key of the pool.
        sweep: Run whose sheet describes the sweep.

    Raises:
        SweepLocked: If another process has the lock.
        OSError: If the lock file cannot be written.
    """
    path = pool_path(pool) / TRIALS_FOLDER / f"{sweep}.claim"
    with _open_lock_file(path) as file:
        # A process that does not get the lock reads the owner's name from the lock file. The second lock (".turn") is
        # held until the owner has written its name.
        with _open_lock_file(path.with_suffix(".turn")) as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if not try_lock(file):
                raise SweepLocked(file.read(100))
            file.truncate()
            file.write(f"another client (process {os.getpid()}, since {time.strftime('%H:%M:%S')})")
            file.flush()
        yield


def _open_lock_file(path: Path) -> IO[str]:
    """Open a lock file for reading and writing. Create it if necessary; it is never deleted."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+", encoding="utf-8")


def resumed_by(pool: str, sweep: str) -> tuple[str, str] | None:
    """Return the run that continues a sweep, as the key of its pool and its id. None if no run continues the sweep.

    Args:
        pool: Key of the sweep's pool.
        sweep: Run whose sheet describes the sweep.

    Raises:
        OSError, ValueError: If the file cannot be read.
    """
    saved = read_own_json(pool_path(pool) / TRIALS_FOLDER / f"{sweep}.next")
    if saved is None:
        return None
    if not (isinstance(saved, list) and len(saved) == 2 and all(isinstance(each, str) for each in saved)):
        raise ValueError("it does not name a run")
    return saved[0], saved[1]


def _trials_folder(pool: str) -> Path:
    folder = ensure_pool_folder(pool) / TRIALS_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def read_trials(pool: str, run: str) -> TrialSheet | None:
    """Return the trial sheet of a run, or None.

    Raises:
        OSError, ValueError: If the file cannot be read.
    """
    data = _read_trials_json(pool, run)
    if isinstance(data, dict) and isinstance(sweep := data.get("of"), str) and RUN_ID.fullmatch(sweep):
        data = _read_trials_json(pool, sweep)
    if data is None:
        return None
    sheet = TrialSheet.from_json(data)
    # Earlier releases saved one sheet per run of a sweep by gangs, which does not name its run.
    if sheet.gang and not sheet.runs and sheet.tasks:
        sheet = replace(sheet, runs={sheet.tasks[0]: run})
    return sheet


def read_all_trials(pool: str) -> Iterator[tuple[str, TrialSheet]]:
    """Yield all readable trial sheets of a pool, each with its run.

    Args:
        pool: Key of the pool.
    """
    for path in sorted((pool_path(pool) / TRIALS_FOLDER).glob("*.json")):
        with suppress(OSError, ValueError):
            data = _read_trials_json(pool, path.stem)
            if isinstance(data, dict) and "of" not in data:
                yield path.stem, TrialSheet.from_json(data)


def _read_trials_json(pool: str, run: str) -> Any:
    return read_own_json(pool_path(pool) / TRIALS_FOLDER / f"{run}.json")
