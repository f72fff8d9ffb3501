"""Byte pipes to an agent: a Unix socket, and the command that stands in for it over SSH."""

from __future__ import annotations

import asyncio
import socket

import pytest

from skyward_core.transport.local_transport import SocketPipe
from skyward_core.transport.ssh.bootstrap_channel import CommandOutput
from skyward_core.transport.ssh.ssh_transport import ForwardedSocket, RelayedSocket


class FakeChannel:
    closed = False

    def close(self) -> None:
        self.closed = True


def relayed() -> tuple[RelayedSocket, list[bytes], list[Exception | None]]:
    came: list[bytes] = []
    lost: list[Exception | None] = []
    return RelayedSocket(lambda data: came.append(bytes(data)), lost.append, b"word"), came, lost


async def test_what_comes_before_the_word_is_noise() -> None:
    pipe, came, _ = relayed()
    for piece in (b"welcome to wo", b"rd\n\nwor", b"d\nfirst", b" bytes"):
        pipe.data_received(piece, None)
    await pipe.joined
    assert b"".join(came) == b"first bytes"


async def test_a_join_that_was_given_up_may_still_be_answered() -> None:
    pipe, came, _ = relayed()
    pipe.joined.cancel()
    pipe.data_received(b"\nword\nbytes", None)  # an exception here would end the connection of all channels
    assert came == []


async def test_an_agent_that_is_not_there_is_told_as_that() -> None:
    pipe, _, lost = relayed()
    pipe.data_received(b"\nword Connection refused\n", None)
    with pytest.raises(ConnectionRefusedError, match="no agent answers: Connection refused"):
        await pipe.joined
    pipe.connection_lost(None)
    assert lost == [], "the one who opened it knows"


async def test_the_relays_end_before_that_says_what_it_printed() -> None:
    pipe, _, _ = relayed()
    pipe.data_received(b"python: not found\n", None)
    pipe.connection_lost(None)
    with pytest.raises(ConnectionError, match="python: not found"):
        await asyncio.wait_for(pipe.joined, 20)


async def test_an_agents_end_is_the_end_whatever_the_server_says_later() -> None:
    lost: list[Exception | None] = []
    pipe, channel = ForwardedSocket(lambda data: None, lost.append), FakeChannel()
    pipe.connection_made(channel)  # type: ignore[arg-type]
    assert not pipe.eof_received()
    assert channel.closed and lost == [None]
    pipe.connection_lost(OSError("late"))
    assert lost == [None]


async def test_a_host_that_only_makes_noise_is_hung_up_on() -> None:
    pipe, came, _ = relayed()
    pipe.connection_made(FakeChannel())  # type: ignore[arg-type]
    for _ in range(40):
        pipe.data_received(b"x" * (1 << 15), None)
        if pipe._chan.closed:  # type: ignore[union-attr]
            break
    assert pipe._chan.closed and len(pipe._before or b"") < 1 << 20  # type: ignore[union-attr]
    assert came == []


async def test_a_line_without_an_end_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.transport.ssh.bootstrap_channel.MAX_ANSWER_SIZE", 1000)
    monkeypatch.setattr("skyward_core.transport.ssh.bootstrap_channel.MOST_LINES", 10)
    for flood in (b"x" * 600, b"\n" * 6):
        lines, channel = CommandOutput(), FakeChannel()
        lines.connection_made(channel)  # type: ignore[arg-type]
        lines.data_received(flood, None)
        assert not channel.closed
        lines.data_received(flood, None)
        assert channel.closed and not lines._partial


async def test_a_failed_write_loses_no_byte_that_the_agent_sent_before_it_closed() -> None:
    came: list[bytes] = []
    lost = asyncio.get_running_loop().create_future()
    here, there = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, pipe = await loop.create_unix_connection(
        lambda: SocketPipe(lambda data: came.append(bytes(data)), lost.set_result), sock=here
    )
    there.sendall(b"goodbye")
    there.close()
    pipe.write(b"acknowledged")  # before the loop reads: the socket has no reader any more
    assert isinstance(await asyncio.wait_for(lost, 20), BrokenPipeError)
    assert came == [b"goodbye"]
