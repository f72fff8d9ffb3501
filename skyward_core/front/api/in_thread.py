"""Work that blocks, in asynchronous code: in a thread, and never left alone before it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], *, cancel: Callable[[], None] | None = None) -> T:
    """Do blocking work in a thread. Whoever is cancelled meanwhile waits for its end all the same, so that nothing
    that it makes is left behind.

    Args:
        work: what to do.
        cancel: tells the work, each time that the caller is cancelled, that nobody wants what comes of it.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work has ended.
    """
    working = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
            if cancel is not None:
                cancel()
    if cancelled is not None:
        working.exception()  # looked at: the cancellation is what is told
        raise cancelled
    return working.result()
