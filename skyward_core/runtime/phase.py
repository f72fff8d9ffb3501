"""What a rank's process is at before its function runs: it may take long, and nothing is printed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_tell: Callable[[str], None] | None = None
_of_thread = threading.local()


def on_enter(tell: Callable[[str], None]) -> None:
    """Have ``tell`` called with every phase; a worker does so once."""
    global _tell
    _tell = tell


def enter(phase: str) -> None:
    """Say what this process does now: "importing", "joining" where it waits for other ranks, or "paused" at a
    breakpoint."""
    if _tell is not None:
        _tell(phase)


@contextmanager
def loading() -> Iterator[None]:
    """What this thread imports meanwhile it needs for a function that another process has sent."""
    _of_thread.loads = True
    try:
        yield
    finally:
        _of_thread.loads = False


def refuse_pool_while_loading() -> None:
    """A script that makes a pool when it is imported would make another in each rank that imports it, and so on.

    Raises:
        UsageError: this thread loads a function; says what to change in the script.
    """
    if getattr(_of_thread, "loads", False):
        from ..model.errors import UsageError

        raise UsageError(
            "This script makes a pool when it is imported, and a rank has to import it, for what its function needs of "
            'it. Put the lines that make the pool under if __name__ == "__main__":'
        )
