"""Connections that are opened while the client still imports, and what a packet costs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from skyward_core.errors import HostKeyError, PoolError
from skyward_core.transport import connect
from tests.local.sshd import Host


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path / "host")
    await host.start()
    yield host
    await host.stop()


@pytest.fixture
def target(host: Host, tmp_path: Path) -> connect.Target:
    known = tmp_path / "known"
    known.write_text(host.known_line())
    return connect.Target(
        "127.0.0.1", port=host.port, keys=(str(host.client_key),), known_hosts=str(known), config=False
    )


async def until_none(connections: set[Any]) -> None:
    async with asyncio.timeout(20):
        while connections:
            await asyncio.sleep(0.005)


async def test_the_first_to_connect_takes_it_and_the_next_gets_one_of_its_own(
    host: Host, target: connect.Target
) -> None:
    await connect.open_early([target])
    first = await connect.connect(target, patience=0)
    second = await connect.connect(target, patience=0)
    await connect.close_early([target])
    assert host.logins == 2 and first is not second
    assert not first.lost.is_set() and len(host.connections) == 2
    await first.close()
    await second.close()


async def test_one_that_nobody_took_is_closed(host: Host, target: connect.Target) -> None:
    await connect.open_early([target])
    await connect.close_early([target])  # in the middle of its login
    await connect.open_early([target])
    async with asyncio.timeout(20):
        while not host.logins:
            await asyncio.sleep(0.005)
    await connect.close_early([target])
    await until_none(host.connections)
    await (await connect.connect(target, patience=0)).close()


async def test_a_host_that_is_not_there_yet_is_tried_again_by_who_needs_it(
    host: Host, target: connect.Target
) -> None:
    await host.stop()
    await connect.open_early([target])
    with pytest.raises(PoolError, match="refuses"):
        await connect.connect(target, patience=0)
    await connect.open_early([target])
    waiting = asyncio.create_task(connect.connect(target, patience=20))
    await host.start()
    await (await waiting).close()


async def test_a_changed_key_is_refused_as_ever(host: Host, target: connect.Target) -> None:
    Path(target.known_hosts or "").write_text(
        f"[127.0.0.1]:{host.port} {asyncssh.generate_private_key('ssh-ed25519').export_public_key().decode()}"
    )
    await connect.open_early([target])
    with pytest.raises(HostKeyError, match="changed"):
        await connect.connect(target, patience=0)
    assert host.logins == 0


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
@pytest.mark.parametrize(("ciphers", "fillers"), [(connect.AEAD, False), (("aes128-ctr",), True)])
async def test_fillers_go_only_to_ciphers_that_they_guard(
    host: Host,
    target: connect.Target,
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
    monkeypatch.setattr(connect, "CIPHERS", ciphers)
    link = await connect.connect(target, patience=0)
    echo = await link.ssh.create_process("cat", encoding=None)
    data = bytes(100_000)
    echo.stdin.write(data)
    echo.stdin.write_eof()
    assert await echo.stdout.read() == data
    await link.close()
    assert (connect.MSG_IGNORE in sent) is fillers
