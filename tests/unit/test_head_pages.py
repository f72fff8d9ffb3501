"""The way to a page of a pool's head is made once, however often is asked for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from skyward_core.pool.dashboards import WELL_KNOWN, Dashboards


class Context:
    """Of a pool whose head is reached by listeners here, as over SSH."""

    def __init__(self) -> None:
        self.servers: list[asyncio.Server] = []
        self.answer = b""
        self.links = [SimpleNamespace(up=True, node=0, transport=self)]

    async def forward_port(self, address: str, port: int) -> tuple[str, int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self.answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.servers.append(server)
        host, here = server.sockets[0].getsockname()[:2]
        return host, here


async def test_a_way_stays_where_nobody_answers_at_its_end_and_is_made_anew_where_it_is_gone() -> None:
    context: Any = Context()
    pages = Dashboards(context)
    for _ in range(3):
        assert await pages.find_available(()) == []
    assert len(context.servers) == len(WELL_KNOWN)
    context.answer = b"HTTP/1.0 200 OK\r\n\r\n"
    first = {each.name: each.address for each in await pages.find_available(())}
    assert first.keys() == {name for name, _, _ in WELL_KNOWN} and len(context.servers) == len(WELL_KNOWN)
    for server in context.servers:  # as the connection ends that they are of
        server.close()
        await server.wait_closed()
    later = {each.name: each.address for each in await pages.find_available(())}
    assert later.keys() == first.keys() and len(context.servers) == 2 * len(WELL_KNOWN)
    for server in context.servers:
        server.close()
