"""Waits for conditions instead of durations. A deadline only ends a hang."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds


def wait_until(
    condition: Callable[[], object], seconds: float = PATIENCE, what: str | Callable[[], object] = ""
) -> None:
    """Wait for a condition with a deadline that fails the test.

    Args:
        what: Description of the condition for the error, or a function that returns it.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.thread_time()
        if condition():
            return
        if time.monotonic() > deadline:
            raise AssertionError(
                f"waited {seconds:g} s in vain for {(what() if callable(what) else what) or condition}"
            )
        time.sleep(max(0.005, 9 * (time.thread_time() - began)))  # looking takes a tenth of a core at most


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for a condition while the event loop continues to run."""
    import asyncio  # which ranks do without

    deadline = time.monotonic() + PATIENCE
    while True:
        began = time.thread_time()
        if condition():
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE:g} s in vain for {what or condition}")
        await asyncio.sleep(max(0.001, 9 * (time.thread_time() - began)))  # as above
