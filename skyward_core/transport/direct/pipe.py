"""A line of our own to an agent, beside SSH: fewer steps for each call (:mod:`skyward_core.node.agent.own_stream`)."""

from __future__ import annotations

import asyncio
import os
import ssl

from ...wire.tls_protocol import Sealed
from ...wire.tls_stream import LineError
from ..base import Flow, OnData, OnLost
from .endpoint import CONNECT_TIMEOUT, Endpoint


async def connect(node: Endpoint, papers: ssl.SSLContext) -> Sealed:
    """Connect to an agent that expects us.

    Raises:
        LineError: there is no way, or it is somebody else.
    """
    loop = asyncio.get_running_loop()
    line: Sealed | None = None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            _, line = await loop.create_connection(
                lambda: Sealed(papers, node.name, server=False), *node.place
            )
            await line.ready
    except BaseException as error:
        if line is not None:
            line.close()
        if isinstance(error, OSError) and not isinstance(error, LineError):
            why = "no answer" if isinstance(error, TimeoutError) else os.strerror(error.errno or 0)
            raise LineError(f"port {node.place[1]}: {why}") from error
        raise
    return line


class LinePipe(Flow):
    """See :class:`..base.Pipe`; it can be written to before :meth:`start` lets bytes come."""

    def __init__(self, line: Sealed, on_data: OnData, on_lost: OnLost) -> None:
        super().__init__()
        self._line = line
        self._on_lost = on_lost
        self.received = on_data
        self.write = line.write
        self.close = line.close

    def start(self) -> None:
        self._line.give(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        self._on_lost(exc)
