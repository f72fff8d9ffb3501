"""What a rank's process is at before its function runs: it may take long, and nothing is printed meanwhile."""

from __future__ import annotations

from collections.abc import Callable

_tell: Callable[[str], None] | None = None


def on_enter(tell: Callable[[str], None]) -> None:
    """Have ``tell`` called with every phase; a worker does so once."""
    global _tell
    _tell = tell


def enter(phase: str) -> None:
    """Say what this process does now: "importing", or "joining" where it waits for other ranks."""
    if _tell is not None:
        _tell(phase)
