"""What EC2 has only just made: some of its servers may not know of it for a moment ("Eventual consistency", EC2 API
Reference), and refuse what is asked about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container
from typing import TypeVar

from .failures import CallFailed

T = TypeVar("T")

NO_GROUP = ("InvalidGroup.NotFound", "InvalidGroupId.NotFound")
NO_KEY = ("InvalidKeyPair.NotFound",)
NO_PLACEMENT = ("InvalidPlacementGroup.Unknown",)
PATIENCE = 30.0  # seconds until all know of it
PAUSES = (0.2, 2.0)  # seconds between two tries, at first and at most


async def once_known(unknown: Container[str], ask: Callable[[], Awaitable[T]]) -> T:
    """What a call gives, once EC2 knows of what it is about.

    Args:
        unknown: EC2's names for not knowing of it.
        ask: makes the call; may do so again and again.

    Raises:
        SkywardError: it came to nothing; says why.
    """
    deadline, pause = time.monotonic() + PATIENCE, PAUSES[0]
    while True:
        try:
            return await ask()
        except CallFailed as error:
            if error.code not in unknown or time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(PAUSES[1], pause * 2)
