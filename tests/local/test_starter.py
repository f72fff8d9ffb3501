"""The process that starts local agents: lifetime and failures."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import PoolError
from skyward_core.node.bootstrap.host_inspection import find_node_processes
from skyward_core.transport.local_transport_and_environments import _CODE, AgentStarter
from tests.support.processes import descendants, exists
from tests.support.waiting import until, wait_until


@pytest.fixture(scope="module", autouse=True)
def quick_starters() -> None:
    """Replace the fixture by nothing, because these tests are about the real process."""


def config(folder: Path, node: int) -> dict[str, Any]:
    return {
        "pool": "p", "node": node, "nodes": 2, "folder": str(folder / f"node-{node}"),
        "socket": str(folder / f"{node}.sock"), "path": sys.path, "python": sys.executable,
        "idle_timeout": 600.0, "grace": 5.0,
    }  # fmt: skip


@pytest.fixture
def started_agents() -> Iterator[list[dict[str, Any]]]:
    answers: list[dict[str, Any]] = []
    yield answers
    for answer in answers:
        os.kill(answer["pid"], signal.SIGTERM)  # with which it ends its worker, too
    for answer in answers:
        wait_until(lambda pid=answer["pid"]: not exists(pid), what="the agent's end")  # type: ignore[misc]


def group(leader: int) -> list[int]:
    """Return the living processes of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, number, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z" and int(number) == leader:
                found.append(int(path.parent.name))
    return found


def interpreter(starter: AgentStarter) -> Any:
    return starter._interpreter._process  # type: ignore[union-attr]


async def test_one_starter_process_starts_all_agents_and_ends_afterwards(
    tmp_path: Path, started_agents: list[dict[str, Any]]
) -> None:
    starter = AgentStarter()
    with starter:
        process = interpreter(starter)
        started_agents += await asyncio.gather(*(starter.start(config(tmp_path, node)) for node in range(2)))
        assert process.poll() is None
    async with asyncio.timeout(20):
        while process.returncode is None:
            await asyncio.sleep(0.005)
    assert process.returncode == 0
    assert [answer["node"] for answer in started_agents] == [0, 1]
    assert len({answer["pid"] for answer in started_agents} - {process.pid}) == 2
    for node in range(2):
        assert find_node_processes(str(tmp_path / f"node-{node}"))
    again = await starter.start(config(tmp_path, 0))  # by another process, which finds who is there
    assert again["found"]


async def test_invalid_agent_start_is_rejected_and_the_next_one_works(
    tmp_path: Path, started_agents: list[dict[str, Any]]
) -> None:
    (tmp_path / "node-0").touch()
    starter = AgentStarter()
    with starter:
        with pytest.raises(PoolError, match="node-0"):
            await starter.start(config(tmp_path, 0))
        started_agents.append(await starter.start(config(tmp_path, 1)))


async def test_death_of_the_starter_process_is_reported_to_every_request(tmp_path: Path) -> None:
    starter = AgentStarter()
    with starter:
        process = interpreter(starter)
        os.kill(process.pid, signal.SIGSTOP)
        waiting = asyncio.create_task(starter.start(config(tmp_path, 0)))
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PoolError, match="no output"):
            await waiting
        with pytest.raises(PoolError, match="did not start"):
            await starter.start(config(tmp_path, 1))


async def test_death_of_one_starting_agent_is_reported_and_the_next_starts(
    tmp_path: Path, started_agents: list[dict[str, Any]]
) -> None:
    (tmp_path / "node-0").mkdir()
    os.mkfifo(tmp_path / "node-0" / "agent.lock")  # whoever opens it waits
    starter = AgentStarter()
    with starter:
        process = interpreter(starter)
        waiting = asyncio.create_task(starter.start(config(tmp_path, 0)))
        await until(lambda: descendants(process.pid))
        (child,) = descendants(process.pid)
        os.kill(child, signal.SIGKILL)
        with pytest.raises(PoolError, match=r"node-0 did not start: .*SIGKILL"):
            await waiting
        started_agents.append(await starter.start(config(tmp_path, 1)))


async def test_check_for_a_running_agent_delays_but_does_not_fail_a_start(
    tmp_path: Path, started_agents: list[dict[str, Any]]
) -> None:
    (tmp_path / "node-0").mkdir()
    with (tmp_path / "node-0" / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as another client that checks for an agent
        starter = AgentStarter()
        with starter:
            process = interpreter(starter)
            waiting = asyncio.create_task(starter.start(config(tmp_path, 0)))
            await until(lambda: waiting.done() or any(has_open(pid, lock.name) for pid in descendants(process.pid)))
            fcntl.flock(lock, fcntl.LOCK_UN)
            started_agents.append(await waiting)
    assert not started_agents[0]["found"]


def has_open(pid: int, path: str) -> bool:
    with suppress(FileNotFoundError):
        return any(each.is_symlink() and str(each.readlink()) == path for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_starter_that_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    starter = AgentStarter()
    with pytest.raises(PoolError, match=r"cannot start a process .*none"), starter:
        pass
    monkeypatch.undo()
    with starter:
        assert interpreter(starter).pid


def test_starter_process_ends_with_its_killed_client() -> None:
    code = (
        "import time; from skyward_core.transport.local_transport_and_environments import AgentStarter as Starter\n"
        "starter = Starter()\nwith starter:\n"
        "    print(starter._interpreter._process.pid, flush=True)\n    time.sleep(600)"
    )
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        assert exists(pid)
        client.kill()
    wait_until(lambda: not exists(pid), what="the starter's end")


def test_unused_starter_process_is_killed_and_closed() -> None:
    starter = AgentStarter()
    with starter:
        process = interpreter(starter)
    assert process.returncode == -signal.SIGKILL
    assert process.stdin.closed and process.stdout.closed and process.stderr.closed


def test_agents_are_started_without_ssl_modules() -> None:
    """The ssl module takes 7 MB of memory per agent and a tenth of the startup time."""
    code = f"{_CODE}\nprint(*sys.modules.keys() & {{'asyncio', 'ssl', '_ssl'}}, gc.get_freeze_count() > 1000)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("asyncio True\n", "")


def test_client_killed_during_an_agent_start_gets_no_agent(tmp_path: Path) -> None:
    """The next client finds no process and reports the pool as gone."""
    root = tmp_path / "p.1"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CODE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        os.kill(process.pid, signal.SIGSTOP)
        process.stdin.write(json.dumps(config(root, 0)).encode() + b"\n")
        process.stdin.close()
        process.stdout.close()
        os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: not group(process.pid))
    try:
        assert not root.exists()
    finally:
        for pid in find_node_processes(str(root / "node-0")):
            os.kill(pid, signal.SIGKILL)
