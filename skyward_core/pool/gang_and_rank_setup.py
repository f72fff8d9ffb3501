"""Setup of ranks before they run calls: in gangs, or of nodes that stand alone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.pool.agent_link import Link

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import (
        AgentFormed,
        AgentGranted,
        AgentHeld,
        AgentWanted,
        ClientGang,
        GangCallCounts,
        HoldsAnswer,
        NumberAnswer,
        PortsAnswer,
        WhereAnswer,
    )

    LockFrame = AgentGranted | AgentHeld | AgentWanted


NodesWanted = int | tuple[int, ...]  # how many nodes a run wants, or which


FIRST_EPOCH = 1  # the epoch that a node begins with; it counts on by itself


class RankSetup:
    """Sets up the ranks of a pool before they run calls: of nodes that stand alone, each by itself.

    Args:
        plugins: The pickled plugins. None if this client did not create the pool and has not asked the nodes yet.
        secrets: Values that the agents redact.
        apps: Whether a plugin has an ``around_app``.
        joins: Whether a plugin joins the ranks to one world.
    """

    def __init__(
        self, context: PoolContext, plugins: bytes | None, secrets: Sequence[str], *, apps: bool, joins: bool
    ) -> None:
        self._context = context
        self._plugins = plugins
        self._secrets = list(secrets)
        self._apps, self._joins = apps, joins
        self._busy = asyncio.Lock()

    @property
    def _links(self) -> Sequence[Link]:
        return self._context.links

    def _placement(self) -> dict[str, Any]:
        """Return the part of a rank's place that is the same for all ranks."""
        context = self._context
        world = len(context.machines) * context.ranks_per_node
        facts: dict[str, Any] = {"total_nodes": len(context.machines), "world_size": world}
        if context.is_standalone:
            return facts | {"head_addr": "", "head_port": 0, "peers": []}
        # A host may be known by a name of the client's alone; its agent knows where peers reach it.
        peers = [
            {"node": m.node, "address": m.private_address or link.welcome.get("address", "")}
            for m, link in zip(context.machines, context.links, strict=True)
        ]
        return facts | {"peers": peers}

    @property
    def knows_plugins(self) -> bool:
        return self._plugins is not None

    @property
    def plugins(self) -> bytes:
        """They, pickled, as far as is known here; empty where there are none."""
        return self._plugins or b""

    def set_plugins(self, plugins: bytes, secrets: Sequence[str], *, apps: bool, joins: bool) -> None:
        """What the pool's plugins are, as one of its agents has told."""
        self._plugins, self._secrets, self._apps, self._joins = plugins, list(secrets), apps, joins

    def _setup_frame(self, epoch: int, info: dict[str, Any], *, fresh: bool = False) -> tuple[ClientGang, bytes]:
        """The frame that sets a node's ranks up; ``fresh``: in processes that have run nothing before."""
        header: ClientGang = {"t": "gang", "epoch": epoch, "info": info, "hooks": bool(self._plugins)}
        header["apps"], header["joins"] = self._apps, self._joins
        if fresh:
            header["fresh"] = True
        if self._secrets:
            header["secrets"] = self._secrets
        return header, self.plugins

    async def _ensure_plugins(self) -> None:
        """Have the plugins known here.

        Raises:
            ConnectionError: no node that could be asked knows them.
        """
        if self._plugins is None:
            await self._context.setup.fetch_from_nodes()
        if self._plugins is None:
            raise ConnectionError(
                "the pool's plugins are known neither here nor on any node that answers: its agents were started "
                "anew, and the client that made it is gone; make the pool anew"
            )

    @property
    def is_complete(self) -> bool:
        """Whether all ranks are set up, as far as their nodes are there."""
        return all(link.epoch or link.gone for link in self._links)

    @property
    def is_ready(self) -> bool:
        """Whether all ranks are set up for calls that need no gang, be it in several gangs."""
        return self.is_complete

    def try_start(self, send: Callable[[int], None]) -> bool:
        """Start a broadcast without waiting, when nothing stands in the way; says whether it did."""
        if self.is_complete:
            send(FIRST_EPOCH)
            return True
        return False

    async def start(self, send: Callable[[int], None]) -> bool:
        """Start a broadcast: ``send(epoch)`` hands its calls to the links. False where it cannot be yet, for runs on
        some of the nodes only have not ended.

        Raises:
            ConnectionError: a node that is needed for that cannot be reached now.
        """
        await self.ensure_set_up()
        send(FIRST_EPOCH)
        return True

    async def start_on(self, wanted: NodesWanted, send: Callable[[int, tuple[int, ...]], None], job: str = "") -> bool:
        """Start a broadcast on some of the nodes: ``send(epoch, nodes)`` hands its calls to their links. False where
        not enough of them are free yet. Standalone nodes are never busy: those with the least to do for this client
        come first, and calls wait there.

        Args:
            wanted: how many, or which.
            job: that it is a step of; nodes that are kept for that it may have.

        Raises:
            ConnectionError: a node that is needed for that cannot be reached now.
        """
        await self.ensure_set_up()
        if isinstance(wanted, int):
            there = sorted((link.gone, link.load, link.node) for link in self._links)
            wanted = tuple(sorted(node for *_, node in there[:wanted]))
        send(FIRST_EPOCH, wanted)
        return True

    async def ensure_set_up(self) -> None:
        """Have the ranks set up, for work that is no broadcast but needs the plugins' contexts."""
        async with self._busy:
            if self.is_complete:
                return
            await self._ensure_plugins()
            header, plugins = self._setup_frame(FIRST_EPOCH, self._placement())
            for link in self._links:
                # One that is down is set up when it is there again: its calls wait for that.
                if not link.epoch and link.send(header | {"alone": True}, plugins):
                    link.epoch = FIRST_EPOCH

    async def restart_processes(self) -> None:
        """Have fresh processes take the ranks' places, once broadcasts that are under way have ended.

        Raises:
            ConnectionError: a node that is needed for that cannot be reached now.
        """
        async with self._busy:
            await self._ensure_plugins()
            header, plugins = self._setup_frame(FIRST_EPOCH, self._placement(), fresh=True)
            for link in self._links:
                # One that is down tells what it has loaded when it is there again.
                link.send(header | {"alone": True}, plugins)

    def on_frame(self, link: Link, header: LockFrame) -> None:
        """An agent's word about starting broadcasts."""

    def on_down(self, link: Link) -> None:
        """A link went down."""


class NodeGangState(NamedTuple):
    """What a node has.

    Attributes:
        node: its index.
        there: whether it answers.
        gone: whether it is gone for good.
        epoch: of its gang; 0 for none.
        broken: whether that takes no other run, and what it runs is about to end.
        members: that gang's nodes; () for all.
        runs: what became of the calls that the gang was given here, by run.
    """

    node: int
    there: bool
    gone: bool = False
    epoch: int = 0
    broken: bool = False
    members: tuple[int, ...] = ()
    runs: Mapping[str, GangCallCounts] = {}


def busy_nodes(nodes: Sequence[NodeGangState], job: str = "", *, of_parts: bool = False) -> set[int]:
    """The nodes that somebody's run has.

    A run has all nodes of its gang until the last of its ranks has ended: the others may wait for that one.

    Args:
        job: that asks; what is kept for its next step it may have.
        of_parts: of those that are on some of the nodes only.
    """
    found: set[int] = set()
    for epoch in {each.epoch for each in nodes if each.epoch}:
        gang = [each for each in nodes if each.epoch == epoch and not each.broken]
        if of_parts:
            gang = [each for each in gang if each.members]
        answer = [each for each in gang if each.there]
        silent = any(not each.there and not each.gone for each in gang)
        for run in {run for each in answer for run in each.runs}:
            told = [each.runs[run] for each in answer if run in each.runs]
            goes_on = any(one["active"] or one["kept"] not in ("", job) for one in told)
            # A node that does not answer just now may have ranks of it.
            ended, total = sum(one["ended"] for one in told), max(one["total"] for one in told)
            if goes_on or (silent and ended < total):
                found |= {each.node for each in gang}
                break
    return found


def choose_nodes(wanted: NodesWanted, nodes: Sequence[NodeGangState], job: str = "") -> tuple[int, ...]:
    """The nodes that a run gets now, in order; () where it has to wait.

    A gang that is there, and has as many nodes as are wanted, is taken again: its processes are. Else nodes that are in
    no such gang come first, so that others find theirs as they left it.

    Args:
        wanted: how many nodes, or which.
        job: that asks; what is kept for its next step it may have.
    """
    taken = busy_nodes(nodes, job)
    free = {each.node: each for each in nodes if each.there and not each.gone and each.node not in taken}
    if not isinstance(wanted, int):
        return tuple(wanted) if all(node in free for node in wanted) else ()
    gangs = {each.members for each in free.values() if each.members and not each.broken}
    for members in sorted(gangs):
        is_whole = all(node in free and free[node].members == members for node in members)
        if len(members) == wanted and is_whole:
            return members
    if len(free) < wanted:
        return ()
    in_order = sorted(free.values(), key=lambda each: (bool(each.members) and not each.broken, each.node))
    return tuple(sorted(each.node for each in in_order[:wanted]))


WAIT_REPORT_DELAY = 1.0  # seconds that a turn may take to come before it is said who has it


class GangSetup(RankSetup):
    """Holds the head's lock while gang runs are started, and forms a new epoch where one is needed.

    The lock is kept after a start and given back only when another client wants it, so that a client which is
    alone with the pool sends its calls at once.

    See :class:`RankSetup` for what it is made with.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._has_lock = False
        self._holder = ""  # of the lock, while it is another client
        self._is_lock_wanted = False
        self._is_unclean = False
        self._granted: asyncio.Future[bool] | None = None
        self._release_task: asyncio.Future[None] | None = None

    @property
    def head(self) -> Link:
        return self._links[0]

    @property
    def epoch(self) -> int:
        return self.head.epoch

    @property
    def is_complete(self) -> bool:
        """Whether all ranks live in one unbroken epoch."""
        epoch = self.head.epoch
        return epoch > 0 and all(link.epoch == epoch and not link.broken and not link.members for link in self._links)

    @property
    def is_ready(self) -> bool:
        return all(link.epoch and not link.broken for link in self._links)

    def on_frame(self, link: Link, header: LockFrame) -> None:
        """The head's answers about the lock."""
        if link is not self.head:
            return
        if header["t"] == "granted":
            self._has_lock = True
            if self._granted is not None and not self._granted.done():
                self._granted.set_result(header["unclean"])
        elif header["t"] == "held":
            self._holder = header["by"]
        elif header["t"] == "wanted":
            self._is_lock_wanted = True
            if not self._busy.locked():
                self._release_task = asyncio.ensure_future(self._release_if_wanted())

    def on_down(self, link: Link) -> None:
        if link is self.head:
            self._has_lock = self._is_lock_wanted = False
            if self._granted is not None and not self._granted.done():
                self._granted.set_exception(ConnectionError("the link to the head went down"))

    def try_start(self, send: Callable[[int], None]) -> bool:
        """Start a gang run without waiting, when nothing stands in the way; says whether it did."""
        if not self._has_lock or self._is_lock_wanted or self._busy.locked() or not self.is_complete:
            return False
        send(self.epoch)
        return True

    async def start(self, send: Callable[[int], None]) -> bool:
        """Start a gang run: ``send(epoch)`` hands its calls to the links.

        Raises:
            ConnectionError: the head cannot be reached now.
        """
        async with self._hold_lock():
            if started := self.is_complete or not busy_nodes(await self._query_nodes(), of_parts=True):
                await self._ensure_complete()
                send(self.epoch)
        return started

    async def start_on(self, wanted: NodesWanted, send: Callable[[int, tuple[int, ...]], None], job: str = "") -> bool:
        async with self._hold_lock():
            nodes = choose_nodes(wanted, await self._query_nodes(), job)
            if nodes:
                links = [self._links[node] for node in nodes]
                epoch = links[0].epoch
                if any(link.epoch != epoch or link.broken or link.members != nodes for link in links):
                    epoch = await self._form_gang(nodes)
                send(epoch, nodes)
        return bool(nodes)

    @asynccontextmanager
    async def _hold_lock(self) -> AsyncIterator[None]:
        """Hold the head's lock, and release it at the end if another client wants it."""
        async with self._busy:
            await self._acquire_lock()
            yield
            if self._is_lock_wanted:
                await self._release_lock()

    async def ensure_set_up(self) -> None:
        """Have all ranks in a gang, for work that is not a gang run but needs the plugins' contexts. Gangs of some of
        the nodes stay as they are."""
        async with self._busy:
            if self.is_ready:
                return
            await self._acquire_lock()
            await self._query_nodes()
            if any(link.members and not link.broken for link in self._links):
                rest = tuple(link.node for link in self._links if not link.epoch or link.broken)
                if rest:
                    await self._form_gang(rest)
            else:
                await self._ensure_complete()
            if self._is_lock_wanted:
                await self._release_lock()

    async def _query_nodes(self) -> list[NodeGangState]:
        """What the nodes have, as they tell it; another client may have formed gangs there."""
        links = [link for link in self._links if link.up and not link.gone and "queue" in link.welcome.get("knows", ())]
        answers: list[tuple[HoldsAnswer, bytes] | BaseException]
        answers = await asyncio.gather(*(link.ask({"t": "holds"}) for link in links), return_exceptions=True)
        told: dict[int, Mapping[str, GangCallCounts]] = {}
        for link, answer in zip(links, answers, strict=True):
            if isinstance(answer, BaseException):
                if link is self.head:
                    raise answer
                continue  # it went down just now: others may do
            header = answer[0]
            told[link.node] = header["runs"]
            if header["epoch"] >= link.epoch and not (link.broken and header["epoch"] == link.epoch):
                link.update_gang(header)
        return [
            NodeGangState(
                node=link.node,
                there=link.node in told,
                gone=link.gone,
                epoch=link.epoch,
                broken=bool(link.broken) and not link.spent,
                members=link.members,
                runs=told.get(link.node, {}),
            )
            for link in self._links
        ]

    async def _ensure_complete(self) -> None:
        """Form the next epoch where there is need of it; of one that is only spent, ranks may have yet to begin what
        they have been given."""
        if self.is_complete:
            return
        links = self._links
        if any(link.spent for link in links) and all(link.spent or not link.broken for link in links):
            await self._wait_idle("runs wait for broadcasts that leave no process for them")
        await self._form_gang()

    async def _acquire_lock(self) -> None:
        if not self._has_lock:
            if not self.head.send({"t": "lock"}):
                raise ConnectionError("the link to the head is down")
            self._granted = asyncio.get_running_loop().create_future()
            with self._report_wait():
                self._is_unclean = await self._granted
        if self._is_unclean:
            await self._stop_partial_runs()
            self._is_unclean = False

    @contextmanager
    def _report_wait(self) -> Iterator[None]:
        """Say who is waited for, where that takes long."""
        since = time.strftime("%H:%M:%S")
        told = False

        def tell() -> None:
            nonlocal told
            told = True
            self._context.roster.report_wait(
                f"runs wait since {since} for their turn after those of {self._holder or 'another client'}"
            )

        timer = asyncio.get_running_loop().call_later(WAIT_REPORT_DELAY, tell)
        try:
            yield
        finally:
            timer.cancel()
            if told:
                self._context.roster.report_wait("")

    async def _release_if_wanted(self) -> None:
        async with self._busy:
            if self._has_lock and self._is_lock_wanted:
                await self._release_lock()

    async def _release_lock(self) -> None:
        """Let the next client start its runs, once every agent has got ours: else they could overtake them."""
        answers = [link.ask({"t": "ping"}) for link in self._links if link.up]
        await asyncio.gather(*answers, return_exceptions=True)
        self._has_lock = self._is_lock_wanted = False
        self.head.send({"t": "unlock", "unclean": self._is_unclean})

    async def _stop_partial_runs(self) -> None:
        """The last holder of the lock vanished: end runs that it had started on some agents only.

        Raises:
            ConnectionError: an agent cannot be asked now what it was given.
        """
        links = [link for link in self._links if not link.gone]
        answers: list[tuple[WhereAnswer, bytes]]
        answers = await asyncio.gather(*(link.ask({"t": "where"}) for link in links))
        runs = [(run, here) for header, _ in answers for run, here in header["runs"].items()]
        calls, active, totals = Counter[str](), Counter[str](), dict[str, int]()
        for run, here in runs:
            calls[run] += here["calls"]
            active[run] += here["active"]
            totals[run] = here["total"]
        reason = "its client went away while it was being started"
        for run, total in totals.items():
            if active[run] and calls[run] < total:
                for link, (header, _) in zip(links, answers, strict=True):
                    if link.members and run not in header["runs"]:
                        continue  # it has a gang of some nodes, and the run is on others
                    link.send({"t": "stop", "run": run, "why": reason, "break": link.epoch})
                    # Its agent will say so; but what we start next would reach it before we hear of it.
                    link.broken = link.broken or reason

    async def restart_processes(self) -> None:
        async with self._hold_lock():
            await self._wait_idle(
                "runs wait for broadcasts that still use modules as they were before they were edited"
            )
            await self._form_gang(fresh=True)

    async def _wait_idle(self, words: str) -> None:
        """Wait for broadcasts that are under way, and say so. No other is begun meanwhile: the lock is ours."""
        told, pause = False, 0.01
        while True:
            links = [link for link in self._links if not link.gone]
            answers: list[tuple[WhereAnswer, bytes]]
            answers = await asyncio.gather(*(link.ask({"t": "where"}) for link in links))
            if not any(here["active"] for header, _ in answers for here in header["runs"].values()):
                break
            if not told:
                self._context.roster.report_wait(words)
            told, pause = True, min(2 * pause, 0.5)
            await asyncio.sleep(pause)
        if told:
            self._context.roster.report_wait("")

    async def _form_gang(self, nodes: tuple[int, ...] = (), *, fresh: bool = False) -> int:
        """Form the next epoch, of all nodes or of these, and give its number."""
        await self._ensure_plugins()
        links = [self._links[node] for node in nodes] or self._links
        # Asked of all at once: forming a gang takes one round trip.
        formed: AgentFormed
        numbered: NumberAnswer
        (formed, _), (numbered, _), (peers, gpus, line) = await asyncio.gather(
            links[0].ask({"t": "form"}),
            self.head.ask({"t": "number", "least": 1 + max(link.epoch for link in self._links)}),
            self._collect_ports(links),
        )
        epoch = numbered["epoch"]
        rendezvous = {"head_addr": formed["head_addr"], "head_port": formed["head_port"], "peers": peers}
        placement = self._placement()
        info = placement | rendezvous | {"total_accelerators": gpus}
        if nodes:
            world = len(nodes) * self._context.ranks_per_node
            info |= {"members": list(nodes), "total_nodes": len(nodes), "world_size": world}
            info["peers"] = [peers[node] | {"node": place} for place, node in enumerate(nodes)]
        header: ClientGang
        header, plugins = self._setup_frame(epoch, info, fresh=fresh)
        if self._context.options.fail_fast and len(line) > 1:
            header["line"] = {"key": token_hex(), "nodes": line}
        for link in links:
            if link.send(header, plugins):
                link.epoch, link.broken, link.spent, link.members = epoch, "", False, nodes
        return epoch

    async def _collect_ports(
        self, links: Sequence[Link]
    ) -> tuple[list[dict[str, Any]], int, list[tuple[int, str, int]]]:
        """The nodes with the ports that they keep free for their ranks; their GPUs; where they hear one another."""
        links = [link for link in links if link.up]
        answers: list[tuple[PortsAnswer, bytes] | BaseException]
        answers = await asyncio.gather(*(link.ask({"t": "ports"}) for link in links), return_exceptions=True)
        told = {
            link.node: answer[0]
            for link, answer in zip(links, answers, strict=True)
            if not isinstance(answer, BaseException)  # it went down just now: there will be no whole gang
        }
        ports = {node: answer["ports"] for node, answer in told.items()}
        peers = [peer | {"ports": ports.get(peer["node"], [])} for peer in self._placement()["peers"]]
        gpus = sum(answer["accelerators"] for answer in told.values())
        at = {peer["node"]: str(peer["address"]) for peer in peers}
        line = [(node, at[node], answer["line"]) for node, answer in told.items() if answer["line"]]
        return peers, gpus, line
