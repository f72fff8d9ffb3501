"""Deletion of old pool folders, environments, repository clones and temporary folders."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from skyward_core.model.errors import LedgerError
from skyward_core.node.bootstrap.image_environment import MADE_FILE, open_lock_file
from skyward_core.store import state_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, is_process_alive, process_mark
from skyward_core.util.safe_file_access import read_own_json, try_lock

CLONES_FOLDER = "clones"  # subfolder of the state folder for clones of git repositories
_OWNER_SUFFIX = ".used"  # file name ending; the file beside a clone names the process and the pool that use the clone


def make_clone_folder(pool: str = "") -> Path:
    """Create an empty folder for a clone. The clone is kept as long as this process or the pool exists.

    Args:
        pool: Key of the pool that uses the clone. "" if the pool does not exist yet; its spec will then name the
            folder.

    Raises:
        OSError: If the folder cannot be created.
    """
    folder = state_folder.state_home() / CLONES_FOLDER / secrets.token_hex(8)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.with_suffix(_OWNER_SUFFIX).write_text(json.dumps({"pid": process_mark(), "pool": pool}), encoding="utf-8")
    folder.mkdir(mode=0o700)
    return folder


def remove_clone(folder: Path) -> None:
    """Delete a clone and its owner file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(_OWNER_SUFFIX).unlink(missing_ok=True)


MAX_AGE = 90 * 86400.0  # seconds after a pool's end until its files are deleted
# Maximum bytes of the files of all ended pools; above this total, the oldest pools are deleted.
MAX_TOTAL_BYTES = 20 * 10**9
STAT_BLOCK_BYTES = 512  # bytes of the unit in which stat counts the blocks of a file


@dataclass(frozen=True, slots=True)
class PrunedPool:
    """A deleted pool: its name, the Unix time of its end, and the bytes of its files."""

    pool: str
    ended_at: float
    size: int


def prune_pools(
    ledger: Ledger,
    *,
    age: float = MAX_AGE,
    most: float = MAX_TOTAL_BYTES,
    only_look: bool = False,
    delete_files: Callable[[PoolRow], int] | None = None,
) -> list[PrunedPool]:
    """Delete old pools from the client: pools that ended long ago, and the oldest pools beyond a total size.

    Pools with retained results on hosts are not deleted until these results expire.

    Args:
        ledger: The ledger.
        age: Seconds since a pool's end.
        most: Total bytes of ended pools.
        only_look: Delete nothing; only return the pools that would be deleted.
        delete_files: Deletes further files of a pool before the pool, and returns their bytes.

    Returns:
        The deleted pools.
    """
    now = time.time()
    if not only_look:
        state_folder.remove_abandoned_folders()
    for results in ledger.retained_results():
        if results.until < now and not only_look:
            ledger.remove_retained(results)
    waiting = {results.token for results in ledger.retained_results()}
    ended = ledger.ended_pools(limit=-1)
    found = sorted((row.ended_at or 0.0, row.token, row) for row in ended if row.token not in waiting)
    sizes = {row.token: _disk_usage(state_folder.pool_path(row.key)) for _, _, row in found}
    remaining = sum(sizes.values())
    pruned = []
    for ended_at, token, row in found:
        if now - ended_at < age and remaining <= most:
            break
        remaining -= sizes[token]
        more = 0 if delete_files is None else delete_files(row)
        pruned.append(PrunedPool(row.name, ended_at, sizes[token] + more))
        if not only_look:
            shutil.rmtree(state_folder.pool_path(row.key), ignore_errors=True)
            ledger.delete_pool(token)
    return pruned


@dataclass(frozen=True, slots=True)
class PrunedEnvironment:
    """A deleted environment: the name of its folder, the Unix time of its last use, and its bytes."""

    folder: str
    used_at: float
    size: int


def prune_environments(ledger: Ledger, *, age: float = MAX_AGE, only_look: bool = False) -> list[PrunedEnvironment]:
    """Delete environments of images that were not used for a long time.

    Environments that a running pool may use, or that are being created, are not deleted.

    Args:
        ledger: The ledger.
        age: Seconds since the last use.
        only_look: Delete nothing; only return the environments that would be deleted.

    Returns:
        The deleted environments.
    """
    before = min([time.time() - age, *(row.created_at for row in ledger.live_pools())])
    pruned = []
    for folder in sorted((state_folder.state_home() / state_folder.ENVIRONMENTS_FOLDER).glob("env-*/")):
        if folder.is_symlink() or _last_used_at(folder) >= before:
            continue  # links are not deleted, because only the user can have created them
        with open_lock_file(folder) as lock:
            # Check again under the lock, because another process may have used or deleted the environment.
            if not try_lock(lock) or (used_at := _last_used_at(folder)) >= before:
                continue
            pruned.append(PrunedEnvironment(folder.name, used_at, _disk_usage(folder)))
            if not only_look:
                # The marker is deleted first: without it, a partially deleted folder does not count as an environment.
                (folder / MADE_FILE).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
    return pruned


def _last_used_at(folder: Path) -> float:
    """Return the time when an environment was last used or its creation began; infinity if the environment is
    deleted.
    """
    for path in (folder / MADE_FILE, folder):
        with suppress(FileNotFoundError):
            return path.stat().st_mtime
    return inf


def prune_clones(ledger: Ledger, *, only_look: bool = False) -> list[tuple[str, int]]:
    """Delete clones that belong to no running pool and no living process.

    Args:
        ledger: The ledger.
        only_look: Delete nothing; only return the clones that would be deleted.

    Returns:
        Name and bytes of each deleted clone.
    """
    live = ledger.live_pools()
    keys = {row.key for row in live}
    named = json.dumps([row.spec for row in live])
    pruned = []
    for mark in sorted((state_folder.state_home() / CLONES_FOLDER).glob(f"*{_OWNER_SUFFIX}")):
        folder = mark.with_suffix("")
        used: dict[str, Any] = {"pid": 0, "pool": ""}
        with suppress(OSError, ValueError):  # a client that was killed while it wrote this file has not created a pool
            used |= read_own_json(mark) or {}
        if is_process_alive(int(used["pid"])) or used["pool"] in keys or folder.name in named:
            continue
        pruned.append((folder.name, _disk_usage(folder)))
        if not only_look:
            remove_clone(folder)
    return pruned


def prune_when_due(ledger: Ledger) -> None:
    """Prune everything once a day with the default limits. Errors are ignored until the next day."""
    with suppress(LedgerError, OSError):
        if state_folder.prune_is_due():
            (state_folder.state_home() / state_folder.PRUNED_FILE).touch()
            prune_pools(ledger)
            prune_environments(ledger)
            prune_clones(ledger)


def _disk_usage(folder: Path) -> int:
    """Return the bytes that a folder uses on disk. Only the allocated blocks of sparse files count."""
    found = (path.lstat() for path in folder.rglob("*") if path.is_file())
    return sum(min(each.st_size, each.st_blocks * STAT_BLOCK_BYTES) for each in found)


# Folder for files that are about to be sent to nodes.
TASKS_FOLDER = "tasks"


@contextmanager
def temporary_folder(base: str) -> Iterator[Path]:
    """Create a folder with :func:`make_process_folder` for the duration of a block."""
    folder = make_process_folder(base)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_process_folder(base: str) -> Path:
    """Create a private folder of this process, below a folder of the state folder.

    Raises:
        UsageError: If there is no state folder.
        OSError: If the folder cannot be created.
    """
    folder = state_folder.state_home() / base
    folder.mkdir(mode=0o700, exist_ok=True)
    remove_dead_folders(base)
    return Path(tempfile.mkdtemp(prefix=f"{process_mark()}-", dir=folder))


def remove_dead_folders(base: str) -> None:
    """Delete the folders of processes that no longer run.

    Raises:
        UsageError: If there is no state folder.
        OSError: If the folder cannot be read.
    """
    folder = state_folder.state_home() / base
    for path in folder.iterdir() if folder.is_dir() else ():
        owner = path.name.partition("-")[0]
        if owner.isdecimal() and not is_process_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)
