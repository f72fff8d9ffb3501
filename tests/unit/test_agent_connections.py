"""Byte pipes to an agent through a socket or over SSH, and connections whose peer does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress

import pytest

from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.frame_connection import MAX_UNSENT_BYTES, Connection
from skyward_core.pool.agent_link import SILENCE
from skyward_core.protocol.frame_codec import Decoder, encode_frame
from skyward_core.transport.local_transport_and_environments import SocketPipe
from skyward_core.transport.ssh.host_command_channel import CommandOutput
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import ForwardedSocket, RelayedSocket


class FakeChannel:
    closed = False

    def close(self) -> None:
        self.closed = True


def relayed() -> tuple[RelayedSocket, list[bytes], list[Exception | None]]:
    received: list[bytes] = []
    lost: list[Exception | None] = []
    return RelayedSocket(lambda data: received.append(bytes(data)), lost.append, b"word"), received, lost


async def test_bytes_before_the_marker_word_are_skipped() -> None:
    pipe, received, _ = relayed()
    for piece in (b"welcome to wo", b"rd\n\nwor", b"d\nfirst", b" bytes"):
        pipe.data_received(piece, None)
    await pipe.joined
    assert b"".join(received) == b"first bytes"


async def test_answer_to_a_cancelled_relay_join_is_ignored() -> None:
    pipe, received, _ = relayed()
    pipe.joined.cancel()
    pipe.data_received(b"\nword\nbytes", None)  # an exception here would end the connection of all channels
    assert received == []


async def test_relay_join_without_an_agent_raises_connection_refused() -> None:
    pipe, _, lost = relayed()
    pipe.data_received(b"\nword Connection refused\n", None)
    with pytest.raises(ConnectionRefusedError, match="no agent answers: Connection refused"):
        await pipe.joined
    pipe.connection_lost(None)
    assert lost == [], "the one who opened it knows"


async def test_relay_exit_before_joining_raises_its_output() -> None:
    pipe, _, _ = relayed()
    pipe.data_received(b"python: not found\n", None)
    pipe.connection_lost(None)
    with pytest.raises(ConnectionError, match="python: not found"):
        await asyncio.wait_for(pipe.joined, 20)


async def test_end_of_an_agent_socket_is_reported_once() -> None:
    lost: list[Exception | None] = []
    pipe, channel = ForwardedSocket(lambda data: None, lost.append), FakeChannel()
    pipe.connection_made(channel)  # type: ignore[arg-type]
    assert not pipe.eof_received()
    assert channel.closed and lost == [None]
    pipe.connection_lost(OSError("late"))
    assert lost == [None]


async def test_host_that_prints_only_noise_is_disconnected() -> None:
    pipe, received, _ = relayed()
    pipe.connection_made(FakeChannel())  # type: ignore[arg-type]
    for _ in range(40):
        pipe.data_received(b"x" * (1 << 15), None)
        if pipe._chan.closed:  # type: ignore[union-attr]
            break
    assert pipe._chan.closed and len(pipe._before or b"") < 1 << 20  # type: ignore[union-attr]
    assert received == []


async def test_endless_command_output_closes_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.transport.ssh.host_command_channel.MAX_ANSWER_SIZE", 1000)
    monkeypatch.setattr("skyward_core.transport.ssh.host_command_channel.MOST_LINES", 10)
    for flood in (b"x" * 600, b"\n" * 6):
        lines, channel = CommandOutput(), FakeChannel()
        lines.connection_made(channel)  # type: ignore[arg-type]
        lines.data_received(flood, None)
        assert not channel.closed
        lines.data_received(flood, None)
        assert channel.closed and not lines._partial


async def test_failed_write_loses_no_byte_that_the_agent_sent_before() -> None:
    received: list[bytes] = []
    lost = asyncio.get_running_loop().create_future()
    here, there = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, pipe = await loop.create_unix_connection(
        lambda: SocketPipe(lambda data: received.append(bytes(data)), lost.set_result), sock=here
    )
    there.sendall(b"goodbye")
    there.close()
    pipe.write(b"acknowledged")  # before the loop reads: the socket has no reader any more
    assert isinstance(await asyncio.wait_for(lost, 20), BrokenPipeError)
    assert received == [b"goodbye"]


# A connection of the agent whose peer does not read: it must not cost the node's memory.

EVENT = {"t": "run", "function": "f" * 600}


async def plain(sock: socket.socket, connection: Connection) -> None:
    await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)


@asynccontextmanager
async def connected(on_lost: Callable[[Connection], None]) -> AsyncIterator[tuple[Connection, socket.socket]]:
    """Yield a connection and the non-blocking socket of its peer."""
    here, there = socket.socketpair()
    there.setblocking(False)
    with closing(there):
        connection = Connection(lambda *_: None, on_lost)
        await plain(here, connection)
        yield connection, there


async def test_peer_that_does_not_read_is_disconnected() -> None:
    lost: list[Connection] = []
    async with connected(lost.append) as (connection, _):
        sent = 0
        while not lost and sent < 5 * MAX_UNSENT_BYTES:
            connection.send(EVENT, b"x" * 4096)
            sent += 4096
            if connection.is_write_paused:
                await asyncio.sleep(0)
    assert lost == [connection]
    assert sent < 2 * MAX_UNSENT_BYTES


async def test_slow_peer_that_reads_is_not_disconnected() -> None:
    lost: list[Connection] = []
    loop = asyncio.get_running_loop()
    async with connected(lost.append) as (connection, there):
        sent = read = 0
        while sent < 3 * MAX_UNSENT_BYTES:
            connection.send(EVENT, b"x" * 4096)
            sent += 4096
            if sent - read > MAX_UNSENT_BYTES // 2:  # it is always behind, and never by as much as that
                read += len(await loop.sock_recv(there, 1 << 16))
        assert not lost
        connection.close()


async def test_batched_writes_are_sent_together_in_order() -> None:
    loop = asyncio.get_running_loop()
    async with connected(lambda _: None) as (connection, there):
        frames = [encode_frame({"t": "outcome", "i": i}) for i in range(4)]
        connection.write_batched(frames[0])
        connection.write_batched(frames[1])
        with pytest.raises(BlockingIOError):
            there.recv(1)
        async with asyncio.timeout(5):
            assert await loop.sock_recv(there, 1 << 16) == frames[0] + frames[1], "by itself, soon"
        connection.write_batched(frames[2])
        connection.write(frames[3])
        assert there.recv(1 << 16) == frames[2] + frames[3], "at once, ahead of what must not wait"
        connection.close()


@pytest.mark.parametrize("ending", ["close", "drain"])
async def test_batched_writes_are_sent_before_a_connection_closes(ending: str) -> None:
    async with connected(lambda _: None) as (connection, there):
        connection.write_batched(data := encode_frame({"t": "outcome"}))
        if ending == "drain":
            await connection.drain()
        connection.close()
        assert there.recv(1 << 16) == data


async def test_agent_waits_until_a_slow_client_received_its_goodbye() -> None:
    """Bytes that the agent has not passed to the kernel are lost when the agent's process ends."""
    loop, audience = asyncio.get_running_loop(), ClientRegistry()
    async with connected(audience.remove) as (connection, there):
        audience.add(connection)
        connection.send(EVENT, b"x" * MAX_UNSENT_BYTES)
        parting = asyncio.create_task(audience.close_all({}))
        decoder, kinds = Decoder(), list[str]()
        while "bye" not in kinds:
            assert not parting.done(), "it ends while the client still reads"
            data = await loop.sock_recv(there, 1 << 16)
            assert data, "the goodbye was lost"
            kinds += [header["t"] for header, _ in decoder.feed(data)]
        assert await loop.sock_recv(there, 1) == b""
        await parting


async def test_closing_agent_does_not_wait_for_new_clients() -> None:
    audience, late = ClientRegistry(), Connection(lambda *_: None, lambda lost: None)
    late.is_open = True
    async with connected(audience.remove) as (connection, _):
        audience.add(connection)
        parting = asyncio.create_task(audience.close_all({}))
        await asyncio.sleep(0)
        audience.add(late)
        async with asyncio.timeout(5):  # less than anybody is waited for
            await parting
    assert len(audience) == 1 and audience[late]


async def test_closing_agent_does_not_wait_for_a_client_that_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.node.agent.connected_clients.GOODBYE_TIMEOUT", 0.05)
    audience = ClientRegistry()
    async with connected(audience.remove) as (connection, _):
        audience.add(connection)
        connection.send(EVENT, b"x" * MAX_UNSENT_BYTES)
        await audience.close_all({})
        connection.abort()


async def test_silent_client_is_disconnected_after_four_pings_and_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audience, slept, lost = ClientRegistry(), list[float](), list[float]()

    async def sleep(seconds: float) -> None:
        if lost:
            raise asyncio.CancelledError
        slept.append(seconds)

    audience.add(connection := Connection(lambda *_: None, lambda lost: None))
    monkeypatch.setattr(connection, "abort", lambda: lost.append(sum(slept)))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with suppress(asyncio.CancelledError):
        await audience.drop_unresponsive()
    assert 4 * SILENCE / 2 < lost[0] <= 10.0
