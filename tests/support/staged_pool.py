"""Runs of a pool without machines: the pool's real parts, and links whose other ends a test simulates."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skyward_core.model.outcomes_states_and_alerts import Outcome, RunKind
from skyward_core.model.specs import Options
from skyward_core.pool.agent_link import Link
from skyward_core.pool.node_recovery import NodeRecovery
from skyward_core.pool.pool_context import PoolContext
from skyward_core.pool.runs.run import Run
from skyward_core.pool.runs.scheduler import RunScheduler
from skyward_core.protocol.frame_codec import VERSION, Decoder, Header, encode_frame
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.tasks.pickled_calls_and_blobs import EMPTY_BLOB, Blob, Task
from skyward_core.util.content_hash import hash_bytes
from skyward_core.views import events

SUMMARY = {"type": "int", "text": "1", "json": 1, "is_json": True, "size": 5}
_tokens = itertools.count()


def task(number: int = 0, **more: Any) -> Task:
    """Return a unique call of ``f``."""
    data = pickle.dumps(((number,), {}), protocol=5)
    return Task("f", Blob(hash_bytes(b"f"), 1, data=b"f"), Blob(hash_bytes(data), len(data), data=data), **more)


def large_task(path: Path) -> Task:
    """Return a call whose arguments are in a file."""
    path.write_bytes(b"x" * 100_000)
    return Task("f", EMPTY_BLOB, Blob(hash_bytes(b"large"), 100_000, path=path))


def failure_reason(run: Run, index: int) -> str:
    """Return the reason why a call did not return."""
    error = run.outcomes[index].error
    return error.message if error is not None else ""


class Pipe:
    """One connection of a node."""

    def __init__(self, node: Node, on_data: Callable[[bytes], None], on_lost: Callable[..., None]) -> None:
        self.on_data, self.on_lost = on_data, on_lost
        self.sent: list[tuple[Header, bytes]] = []
        self._node = node
        self._decoder = Decoder()

    def write(self, data: bytes) -> None:
        for header, body in self._decoder.feed(data):
            self.sent.append((header, body))
            self._node.log.append((self._node.number, header))

    def close(self) -> None:
        return None


class Node:
    """Simulated node at the other end of a link, which is also the link's transport. Records received frames.

    Attributes:
        log: Frames that all nodes received, in order.
        away: Error of connection attempts while it is set.
        files: Uploaded files. If ``full`` is set, it is raised instead of accepting a file.
    """

    shares_files = False
    direct = None

    def __init__(self, number: int, ranks: int, log: list[tuple[int, Header]]) -> None:
        self.number, self.log = number, log
        self.rank = number * ranks  # its first
        self.pipes: list[Pipe] = []
        self.epoch = 1
        self.away: OSError | None = None
        self.files: list[str] = []
        self.full: OSError | None = None

    async def open(self, on_data: Any, on_lost: Any) -> Pipe:
        if self.away is not None:
            raise self.away
        pipe = Pipe(self, on_data, on_lost)
        self.pipes.append(pipe)
        welcome = {
            "t": "welcome", "version": VERSION, "epoch": self.epoch, "broken": "", "node": self.number, "address": "",
            "ranks_per_node": 1, "lease": None, "runs": [],
        }  # fmt: skip
        asyncio.get_running_loop().call_soon(pipe.on_data, encode_frame(welcome))
        return pipe

    async def put(self, path: Path, name: str) -> None:
        if self.full is not None:
            raise self.full
        self.files.append(name)
        self.log.append((self.number, {"t": "put", "bytes": len(path.read_bytes())}))

    async def fetch(self, name: str, target: Path, offset: int, size: int) -> bool:
        return False

    async def close(self) -> None:
        return None

    def of(self, kind: str) -> list[Header]:
        """Return the frames of one kind that were received over the present connection."""
        return [header for header, _ in self.pipes[-1].sent if header["t"] == kind]

    @property
    def calls(self) -> list[int]:
        """Return the indices of calls that were received over the present connection."""
        return [header["i"] for header in self.of("call")]

    def say(self, header: Header, body: bytes = b"") -> None:
        self.pipes[-1].on_data(encode_frame(header, body))

    def ends(self, run: Run, index: int, kind: str = "returned", value: Any = None, **more: Any) -> None:
        """Send the end of a call. A call that returned or raised has a value."""
        rank = index if run.kind == "broadcast" else self.rank
        body = pickle.dumps(value) if kind in ("returned", "raised") and "file" not in more else b""
        if kind != "returned":
            more.setdefault("error", {"type": "ValueError", "message": "no", "traceback": ""})
        header = {"t": "outcome", "run": run.id, "i": index, "rank": rank, "node": self.number, "kind": kind}
        # A task is as slow here as most are: quick ones are sent ahead of others.
        self.say(header | {"seconds": 1.0, "begun": True} | more, body)

    def stale(self, run: Run, index: int, why: str = "") -> None:
        """Return a call of an outdated gang."""
        self.say({"t": "stale", "run": run.id, "i": index, "why": why})

    def yields(self, run: Run, index: int, number: int, **more: Any) -> None:
        """Send a generator's value: its number, three times."""
        rank = index if run.kind == "broadcast" else self.rank
        header = {"t": "item", "run": run.id, "i": index, "rank": rank, "seq": number, "summary": SUMMARY}
        self.say(header | more, b"" if "file" in more else pickle.dumps(3 * number))

    def drop(self) -> None:
        """Close the connection. It can be reopened unless ``away`` is set."""
        self.pipes[-1].on_lost(OSError("cable pulled"))


class Ledger:
    """Ledger that records all writes in memory."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[str, Outcome]] = []

    def record_runs(self, runs: Any, outcomes: Any = (), *_: Any) -> None:
        self.outcomes += [(run, outcome) for run, outcome, _ in outcomes]

    def unfinished_runs(self, token: str) -> list[Any]:
        return []


class Keeper:
    """Simulated gang set-up, which completes the gang when a run waits for it.

    Attributes:
        asked: "start" or "ensure" for each wait.
        opened: Event; waits block while it is cleared.
        failures: Errors of the next waits.
    """

    def __init__(self) -> None:
        self.is_complete = True
        self.epoch = 1
        self.plugins = b""
        self.knows_plugins = True
        self.asked: list[str] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.failures: list[OSError] = []

    @property
    def is_ready(self) -> bool:
        return self.is_complete

    def try_start(self, send: Callable[[int], None]) -> bool:
        if self.is_complete:
            send(self.epoch)
        return self.is_complete

    async def start(self, send: Callable[[int], None]) -> bool:
        await self._form_gang("start")
        send(self.epoch)
        return True

    async def ensure_set_up(self) -> None:
        await self._form_gang("ensure")

    async def _form_gang(self, what: str) -> None:
        self.asked.append(what)
        await self.opened.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.is_complete, self.epoch = True, self.epoch + 1


class Stage:
    """Staged pool; see the module.

    Attributes:
        log: Frames that all nodes received, in order, as node and header, and the pool's events.
    """

    def __init__(self, nodes: int, ranks: int, concurrency: int, options: Options) -> None:
        self.log: list[Any] = []
        self.nodes = [Node(number, ranks, self.log) for number in range(nodes)]
        worker = {"concurrency": concurrency, "ranks_per_node": ranks}
        spec = {"options": options.describe(), "worker": worker, "plugins": [], "nodes": nodes, "provider": "local"}
        row = PoolRow(f"t{next(_tokens)}", "p", {}, spec, "up", 0.0, None, None, None)
        self.ledger = Ledger()
        self.context = context = PoolContext(row, None, self.ledger, observer=False)  # type: ignore[arg-type]
        self.news = news = context.news
        self.background, self.registry, self.roster = context.background, context.registry, context.roster
        context.setup.is_env_known = True
        self.keeper = Keeper()
        context.setup.rank_setup = self.keeper  # type: ignore[assignment]
        self.scheduler = context.scheduler = RunScheduler(context)
        context.recovery = NodeRecovery(context)
        self.events: list[events.Event] = []
        news.emit_opened()
        news.subscribe(self._heard, None)

    @property
    def links(self) -> list[Link]:
        return self.context.links

    def _heard(self, event: events.Event) -> None:
        self.events.append(event)
        self.log.append(event)

    async def connect(self) -> None:
        for node in self.nodes:
            link = Link(node.number, node, self, pool="p")  # type: ignore[arg-type]
            self.links.append(link)
            await link.connect()

    # -- as a pool does with what comes over its links --

    def cursors(self, node: int) -> dict[str, int]:
        return {}

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        if up and not link.epoch:
            self.scheduler.on_new_agent()

    def on_frame(self, link: Link, header: Any, body: bytes) -> None:
        if header["t"] == "gang":
            self.scheduler.on_gang_broken()
        else:
            self.registry.on_frame(link, header, body)

    # -- for tests --

    def add(self, kind: RunKind, *tasks: Task, consumed: bool = False) -> Run:
        """Create a run without starting it."""
        total = len(self.nodes) * self.context.ranks_per_node if kind == "broadcast" else len(tasks)
        run = self.registry.add(f"r{next(_tokens)}", kind, tasks, total)
        run.consumed = consumed
        return run

    @property
    def placed(self) -> list[tuple[int, int]]:
        """Calls that nodes received, in order, as node and index."""
        sent = (each for each in self.log if isinstance(each, tuple))
        return [(node, header["i"]) for node, header in sent if header["t"] == "call"]

    def events_of(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]

    def acknowledged(self) -> list[tuple[int, dict[str, list[int] | None]]]:
        """Acknowledgements that the nodes received."""
        self.background.run_deferred()
        for link in self.links:
            link.flush_acknowledgements()
        return [(node.number, header["calls"]) for node in self.nodes for header in node.of("ack") if header["calls"]]

    def replacing(self, node: int) -> asyncio.Event:
        """Simulate the replacement of a node, which ends when the event is set."""
        over = asyncio.Event()

        async def replace() -> None:
            await over.wait()
            del self.roster.replacement_tasks[node]

        self.roster.replacement_tasks[node] = asyncio.create_task(replace())
        return over


@asynccontextmanager
async def staged(nodes: int = 2, *, ranks: int = 1, concurrency: int = 1, **options: Any) -> AsyncIterator[Stage]:
    """Create a pool with a number of nodes. ``options`` are those of a pool."""
    stage = Stage(nodes, ranks, concurrency, Options(console=False, **options))
    try:
        await stage.connect()
        yield stage
    finally:
        stage.background.run_deferred()
        for link in stage.links:
            await link.close()
        await stage.background.stop()
        stage.registry.direct.close()
        stage.news.close()
