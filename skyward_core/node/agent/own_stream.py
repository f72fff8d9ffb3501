"""Clients that go on over a line of their own, straight to the agent instead of through the host's SSH server.

A client that can reach the node's address brings certificates over the connection it has. For each of those, once, the
agent listens at a port that takes nobody but that client, and for moments only. What was sent on the old connection
is dealt with first, so that nothing overtakes anything.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from ...wire.frames import Header
from .connection import Connection

if TYPE_CHECKING:
    from ssl import SSLContext

    from ...wire.frame_types import ClientLine
    from ...wire.tls_protocol import Sealed

PATIENCE = 10.0  # seconds for the client to come
HANDSHAKE = 2.0  # of them for whoever comes to show that it is the client
STRANGERS = 8  # who are asked that at once
PAUSE = 0.1  # seconds before the next is taken where there are no descriptors left


class Moves:
    """See the module.

    Args:
        address: where to listen.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._coming: dict[Connection, asyncio.Task[Sealed | None]] = {}

    def offer(self, connection: Connection, header: ClientLine) -> None:
        """Listen for a client that has brought certificates, and tell it at which port."""
        import ssl  # with what it does then, 7 MB of memory

        from ...wire.tls_stream import context

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
    """Wait for the client, past strangers: they are asked who they are side by side, the latest few of them."""
    loop = asyncio.get_running_loop()
    shaking: dict[asyncio.Task[Sealed | None], None] = {}  # in the order in which they came
    coming = loop.create_task(_next(listener))
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                done, _ = await asyncio.wait({coming, *shaking}, return_when=asyncio.FIRST_COMPLETED)
                for each in [each for each in shaking if each in done]:
                    del shaking[each]
                    if (line := each.result()) is not None:
                        return line
                if coming in done:
                    if len(shaking) >= STRANGERS:
                        next(iter(shaking)).cancel()
                        del shaking[next(iter(shaking))]
                    shaking[loop.create_task(_shaken(coming.result(), papers))] = None
                    coming = loop.create_task(_next(listener))
    except TimeoutError:
        return None
    finally:
        for task in (coming, *shaking):
            task.cancel()
            task.add_done_callback(_give_up)
        listener.close()


async def _next(listener: socket.socket) -> socket.socket:
    """The next who connects."""
    while True:
        try:
            plain, _ = await asyncio.get_running_loop().sock_accept(listener)
        except OSError:  # no descriptors are left now, or it was gone before it was taken
            await asyncio.sleep(PAUSE)
        else:
            return plain


async def _shaken(plain: socket.socket, papers: SSLContext) -> Sealed | None:
    """A line to who connected, if that is the client."""
    from ...wire.tls_protocol import Sealed
    from ...wire.tls_stream import CLIENT

    line: Sealed | None = None
    try:
        async with asyncio.timeout(HANDSHAKE):
            loop = asyncio.get_running_loop()
            _, line = await loop.connect_accepted_socket(lambda: Sealed(papers, CLIENT, server=True), plain)
            await line.ready
    except BaseException as error:
        plain.close() if line is None else line.close()
        if not isinstance(error, OSError):  # a TimeoutError is one
            raise
        return None
    return line


def _go(connection: Connection, coming: asyncio.Task[Sealed | None]) -> None:
    line = _line(coming)
    if line is None:
        connection.close()  # it finds us again, through SSH
    elif connection.open:
        connection.move(line)
    else:
        line.close()


def _give_up(coming: asyncio.Task[Any]) -> None:
    if (made := _line(coming)) is not None:
        made.close()


def _line(coming: asyncio.Task[Any]) -> Any:
    # Whatever became of it: a client that has moved must not wait for a line that there is not.
    return None if coming.cancelled() or coming.exception() is not None else coming.result()
