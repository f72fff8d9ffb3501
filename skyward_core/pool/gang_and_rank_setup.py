"""Set-up of ranks before they run calls: as a gang, or separately on each node of a standalone pool."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.pool.agent_link import Link
from skyward_core.protocol.frame_codec import encode_json

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.protocol import frame_types as frames

    LockFrame = frames.AgentGranted | frames.AgentHeld | frames.AgentWanted


NodesWanted = int | tuple[int, ...]  # type of an option: number of nodes that a run requests, or their indices


FIRST_EPOCH = 1  # first epoch of an agent on a standalone node; the agent itself numbers later epochs


class RankSetup:
    """Set-up of the ranks of a standalone pool, separately on each node.

    Args:
        context: Pool of the ranks.
        plugins: The pickled plugins. None if this client did not create the pool and has not queried the nodes yet.
        secrets: Values that the agents redact.
        apps: Whether a plugin has an ``around_app`` context.
        joins: Whether a plugin joins the ranks into one world.
    """

    def __init__(
        self, context: PoolContext, plugins: bytes | None, secrets: Sequence[str], *, apps: bool, joins: bool
    ) -> None:
        self._context = context
        self._links = context.links
        self._plugins = plugins
        self._secrets = list(secrets)
        self._apps, self._joins = apps, joins
        self._busy = asyncio.Lock()

    def _placement(self) -> dict[str, Any]:
        """Return the keys of a rank's placement (addresses, node count, world size) that are the same for all ranks."""
        context = self._context
        world = len(context.machines) * context.ranks_per_node
        facts: dict[str, Any] = {"total_nodes": len(context.machines), "world_size": world}
        if context.is_standalone:
            return facts | {"head_addr": "", "head_port": 0, "peers": []}
        # Without a private address, use the one that the agent reports: the client may know the host only by an alias.
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
        """The pickled plugins; empty if there are none or they are unknown."""
        return self._plugins or b""

    def set_plugins(self, plugins: bytes, secrets: Sequence[str], *, apps: bool, joins: bool) -> None:
        """Set the plugins as an agent reported them."""
        self._plugins, self._secrets, self._apps, self._joins = plugins, list(secrets), apps, joins

    def _setup_frame(self, epoch: int, info: dict[str, Any], *, fresh: bool = False) -> tuple[frames.ClientGang, bytes]:
        """Return the frame that sets up a node's ranks. ``fresh``: whether the ranks get new processes."""
        header: frames.ClientGang = {"t": "gang", "epoch": epoch, "info": info, "hooks": bool(self._plugins)}
        header["apps"], header["joins"] = self._apps, self._joins
        if fresh:
            header["fresh"] = True
        if self._secrets:
            header["secrets"] = self._secrets
        return header, self.plugins

    async def _ensure_plugins(self) -> None:
        """Fetch the plugins if this client does not know them.

        Raises:
            ConnectionError: If no reachable node knows them.
        """
        if self._plugins is None:
            await self._context.setup.fetch_from_nodes()
        if self._plugins is None:
            raise ConnectionError(
                "The pool's plugins are lost: its agents were restarted after the client that created the pool had "
                "exited. Create a new pool."
            )

    @property
    def is_complete(self) -> bool:
        """Whether all ranks are set up, except those of lost nodes."""
        return all(link.epoch or link.gone for link in self._links)

    @property
    def is_ready(self) -> bool:
        """Whether all ranks are set up for calls that need no gang across nodes."""
        return self.is_complete

    def try_start(self, send: Callable[[int], None]) -> bool:
        """Start a broadcast if its start need not wait for anything. Return whether it started."""
        if self.is_complete:
            send(FIRST_EPOCH)
            return True
        return False

    async def start(self, send: Callable[[int], None]) -> bool:
        """Start a broadcast.

        Args:
            send: Sends the calls of the given epoch through the links.

        Returns:
            Whether the broadcast started. False if runs that use only some of the nodes are still active.

        Raises:
            ConnectionError: If a required node cannot be reached now.
        """
        await self.ensure_set_up()
        send(FIRST_EPOCH)
        return True

    async def start_on(self, choice: NodesWanted, send: Callable[[int, tuple[int, ...]], None], job: str = "") -> bool:
        """Start a broadcast on some of the nodes.

        In a standalone pool no node counts as busy: calls are queued on the nodes with the fewest calls of this client.

        Args:
            choice: Number of nodes, or their indices.
            send: Sends the calls of the given epoch through the links of the given nodes.
            job: Job that the broadcast is the next step of; "" if none. Nodes reserved for this job may be used.

        Returns:
            Whether the broadcast started. False if too few nodes are free.

        Raises:
            ConnectionError: If a required node cannot be reached now.
        """
        await self.ensure_set_up()
        if isinstance(choice, int):
            candidates = sorted((link.gone, link.load, link.node) for link in self._links)
            choice = tuple(sorted(node for *_, node in candidates[:choice]))
        send(FIRST_EPOCH, choice)
        return True

    async def ensure_set_up(self) -> None:
        """Set up the ranks, for calls that form no gang but need the plugins' contexts."""
        async with self._busy:
            if self.is_complete:
                return
            await self._ensure_plugins()
            header, plugins = self._setup_frame(FIRST_EPOCH, self._placement())
            for link in self._links:
                # A node that is down is set up after it reconnects. Its calls wait for the set-up.
                if not link.epoch and link.send(header | {"alone": True}, plugins):
                    link.epoch = FIRST_EPOCH

    async def restart_processes(self) -> None:
        """Replace the processes of all ranks by new processes after the active broadcasts.

        Raises:
            ConnectionError: If a required node cannot be reached now.
        """
        async with self._busy:
            await self._ensure_plugins()
            header, plugins = self._setup_frame(FIRST_EPOCH, self._placement(), fresh=True)
            for link in self._links:
                # A node that is down reports its loaded modules after it reconnects.
                link.send(header | {"alone": True}, plugins)

    def on_frame(self, link: Link, header: LockFrame) -> None:
        """Process an agent's frame about the gang lock. Ranks of a standalone pool use no lock, so do nothing."""

    def on_down(self, link: Link) -> None:
        """Process the loss of a link. Only gangs hold a lock that could be lost, so do nothing here."""


class NodeGangState(NamedTuple):
    """Gang state of a node.

    Attributes:
        node: Index of the node.
        there: Whether the node answers.
        gone: Whether the node is lost for good.
        epoch: Epoch of its gang; 0 if it has none.
        broken: Whether the gang accepts no further run and its current run is about to end.
        members: Nodes of the gang; () for all.
        runs: Run -> counts of the calls that the gang received.
    """

    node: int
    there: bool
    gone: bool = False
    epoch: int = 0
    broken: bool = False
    members: tuple[int, ...] = ()
    runs: Mapping[str, frames.GangCallCounts] = {}


def busy_nodes(nodes: Sequence[NodeGangState], job: str = "", *, of_parts: bool = False) -> set[int]:
    """Return the nodes that runs occupy.

    A run occupies all nodes of its gang until its last rank has ended, because other ranks may wait for that rank.

    Args:
        nodes: States of the nodes.
        job: Job that requests nodes. Nodes reserved for its next step count as free.
        of_parts: Whether to count only runs that use some but not all of the nodes.
    """
    found: set[int] = set()
    for epoch in {each.epoch for each in nodes if each.epoch}:
        gang = [each for each in nodes if each.epoch == epoch and not each.broken]
        if of_parts:
            gang = [each for each in gang if each.members]
        present = [each for each in gang if each.there]
        silent = any(not each.there and not each.gone for each in gang)
        for run in {run for each in present for run in each.runs}:
            counts = [each.runs[run] for each in present if run in each.runs]
            is_active = any(one["active"] or one["kept"] not in ("", job) for one in counts)
            # Count a node that does not answer as busy, because it may still have ranks of the run.
            ended, total = sum(one["ended"] for one in counts), max(one["total"] for one in counts)
            if is_active or (silent and ended < total):
                found |= {each.node for each in gang}
                break
    return found


def choose_nodes(choice: NodesWanted, nodes: Sequence[NodeGangState], job: str = "") -> tuple[int, ...]:
    """Return the nodes for a run, in order; () if the run has to wait.

    Prefers an existing gang of the right size, because its processes are already running. Otherwise prefers nodes that
    belong to no gang, which preserves existing gangs for other runs.

    Args:
        choice: Number of nodes, or their indices.
        nodes: States of the nodes.
        job: Job that requests nodes. Nodes reserved for its next step count as free.
    """
    busy = busy_nodes(nodes, job)
    free = {each.node: each for each in nodes if each.there and not each.gone and each.node not in busy}
    if not isinstance(choice, int):
        return tuple(choice) if all(node in free for node in choice) else ()
    gangs = {each.members for each in free.values() if each.members and not each.broken}
    for members in sorted(gangs):
        if len(members) == choice and all(node in free and free[node].members == members for node in members):
            return members
    if len(free) < choice:
        return ()
    in_order = sorted(free.values(), key=lambda each: (bool(each.members) and not each.broken, each.node))
    return tuple(sorted(each.node for each in in_order[:choice]))


WAIT_REPORT_DELAY = 1.0  # seconds of waiting before the user sees which client holds the lock


class GangSetup(RankSetup):
    """Set-up of gangs: holds the head's lock while gang runs start, and forms new epochs.

    After a start this client keeps the lock until another client requests it. The only client of a pool can therefore
    send its calls at once.

    See :class:`RankSetup` for the arguments.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._has_lock = False
        self._holder = ""  # description of the other client that holds the lock; "" if unknown
        self._reported_since = ""  # time since which this client waits for the lock; "" if no wait is reported
        self._is_lock_wanted = False
        self._is_unclean = False
        self._granted: asyncio.Future[bool] | None = None
        self._release_task: asyncio.Future[None] | None = None

    @property
    def head(self) -> Link:
        return self._links[0]

    @property
    def is_complete(self) -> bool:
        """Whether all ranks belong to one gang that accepts further runs."""
        epoch = self.head.epoch
        return epoch > 0 and all(link.epoch == epoch and not link.broken and not link.members for link in self._links)

    @property
    def is_ready(self) -> bool:
        return all(link.epoch and not link.broken for link in self._links)

    def on_frame(self, link: Link, header: LockFrame) -> None:
        """Process the head's frames about the gang lock: that it is granted, held or wanted by another client."""
        if link is not self.head:
            return
        if header["t"] == "granted":
            self._has_lock = True
            if self._granted is not None and not self._granted.done():
                self._granted.set_result(header["unclean"])
        elif header["t"] == "held":
            self._holder = header["by"]
            if self._reported_since:
                self._report_holder(self._reported_since)
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
        """Start a gang run if its start need not wait for anything. Return whether it started."""
        if not self._has_lock or self._is_lock_wanted or self._busy.locked() or not self.is_complete:
            return False
        send(self.head.epoch)
        return True

    async def start(self, send: Callable[[int], None]) -> bool:
        """Start a gang run.

        Args:
            send: Sends the calls of the given epoch through the links.

        Returns:
            Whether the run started. False if runs that use only some of the nodes are still active.

        Raises:
            ConnectionError: If the head, or a node without a place in the gang, cannot be reached now.
        """
        async with self._hold_lock():
            if started := self.is_complete or not busy_nodes(await self._query_nodes(), of_parts=True):
                await self._ensure_complete()
                if not self.is_complete and any(not link.up and not link.gone for link in self._links):
                    # Its agent would return the call, after other ranks have begun.
                    raise ConnectionError("a node that does not belong to the gang is reconnecting")
                send(self.head.epoch)
        return started

    async def start_on(self, choice: NodesWanted, send: Callable[[int, tuple[int, ...]], None], job: str = "") -> bool:
        async with self._hold_lock():
            nodes = choose_nodes(choice, await self._query_nodes(), job)
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
        """Set up all ranks for calls that form no gang but need the plugins' contexts.

        Existing gangs of some nodes remain.
        """
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
        """Query the gang state of all nodes, because other clients may have formed gangs."""
        links = [link for link in self._links if link.up and not link.gone and "queue" in link.welcome.get("knows", ())]
        answers: list[tuple[frames.HoldsAnswer, bytes] | BaseException]
        answers = await asyncio.gather(*(link.ask({"t": "holds"}) for link in links), return_exceptions=True)
        run_counts: dict[int, Mapping[str, frames.GangCallCounts]] = {}
        for link, answer in zip(links, answers, strict=True):
            if isinstance(answer, BaseException):
                if link is self.head:
                    raise answer
                continue  # skip the node, because its link was lost after the request; the other answers remain valid
            header = answer[0]
            run_counts[link.node] = header["runs"]
            if header["epoch"] >= link.epoch and not (link.broken and header["epoch"] == link.epoch):
                link.update_gang(header)
        return [
            NodeGangState(
                node=link.node,
                there=link.node in run_counts,
                gone=link.gone,
                epoch=link.epoch,
                broken=bool(link.broken) and not link.spent,
                members=link.members,
                runs=run_counts.get(link.node, {}),
            )
            for link in self._links
        ]

    async def _ensure_complete(self) -> None:
        """Form a new gang of all ranks if required. If the gang accepts no new calls, first wait for its calls."""
        if self.is_complete:
            return
        links = self._links
        if any(link.spent for link in links) and all(link.spent or not link.broken for link in links):
            await self._wait_idle("runs wait for broadcasts that use all processes")
        await self._form_gang()

    async def _acquire_lock(self) -> None:
        if not self._has_lock:
            if not self.head.send({"t": "lock"}):
                raise ConnectionError("the link to the head is down")
            self._granted = asyncio.get_running_loop().create_future()
            timer = asyncio.get_running_loop().call_later(
                WAIT_REPORT_DELAY, self._report_holder, time.strftime("%H:%M:%S")
            )
            try:
                self._is_unclean = await self._granted
            finally:
                timer.cancel()
                if self._reported_since:
                    self._context.roster.report_wait("")
                self._holder = self._reported_since = ""
        if self._is_unclean:
            await self._stop_partial_runs()
            self._is_unclean = False

    def _report_holder(self, since: str) -> None:
        """Report which client holds the lock, or a later holder. ``since``: time at which the wait began."""
        self._reported_since = since
        self._context.roster.report_wait(f"runs wait since {since} for runs of {self._holder or 'another client'}")

    async def _release_if_wanted(self) -> None:
        async with self._busy:
            if self._has_lock and self._is_lock_wanted:
                await self._release_lock()

    async def _release_lock(self) -> None:
        """Release the lock after every agent has received this client's calls, so that no other run overtakes them."""
        await asyncio.gather(*[link.ask({"t": "ping"}) for link in self._links if link.up], return_exceptions=True)
        self._has_lock = self._is_lock_wanted = False
        self.head.send({"t": "unlock", "unclean": self._is_unclean})

    async def _stop_partial_runs(self) -> None:
        """Stop runs that a vanished holder of the lock had started on some agents only.

        Raises:
            ConnectionError: If an agent cannot list its calls now.
        """
        answers = await self._query_calls()
        runs = [(run, here) for header in answers.values() for run, here in header["runs"].items()]
        calls, active, totals = Counter[str](), Counter[str](), dict[str, int]()
        for run, here in runs:
            calls[run] += here["calls"]
            active[run] += here["active"]
            totals[run] = here["total"]
        reason = "its client exited while the run was starting"
        for run, total in totals.items():
            if active[run] and calls[run] < total:
                for link, header in answers.items():
                    if link.members and run not in header["runs"]:
                        continue  # skip this node, because its gang does not have the run
                    link.send({"t": "stop", "run": run, "why": reason, "break": link.epoch})
                    # Set the reason here, because the agent's own report would arrive after the next start.
                    link.broken = link.broken or reason

    async def _query_calls(self) -> dict[Link, frames.WhereAnswer]:
        """Ask the agents of all nodes that are not lost which calls they have."""
        links = [link for link in self._links if not link.gone]
        answers: list[tuple[frames.WhereAnswer, bytes]]
        answers = await asyncio.gather(*(link.ask({"t": "where"}) for link in links))
        return {link: header for link, (header, _) in zip(links, answers, strict=True)}

    async def restart_processes(self) -> None:
        async with self._hold_lock():
            await self._wait_idle("runs wait for broadcasts that use the old version of edited modules")
            await self._form_gang(fresh=True)

    async def _wait_idle(self, words: str) -> None:
        """Wait for active broadcasts and report the wait. This client holds the lock, so no broadcast can start."""
        is_reported, pause = False, 0.01
        while True:
            answers = await self._query_calls()
            if not any(here["active"] for header in answers.values() for here in header["runs"].values()):
                break
            if not is_reported:
                self._context.roster.report_wait(words)
            is_reported, pause = True, min(2 * pause, 0.5)
            await asyncio.sleep(pause)
        if is_reported:
            self._context.roster.report_wait("")

    async def _form_gang(self, nodes: tuple[int, ...] = (), *, fresh: bool = False) -> int:
        """Form a gang of all nodes or of the given nodes. Return the number of its epoch."""
        await self._ensure_plugins()
        links = [self._links[node] for node in nodes] or self._links
        # Send all requests at once, so that forming a gang takes one round trip.
        formed: frames.AgentFormed
        numbered: frames.NumberAnswer
        (formed, _), (numbered, _), (peers, gpus, line) = await asyncio.gather(
            links[0].ask({"t": "form"}),
            self.head.ask({"t": "number", "least": 1 + max(link.epoch for link in self._links)}),
            self._collect_ports(links),
        )
        epoch = numbered["epoch"]
        rendezvous = {"head_addr": formed["head_addr"], "head_port": formed["head_port"], "peers": peers}
        info = self._placement() | rendezvous | {"total_accelerators": gpus}
        if nodes:
            world = len(nodes) * self._context.ranks_per_node
            info |= {"members": list(nodes), "total_nodes": len(nodes), "world_size": world}
            info["peers"] = [peers[node] | {"node": place} for place, node in enumerate(nodes)]
        header: frames.ClientGang
        header, plugins = self._setup_frame(epoch, info, fresh=fresh)
        fail_fast, heartbeats = self._context.options.fail_fast, self._context.options.on_loss == "restart"
        if (fail_fast or heartbeats) and len(line) > 1:
            header["line"] = {"key": token_hex(), "nodes": line, "fail_fast": fail_fast, "heartbeats": heartbeats}
            if heartbeats and not self._context.is_local:
                # Let the nodes listen, because they exchange checkpoints if they restart the run without a client.
                await asyncio.gather(*map(self._context.registry.direct.address_of, links))
        text = encode_json(header)  # encoded once for all nodes, because it is long: it lists all nodes
        for link in links:
            if link.send(header, plugins, text):
                link.epoch, link.broken, link.spent, link.members = epoch, "", False, nodes
        return epoch

    async def _collect_ports(
        self, links: Sequence[Link]
    ) -> tuple[list[dict[str, Any]], int, list[tuple[int, str, int]]]:
        """Reserve the ports of all ranks.

        Returns:
            The nodes with their ranks' reserved ports, the number of GPUs, and the addresses to which nodes report
                failures.
        """
        links = [link for link in links if link.up]
        answers: list[tuple[frames.PortsAnswer, bytes] | BaseException]
        answers = await asyncio.gather(*(link.ask({"t": "ports"}) for link in links), return_exceptions=True)
        port_answers = {
            link.node: answer[0]
            for link, answer in zip(links, answers, strict=True)
            # Omit a node that was lost during the request; no complete gang is possible without it.
            if not isinstance(answer, BaseException)
        }
        ports = {node: answer["ports"] for node, answer in port_answers.items()}
        peers = [peer | {"ports": ports.get(peer["node"], [])} for peer in self._placement()["peers"]]
        gpus = sum(answer["accelerators"] for answer in port_answers.values())
        at = {peer["node"]: str(peer["address"]) for peer in peers}
        line = [(node, at[node], answer["line"]) for node, answer in port_answers.items() if answer["line"]]
        return peers, gpus, line
