"""Order of gang starts under the head's lock, forming of gangs, and standalone ranks, with played agents."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.outcomes_states_and_alerts import RunKind
from skyward_core.pool import gang_and_rank_setup
from skyward_core.pool.gang_and_rank_setup import GangSetup, RankSetup
from skyward_core.pool.pool_context import PoolContext
from skyward_core.pool.runs.run import Run
from skyward_core.pool.runs.run_registry_claims_and_frames import RunRegistry
from skyward_core.protocol.frame_codec import WireError, encode_json
from tests.support.waiting import until

Header = dict[str, Any]


class FakeLink:
    """Link whose agent returns ``answers``. ``calls`` are the frames of :meth:`GangSetup.start`."""

    def __init__(self, node: int, log: list[tuple[int, str]]) -> None:
        self.node = node
        self.up, self.gone = True, False
        self.epoch, self.broken, self.spent = 1, "", False
        self.members: tuple[int, ...] = ()
        self.welcome: Header = {}
        self.sent: list[tuple[Header, bytes]] = []
        self.runs: dict[str, Header] = {}
        self.silent: set[str] = set()
        self._log = log

    def send(self, header: Header, body: bytes = b"", text: str = "") -> bool:
        if self.up:
            assert "line" not in header or text == encode_json(header), "lists all nodes, so it is encoded once"
            self.sent.append((header, body))
            self._log.append((self.node, header["t"]))
        return self.up

    async def ask(self, header: Header) -> tuple[Header, bytes]:
        if not self.up:
            raise ConnectionError(f"the link to node {self.node} is down")
        self._log.append((self.node, header["t"]))
        if header["t"] in self.silent:
            await asyncio.Event().wait()
        answers: dict[str, tuple[Header, bytes]] = {
            "ports": ({"t": "known", "ports": [100 + self.node], "accelerators": 0, "line": 300}, b""),
            "ping": ({"t": "pong"}, b""),
            "where": ({"t": "known", "runs": self.runs}, b""),
            "form": ({"t": "formed", "head_addr": "a", "head_port": 99}, b""),
            "number": ({"t": "known", "epoch": max(5, header.get("least", 0))}, b""),
        }
        return answers[header["t"]]

    def of(self, kind: str) -> list[Header]:
        return [header for header, _ in self.sent if header["t"] == kind]


class Gang:
    """Gang set-up of a client that does not know the plugins. ``told``: answers of the nodes, and the number of
    queries.
    """

    def __init__(self, nodes: int = 3, plugins: bytes | None = b"plugins", *, kind: Any = GangSetup) -> None:
        self.log: list[tuple[int, str]] = []
        self.links: Any = [FakeLink(node, self.log) for node in range(nodes)]
        machines = [SimpleNamespace(node=node, private_address=f"10.0.0.{node}") for node in range(nodes)]
        context = SimpleNamespace(
            links=self.links, machines=machines, ranks_per_node=1, is_standalone=kind is RankSetup,
            options=SimpleNamespace(fail_fast=True, on_loss="fail"), setup=SimpleNamespace(fetch_from_nodes=self.ask),
            roster=SimpleNamespace(report_wait=lambda words: self.reported.append(words)),
        )  # fmt: skip
        self.keeper = kind(context, plugins, ["hush"], apps=False, joins=False)
        self.started: list[int] = []
        self.reported: list[str] = []
        self.fetched_plugins = b""
        self.asked = 0

    async def ask(self) -> None:
        self.asked += 1
        if self.fetched_plugins:
            self.keeper.set_plugins(self.fetched_plugins, ["known to a node"], apps=True, joins=True)

    @property
    def head(self) -> Any:
        return self.links[0]

    def tell(self, kind: str, **more: Any) -> None:
        self.keeper.on_frame(self.head, {"t": kind} | more)

    async def start(self) -> None:
        await self.keeper.start(self.started.append)

    async def starting(self) -> asyncio.Task[None]:
        """Start that waits for the lock."""
        asked = len(self.head.of("lock"))
        task = asyncio.create_task(self.start())
        await until(lambda: len(self.head.of("lock")) > asked)
        return task


@pytest.fixture
async def gang() -> Gang:
    return Gang()


async def take_lock(gang: Gang, *, unclean: bool = False) -> None:
    """Acquire the lock by a first start."""
    task = await gang.starting()
    gang.tell("granted", unclean=unclean)
    await task
    gang.log.clear()


async def test_only_the_first_start_waits_for_the_lock(gang: Gang) -> None:
    assert not gang.keeper.try_start(gang.started.append)
    task = await gang.starting()
    assert gang.started == []
    gang.tell("granted", unclean=False)
    await task
    assert gang.started == [1]
    assert gang.keeper.try_start(gang.started.append)
    await gang.start()
    assert gang.started == [1, 1, 1]
    assert [kind for _, kind in gang.log] == ["lock"], "alone with the pool, nothing more is asked"


async def test_broken_gang_is_formed_again_before_the_start(gang: Gang) -> None:
    await take_lock(gang)
    gang.links[2].broken = "rank 2 ended"
    assert not gang.keeper.is_complete
    assert not gang.keeper.try_start(gang.started.append)
    gang.started.clear()
    await gang.start()
    peers = [{"node": node, "address": f"10.0.0.{node}", "ports": [100 + node]} for node in range(3)]
    info = {"head_addr": "a", "head_port": 99, "peers": peers, "total_accelerators": 0}
    info |= {"total_nodes": 3, "world_size": 3}
    for link in gang.links:
        (header,) = link.of("gang")
        hooks = {"hooks": True, "apps": False, "joins": False, "secrets": ["hush"]}
        line = header["line"]
        assert line["nodes"] == [(node, f"10.0.0.{node}", 300) for node in range(3)]
        assert len(bytes.fromhex(line["key"])) == 32
        assert header == {"t": "gang", "epoch": 5, "info": info, "line": line} | hooks
        assert (link.epoch, link.broken) == (5, "")
    assert gang.head.sent[-1][1] == b"plugins"
    assert gang.started == [5]


async def test_spent_gang_finishes_its_calls_before_the_next_is_formed(gang: Gang) -> None:
    await take_lock(gang)
    gang.links[2].broken, gang.links[2].spent = "a script has run", True
    gang.links[1].runs = {"r1": {"calls": 1, "active": 1, "total": 3}}
    task = asyncio.create_task(gang.start())
    await until(lambda: gang.log.count((1, "where")) == 2)
    assert gang.head.of("gang") == []
    gang.links[1].runs = {}
    await task
    assert gang.started == [1, 5] and not gang.links[2].spent
    # One that is broken as well has nobody to wait for.
    gang.links[2].broken, gang.links[2].spent, gang.links[1].broken = "a script has run", True, "rank 1 died"
    asked = gang.log.count((1, "where"))
    await gang.start()
    assert gang.log.count((1, "where")) == asked


async def test_new_epoch_exceeds_every_epoch_of_the_nodes(gang: Gang) -> None:
    gang.links[1].epoch = 8
    await take_lock(gang)
    assert gang.started == [9]


async def test_run_waits_for_a_node_that_reconnects_while_its_gang_is_formed(gang: Gang) -> None:
    gang.links[0].broken = "x"
    gang.links[1].up = False
    with pytest.raises(ConnectionError, match="a node that does not belong to the gang is reconnecting"):
        await take_lock(gang)
    assert gang.started == []
    gang.links[1].up = True
    await gang.start()
    assert gang.keeper.is_complete and gang.started == [gang.links[1].epoch]


async def test_lost_node_does_not_get_the_epoch(gang: Gang) -> None:
    gang.links[0].broken = "x"
    gang.links[1].up, gang.links[1].gone = False, True
    await take_lock(gang)
    assert gang.links[1].epoch == 1
    assert gang.started == [5]
    assert [peer["ports"] for peer in gang.head.of("gang")[0]["info"]["peers"]] == [[100], [], [102]]
    assert not gang.keeper.is_complete


async def test_client_without_plugins_fetches_them_from_a_node() -> None:
    gang = Gang(plugins=None)
    gang.head.broken, gang.fetched_plugins = "x", b"from a node"
    await take_lock(gang)
    header, body = gang.head.sent[-1]
    assert (header["t"], header["secrets"], body) == ("gang", ["known to a node"], b"from a node")
    assert (header["hooks"], header["apps"]) == (True, True)


async def test_lost_plugins_are_an_error() -> None:
    gang = Gang(plugins=None)
    gang.head.broken = "x"
    task = await gang.starting()
    gang.tell("granted", unclean=False)
    with pytest.raises(ConnectionError, match="plugins are lost"):
        await task
    assert gang.started == []
    gang.fetched_plugins = b"from a node"
    await gang.start()
    assert (gang.started, gang.asked) == ([5], 2), "it is asked anew"


async def test_gang_without_plugins_has_no_hooks() -> None:
    gang = Gang(plugins=b"")
    gang.head.broken = "x"
    await take_lock(gang)
    assert gang.head.of("gang")[0]["hooks"] is False


async def test_reported_wait_names_each_client_that_holds_the_lock(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_and_rank_setup, "WAIT_REPORT_DELAY", 0.0)
    for number in (1, 2):
        task = await gang.starting()
        await until(lambda: gang.reported)  # The head has not said yet who holds the lock.
        for holder in ("ada", "bob"):
            gang.tell("held", by=f"{holder} {number}")
        gang.tell("granted", unclean=False)
        await task
        names = [words.partition(" for runs of ")[2] for words in gang.reported]
        assert names == ["another client", f"ada {number}", f"bob {number}", ""]
        gang.reported.clear()
        gang.tell("wanted")
        await until(lambda: gang.keeper._has_lock is False)


async def test_short_wait_for_the_lock_is_not_reported(gang: Gang) -> None:
    task = await gang.starting()
    gang.tell("held", by="ada")
    gang.tell("granted", unclean=False)
    await task
    assert gang.reported == []


async def test_wanted_lock_is_released_after_all_agents_have_the_calls(gang: Gang) -> None:
    await take_lock(gang)
    gang.tell("wanted")
    assert not gang.keeper.try_start(gang.started.append)
    await until(lambda: bool(gang.head.of("unlock")))
    assert gang.log == [(0, "ping"), (1, "ping"), (2, "ping"), (0, "unlock")]
    assert gang.head.of("unlock") == [{"t": "unlock", "unclean": False}]
    task = await gang.starting()
    gang.tell("granted", unclean=False)
    await task
    assert gang.started == [1, 1]


async def test_lock_wanted_during_a_start_is_released_after_it(gang: Gang) -> None:
    task = await gang.starting()
    gang.tell("granted", unclean=False)
    gang.tell("wanted")
    await task
    assert gang.started == [1]
    assert gang.head.of("unlock")


async def test_lost_head_loses_the_lock(gang: Gang) -> None:
    await take_lock(gang)
    gang.keeper.on_down(gang.links[1])
    assert gang.keeper.try_start(gang.started.append), "another node's link has no part in the lock"
    gang.keeper.on_down(gang.head)
    assert not gang.keeper.try_start(gang.started.append)
    task = await gang.starting()
    gang.keeper.on_down(gang.head)
    with pytest.raises(ConnectionError, match="head went down"):
        await task
    gang.head.up = False
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    with pytest.raises(ConnectionError, match="head is down"):
        await gang.start()
    gang.keeper.on_down(gang.head)
    gang.head.up = True
    (await gang.starting()).cancel()
    gc.collect()
    assert unheard == [], "nobody waits for the lock any more"


async def test_only_the_head_grants_the_lock(gang: Gang) -> None:
    gang.keeper.on_frame(gang.links[1], {"t": "granted", "unclean": False})
    assert not gang.keeper.try_start(gang.started.append)


async def test_ensure_set_up_forms_a_broken_gang_once(gang: Gang) -> None:
    await gang.keeper.ensure_set_up()
    assert gang.log == [], "it is whole"
    gang.head.broken = "x"
    task = asyncio.create_task(gang.keeper.ensure_set_up())
    await until(lambda: bool(gang.head.of("lock")))
    gang.tell("granted", unclean=False)
    await task
    assert gang.keeper.is_complete
    assert gang.started == []


# -- after a client that vanished with the lock ------------------------------------------------------------------


def run(calls: int, active: int, total: int = 3) -> Header:
    return {"calls": calls, "active": active, "total": total}


def stopped(gang: Gang) -> list[str]:
    return [header["run"] for header in gang.links[1].of("stop")]


async def test_partly_started_run_is_stopped_after_an_unclean_lock(gang: Gang) -> None:
    gang.head.runs = {"half": run(1, 1)}
    gang.links[1].runs = {"half": run(1, 1)}
    await take_lock(gang, unclean=True)
    for link in gang.links:
        (stop,) = link.of("stop")
        assert (stop["run"], stop["break"]) == ("half", 1)
        assert "client exited" in stop["why"]
    assert gang.started == [5], "on a gang formed anew: the old one breaks where that run is stopped"
    await gang.start()
    assert stopped(gang) == ["half"], "once"


@pytest.mark.parametrize(
    ("runs", "unclean"),
    [
        ([run(1, 0), run(1, 1), run(1, 1)], True),  # all agents have it, and rank 0 has ended already
        ([run(1, 0)], True),  # it has ended wherever it began
        ([run(1, 1)], False),  # the client before us gave the lock back in order
    ],
)
async def test_run_that_needs_no_client_is_not_stopped(gang: Gang, runs: list[Header], unclean: bool) -> None:
    for link, text in zip(gang.links, runs, strict=False):
        link.runs = {"other": text}
    await take_lock(gang, unclean=unclean)
    assert stopped(gang) == []


async def test_unreachable_node_is_checked_before_the_next_start(gang: Gang) -> None:
    for link in gang.links:
        link.runs = {"whole": run(1, 1)}
    gang.links[2].up = False
    task = await gang.starting()
    gang.tell("granted", unclean=True)
    with pytest.raises(ConnectionError, match="node 2"):
        await task
    assert (gang.started, stopped(gang)) == ([], []), "a run is not stopped because one node is out of reach"
    gang.links[2].up = True
    gang.links[2].runs = {}
    await gang.start()
    assert (gang.started, stopped(gang)) == ([5], ["whole"])


async def test_lock_released_before_the_check_stays_unclean(gang: Gang) -> None:
    gang.links[2].up = False
    task = await gang.starting()
    gang.tell("granted", unclean=True)
    with pytest.raises(ConnectionError):
        await task
    gang.tell("wanted")
    await until(lambda: bool(gang.head.of("unlock")))
    assert gang.head.of("unlock") == [{"t": "unlock", "unclean": True}]


async def test_lost_node_is_not_checked(gang: Gang) -> None:
    gang.links[2].up, gang.links[2].gone = False, True
    gang.head.runs = {"half": run(1, 1)}
    await take_lock(gang, unclean=True)
    assert stopped(gang) == ["half"]


# -- ranks that stand alone ------------------------------------------------------------------------------------------


@pytest.fixture
async def standalone_gang() -> Gang:
    made = Gang(kind=RankSetup)
    for link in made.links:
        link.epoch = 0
    return made


async def test_standalone_nodes_are_set_up_once_without_lock_or_rendezvous(standalone_gang: Gang) -> None:
    assert not standalone_gang.keeper.try_start(standalone_gang.started.append)
    await standalone_gang.start()
    assert standalone_gang.log == [(0, "gang"), (1, "gang"), (2, "gang")]
    (header,) = standalone_gang.head.of("gang")
    assert (header["alone"], header["hooks"], header["secrets"]) == (True, True, ["hush"])
    assert standalone_gang.keeper.try_start(standalone_gang.started.append)
    assert (len(standalone_gang.started), len(standalone_gang.log)) == (2, 3)


async def test_new_standalone_node_is_set_up_by_itself(standalone_gang: Gang) -> None:
    await standalone_gang.start()
    standalone_gang.log.clear()
    standalone_gang.links[1].epoch = 0
    await standalone_gang.keeper.ensure_set_up()
    assert standalone_gang.log == [(1, "gang")]


async def test_standalone_pool_does_not_wait_for_an_unreachable_node(standalone_gang: Gang) -> None:
    standalone_gang.links[0].up, standalone_gang.links[1].up, standalone_gang.links[1].gone = False, False, True
    await standalone_gang.start()
    assert (standalone_gang.log, len(standalone_gang.started)) == ([(2, "gang")], 1)
    assert not standalone_gang.keeper.is_complete, "node 0 is set up when it is there again"
    standalone_gang.links[0].up = True
    await standalone_gang.keeper.ensure_set_up()
    assert standalone_gang.keeper.is_complete


# What a node says of a run: only of calls that there are, and that it was given.


def run_registry() -> RunRegistry:
    """Registry of a pool of two nodes with one rank each."""
    links: Any = [SimpleNamespace(node=node, gone=False) for node in range(2)]
    context: Any = SimpleNamespace(
        name="p", links=links, link_of=lambda rank: links[rank], ranks_per_node=1,
        options=SimpleNamespace(cluster=True), news=SimpleNamespace(emit_node_note=None),
    )  # fmt: skip
    context.check_rank = lambda *args: PoolContext.check_rank(context, *args)
    return RunRegistry(context)


def claimed_run(kind: RunKind, total: int) -> tuple[RunRegistry, Run]:
    """Run that another client dispatched, and the registry of a pool that has claimed it."""
    book = run_registry()
    run = book.add("r1", kind, [SimpleNamespace(name="f", script=False, nodes=None)], total)  # type: ignore[list-item]
    run.claim_from(book._context.links)
    return book, run


def stale_frame(index: int) -> Any:
    return {"t": "stale", "run": "r1", "i": index, "why": ""}


@pytest.mark.parametrize("kind", ["gather", "broadcast"])
def test_frame_about_an_unknown_call_is_refused(kind: RunKind) -> None:
    book, run = claimed_run(kind, 2)
    with pytest.raises(WireError, match="run r1 has no call 2"):
        book.on_frame(book._context.links[0], stale_frame(2), b"")
    assert not run._stale


def test_frame_about_a_call_of_another_node_is_refused() -> None:
    book, run = claimed_run("broadcast", 2)
    with pytest.raises(WireError, match="node 0 sent a frame about call 1, which it did not receive"):
        book.on_frame(book._context.links[0], stale_frame(1), b"")
    assert not run._stale


@pytest.mark.parametrize(("rank", "node"), [(1, 0), (0, 1)])
def test_outcome_of_a_rank_of_another_node_is_refused(rank: int, node: int) -> None:
    book, run = claimed_run("gather", 2)
    header: Any = {"t": "outcome", "run": "r1", "i": 0, "rank": rank, "node": node, "kind": "returned"}
    with pytest.raises(WireError, match="node 0 sent a frame about rank"):
        book.on_frame(book._context.links[0], header, b"")
    assert not run.outcomes


def test_frames_of_another_clients_run_are_only_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    book, heard = run_registry(), list[Any]()
    monkeypatch.setattr(book.others, "on_frame", lambda link, header: heard.append(header))
    book.on_frame(book._context.links[0], stale_frame(7), b"")
    assert heard == [stale_frame(7)]
