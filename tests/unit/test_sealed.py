"""TLS on a loop: who is trusted, that nothing is lost or comes too early, and how ends are told."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest

from skyward_core.transport.direct.certificates import Authority, node_name
from skyward_core.transport.direct.endpoint import Endpoint
from skyward_core.transport.direct.pipe import LinePipe, connect
from skyward_core.wire.tls_protocol import BUFFER, Sealed
from skyward_core.wire.tls_stream import CLIENT, LineError, context

NODE = node_name(0)
Steps = Callable[[Sealed, Sealed], Awaitable[None]]


class Taken:
    """Takes all, and remembers what it was told."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended: list[Exception | None] = []
        self.news = asyncio.Event()
        self.writable = asyncio.Event()

    def received(self, data: memoryview) -> None:
        self.data += data
        self.news.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.append(exc)
        self.news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self.news.clear()
                await self.news.wait()


def server(authority: Authority) -> ssl.SSLContext:
    return context(ssl.PROTOCOL_TLS_SERVER, authority.issue(NODE).to_json())


def client(authority: Authority, name: str = CLIENT) -> ssl.SSLContext:
    return context(ssl.PROTOCOL_TLS_CLIENT, authority.issue(name).to_json())


async def pair(ours: ssl.SSLContext, theirs: ssl.SSLContext, expected: str = NODE) -> tuple[Sealed, Sealed]:
    """A client's end and a node's, connected; not trusting each other yet."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        name = listener.getsockname()
        _, near = await loop.create_connection(lambda: Sealed(ours, expected, server=False), *name)
        plain, _ = await loop.sock_accept(listener)
    _, far = await loop.connect_accepted_socket(lambda: Sealed(theirs, CLIENT, server=True), plain)
    return near, far


def between(steps: Steps) -> None:
    async def main() -> None:
        authority = Authority("p")
        near, far = await pair(client(authority), server(authority))
        await asyncio.gather(near.ready, far.ready)
        try:
            await steps(near, far)
        finally:
            near.close()
            far.close()

    asyncio.run(main())


@pytest.mark.parametrize("size", [1, 70_000, 3 * BUFFER])
def test_bytes_come_whole_and_in_order_both_ways(size: int) -> None:
    async def steps(near: Sealed, far: Sealed) -> None:
        one, other = Taken(), Taken()
        near.give(one)
        far.give(other)
        there, back = os.urandom(size), os.urandom(size)
        for at in range(0, size, 50_000):
            near.write(there[at : at + 50_000])
            far.write(back[at : at + 50_000])
        await other.until(lambda: len(other.data) >= size)
        await one.until(lambda: len(one.data) >= size)
        assert (bytes(other.data), bytes(one.data)) == (there, back)

    between(steps)


def test_nothing_is_taken_before_there_is_a_taker() -> None:
    async def steps(near: Sealed, far: Sealed) -> None:
        near.write(b"first ")
        near.write(b"x" * 500_000)
        await asyncio.sleep(0)
        taken = Taken()
        far.give(taken)
        near.write(b"last")
        await taken.until(lambda: len(taken.data) == 500_010)
        assert taken.data.startswith(b"first x") and taken.data.endswith(b"xlast")

    between(steps)


def test_a_writer_is_told_to_pause_while_nobody_reads() -> None:
    async def steps(near: Sealed, far: Sealed) -> None:
        writer, reader = Taken(), Taken()
        writer.writable.set()
        near.give(writer)
        sent = 0
        while writer.writable.is_set():
            near.write(bytes(100_000))
            sent += 100_000
            assert sent < 200 * BUFFER
        far.give(reader)
        async with asyncio.timeout(30):
            await writer.writable.wait()
        await reader.until(lambda: len(reader.data) == sent)

    between(steps)


def test_the_end_is_told_once_also_where_it_came_before_the_taker() -> None:
    async def steps(near: Sealed, far: Sealed) -> None:
        early, late = Taken(), Taken()
        near.give(early)
        far.close()
        await early.until(lambda: bool(early.ended))
        far.give(late)
        await late.until(lambda: bool(late.ended))
        near.write(b"to nobody")
        assert (early.ended, late.ended) == ([None], [None])

    between(steps)


def test_what_was_changed_on_its_way_ends_it_and_is_not_taken() -> None:
    async def steps(near: Sealed, far: Sealed) -> None:
        taken = Taken()
        far.give(taken)
        near._transport.write(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record that nobody sealed
        await taken.until(lambda: bool(taken.ended))
        assert not taken.data and isinstance(taken.ended[0], LineError)

    between(steps)


@pytest.mark.parametrize(
    ("shown", "expected", "words"),
    [
        ("node 1", NODE, "CERTIFICATE|hung up|ALERT|answers in place of"),
        (CLIENT, "node 7", "node 0 answers in place of node 7"),
    ],
)
def test_the_wrong_holder_is_refused(shown: str, expected: str, words: str) -> None:
    async def main() -> None:
        authority = Authority("p")
        near, far = await pair(client(authority, shown), server(authority), expected)
        ends = await asyncio.gather(near.ready, far.ready, return_exceptions=True)
        failures = [end for end in ends if end is not None]
        assert failures and all(isinstance(end, LineError) for end in failures)
        with pytest.raises(LineError, match=words):
            raise failures[0]

    asyncio.run(main())


def test_a_certificate_of_another_authority_is_refused_on_both_sides() -> None:
    async def main() -> None:
        near, far = await pair(client(Authority("p")), server(Authority("p")))
        ends = await asyncio.gather(near.ready, far.ready, return_exceptions=True)
        assert [type(end) for end in ends] == [LineError, LineError]

    asyncio.run(main())


def test_what_speaks_no_tls_is_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            plain = socket.create_server(("127.0.0.1", 0))
            with plain, socket.create_connection(plain.getsockname()) as stranger:
                accepted, _ = plain.accept()
                papers = server(Authority("p"))
                _, line = await loop.connect_accepted_socket(
                    lambda: Sealed(papers, CLIENT, server=True), accepted
                )
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with pytest.raises(LineError):
                    await line.ready
            ours.close()

    asyncio.run(main())


def test_a_line_to_nobody_fails_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.transport.direct.pipe.CONNECT_TIMEOUT", 0.2)

    async def main() -> None:
        papers = client(Authority("p"))
        with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and says nothing
            with pytest.raises(LineError, match=r"port \d+: no answer"):
                await connect(Endpoint(silent.getsockname(), NODE), papers)
            place = silent.getsockname()
        with pytest.raises(LineError, match=r"port \d+: Connection refused"):
            await connect(Endpoint(place, NODE), papers)

    asyncio.run(main())


def test_a_pipe_waits_for_room_and_tells_of_the_end() -> None:
    async def steps(near: Sealed, far: Sealed) -> None:
        came, lost = bytearray(), asyncio.Event()
        pipe = LinePipe(near, lambda data: came.extend(data), lambda _: lost.set())
        pipe.write(b"early ")
        taken = Taken()
        far.give(taken)
        pipe.start()
        pipe.write(bytes(40 * BUFFER))
        await pipe.drain()
        far.write(b"back")
        await taken.until(lambda: len(taken.data) == 6 + 40 * BUFFER)
        async with asyncio.timeout(30):
            while bytes(came) != b"back":
                await asyncio.sleep(0.001)
            far.close()
            await lost.wait()
        await pipe.drain()

    between(steps)
