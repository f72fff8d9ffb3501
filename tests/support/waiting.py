"""Wait for what must become true: for a condition, never for a time. A deadline ends only what hangs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds
LONGEST = 0.3  # seconds between two looks that take long


def spent() -> float:
    """Seconds of a processor that this thread has taken, and commands that it has called."""
    called = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + called.ru_utime + called.ru_stime


def pause_after(began: float, least: float) -> float:
    """How long to wait before one looks again, so that looking takes a tenth of a core, or not much more where a look
    is a command.

    Args:
        began: what was spent before this look.
        least: seconds.
    """
    return min(max(least, 9 * (spent() - began)), LONGEST)


def wait_until(
    condition: Callable[[], object], seconds: float = PATIENCE, what: str | Callable[[], object] = ""
) -> None:
    """Wait for a condition with a deadline that fails the test.

    Args:
        what: it is waited for, or gives the text of it when the wait was in vain.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = spent()
        if condition():
            return
        if time.monotonic() > deadline:
            raise AssertionError(
                f"waited {seconds:g} s in vain for {(what() if callable(what) else what) or condition}"
            )
        time.sleep(pause_after(began, 0.005))


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for a condition, and let everything else on this loop go on meanwhile."""
    import asyncio  # which ranks do without

    deadline = time.monotonic() + PATIENCE
    while True:
        began = spent()
        if condition():
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE:g} s in vain for {what or condition}")
        await asyncio.sleep(pause_after(began, 0.001))
