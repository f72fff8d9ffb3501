"""A client that goes on over a line of its own: nothing is lost, doubled or overtaken, and nobody else gets in."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.own_stream import STRANGERS, Moves
from skyward_core.pool.links.link import Link
from skyward_core.transport.base import OnData, OnLost
from skyward_core.transport.direct import pipe as line
from skyward_core.transport.direct.certificates import Authority, node_name
from skyward_core.transport.direct.endpoint import Endpoint
from skyward_core.transport.local.transport import SocketPipe
from skyward_core.wire.frames import VERSION, Header
from skyward_core.wire.tls_stream import CLIENT, LineError, context

NAME = node_name(0)
WELCOME: Header = {
    "t": "welcome", "version": VERSION, "epoch": 0, "broken": "", "node": 0, "address": "", "ranks_per_node": 1,
    "lease": None, "runs": [],
}  # fmt: skip


def client(authority: Authority, name: str = CLIENT) -> ssl.SSLContext:
    return context(ssl.PROTOCOL_TLS_CLIENT, authority.issue(name).to_json())


class Node0:
    """A node's end: greets, counts what comes, and moves clients."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.lost = 0
        self.moves = Moves("127.0.0.1")
        self.connection: Connection | None = None

    def accept(self) -> Connection:
        self.connection = Connection(self.frame, self.end)
        return self.connection

    def frame(self, connection: Connection, header: Any, body: bytes) -> None:
        match header["t"]:
            case "hello":
                connection.send(WELCOME)
            case "line":
                self.moves.offer(connection, header)
            case "move":
                self.moves.go(connection)
            case "count":
                self.came.append(header["n"])
                connection.send({"t": "counted", "n": header["n"]}, b"x" * header.get("size", 0))

    def end(self, connection: Connection) -> None:
        self.lost += 1
        self.moves.leave(connection)


class Way:
    """A transport to it."""

    shares_files = False
    direct = "127.0.0.1"

    def __init__(self, node: Node0) -> None:
        self.node = node
        self.opened = 0
        self.far: list[asyncio.BaseTransport] = []

    async def open(self, on_data: OnData, on_lost: OnLost) -> SocketPipe:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        self.opened += 1
        transport, _ = await loop.create_connection(self.node.accept, sock=theirs)
        self.far.append(transport)
        _, pipe = await loop.create_connection(lambda: SocketPipe(on_data, on_lost), sock=ours)
        return pipe

    async def close(self) -> None:
        return None


class Heard:
    """A link's listener."""

    def __init__(self) -> None:
        self.counted: list[int] = []
        self.links: list[bool] = []

    def on_frame(self, link: Link, header: Header, body: bytes) -> None:
        if header["t"] == "counted":
            self.counted.append(header["n"])

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        self.links.append(up)

    def cursors(self, node: int) -> dict[str, int]:
        return {}

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.001)


class Scene:
    """A link to a node, and what either end saw."""

    def __init__(self) -> None:
        self.authority = Authority("p")
        self.node = Node0()
        self.heard = Heard()
        self.way = Way(self.node)
        self.link = Link(0, self.way, self.heard)  # type: ignore[arg-type]

    async def offer(self) -> tuple[str, int]:
        answer, _ = await self.link.ask({"t": "line"} | self.authority.issue(NAME).to_json())
        return ("127.0.0.1", int(answer["port"]))

    async def connect(self, place: tuple[str, int]) -> None:
        self.link.move(await line.connect(Endpoint(place, NAME), client(self.authority)))


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    await made.link.connect()
    try:
        yield made
    finally:
        await made.link.close()
        if made.node.connection is not None:
            made.node.connection.close()


def play(steps: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with scene() as made:
            await steps(made)

    asyncio.run(main())


def test_frames_around_the_move_come_once_and_in_order() -> None:
    async def steps(s: Scene) -> None:
        place = await s.offer()
        n = 0

        def count(times: int) -> None:
            nonlocal n
            for _ in range(times):
                s.link.send({"t": "count", "n": n, "size": 40_000 if n % 7 == 0 else 3})
                n += 1

        count(200)
        await s.connect(place)
        assert not s.link.direct
        count(200)
        await s.heard.until(lambda: s.link.direct)
        count(200)
        await s.heard.until(lambda: len(s.heard.counted) == 600)
        assert s.node.came == s.heard.counted == list(range(600))
        assert (s.node.lost, s.way.opened, s.heard.links) == (0, 1, [True])

    play(steps)


def test_the_old_connection_is_no_loss_when_it_ends_after_the_move() -> None:
    async def steps(s: Scene) -> None:
        await s.connect(await s.offer())
        await s.heard.until(lambda: s.link.direct)
        assert s.way.far[0].is_closing()
        s.link.send({"t": "count", "n": 1})
        await s.heard.until(lambda: s.heard.counted)
        assert (s.heard.links, s.node.lost) == ([True], 0)

    play(steps)


def test_a_line_that_breaks_is_a_lost_link_and_the_transport_is_the_way_back() -> None:
    async def steps(s: Scene) -> None:
        await s.connect(await s.offer())
        await s.heard.until(lambda: s.link.direct)
        assert s.node.connection is not None
        s.node.connection.close()
        await s.heard.until(lambda: s.heard.links == [True, False, True])
        assert (s.link.direct, s.way.opened, s.node.lost) == (False, 2, 1)
        s.link.send({"t": "count", "n": 1})
        await s.heard.until(lambda: s.heard.counted == [1])

    play(steps)


def test_a_connection_that_breaks_in_the_middle_of_a_move_is_a_lost_link() -> None:
    async def steps(s: Scene) -> None:
        await s.connect(await s.offer())
        s.way.far[0].abort()  # type: ignore[attr-defined]
        await s.heard.until(lambda: s.heard.links == [True, False, True])
        assert not s.link.direct
        s.link.send({"t": "count", "n": 1})
        await s.heard.until(lambda: s.heard.counted == [1])

    play(steps)


def test_a_move_without_a_line_is_answered_by_hanging_up() -> None:
    async def steps(s: Scene) -> None:
        s.link.send({"t": "move"})
        await s.heard.until(lambda: s.heard.links == [True, False, True])

    play(steps)


def test_strangers_do_not_take_the_clients_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.node.agent.own_stream.HANDSHAKE", 0.1)

    async def steps(s: Scene) -> None:
        place = await s.offer()
        with socket.create_connection(place), socket.create_connection(place) as loud:
            loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(LineError):
                await line.connect(Endpoint(place, NAME), client(Authority("p")))
            await s.connect(place)
            await s.heard.until(lambda: s.link.direct)
        with pytest.raises(LineError):  # it was for one
            await line.connect(Endpoint(place, NAME), client(s.authority))

    play(steps)


def test_silent_strangers_do_not_hold_the_client_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.node.agent.own_stream.HANDSHAKE", 600.0)
    monkeypatch.setattr("skyward_core.node.agent.own_stream.PATIENCE", 600.0)

    async def steps(s: Scene) -> None:
        place = await s.offer()
        strangers = [await asyncio.open_connection(*place) for _ in range(3 * STRANGERS)]
        await s.connect(place)
        await s.heard.until(lambda: s.link.direct)
        for reader, writer in strangers:
            assert await reader.read() == b""  # nobody waits for them any more
            writer.close()

    play(steps)


def test_nobody_else_of_the_pool_takes_it_either() -> None:
    async def steps(s: Scene) -> None:
        place = await s.offer()
        with pytest.raises(LineError):
            made = await line.connect(Endpoint(place, NAME), client(s.authority, node_name(1)))
            await asyncio.wait_for(_end(made), 30)
        await s.connect(place)
        await s.heard.until(lambda: s.link.direct)

    async def _end(made: Any) -> None:
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.LinePipe(
            made, lambda _: None, lambda exc: lost.set_exception(exc or LineError("closed"))
        ).start()
        await lost

    play(steps)


def test_what_is_offered_ends_with_the_client_and_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(place: tuple[str, int]) -> None:
        async with asyncio.timeout(30):
            while True:
                try:
                    socket.create_connection(place).close()
                except ConnectionRefusedError:
                    return
                await asyncio.sleep(0.01)

    async def left(s: Scene) -> None:
        place = await s.offer()
        s.way.far[0].abort()  # type: ignore[attr-defined]
        await gone(place)

    async def waited(s: Scene) -> None:
        monkeypatch.setattr("skyward_core.node.agent.own_stream.PATIENCE", 0.05)
        place = await s.offer()
        await gone(place)
        s.link.send({"t": "move"})
        await s.heard.until(lambda: s.heard.links == [True, False, True])

    play(left)
    play(waited)


def test_an_address_that_is_not_the_nodes_is_an_answer() -> None:
    async def steps(s: Scene) -> None:
        s.node.moves = Moves("192.0.2.1")
        answer, _ = await s.link.ask({"t": "line"} | s.authority.issue(NAME).to_json())
        assert "port" not in answer and answer["error"]
        answer, _ = await s.link.ask({"t": "line", "authority": "none", "certificate": "", "key": ""})
        assert answer["error"]

    play(steps)


def test_a_client_whose_line_failed_for_whatever_reason_is_not_left_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(listener: socket.socket, papers: ssl.SSLContext) -> None:
        listener.close()
        raise MemoryError

    async def steps(s: Scene) -> None:
        monkeypatch.setattr("skyward_core.node.agent.own_stream._client", fail)
        await s.offer()
        s.link.send({"t": "move"})
        await s.heard.until(lambda: s.heard.links == [True, False, True])
        s.link.send({"t": "count", "n": 1})
        await s.heard.until(lambda: s.heard.counted == [1])

    play(steps)
