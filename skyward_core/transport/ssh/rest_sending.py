"""Sending what a node does not start with, the rest of the bundle, once nobody waits for the start any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ...model.errors import PoolError, UsageError
from ...store.loggers import logger
from ..upload.bundle import bundle_for
from .command_channel import CommandChannel

_log = logger("ssh")

# Seconds before each attempt: what a person waits for, the first results, comes first.
PAUSES = (1.0, 5.0, 30.0)
_packing = threading.Lock()  # once a release it takes long, and all hosts want the same
SETTLING = 10.0  # seconds that somebody who leaves the pool as it is waits for the last attempt


class RestSending:
    """One host's.

    Args:
        host: what it is called.
        channel: opens a command channel on it, if the connection is there; raises ConnectionError where it is not.
    """

    def __init__(self, host: str, channel: Callable[[], Awaitable[CommandChannel]]) -> None:
        self._host = host
        self._channel = channel
        self._now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Have it sent soon."""
        if self._task is None or self._task.done():
            self._now.clear()
            self._task = asyncio.create_task(self._send())

    async def settle(self) -> None:
        """Have it sent now, if it has not been, as nobody may come later who could. A host that does not take it in
        time has none, and the ranks that ask for it are told."""
        if self._task is not None:
            self._now.set()
            await asyncio.wait([self._task], timeout=SETTLING)

    async def give_up(self) -> None:
        """Stop it. What has been sent by half is removed by the host."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # whatever it ended with keeps no connection from being closed

    async def _send(self) -> None:
        for pause in PAUSES:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._now.wait()
            try:
                channel = await self._channel()
                try:
                    if not channel.facts["rest"]:
                        rest = await asyncio.to_thread(_packed, channel.python.minor)
                        await channel.ask("rest", rest)
                    return
                finally:
                    channel.close()
            except (PoolError, UsageError, OSError) as error:
                _log.info("%s: the rest of the bundle was not sent: %s", self._host, error)
                if self._now.is_set():
                    return


def _packed(minor: str) -> bytes:
    """It is the same whether or not a driver may be there."""
    with _packing:
        return bundle_for(False, minor).rest
