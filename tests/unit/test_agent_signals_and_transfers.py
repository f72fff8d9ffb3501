"""Signals on an agent's event loop, blob helper processes and the agent configuration."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.file_transfer_supervisor import PeerTransfers
from skyward_core.node.agent.output_checkpoint_and_source_files import file_version
from skyward_core.node.agent.worker_processes import add_signal_handlers, reap
from skyward_core.node.worker import stop_signal
from skyward_core.plugins.pool_certificate_authority import Authority, node_name
from skyward_core.util.content_hash import hash_bytes
from tests.support.processes import descendants, run_command


@pytest.fixture
def restore_signal_handlers() -> object:
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("restore_signal_handlers")
async def test_repeated_signals_call_their_handler_at_least_once() -> None:
    seen: Counter[str] = Counter()
    both = asyncio.Event()

    def see(name: str) -> None:
        seen[name] += 1
        if len(seen) == 2:
            both.set()

    add_signal_handlers({signal.SIGUSR1: lambda: see("one"), signal.SIGUSR2: lambda: see("two")})
    for _ in range(3):
        seen.clear()
        both.clear()
        for _ in range(100):  # more than anybody counts
            os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        await asyncio.wait_for(both.wait(), 10)


# A worker that is told to end while it gets ready for that ends in silence.

ENDS_EARLY = """
import os, signal, threading
from skyward_core.node.worker.stop_signal import StopSignal

start = threading.Thread.start

def told_first(thread):
    os.kill(os.getpid(), signal.SIGTERM)
    start(thread)

threading.Thread.start = told_first
StopSignal(interrupts=True)
"""


def test_process_ends_on_a_signal_during_handler_setup() -> None:
    done = run_command([sys.executable, "-c", ENDS_EARLY], cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (143, "")


# The agent's way to its peers: a process of its own per client, that ends with the client; its death is told.

DATA = b"payload" * 100_000
NAME = hash_bytes(DATA)


class Client:
    """Attributes of a client's connection that a transfer uses."""

    def __init__(self) -> None:
        self.is_open = True
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def send(self, header: dict[str, Any]) -> None:
        self.answers.put_nowait(header)


class Node:
    def __init__(self, folder: Path, number: int, authority: Authority) -> None:
        self.config = AgentConfig("p", number, 2, str(folder), str(folder / "sock"), 600.0, 5.0)
        self.config.blobs.mkdir(parents=True)
        self.exchange = PeerTransfers(self.config)
        self.client = Client()
        self.papers = authority.issue(node_name(number)).to_json()

    async def ask(self, **header: Any) -> dict[str, Any]:
        await self.exchange.answer(self.client, {"id": 7} | header)  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            answer = await self.client.answers.get()
        assert answer.pop("id") == 7 and answer.pop("t") == "known"
        return answer

    async def listen(self) -> int:
        return int((await self.ask(t="peers", **self.papers))["port"])

    def blob(self) -> dict[str, Any]:
        return {"t": "pull", "hash": NAME, "size": len(DATA)}


@pytest.fixture
def nodes(tmp_path: Path) -> list[Node]:
    authority = Authority("p")
    made = [Node(tmp_path / str(number), number, authority) for number in range(2)]
    (made[0].config.blobs / NAME).write_bytes(DATA)
    return made


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            reap()
            await asyncio.sleep(0.005)


async def test_blob_helper_processes_end_with_their_client(nodes: list[Node]) -> None:
    before = descendants(os.getpid())
    ports = [await node.listen() for node in nodes]
    assert len(descendants(os.getpid()) - before) == 2
    answer = await nodes[1].ask(**nodes[1].blob(), **{"from": ["127.0.0.1", ports[0]]})
    assert answer == {}
    assert (nodes[1].config.blobs / NAME).read_bytes() == DATA
    assert await nodes[1].ask(**nodes[1].blob(), **{"from": None}) == {}  # it has it
    for node in nodes:
        node.exchange.on_client_gone(node.client)  # type: ignore[arg-type]
    await wait_until(lambda: descendants(os.getpid()) <= before)


async def test_retained_helpers_fetch_checkpoints_without_a_client(tmp_path: Path, nodes: list[Node]) -> None:
    before = descendants(os.getpid())
    checkpoint = tmp_path / "work" / "step.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(DATA)
    nodes[0].config.cwd = str(checkpoint.parent)
    ports = [await node.listen() for node in nodes]
    request: Any = nodes[1].blob() | {"from": ("127.0.0.1", ports[0])}
    request["output"] = {"path": "step.pt", "version": file_version(checkpoint.stat())}
    with pytest.raises(OSError, match="does not have the blob"):
        await nodes[1].exchange.pull(None, request)
    for node, port in zip(nodes, ports, strict=True):
        node.exchange.on_client_gone(node.client, retains=True)  # type: ignore[arg-type]
        assert node.exchange.retained_port == port
    assert await nodes[1].exchange.pull(None, request) == {}
    assert (nodes[1].config.blobs / NAME).read_bytes() == DATA
    request |= {"hash": "1" * 32, "output": {"path": "step.pt", "version": "1"}}
    assert "changed" in (await nodes[1].exchange.pull(None, request))["error"]
    for node in nodes:
        node.exchange.on_client_gone(None)
        assert node.exchange.retained_port == 0
    await wait_until(lambda: descendants(os.getpid()) <= before)


async def test_blob_exchange_errors_are_reported(nodes: list[Node]) -> None:
    assert "does not have the blob" in (await nodes[1].ask(**nodes[1].blob(), **{"from": None}))["error"]
    port, _ = [await node.listen() for node in nodes]
    missing = {"t": "pull", "hash": "0" * 32, "size": 1, "from": ["127.0.0.1", port]}
    answer = await nodes[1].ask(**missing)
    assert "no such blob" in answer["error"] and not answer["unreachable"]
    missing["from"] = ["127.0.0.1", 1]
    assert (await nodes[1].ask(**missing))["unreachable"]
    for node in nodes:
        node.exchange.on_client_gone(node.client)  # type: ignore[arg-type]


async def test_killed_blob_helper_is_reported_and_replaced(nodes: list[Node]) -> None:
    before = descendants(os.getpid())
    await nodes[1].listen()
    (helper,) = descendants(os.getpid()) - before
    os.kill(helper, signal.SIGSTOP)
    request = {"t": "pull", "hash": NAME, "size": len(DATA), "from": ["127.0.0.1", 1]}
    asking = asyncio.create_task(nodes[1].ask(**request))
    await asyncio.sleep(0)
    os.kill(helper, signal.SIGKILL)
    assert "exited" in (await asking)["error"]
    assert "exited" in (await nodes[1].ask(**request))["error"]
    ports = [await node.listen() for node in nodes]
    assert await nodes[1].ask(**nodes[1].blob(), **{"from": ["127.0.0.1", ports[0]]}) == {}
    for node in nodes:
        node.exchange.on_client_gone(node.client)  # type: ignore[arg-type]
    await wait_until(lambda: descendants(os.getpid()) <= before)


# What an agent is told: as a client sent it, and changed as values are.

TOLD: dict[str, Any] = {
    "pool": "p", "node": 0, "nodes": 2, "folder": "/n", "socket": "/s", "idle_timeout": 9.0, "grace": 1.0,
}  # fmt: skip


def test_agent_config_has_defaults_and_ignores_unknown_json_keys() -> None:
    config = AgentConfig.from_json(TOLD | {"env": {"A": "1"}, "of_a_newer_version": 9})
    assert (config.pool, config.nodes, config.env, config.devices, config.ttl) == ("p", 2, {"A": "1"}, [], None)
    other = AgentConfig("p", 0, 2, "/n", "/s", 9.0, 1.0)
    assert other.env == {} and other.env is not AgentConfig(**TOLD).env
    assert other.worker_socket == config.worker_socket


def test_changed_agent_config_is_a_copy_without_visible_secrets() -> None:
    config = AgentConfig(**TOLD, secrets=["hunter2hunter2"])
    changed = config.replace(umask=0o022).with_gpus(["H100", "H100"])
    assert (changed.umask, changed.accelerators, changed.accelerator) == (0o022, 2, "H100")
    assert (config.umask, config.accelerators, changed.secrets) == (0o077, None, config.secrets)
    assert "hunter2" not in repr(changed)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pool": "p", "node": 0}, "missing fields of the agent config: nodes, folder, socket, idle_timeout, grace$"),
        (TOLD | {"colour": "red"}, "unknown fields of the agent config: colour$"),
    ],
)
def test_agent_config_with_missing_or_unknown_fields_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        AgentConfig(**fields)


def test_request_pipe_that_cannot_be_opened_leaks_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file, used = os.open, len([*Path("/dev/fd").iterdir()])

    def refuse(path: str, flags: int) -> int:
        if flags & os.O_WRONLY:
            raise OSError(errno.EMFILE, "no free descriptors")
        return open_file(path, flags)

    with monkeypatch.context() as full:
        full.setattr(os, "open", refuse)
        pipe = stop_signal._open_pipe(str(tmp_path / "ask"))
    for each in pipe:
        os.close(each)
    assert len([*Path("/dev/fd").iterdir()]) == used
