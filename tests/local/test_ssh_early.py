"""Connections that are opened while the client still imports, and what a packet costs."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from skyward_core.model.errors import HostKeyError, PoolError, UsageError
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport.ssh import connection
from skyward_core.transport.ssh.bootstrap_channel import CommandChannel
from skyward_core.transport.ssh.effective_ssh_config import PreopenedSockets
from skyward_core.transport.ssh.host_address import Target, WantedPython
from tests.support.sshd import Host


@pytest.fixture
def target(host: Host, known: Path) -> Target:
    return Target("127.0.0.1", port=host.port, keys=(str(host.client_key),), known_hosts=str(known), config=False)


async def nothing(link: connection.HostConnection) -> None:
    """What is done on a host right after the login."""


class Front:
    """A port in front of a host's; drops the first connections, and knows how many came and how many are open."""

    def __init__(self, host: Host, drops: int = 0) -> None:
        self.host = host
        self.drops = drops
        self.came = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.news = asyncio.Condition()

    async def __aenter__(self) -> Front:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for writer in list(self.open):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        self.open.add(writer)
        await self._notify_peers()
        try:
            if self.came > self.drops:
                there, to_it = await asyncio.open_connection("127.0.0.1", self.host.port)
                back = asyncio.create_task(self._pass(there, writer))
                await self._pass(reader, to_it)
                await back
        finally:
            writer.close()
            self.open.discard(writer)
            await self._notify_peers()

    @staticmethod
    async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
        target.close()

    async def _notify_peers(self) -> None:
        async with self.news:
            self.news.notify_all()

    async def until(self, came: int, still: int) -> None:
        async with asyncio.timeout(20), self.news:
            await self.news.wait_for(lambda: (self.came, len(self.open)) == (came, still))


async def until_none(connections: set[Any]) -> None:
    async with asyncio.timeout(20):
        while connections:
            await asyncio.sleep(0.005)


async def test_the_first_to_connect_takes_it_and_the_next_gets_one_of_its_own(host: Host, target: Target) -> None:
    await connection.open_early([target], PreopenedSockets([]), nothing)
    first = await connection.connect(target, patience=0)
    second = await connection.connect(target, patience=0)
    await connection.close_early([target])
    assert host.logins == 2 and first is not second
    assert not first.lost.is_set() and len(host.connections) == 2
    await first.close()
    await second.close()


async def test_one_that_nobody_took_is_closed(host: Host, target: Target) -> None:
    await connection.open_early([target], PreopenedSockets([]), nothing)
    await connection.close_early([target])  # in the middle of its login
    await connection.open_early([target], PreopenedSockets([]), nothing)
    async with asyncio.timeout(20):
        while not host.logins:
            await asyncio.sleep(0.005)
    await connection.close_early([target])
    await until_none(host.connections)
    await (await connection.connect(target, patience=0)).close()


async def test_a_host_that_is_not_there_yet_is_tried_again_by_who_needs_it(host: Host, target: Target) -> None:
    await host.stop()
    await connection.open_early([target], PreopenedSockets([]), nothing)
    with pytest.raises(PoolError, match="refuses"):
        await connection.connect(target, patience=0)
    await connection.open_early([target], PreopenedSockets([]), nothing)
    waiting = asyncio.create_task(connection.connect(target, patience=20))
    await host.start()
    await (await waiting).close()


async def test_a_changed_key_is_refused_as_ever(host: Host, target: Target) -> None:
    Path(target.known_hosts or "").write_text(
        f"[127.0.0.1]:{host.port} {asyncssh.generate_private_key('ssh-ed25519').export_public_key().decode()}"
    )
    await connection.open_early([target], PreopenedSockets([]), nothing)
    with pytest.raises(HostKeyError, match="changed"):
        await connection.connect(target, patience=0)
    assert host.logins == 0


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
@pytest.mark.parametrize(("ciphers", "fillers"), [(connection.AEAD, False), (("aes128-ctr",), True)])
async def test_fillers_go_only_to_ciphers_that_they_guard(
    host: Host,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    ciphers: tuple[str, ...],
    fillers: bool,
) -> None:
    sent: list[int] = []
    send = asyncssh.SSHClientConnection.send_packet

    def count(self: asyncssh.SSHClientConnection, pkttype: int, *args: bytes, handler: Any = None) -> None:
        sent.append(pkttype)
        send(self, pkttype, *args, handler=handler)

    monkeypatch.setattr(asyncssh.SSHClientConnection, "send_packet", count)
    monkeypatch.setattr(connection, "CIPHERS", ciphers)
    link = await connection.connect(target, patience=0)
    echo = await link.ssh.create_process("cat", encoding=None)
    data = bytes(100_000)
    echo.stdin.write(data)
    echo.stdin.write_eof()
    assert await echo.stdout.read() == data
    await link.close()
    assert (connection.MSG_IGNORE in sent) is fillers


# ---- before there is SSH -----------------------------------------------------------------------------------


def through(front: Front, target: Target) -> Target:
    known = Path(target.known_hosts or "")
    known.write_text(known.read_text().replace(f":{front.host.port} ", f":{front.port} "))
    return replace(target, port=front.port)


async def test_a_login_takes_the_connection_that_was_dialled(host: Host, target: Target) -> None:
    async with Front(host) as front:
        target = through(front, target)
        dials = PreopenedSockets([target])
        await dials.open()
        await front.until(came=1, still=1)
        await connection.open_early([target], dials, nothing)
        link = await connection.connect(target, patience=0)
        assert (front.came, host.logins) == (1, 1)
        await dials.close()
        assert not link.lost.is_set()
        await link.close()
        await front.until(came=1, still=0)


async def test_what_was_dialled_and_not_taken_is_closed(host: Host, target: Target) -> None:
    async with Front(host) as front:
        dials = PreopenedSockets([through(front, target)])
        await dials.open()
        await front.until(came=1, still=1)
        await dials.close()
        await front.until(came=1, still=0)
        assert host.logins == 0


async def test_a_host_that_drops_what_was_dialled_is_connected_to_anew(host: Host, target: Target) -> None:
    async with Front(host, drops=1) as front:
        target = through(front, target)
        dials = PreopenedSockets([target])
        await dials.open()
        await front.until(came=1, still=0)
        await connection.open_early([target], dials, nothing)
        link = await connection.connect(target, patience=0)
        assert (front.came, host.logins) == (2, 1)
        await link.close()
        await dials.close()


async def test_keys_that_cannot_be_used_leave_nothing_open(host: Host, target: Target) -> None:
    async with Front(host) as front:
        target = replace(through(front, target), keys=("/not/there",))
        dials = PreopenedSockets([target])
        await dials.open()
        await front.until(came=1, still=1)
        await connection.open_early([target], dials, nothing)
        with pytest.raises(UsageError, match="Cannot use a key file"):
            await connection.connect(target, patience=0)
        await dials.close()
        await front.until(came=1, still=0)


async def test_a_host_is_dialled_where_the_configuration_has_it_unless_something_else_leads_there(
    host: Host, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with Front(host) as front:
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh" / "config").write_text(
            f"HostName 127.0.0.1\nPort {front.port}\nHost jumped\n  ProxyJump gate\nHost run\n  ProxyCommand false\n"
            "Host bound\n  BindAddress 127.0.0.1\nHost gate\n  User me\n"
        )
        others = [Target("jumped"), Target("run"), Target("bound"), replace(target, jump="bastion")]
        dials = PreopenedSockets([*others, Target("box")])
        await dials.open()
        assert [await dials.claim(each) for each in others] == [None] * 4
        await front.until(came=1, still=1)
        sock = await dials.claim(Target("box"))
        assert sock is not None
        sock.close()
        await dials.close()
        assert front.came == 1


# ---- what is done right after the login ---------------------------------------------------------------------


async def test_the_first_channel_is_the_one_that_was_begun(host: Host, target: Target) -> None:
    begin = partial(CommandChannel.begin, python=WantedPython(sys.executable), name="pool")
    await connection.open_early([target], PreopenedSockets([]), begin)
    link = await connection.connect(target, patience=0)
    assert len(host.commands) == 1
    wish: dict[str, Any] = {"folder": "", "said": lambda line: None}
    first = await CommandChannel.open(link, python=WantedPython(sys.executable), **wish)
    assert len(host.commands) == 1 and first.facts["python"]
    second = await CommandChannel.open(link, python=WantedPython(sys.executable), **wish)
    assert len(host.commands) == 2
    await begin(link)
    # Another interpreter may be asked for meanwhile.
    other = await CommandChannel.open(link, python=WantedPython(), **wish)
    assert len(host.commands) == 4 and other.facts["python"]
    for channel in (first, second, other):
        channel.close()
    await link.close()


async def test_a_warm_up_that_nothing_comes_of_leaves_nothing(host: Host, target: Target) -> None:
    provider = SSH([f"127.0.0.1:{host.port}"], keys=target.keys, known_hosts=target.known_hosts, config=False)
    entered, leave = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def warm_up() -> None:
        with provider.warm(PoolSpec(name="never", provider=provider, nodes=1)):
            loop.call_soon_threadsafe(entered.set)
            leave.wait(20)
            raise RuntimeError("the start failed")

    work = asyncio.create_task(asyncio.to_thread(warm_up))
    await entered.wait()
    async with asyncio.timeout(20):
        while not host.commands:
            await asyncio.sleep(0.005)
    leave.set()
    with pytest.raises(RuntimeError, match="the start failed"):
        await work
    await until_none(host.connections)
