"""Removal of old logs, results, clones and temporary folders."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from skyward_core.model.errors import LedgerError
from skyward_core.node.bootstrap.image_environment import MADE_FILE, open_lock_file
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import is_process_alive
from skyward_core.store.state_folder import (
    ENVIRONMENTS_FOLDER,
    PRUNED_FILE,
    pool_path,
    prune_is_due,
    state_home,
)
from skyward_core.util.user_files import read_own_json

CLONES_FOLDER = "clones"  # a folder below the home
_OWNER_SUFFIX = ".used"  # behind a clone's name: a file beside it that says by whom it is


def make_clone_folder(pool: str = "") -> Path:
    """An empty folder for one, which is there as long as this process, or the pool.

    Args:
        pool: key of the pool whose ranks work in it, or are sent it; "" for one that is still to be made, whose spec
            names the folder.

    Raises:
        OSError: it cannot be made.
    """
    folder = state_home() / CLONES_FOLDER / secrets.token_hex(8)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.with_suffix(_OWNER_SUFFIX).write_text(json.dumps({"pid": os.getpid(), "pool": pool}), encoding="utf-8")
    folder.mkdir(mode=0o700)
    return folder


def remove_clone(folder: Path) -> None:
    """Nobody needs it any more."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(_OWNER_SUFFIX).unlink(missing_ok=True)


MAX_AGE = 90 * 86400.0  # seconds since its end after which a pool's files go by themselves
MAX_TOTAL_BYTES = 20 * 10**9  # bytes of such pools together above which the oldest go
STAT_BLOCK_BYTES = 512  # bytes that stat counts in


@dataclass(frozen=True, slots=True)
class PrunedPool:
    """A pool of which nothing is left here: its name, when it had ended (Unix time), and bytes of its files."""

    pool: str
    ended_at: float
    size: int


def prune_pools(
    ledger: Ledger, *, age: float = MAX_AGE, most: float = MAX_TOTAL_BYTES, only_look: bool = False
) -> list[PrunedPool]:
    """Remove what the client keeps of pools that have ended: those that did so long ago, and the oldest of the others
    until what is left of all of them is not too large. What hosts keep that nobody has fetched stays, until its time
    there is over.

    Args:
        age: seconds since a pool's end.
        most: bytes.
        only_look: remove nothing, and tell what would go.
    """
    now = time.time()
    for kept in ledger.retained_results():
        if kept.until < now and not only_look:
            ledger.remove_retained(kept)
    waiting = {kept.token for kept in ledger.retained_results()}
    ended = ledger.ended_pools(limit=-1)
    found = sorted((row.ended_at or 0.0, row.token, row) for row in ended if row.token not in waiting)
    sizes = {row.token: _disk_usage(pool_path(row.key)) for _, _, row in found}
    left = sum(sizes.values())
    gone = []
    for ended_at, token, row in found:
        if now - ended_at < age and left <= most:
            break
        left -= sizes[token]
        gone.append(PrunedPool(row.name, ended_at, sizes[token]))
        if not only_look:
            shutil.rmtree(pool_path(row.key), ignore_errors=True)
            ledger.delete_pool(token)
    return gone


@dataclass(frozen=True, slots=True)
class PrunedEnvironment:
    """An environment that is here no more: its folder's name, when it was last used (Unix time), and its bytes."""

    folder: str
    used_at: float
    size: int


def prune_environments(ledger: Ledger, *, age: float = MAX_AGE, only_look: bool = False) -> list[PrunedEnvironment]:
    """Remove environments of images that no pool has begun to use for long, but for those that a pool which is up may
    use, or that somebody is just making.

    Args:
        age: seconds since an environment was last asked for.
        only_look: remove nothing, and tell what would go.
    """
    before = min([time.time() - age, *(row.created_at for row in ledger.live_pools())])
    gone = []
    for folder in sorted((state_home() / ENVIRONMENTS_FOLDER).glob("env-*/")):
        if folder.is_symlink() or _last_used_at(folder) >= before:
            continue  # a link is none of ours: somebody keeps it elsewhere
        with open_lock_file(folder) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            used_at = _last_used_at(folder)  # again: until now somebody may have taken it, or removed it
            if used_at >= before:
                continue
            gone.append(PrunedEnvironment(folder.name, used_at, _disk_usage(folder)))
            if not only_look:
                (folder / MADE_FILE).unlink(missing_ok=True)  # first: what is half gone is nobody's environment
                shutil.rmtree(folder, ignore_errors=True)
    return gone


def _last_used_at(folder: Path) -> float:
    """When an environment was last used, or one that is half made was begun; never where it is gone by now."""
    for path in (folder / MADE_FILE, folder):
        with suppress(FileNotFoundError):
            return path.stat().st_mtime
    return inf


def prune_clones(ledger: Ledger, *, only_look: bool = False) -> list[tuple[str, int]]:
    """Remove clones of repositories that no pool uses any more, and no process that lives has made; gives the folder's
    name and bytes of each.

    Args:
        only_look: remove nothing, and tell what would go.
    """
    live = ledger.live_pools()
    keys = {row.key for row in live}
    named = json.dumps([row.spec for row in live])
    gone = []
    for mark in sorted((state_home() / CLONES_FOLDER).glob(f"*{_OWNER_SUFFIX}")):
        folder = mark.with_suffix("")
        used: dict[str, Any] = {"pid": 0, "pool": ""}
        with suppress(OSError, ValueError):  # a client that was killed as it wrote it had no pool yet
            used |= read_own_json(mark) or {}
        if is_process_alive(int(used["pid"])) or used["pool"] in keys or folder.name in named:
            continue
        gone.append((folder.name, _disk_usage(folder)))
        if not only_look:
            remove_clone(folder)
    return gone


def prune_when_due(ledger: Ledger) -> None:
    """Do so once a day, with the limits that hold where nobody gives others. Nobody waits for it: what cannot be done
    today (a ledger that another process holds, a full disk) is for the next day."""
    with suppress(LedgerError, OSError):
        if prune_is_due():
            (state_home() / PRUNED_FILE).touch()
            prune_pools(ledger)
            prune_environments(ledger)
            prune_clones(ledger)


def _disk_usage(folder: Path) -> int:
    """Bytes that a folder takes of the disk: a file that a node wrote to far behind its end is mostly hole."""
    found = (path.lstat() for path in folder.rglob("*") if path.is_file())
    return sum(min(each.st_size, each.st_blocks * STAT_BLOCK_BYTES) for each in found)


TASKS_FOLDER = "tasks"
"""Where what goes to nodes is before it does."""


@contextmanager
def temporary_folder(base: str) -> Iterator[Path]:
    """Have one, as of :func:`begin`, until the block is left."""
    folder = make_process_folder(base)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_process_folder(base: str) -> Path:
    """A new one of this process, below a folder of the home, which nobody else may look into.

    Raises:
        UsageError: there is no home.
        OSError: it cannot be made.
    """
    folder = state_home() / base
    folder.mkdir(mode=0o700, exist_ok=True)
    remove_dead_folders(base)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder))


def remove_dead_folders(base: str) -> None:
    """Remove what processes have left there that were killed.

    Raises:
        UsageError: there is no home.
        OSError: it cannot be looked at.
    """
    folder = state_home() / base
    for left in folder.iterdir() if folder.is_dir() else ():
        owner = left.name.partition("-")[0]
        if owner.isdecimal() and not is_process_alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
