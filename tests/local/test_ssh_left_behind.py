"""What a pool left on a host that lost its power goes when the host is used again, and not before its lease is over."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.model.specs import PoolSpec
from skyward_core.node.bootstrap import host_command_server, host_inspection
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport.ssh.host_address import Target
from skyward_core.transport.ssh.ssh_transport import SSHTransport
from tests.support.sshd import Host


def leave(root: Path, name: str, age: float, idle_timeout: float = 600.0) -> Path:
    """A pool's folder in which nothing was written for a while."""
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


def test_a_folder_goes_when_its_lease_is_over(tmp_path: Path) -> None:
    over, kept = leave(tmp_path, "over.a.0", 700), leave(tmp_path, "kept.b.0", 500)
    brief = leave(tmp_path, "brief.c.0", 10, idle_timeout=1.0)  # its agent may just be starting
    for name in ("ended.new.a.0", "ended.old.b.0"):
        (tmp_path / "pools" / name).write_text("the node ended itself\n")
    os.utime(tmp_path / "pools" / "ended.old.b.0", (0, 0))
    host_command_server.remove_stale_folders(str(tmp_path))
    assert not over.exists()
    assert kept.exists() and brief.exists()
    assert [path.name for path in (tmp_path / "pools").glob("ended.*")] == ["ended.new.a.0"]


def test_a_folder_whose_log_still_grows_stays(tmp_path: Path) -> None:
    folder = leave(tmp_path, "quiet.a.0", 7000)
    os.utime(folder / "spool" / "r000.out")
    host_command_server.remove_stale_folders(str(tmp_path))
    assert folder.exists()


def test_a_live_agent_keeps_its_folder_however_quiet_it_is(tmp_path: Path) -> None:
    folder = leave(tmp_path, "quiet.a.0", 7000)
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
def test_workers_that_outlived_their_agent_keep_its_folder(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    folder = leave(tmp_path, "orphans.a.0", 7000)
    host_command_server.remove_stale_folders(str(tmp_path))
    assert folder.exists()


async def test_the_next_start_on_the_host_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    host = Host(tmp_path / "host")
    await host.start()
    known = tmp_path / "known"
    known.write_text(host.known_line())
    target = Target("127.0.0.1", port=host.port, keys=(str(host.client_key),), known_hosts=str(known), config=False)
    config = {"pool": "p", "node": 0, "nodes": 1, "idle_timeout": 100.0, "grace": 0.1}
    first, second = SSHTransport(target, "first.a.0"), SSHTransport(target, "second.b.0")
    root = host.home / ".cache" / "skyward"
    try:
        await first.prepare(config, lambda *said, **more: None)
        left = root / "pools" / "first.a.0"
        for pid in host_inspection.find_node_processes(str(left)):
            os.kill(pid, signal.SIGKILL)  # what a power cut does to them
        async with asyncio.timeout(90):
            while host_inspection.is_running(str(left)) or host_inspection.find_node_processes(str(left)):
                await asyncio.sleep(0.01)
        then = time.time() - 101
        for path in (*left.rglob("*"), left):
            os.utime(path, (then, then))
        await second.prepare(config, lambda *said, **more: None)
        assert not left.exists()
        assert (root / "pools" / "second.b.0").exists()
    finally:
        channel = await second.channel()
        await channel.ask("end", folder="second.b.0", socket=channel.facts["socket"])
        channel.close()
        await first.close()
        await second.close()
        await host.stop()


async def test_a_node_that_ended_itself_says_why_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    host = Host(tmp_path / "host")
    await host.start()
    known = tmp_path / "known"
    known.write_text(host.known_line())
    ssh = SSH([f"127.0.0.1:{host.port}"], keys=str(host.client_key), known_hosts=str(known), config=False)
    machines = await ssh.create(PoolSpec(name="train", provider=ssh, nodes=1), "token")
    way = ssh.transport("train", machines[0])
    try:
        config = {"pool": "train", "node": 0, "nodes": 1, "idle_timeout": 0.2, "grace": 0.1}
        await way.prepare(config, lambda *said, **more: None)
        async with asyncio.timeout(90):
            while (seen := (await ssh.describe("train", machines))[0]).state != "gone":
                await asyncio.sleep(0.05)
        assert seen.extra["why"] == "the node ended itself: idle for 0.2 s"
    finally:
        await way.close()
        await host.stop()
