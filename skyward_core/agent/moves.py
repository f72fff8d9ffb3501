"""Clients that go on over a line of their own, straight to the agent instead of through the host's SSH server.

A client that can reach the node's address brings certificates over the connection it has. For each of those, once, the
agent listens at a port that takes nobody but that client, and for moments only. What was sent on the old connection
is dealt with first, so that nothing overtakes anything.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING

from ..wire import Header
from .connection import Connection

if TYPE_CHECKING:
    from ssl import SSLContext

    from ..sealed import Sealed

PATIENCE = 10.0  # seconds for the client to come
HANDSHAKE = 2.0  # of them for whoever comes to show that it is the client


class Moves:
    """See the module.

    Args:
        address: where to listen.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._coming: dict[Connection, asyncio.Task[Sealed | None]] = {}

    def offer(self, connection: Connection, header: Header) -> None:
        """Listen for a client that has brought certificates, and tell it at which port."""
        import ssl  # with what it does then, 7 MB of memory

        from ..tls import context

        self.leave(connection)
        answer: Header = {"t": "known", "id": header["id"]}
        try:
            papers = context(ssl.PROTOCOL_TLS_SERVER, header)
            family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
            listener = socket.create_server((self._address, 0), family=family, backlog=4)
        except OSError as error:
            connection.send(answer | {"error": str(error)})
            return
        listener.setblocking(False)
        self._coming[connection] = asyncio.ensure_future(_client(listener, papers))
        connection.send(answer | {"port": listener.getsockname()[1]})

    def go(self, connection: Connection) -> None:
        """That was the last frame of a client on its old connection."""
        coming = self._coming.pop(connection, None)
        if coming is None:
            connection.close()  # what it says next would come from nowhere
        else:
            coming.add_done_callback(partial(_go, connection))

    def leave(self, connection: Connection) -> None:
        """A client is gone, or begins anew."""
        coming = self._coming.pop(connection, None)
        if coming is not None:
            coming.cancel()
            coming.add_done_callback(_give_up)


async def _client(listener: socket.socket, papers: SSLContext) -> Sealed | None:
    """Wait for the client, past strangers."""
    from ..sealed import Sealed
    from ..tls import CLIENT

    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    with listener:
        while (left := deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    plain, _ = await loop.sock_accept(listener)
            except OSError:  # a TimeoutError is one, too
                return None
            _, line = await loop.connect_accepted_socket(lambda: Sealed(papers, CLIENT, server=True), plain)
            try:
                async with asyncio.timeout(HANDSHAKE):
                    await line.ready
            except OSError:
                line.close()
            except asyncio.CancelledError:
                line.close()
                raise
            else:
                return line
    return None


def _go(connection: Connection, coming: asyncio.Task[Sealed | None]) -> None:
    line = _line(coming)
    if line is None:
        connection.close()  # it finds us again, through SSH
    elif connection.open:
        connection.move(line)
    else:
        line.close()


def _give_up(coming: asyncio.Task[Sealed | None]) -> None:
    if (line := _line(coming)) is not None:
        line.close()


def _line(coming: asyncio.Task[Sealed | None]) -> Sealed | None:
    # Whatever became of it: a client that has moved must not wait for a line that there is not.
    return None if coming.cancelled() or coming.exception() is not None else coming.result()
