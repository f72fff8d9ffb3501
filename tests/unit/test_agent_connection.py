"""A connection of the agent whose peer does not read: it must not cost the node's memory."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

from skyward_core.agent.connection import BEHIND, Connection

EVENT = {"t": "run", "function": "f" * 600}


async def plain(sock: socket.socket, connection: Connection) -> None:
    await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)


async def test_a_peer_that_does_not_read_is_let_go() -> None:
    lost: list[Connection] = []
    here, there = socket.socketpair()
    with closing(there):
        connection = Connection(lambda *_: None, lost.append)
        await plain(here, connection)
        sent = 0
        while not lost and sent < 5 * BEHIND:
            connection.send(EVENT, b"x" * 4096)
            sent += 4096
            if connection.busy:
                await asyncio.sleep(0)
    assert lost == [connection]
    assert sent < 2 * BEHIND


async def test_a_slow_peer_that_reads_is_not() -> None:
    lost: list[Connection] = []
    here, there = socket.socketpair()
    there.setblocking(False)
    loop = asyncio.get_running_loop()
    with closing(there):
        connection = Connection(lambda *_: None, lost.append)
        await plain(here, connection)
        sent = read = 0
        while sent < 3 * BEHIND:
            connection.send(EVENT, b"x" * 4096)
            sent += 4096
            if sent - read > BEHIND // 2:  # it is always behind, and never by as much as that
                read += len(await loop.sock_recv(there, 1 << 16))
        assert not lost
        connection.close()
