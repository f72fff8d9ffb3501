"""Repositories that jobs name as their working folder: each in a folder of the home, as long as a pool uses it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from .home import home
from .ledger import Ledger
from .ledger_rows import process_lives
from .user_files import json_of, read_text

CLONES = "clones"  # a folder below the home
_USED = ".used"  # behind a clone's name: a file beside it that says by whom it is


def new_clone(pool: str = "") -> Path:
    """An empty folder for one, which is there as long as this process, or the pool.

    Args:
        pool: key of the pool whose ranks work in it, or are sent it; "" for one that is still to be made, whose spec
            names the folder.

    Raises:
        OSError: it cannot be made.
    """
    folder = home() / CLONES / secrets.token_hex(8)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.with_suffix(_USED).write_text(json.dumps({"pid": os.getpid(), "pool": pool}), encoding="utf-8")
    folder.mkdir(mode=0o700)
    return folder


def remove_clone(folder: Path) -> None:
    """Nobody needs it any more."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(_USED).unlink(missing_ok=True)


def unused_clones(ledger: Ledger) -> list[Path]:
    """Those that no pool which is up may use, and no process that lives has made."""
    live = ledger.live()
    keys = {row.key for row in live}
    named = json.dumps([row.spec for row in live])
    found = []
    for mark in sorted((home() / CLONES).glob(f"*{_USED}")):
        folder = mark.with_suffix("")
        used: dict[str, Any] = {"pid": 0, "pool": ""}
        with suppress(OSError, ValueError):  # a client that was killed as it wrote it had no pool yet
            used |= json_of(read_text(mark))
        if not (process_lives(int(used["pid"])) or used["pool"] in keys or folder.name in named):
            found.append(folder)
    return found
