"""Waiting for the verbs of a session."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def wait_shielded(future: Future[T]) -> T:
    """Wait for a verb of the session. Not to wait any longer, as when the app quits, does not cancel it."""
    waiting = asyncio.wrap_future(future)
    # A shield that is left forgets what it shields: how that ends nobody would ask any more, and asyncio complains.
    waiting.add_done_callback(lambda over: over.cancelled() or over.exception())
    return await asyncio.shield(waiting)
