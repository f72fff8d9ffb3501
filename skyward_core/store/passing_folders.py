"""Folders in the person's own that a process has while it lives; those of processes that are no more go."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .home import home
from .ledger_rows import process_lives

TASKS = "tasks"
"""Where what goes to nodes is before it does."""


@contextmanager
def held(base: str) -> Iterator[Path]:
    """Have one, as of :func:`begin`, until the block is left."""
    folder = begin(base)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def begin(base: str) -> Path:
    """A new one of this process, below a folder of the home, which nobody else may look into.

    Raises:
        UsageError: there is no home.
        OSError: it cannot be made.
    """
    folder = home() / base
    folder.mkdir(mode=0o700, exist_ok=True)
    sweep(base)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder))


def sweep(base: str) -> None:
    """Remove what processes have left there that were killed.

    Raises:
        UsageError: there is no home.
        OSError: it cannot be looked at.
    """
    folder = home() / base
    for left in folder.iterdir() if folder.is_dir() else ():
        owner = left.name.partition("-")[0]
        if owner.isdecimal() and not process_lives(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
