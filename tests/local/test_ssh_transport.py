"""SSH connections and uploads: early, interrupted and rejected ones, and stale pool folders."""

from __future__ import annotations

import asyncio
import fcntl
import json
import marshal
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from skyward_core.client.session import Session
from skyward_core.model.errors import Cancelled, HostKeyError, PoolError, UsageError
from skyward_core.model.specs import Image, Options, PoolSpec
from skyward_core.node.bootstrap import host_command_server, host_inspection
from skyward_core.node.bootstrap.host_inspection import find_node_processes, is_running
from skyward_core.providers.agent_status_and_termination import _can_reach
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport.background_loop import background_loop
from skyward_core.transport.ssh import connection, host_command_channel
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import PreopenedSockets
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport, send_bundle
from skyward_core.transport.transport import StartBarrier
from skyward_core.transport.working_folder_upload import send_workdir
from skyward_core.views.pool_view import PoolView
from tests.support.one_host import provider
from tests.support.processes import exists
from tests.support.sshd import Host
from tests.support.waiting import until

SIZE = 20_000_000


@pytest.fixture
async def transport(host: Host, known_hosts_file: Path) -> AsyncIterator[SSHTransport]:
    """Transport to a host whose state folder is known. No process runs there."""
    keys = (str(host.client_key),)
    target = Target("127.0.0.1", port=host.port, keys=keys, known_hosts=str(known_hosts_file), config=False)
    transport = SSHTransport(target, "p.0", patience=2.0)
    config = {"pool": "p", "node": 0, "nodes": 1, "idle_timeout": 30.0, "grace": 0.1}
    await transport.prepare(config, lambda *args, **more: None)
    yield transport
    channel = await transport.channel()
    await send_bundle(channel)
    await channel.ask("end", folder=transport.folder, socket=channel.facts["socket"])
    channel.close()
    await transport.close()


async def received(host: Host, total: int, sending: asyncio.Task[Any]) -> None:
    """Wait until the host has received that many bytes of the upload."""
    async with asyncio.timeout(90):
        while len(host.received) < total:
            await asyncio.sleep(0.001)
            if sending.done():
                sending.result()  # why it was given up, where it was


async def test_upload_resumes_after_repeated_connection_losses(
    host: Host, transport: SSHTransport, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(SIZE))
    transport.patience = 0.0  # each attempt may take longer than the patience
    before, logins = len(host.received), host.logins
    sending = asyncio.create_task(transport.put(source, "a" * 32))
    for cut in range(1, 4):
        await received(host, before + cut * SIZE // 4, sending)
        transport.patience = 90.0  # a busy machine takes a while to answer once more
        for link in list(host.connections):
            link.abort()
    await asyncio.wait_for(sending, 90)
    assert host.logins - logins in (2, 3), "the last cut may come when all of it is there"
    assert len(host.received) - before < 1.2 * SIZE, "what was there was not sent again"
    blobs = host.home / ".cache" / "skyward" / "pools" / "p.0" / "blobs"
    assert [path.name for path in blobs.iterdir()] == ["a" * 32]
    assert (blobs / ("a" * 32)).read_bytes() == source.read_bytes()


async def test_upload_to_an_unreachable_host_is_a_connection_error(
    host: Host, transport: SSHTransport, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"data")
    await host.stop()
    try:
        # Which of the two is said depends on whether the end of the connection was noticed already.
        with pytest.raises(ConnectionError, match=r"no SSH server listens|SSH connection closed"):
            await transport.put(source, "b" * 32)
    finally:
        await host.start()


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("size", [4, SIZE])
@pytest.mark.parametrize("noise", ["", "echo hello >&2; "])
async def test_upload_rejected_by_a_host_reports_the_reason(
    host: Host, transport: SSHTransport, tmp_path: Path, size: int, noise: str
) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(size))
    host.rewrite = lambda command: f"{noise}ulimit -f 0; {command}"
    try:
        with pytest.raises(
            PoolError, match=rf"host 127.0.0.1 rejected the file c+ \({size} bytes\): [^$]*File too large"
        ):
            await transport.put(source, "c" * 32)
    finally:
        host.rewrite = lambda command: command
    await transport.put(source, "c" * 32)


async def test_full_disk_of_a_host_is_not_reported_as_a_lost_connection(
    transport: SSHTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"data")
    parts = dict(marshal.loads(host_command_channel._bootstrap_code()))
    text = Path(host_inspection.__file__).read_text().replace("ROOTS = (", 'ROOTS = ("/proc/none",) or (')
    parts[host_inspection.__name__] = compile(text, "host", "exec")
    with monkeypatch.context() as patch:
        patch.setattr(host_command_channel, "_bootstrap_code", lambda: marshal.dumps([*parts.items()]))
        patch.setattr(transport, "_facts", {})  # it is asked again
        with pytest.raises(PoolError, match=r"no writable folder .*\(/proc/none"):
            await transport.put(source, "d" * 32)
    await transport.put(source, "d" * 32)


@pytest.fixture
async def other_release(host: Host, transport: SSHTransport) -> AsyncIterator[Callable[[], SSHTransport]]:
    """Make transports of a client of another release, which finds the first client's agent but none of its own
    files.
    """
    ours, made = host.home / ".cache" / "skyward", list[SSHTransport]()

    def another() -> SSHTransport:
        for bundle in ours.glob("bundle-*"):
            bundle.rename(ours / f"other-{bundle.name}-{os.urandom(4).hex()}")
        made.append(SSHTransport(transport.target, "p.0", patience=20.0))
        return made[-1]

    yield another
    for each in made:
        await each.close()


@pytest.mark.proof("1 s of a processor")
async def test_client_of_another_release_uses_its_own_commands_on_the_host(
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


async def test_include_pattern_without_a_match_is_reported(transport: SSHTransport, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    channel = await transport.channel()
    try:
        await send_bundle(channel)
        image = {"includes": ["train.py", "dta/*.csv"]}
        _, detail, _ = await send_workdir(channel, str(tmp_path), image, StartBarrier(1))
    finally:
        channel.close()
    assert detail.endswith("; Image(includes=...) patterns without a match: dta/*.csv")


@pytest.fixture
def target(host: Host, known_hosts_file: Path) -> Target:
    return Target(
        "127.0.0.1", port=host.port, keys=(str(host.client_key),), known_hosts=str(known_hosts_file), config=False
    )


async def nothing(link: connection.HostConnection) -> None:
    """Do nothing after the login to a host."""


class Front:
    """Port in front of a host's. Drops the first connections, and counts accepted and open ones."""

    def __init__(self, host: Host, drops: int = 0) -> None:
        self.host = host
        self.drops = drops
        self.connections = 0
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
        self.connections += 1
        self.open.add(writer)
        await self._notify_peers()
        try:
            if self.connections > self.drops:
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

    async def until(self, total: int, still: int) -> None:
        async with asyncio.timeout(20), self.news:
            await self.news.wait_for(lambda: (self.connections, len(self.open)) == (total, still))


async def until_none(connections: set[Any]) -> None:
    async with asyncio.timeout(20):
        while connections:
            await asyncio.sleep(0.005)


async def test_first_connect_uses_the_early_connection_and_the_next_its_own(host: Host, target: Target) -> None:
    await connection.open_early([target], PreopenedSockets([]), nothing)
    first = await connection.connect(target, patience=0)
    second = await connection.connect(target, patience=0)
    await connection.close_early([target])
    assert host.logins == 2 and first is not second
    assert not first.lost.is_set() and len(host.connections) == 2
    await first.close()
    await second.close()


async def test_unused_early_connection_is_closed(host: Host, target: Target) -> None:
    await connection.open_early([target], PreopenedSockets([]), nothing)
    await connection.close_early([target])  # in the middle of its login
    await connection.open_early([target], PreopenedSockets([]), nothing)
    async with asyncio.timeout(20):
        while not host.logins:
            await asyncio.sleep(0.005)
    await connection.close_early([target])
    await until_none(host.connections)
    await (await connection.connect(target, patience=0)).close()


async def test_changed_host_key_is_rejected_on_an_early_connection(host: Host, target: Target) -> None:
    Path(target.known_hosts or "").write_text(
        f"[127.0.0.1]:{host.port} {asyncssh.generate_private_key('ssh-ed25519').export_public_key().decode()}"
    )
    await connection.open_early([target], PreopenedSockets([]), nothing)
    with pytest.raises(HostKeyError, match="changed"):
        await connection.connect(target, patience=0)
    assert host.logins == 0


# ---- before there is SSH -----------------------------------------------------------------------------------


def target_through(front: Front, target: Target) -> Target:
    known = Path(target.known_hosts or "")
    known.write_text(known.read_text().replace(f":{front.host.port} ", f":{front.port} "))
    return replace(target, port=front.port)


async def test_login_uses_a_preopened_socket(host: Host, target: Target) -> None:
    async with Front(host) as front:
        target = target_through(front, target)
        dials = PreopenedSockets([target])
        await dials.open()
        await front.until(total=1, still=1)
        await connection.open_early([target], dials, nothing)
        link = await connection.connect(target, patience=0)
        assert (front.connections, host.logins) == (1, 1)
        await dials.close()
        assert not link.lost.is_set()
        await link.close()
        await front.until(total=1, still=0)


async def test_unused_preopened_socket_is_closed(host: Host, target: Target) -> None:
    async with Front(host) as front:
        dials = PreopenedSockets([target_through(front, target)])
        await dials.open()
        await front.until(total=1, still=1)
        await dials.close()
        await front.until(total=1, still=0)
        assert host.logins == 0


async def test_host_that_closes_a_preopened_socket_is_connected_again(host: Host, target: Target) -> None:
    async with Front(host, drops=1) as front:
        target = target_through(front, target)
        dials = PreopenedSockets([target])
        await dials.open()
        await front.until(total=1, still=0)
        await connection.open_early([target], dials, nothing)
        link = await connection.connect(target, patience=0)
        assert (front.connections, host.logins) == (2, 1)
        await link.close()
        await dials.close()


async def test_unusable_keys_leave_no_preopened_socket(host: Host, target: Target) -> None:
    async with Front(host) as front:
        target = replace(target_through(front, target), keys=("/not/there",))
        dials = PreopenedSockets([target])
        await dials.open()
        await front.until(total=1, still=1)
        await connection.open_early([target], dials, nothing)
        with pytest.raises(UsageError, match="Cannot use a key file"):
            await connection.connect(target, patience=0)
        await dials.close()
        await front.until(total=1, still=0)


async def test_socket_is_preopened_only_for_directly_reachable_hosts(
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
        await front.until(total=1, still=1)
        sock = await dials.claim(Target("box"))
        assert sock is not None
        sock.close()
        await dials.close()
        assert front.connections == 1


# ---- what is done right after the login ---------------------------------------------------------------------


async def test_failed_warm_up_leaves_no_connection(host: Host, target: Target) -> None:
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


def leave_pool_folder(root: Path, name: str, age: float, idle_timeout: float = 600.0) -> Path:
    """Create a pool's folder in which nothing was written for a while."""
    folder = root / "pools" / name
    (folder / "spool").mkdir(parents=True)
    (folder / "agent.lock").touch()
    state = {"pid": 1, "socket": str(folder / "agent.sock"), "idle_timeout": idle_timeout}
    (folder / "agent.json").write_text(json.dumps(state))
    (folder / "spool" / "r000.out").write_text("a line\n")
    then = time.time() - age
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))
    return folder


def test_stale_pool_folder_is_removed_after_its_lease(tmp_path: Path) -> None:
    over, file = leave_pool_folder(tmp_path, "over.a.0", 700), leave_pool_folder(tmp_path, "kept.b.0", 500)
    brief = leave_pool_folder(tmp_path, "brief.c.0", 10, idle_timeout=1.0)  # its agent may just be starting
    for name in ("ended.new.a.0", "ended.old.b.0"):
        (tmp_path / "pools" / name).write_text("the node ended itself\n")
    os.utime(tmp_path / "pools" / "ended.old.b.0", (0, 0))
    host_command_server.remove_stale_folders(str(tmp_path))
    assert not over.exists()
    assert file.exists() and brief.exists()
    assert [path.name for path in (tmp_path / "pools").glob("ended.*")] == ["ended.new.a.0"]


def test_pool_folder_with_a_growing_log_is_kept(tmp_path: Path) -> None:
    folder = leave_pool_folder(tmp_path, "quiet.a.0", 7000)
    os.utime(folder / "spool" / "r000.out")
    host_command_server.remove_stale_folders(str(tmp_path))
    assert folder.exists()


def test_pool_folder_of_a_live_agent_is_kept(tmp_path: Path) -> None:
    folder = leave_pool_folder(tmp_path, "quiet.a.0", 7000)
    with (folder / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        host_command_server.remove_stale_folders(str(tmp_path))
        assert folder.exists()
    host_command_server.remove_stale_folders(str(tmp_path))
    assert not folder.exists()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    mark = {host_inspection.NODE_VARIABLE: str(tmp_path / "pools" / "orphans.a.0")}
    code = "print('here', flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], env=mark, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if process.stdout is not None:
        process.stdout.readline()  # in the middle of its exec a process has no environment
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are found by /proc")
def test_pool_folder_of_orphaned_workers_is_kept(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    folder = leave_pool_folder(tmp_path, "orphans.a.0", 7000)
    host_command_server.remove_stale_folders(str(tmp_path))
    assert folder.exists()


async def test_next_start_on_a_host_removes_a_stale_pool_folder(host: Host, target: Target) -> None:
    config = {"pool": "p", "node": 0, "nodes": 1, "idle_timeout": 100.0, "grace": 0.1}
    first, second = SSHTransport(target, "first.a.0"), SSHTransport(target, "second.b.0")
    root = host.home / ".cache" / "skyward"
    try:
        await first.prepare(config, lambda *args, **more: None)
        left = root / "pools" / "first.a.0"
        for pid in find_node_processes(str(left)):
            os.kill(pid, signal.SIGKILL)  # what a power cut does to them
        async with asyncio.timeout(90):
            while is_running(str(left)) or find_node_processes(str(left)):
                await asyncio.sleep(0.01)
        then = time.time() - 101
        for path in (*left.rglob("*"), left):
            os.utime(path, (then, then))
        await second.prepare(config, lambda *args, **more: None)
        assert not left.exists()
        assert (root / "pools" / "second.b.0").exists()
    finally:
        channel = await second.channel()
        await channel.ask("end", folder="second.b.0", socket=channel.facts["socket"])
        channel.close()
        await first.close()
        await second.close()


async def test_node_that_ended_itself_reports_the_reason(host: Host, known_hosts_file: Path) -> None:
    ssh = SSH([f"127.0.0.1:{host.port}"], keys=str(host.client_key), known_hosts=str(known_hosts_file), config=False)
    machines = await ssh.create(PoolSpec(name="train", provider=ssh, nodes=1), "token")
    way = ssh.transport("train", machines[0])
    try:
        config = {"pool": "train", "node": 0, "nodes": 1, "idle_timeout": 0.2, "grace": 0.1}
        await way.prepare(config, lambda *args, **more: None)
        async with asyncio.timeout(90):
            while (seen := (await ssh.describe("train", machines))[0]).state != "gone":
                await asyncio.sleep(0.05)
        assert seen.extra["why"] == "the node ended itself: idle for 0.2 s"
    finally:
        await way.close()


LIMIT = 12_345.0  # seconds that a start may take; here it is over as soon as the installer hangs

# A child in a session of its own is what build tools like to have.
INSTALLER = """#!/bin/sh
sleep 600 &
echo $! > {pids}.making
setsid sleep 601 &
echo $! >> {pids}.making
echo $$ >> {pids}.making
mv {pids}.making {pids}
wait
"""


@pytest.fixture
def pids(host: Host, tmp_path: Path) -> Iterator[Path]:
    """Return the processes that the host's installer has listed before it hung."""
    file, folder = tmp_path / "pids", tmp_path / "installers"
    folder.mkdir()
    (folder / "uv").write_text(INSTALLER.format(pids=file))
    (folder / "uv").chmod(0o755)
    host.noise = f"PATH={folder}:$PATH"
    yield file
    for pid in map(int, file.read_text().split() if file.exists() else ()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("how", ["torn down", "startup timeout", "detached"])
async def test_host_processes_end_with_a_cancelled_or_timed_out_start(
    host: Host, known_hosts_file: Path, pids: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    limits: list[asyncio.Timeout] = []
    whole = asyncio.timeout

    def timeout(delay: float | None) -> asyncio.Timeout:
        if delay != LIMIT:
            return whole(delay)
        limits.append(whole(None))
        return limits[0]

    monkeypatch.setattr(asyncio, "timeout", timeout)
    session = Session()
    spec = PoolSpec(
        name="p",
        provider=provider(host, known_hosts_file),
        image=Image(pip=("not-to-be-had-anywhere==1.0",)),
        options=Options(console=False, start_timeout=LIMIT),
    )
    begun: Future[PoolView] = Future()
    coming = asyncio.wrap_future(session.create(spec, begun=begun))
    await until(lambda: pids.exists() or coming.done(), "the installer")
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 3 and all(map(exists, started))
    if how == "torn down":  # as ctrl-c does, and the teardown in the app
        assert (await asyncio.wrap_future(session.tear_down(begun.result().key))).ok
        with pytest.raises(Cancelled):
            await coming
    elif how == "startup timeout":
        background_loop().call_soon_threadsafe(limits[0].reschedule, 0.0)
        with pytest.raises(PoolError, match=r"did not start within 12345 s: node 0 installed \(checking"):
            await coming
    else:
        await asyncio.to_thread(session.detach)
        with pytest.raises(Cancelled):
            await coming
    await until(lambda: not any(map(exists, started)), "the installer's end")
    if how != "detached":
        await asyncio.to_thread(session.detach)
    assert not list(host.home.glob(".cache/skyward/environments/*/.made"))


async def test_host_unreachable_for_early_connection_is_retried_on_demand(host: Host, target: Target) -> None:
    await host.stop()
    await connection.open_early([target], PreopenedSockets([]), nothing)
    with pytest.raises(PoolError, match="refuses"):
        await connection.connect(target, patience=0)
    await connection.open_early([target], PreopenedSockets([]), nothing)
    waiting = asyncio.create_task(connection.connect(target, patience=20))
    await host.start()
    await (await waiting).close()


@pytest.mark.skipif(shutil.which("sh") is None, reason="no shell")
@pytest.mark.parametrize(("ciphers", "fillers"), [(connection.AEAD, False), (("aes128-ctr",), True)])
async def test_ssh_ignore_packets_are_sent_only_for_ciphers_that_need_them(
    host: Host, target: Target, monkeypatch: pytest.MonkeyPatch, ciphers: tuple[str, ...], fillers: bool
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
