"""A file on its way to a host, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import marshal
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import PoolError
from skyward_core.node.bootstrap import host_inspection
from skyward_core.providers.agent_status_and_termination import _can_reach
from skyward_core.transport.ssh import bootstrap_channel
from skyward_core.transport.ssh.bootstrap_channel import CommandChannel
from skyward_core.transport.ssh.host_address import Target
from skyward_core.transport.ssh.ssh_transport import SSHTransport, send_bundle, send_workdir
from skyward_core.transport.transport import StartBarrier
from tests.support.sshd import Host

SIZE = 20_000_000


@pytest.fixture
async def way(host: Host, known: Path) -> AsyncIterator[SSHTransport]:
    """To a host that knows where our folder is; nothing runs there."""
    keys = (str(host.client_key),)
    target = Target("127.0.0.1", port=host.port, keys=keys, known_hosts=str(known), config=False)
    way = SSHTransport(target, "p.0", patience=2.0)
    config = {"pool": "p", "node": 0, "nodes": 1, "idle_timeout": 30.0, "grace": 0.1}
    await way.prepare(config, lambda *said, **more: None)
    yield way
    channel = await way.channel()
    await send_bundle(channel)
    await channel.ask("end", folder=way.folder, socket=channel.facts["socket"])
    channel.close()
    await way.close()


async def received(host: Host, total: int, sending: asyncio.Task[Any]) -> None:
    """The host's commands have got that many bytes of what is being sent."""
    async with asyncio.timeout(90):
        while len(host.received) < total:
            await asyncio.sleep(0.001)
            if sending.done():
                sending.result()  # why it was given up, where it was


async def test_a_connection_that_breaks_again_and_again_is_gone_on_with(
    host: Host, way: SSHTransport, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(SIZE))
    way.patience = 30.0  # a busy machine takes a while to answer once more
    before, logins = len(host.received), host.logins
    sending = asyncio.create_task(way.put(source, "a" * 32))
    for cut in range(1, 4):
        await received(host, before + cut * SIZE // 4, sending)
        for connection in list(host.connections):
            connection.abort()
    await asyncio.wait_for(sending, 90)
    assert host.logins - logins in (2, 3), "the last cut may come when all of it is there"
    assert len(host.received) - before < 1.2 * SIZE, "what was there was not sent again"
    blobs = host.home / ".cache" / "skyward" / "pools" / "p.0" / "blobs"
    assert [path.name for path in blobs.iterdir()] == ["a" * 32]
    assert (blobs / ("a" * 32)).read_bytes() == source.read_bytes()


@pytest.mark.proof("1 s of a processor")
async def test_a_connection_that_breaks_as_the_file_is_to_go_is_made_anew(
    host: Host, way: SSHTransport, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"data")
    assert way._link is not None
    way._link.ssh.abort()  # which is told a turn of the loop later
    await way.put(source, "c" * 32)
    assert not way._link.lost.is_set()


async def test_a_host_out_of_reach_is_a_connection_error(host: Host, way: SSHTransport, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"data")
    await host.stop()
    try:
        # Which of the two is said depends on whether the end of the connection was noticed already.
        with pytest.raises(ConnectionError, match=r"no SSH server listens|SSH connection closed"):
            await way.put(source, "b" * 32)
    finally:
        await host.start()


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [4, SIZE])
@pytest.mark.parametrize("noise", ["", "echo hello >&2; "])
async def test_a_host_that_does_not_take_it_says_why(
    host: Host, way: SSHTransport, tmp_path: Path, size: int, noise: str
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size))
    host.rewrite = lambda command: f"{noise}ulimit -f 0; {command}"
    try:
        with pytest.raises(
            PoolError, match=rf"host 127.0.0.1 rejected the file c+ \({size} bytes\): [^$]*File too large"
        ):
            await way.put(source, "c" * 32)
    finally:
        host.rewrite = lambda command: command
    await way.put(source, "c" * 32)


async def test_a_host_without_room_is_not_told_as_a_lost_connection(
    way: SSHTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"data")
    parts = dict(marshal.loads(bootstrap_channel._bootstrap_code()))
    text = Path(host_inspection.__file__).read_text().replace("ROOTS = (", 'ROOTS = ("/proc/none",) or (')
    parts[host_inspection.__name__] = compile(text, "host", "exec")
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap_channel, "_bootstrap_code", lambda: marshal.dumps([*parts.items()]))
        patch.setattr(way, "_facts", {})  # it is asked again
        with pytest.raises(PoolError, match=r"no writable folder .*\(/proc/none"):
            await way.put(source, "d" * 32)
    await way.put(source, "d" * 32)


@pytest.fixture
async def other_release(host: Host, way: SSHTransport) -> AsyncIterator[Callable[[], SSHTransport]]:
    """Makes ways of a client of another release: it finds the agent of the one that began the pool, and nothing of its
    own beside it."""
    ours, made = host.home / ".cache" / "skyward", list[SSHTransport]()

    def another() -> SSHTransport:
        for bundle in ours.glob("bundle-*"):
            bundle.rename(ours / f"other-{bundle.name}-{os.urandom(4).hex()}")
        made.append(SSHTransport(way.target, "p.0", patience=20.0))
        return made[-1]

    yield another
    for each in made:
        await each.close()


@pytest.mark.proof("1 s of a processor")
async def test_two_transfers_of_another_release_bring_its_commands_once(
    host: Host,
    other_release: Callable[[], SSHTransport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, asked = tmp_path / "source", list[str]()
    source.write_bytes(b"data")
    ask = CommandChannel.ask

    async def heard(self: CommandChannel, do: str, *payload: Any, **values: Any) -> Any:
        asked.append(do)
        return await ask(self, do, *payload, **values)

    monkeypatch.setattr(CommandChannel, "ask", heard)
    put = other_release()
    await asyncio.gather(put.put(source, "a" * 32), put.put(source, "b" * 32))
    assert asked.count("bundle") == 1
    blobs = host.home / ".cache" / "skyward" / "pools" / "p.0" / "blobs"
    assert {path.name for path in blobs.iterdir()} >= {"a" * 32, "b" * 32}


@pytest.mark.proof("1 s of a processor")
async def test_a_connection_that_breaks_while_commands_are_brought_is_made_anew(
    host: Host, other_release: Callable[[], SSHTransport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, cuts = tmp_path / "source", 0
    source.write_bytes(b"data")
    ask = CommandChannel.ask

    async def cut_off(self: CommandChannel, do: str, payload: Any = b"", **values: Any) -> Any:
        nonlocal cuts
        if do != "bundle" or cuts == 2:
            return await ask(self, do, payload, **values)
        cuts += 1
        before = len(host.received)
        sending = asyncio.create_task(ask(self, do, payload, **values))
        await received(host, before + 1, sending)
        for connection in list(host.connections):
            connection.abort()
        return await sending

    monkeypatch.setattr(CommandChannel, "ask", cut_off)
    await other_release().put(source, "e" * 32)
    assert cuts == 2
    ours = host.home / ".cache" / "skyward"
    assert (ours / "pools" / "p.0" / "blobs" / ("e" * 32)).read_bytes() == b"data"


@pytest.mark.proof("1 s of a processor")
async def test_a_client_of_another_release_brings_what_its_own_commands_need_there(
    host: Host, other_release: Callable[[], SSHTransport], tmp_path: Path
) -> None:
    source, folder = tmp_path / "source", tmp_path / "work"
    source.write_bytes(b"data")
    folder.mkdir()
    (folder / "train.py").write_text("")
    ours = host.home / ".cache" / "skyward"
    await other_release().put(source, "a" * 32)
    assert (ours / "pools" / "p.0" / "blobs" / ("a" * 32)).read_bytes() == b"data"
    await other_release().send_folder(str(folder), {}, StartBarrier(1), lambda line: None)
    assert list(ours.glob("work/**/train.py"))
    asking = other_release()
    await asking.channel()
    assert await _can_reach(asking, ("127.0.0.1", host.port))


async def test_who_includes_what_is_not_there_hears_so(way: SSHTransport, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    channel = await way.channel()
    try:
        await send_bundle(channel)
        image = {"includes": ["train.py", "dta/*.csv"]}
        _, detail, _ = await send_workdir(channel, str(tmp_path), image, StartBarrier(1))
    finally:
        channel.close()
    assert detail.endswith("; Image(includes=...) patterns without a match: dta/*.csv")
