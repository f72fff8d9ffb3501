"""How long silence may last: of a TCP connection whose loss has to be known soon, and of a host that was asked."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...model.errors import UsageError

T = TypeVar("T")

# The kernel watches the connection: what it sends must be acknowledged within this time, idle or not, however
# much is queued. The loss of a host is to be known within five seconds, with a look from another host; a link
# that is called dead too soon costs a reconnect and nothing else.
SILENCE = 2.5  # seconds
_LIMITS = {
    "TCP_KEEPIDLE": 1,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": int(SILENCE * 1000),
}

ANSWER_TIMEOUT = "SKYWARD_ANSWER_TIMEOUT"  # the environment variable
DEFAULT_TIMEOUT, LEAST_TIMEOUT = 10.0, 2.0  # seconds; a host that works sends a byte every second


def watch(sock: socket.socket) -> None:
    """Have a connection end when the other side has not answered for :data:`SILENCE`."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _LIMITS.items():
        if hasattr(socket, name):  # Linux has all of them, other systems some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def answer_timeout() -> float:
    """Return how many seconds a host may send nothing while its answer is awaited.

    Raises:
        UsageError: ``SKYWARD_ANSWER_TIMEOUT`` is not such a number.
    """
    text = os.environ.get(ANSWER_TIMEOUT, "")
    try:
        seconds = float(text or DEFAULT_TIMEOUT)
    except ValueError:
        seconds = math.nan
    if not LEAST_TIMEOUT <= seconds < math.inf:
        raise UsageError(
            f"{ANSWER_TIMEOUT}={text!r} cannot be used: give a number of seconds, {LEAST_TIMEOUT:g} or more."
        )
    return seconds


class AnswerWait:
    """Something that receives bytes from a host.

    Attributes:
        heard_at: when the last byte came, or the wait for an answer began (monotonic clock).
    """

    heard_at = 0.0

    async def within(self, seconds: float, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait for something that the host has to do.

        Args:
            seconds: How long the host may send nothing.
            wait: Starts the wait; called again after bytes that were not yet the end of it.

        Raises:
            TimeoutError: No byte came for that long.
        """
        self.heard_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(max(0.0, self.heard_at + seconds - time.monotonic())):
                    return await wait()
            except TimeoutError:
                if time.monotonic() >= self.heard_at + seconds:
                    raise
