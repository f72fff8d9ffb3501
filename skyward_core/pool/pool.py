"""A pool on the client, from the intent in the ledger to the receipt. Everything here runs on one loop."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle

from ..model.errors import Cancelled, PoolError, PoolExistsError, UsageError
from ..model.machine import Machine
from ..model.spec import Options, PoolSpec
from ..plugins.base import has_app
from ..providers import from_json
from ..providers.base import Provider
from ..store.archive import Archive, rank_of
from ..store.home import prune_is_due
from ..store.ledger import Ledger, PoolRow, Receipt
from ..tasks.payload import NOTHING, Task
from ..transport.incoming_result import Landing
from ..views import events as ev
from ..views.views import PoolView, apply
from ..wire.frames import PLUGINS, Header, WireError
from ..wire.redact import Redactor, secret_values
from .gang.gang import GangKeeper
from .gang.keeper import Keeper
from .gang.standalone import Standalone
from .links.blobs import Blobs
from .links.direct import Direct
from .links.link import Link
from .links.spread import Spread
from .live_logs import LiveLogs, LogSink
from .log_intake import Intake
from .nodes.heal import Healing
from .nodes.reconcile import close_if_gone, in_words
from .nodes.replace import Replacements
from .nodes.revivals import Revivals
from .nodes.startup import Startup, whole_image
from .nodes.suspicion import Suspicion
from .pool_end import PoolEnd
from .records import Records
from .runs.launch import Launch
from .runs.others_runs import ForeignRuns
from .runs.run import Run
from .teardown import GOODBYE, tear_down

A_MOMENT = 0.003  # seconds; longer than a small call takes
LEASE_MOVED = 3.0  # seconds by which the end of a lease has moved when that is news
FAREWELL = 1.0  # seconds that what goes on beside may take to be broken off
RECEIPT = 3.0  # seconds that the client which ended a pool may take to write so once its nodes are gone


class Pool:
    """One pool as one client has it.

    Attributes:
        view: what it looks like now.
        runs: runs that this client dispatched and that have not ended.
        ending: how it ended, where it was not this client that ended it.
    """

    def __init__(self, row: PoolRow, provider: Provider, ledger: Ledger, *, observer: bool = False) -> None:
        self.row = row
        self.name = row.name
        self.provider = provider
        self.ledger = ledger
        self.observer = observer
        self.archive = Archive(row.key)
        self.records = Records(row.token, ledger, self.archive, self.complain)
        self.view = PoolView(row.name, key=row.key)
        self.live = LiveLogs(self.archive, self.view)
        self.intake = Intake(self.archive, self.live.take, self.ask_for_logs, self.records.cannot)
        self.links: list[Link] = []
        self.machines: list[Machine] = []
        self.runs: dict[str, Run] = {}
        self.spec_options = Options.from_json(row.spec["options"])
        worker = row.spec["worker"]
        self.ranks_per_node = worker["ranks_per_node"] if isinstance(worker["ranks_per_node"], int) else 1
        self.slots_per_node = worker["concurrency"] * self.ranks_per_node
        self.alone = not self.spec_options.cluster
        self.gang: Keeper | None = None
        self._foreign = ForeignRuns(self)
        self._direct = Direct(self.name, self._mention)
        spread = Spread(self.spec_options.cluster, self._direct, self._mention)
        self._blobs = Blobs(spread, lambda: [link for link in self.links if not link.gone])
        self.launch = Launch(self, self._blobs)
        self._listeners: list[Callable[[ev.Event], None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._later: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._later_timer: asyncio.TimerHandle | None = None
        self._turn = -1  # the node that had the last
        self._rising: asyncio.Task[None] | None = None
        self._teardown: asyncio.Task[Receipt] | None = None
        self._detached = False
        self.ending: PoolEnd | None = None  # by others, or by itself
        self._unfetched: dict[int, dict[str, int]] = {}  # by node
        self._examining: set[int] = set()
        self._revivals = Revivals()
        self.redactor = Redactor(secret_values(os.environ))
        self.startup = Startup(self)
        self.replacements = Replacements(self)
        self.healing = Healing(self)
        self._suspicion = Suspicion(self.spec_options.lost_after, self._lose_silent)
        self.emit(ev.PoolOpened(pool=self.name, spec=row.spec, created_at=row.created_at))

    # -- coming up ---------------------------------------------------------------------------------------

    @classmethod
    async def intend(cls, spec: PoolSpec, ledger: Ledger, cwd: str = "") -> Pool:
        """Write the intent to the ledger and make the pool's object; nothing exists yet.

        Raises:
            PoolExistsError: a pool of that name is up.
            UsageError, PluginError: a plugin cannot be used so.
        """
        token = secrets.token_hex(8)
        provider: Provider = spec.provider
        image = whole_image(spec)
        written = replace(spec, image=image).describe() | {"cwd": image.workdir or cwd}
        try:
            row = ledger.intend(token, spec.name, provider.to_json(), written)
        except PoolExistsError:
            # It may have ended by itself, by its lease for one, with nobody there to write it down.
            other = ledger.find(spec.name)
            closed = other and await close_if_gone(other, from_json(other.provider), ledger)
            if not closed:
                raise
            row = ledger.intend(token, spec.name, provider.to_json(), written)
        else:
            closed = None
        pool = cls(row, provider, ledger)
        pool.startup.know(image)
        if closed:
            pool.complain(f"of the pool that had this name before: {in_words(closed)}")
        return pool

    async def start(self, spec: PoolSpec) -> None:
        """Create the machines and bring every node to ready; on failure nothing of it is left.

        Raises:
            PoolError: says which node failed, at what, and what to do.
            Cancelled: :meth:`down` came in between.
        """
        self._rising = asyncio.create_task(self._start(spec))
        try:
            async with asyncio.timeout(spec.options.start_timeout):
                await self._rising
        except TimeoutError as error:
            await self._give_up()
            waiting = [
                f"node {n.index} {n.phase} ({n.detail})" for n in self.view.nodes if n.phase != "ready"
            ]
            said = f"pool {self.name} was not up after {spec.options.start_timeout:g} s: {'; '.join(waiting)}"
            raise PoolError(said) from error
        except BaseException as error:
            if self._teardown is not None and isinstance(error, asyncio.CancelledError):
                await self._give_up()
                raise Cancelled(f"pool {self.name} was torn down while it was starting") from error
            self.emit(ev.PoolState(pool=self.name, state="starting", detail=str(error)))
            await self._give_up()
            raise

    async def _start(self, spec: PoolSpec) -> None:
        await self.startup.start(spec)
        self._make_gang(spec.plugins)
        if self.gang is not None:
            await self.gang.ensure()
        self._up()
        if prune_is_due():
            from ..store.prune import prune_when_due

            self.spawn(asyncio.to_thread(prune_when_due, self.ledger))

    async def _give_up(self) -> None:
        receipt = await asyncio.shield(self.down())
        if not receipt.ok:
            raise PoolError(
                f"the pool {self.name} did not start, and its teardown is not complete: {receipt}"
            )

    async def attach(self) -> None:
        """Connect to a pool that exists.

        Raises:
            PoolError: it is gone, or no node of it can be reached.
        """
        await self.startup.attach()
        self._make_gang(None)
        self._up()
        self.replacements.resume()
        try:
            # Now: later the agents that know may be gone, and this the only client.
            await self.startup.learn()
        except OSError as error:
            self._mention(self.links[0], f"{error}; asked again when it is needed")

    def _learn_ranks(self, number: int) -> None:
        """The first node to answer tells how many ranks "gpu" is."""
        worker = self.view.spec["worker"]
        if worker["ranks_per_node"] == "gpu":
            if not number:
                raise WireError("a node cannot have no ranks")
            self.ranks_per_node = number
            self.slots_per_node = worker["concurrency"] * number
            spec = self.view.spec | {"worker": worker | {"ranks_per_node": number}}
            self.emit(ev.PoolOpened(pool=self.name, spec=spec, created_at=self.row.created_at))

    def _gang_facts(self) -> Header:
        world = len(self.machines) * self.ranks_per_node
        facts: Header = {"total_nodes": len(self.machines), "world_size": world}
        if self.alone:
            return facts | {"head_addr": "", "head_port": 0, "peers": []}
        # A host may be known by a name of the client's alone; its agent knows where peers reach it.
        peers = [
            {"node": m.node, "address": m.private_address or link.welcome.get("address", "")}
            for m, link in zip(self.machines, self.links, strict=True)
        ]
        return facts | {"peers": peers}

    def _make_gang(self, plugins: Sequence[Any] | None) -> None:
        blob = None if plugins is None else cloudpickle.dumps(tuple(plugins), protocol=5) if plugins else b""
        if blob and len(blob) > PLUGINS:
            said = f"the pool's plugins take {len(blob):,} bytes when they are pickled, and {PLUGINS:,} can travel: "
            raise UsageError(f"{said}have them load on the nodes, in around_process, what is large")
        values = self.startup.credentials + [value for plugin in plugins or () for value in plugin.secrets()]
        keeper = Standalone if self.alone else GangKeeper
        self.gang = keeper(
            self.links, self._gang_facts(), blob, values, apps=has_app(plugins or ()),
            tell=lambda words: self.complain(words) if words else self.emit_state(), ask=self.startup.learn,
        )  # fmt: skip

    def _up(self) -> None:
        if not self.observer:  # who only looks changes nothing
            self.ledger.pool_state(self.row.token, self.healing.state()[0])
        self.emit_state()

    def emit_state(self) -> None:
        """Say that the pool is up, or what of it is not there."""
        state, detail = self.healing.state()
        self.emit(ev.PoolState(pool=self.name, state=state, detail=detail))

    async def renewed(self, *, form: bool) -> None:
        """A node lives on another machine now. ``form``: have a gang with it, if no other node is gone."""
        if self.gang is not None:
            self.gang.renew(self._gang_facts())
            if form and (self.alone or not any(link.gone for link in self.links)):
                await self._set_up()
        self._up()

    async def _set_up(self) -> None:
        """Have the ranks set up before they are needed."""
        try:
            if self.gang is not None:
                await self.gang.ensure()
        except OSError as error:
            self._mention(self.links[0], f"{error}; the next run sets the ranks up")

    def cursors(self, node: int) -> dict[str, int]:
        self._learn_ranks(self.links[node].welcome["ranks_per_node"])
        first = node * self.ranks_per_node
        ranks = range(first, first + self.ranks_per_node)
        return {name: at for name, at in self.archive.cursors.items() if rank_of(name) in ranks}

    # -- news --------------------------------------------------------------------------------------------

    def subscribe(
        self, on_event: Callable[[ev.Event], None] | None, on_log: LogSink | None, *, missed: bool = False
    ) -> Callable[[], None]:
        """Hear of every event and every piece of log, in order, on the loop; returns how to stop.

        Args:
            missed: give ``on_log`` first, at once, what has come since this client came to the pool.
        """
        if on_event is not None:
            self._listeners.append(on_event)
        if on_log is not None:
            if missed:
                self.live.missed(on_log)
            self.live.sinks.append(on_log)

        def stop() -> None:
            if on_event in self._listeners:
                self._listeners.remove(on_event)
            if on_log in self.live.sinks:
                self.live.give_up()
                self.live.sinks.remove(on_log)

        return stop

    def emit(self, event: ev.Event) -> None:
        if self.redactor and (detail := getattr(event, "detail", "")):
            event = replace(event, detail=self.redactor.text(detail))  # type: ignore[call-arg]
        apply(self.view, event)
        self.records.event(event)
        for listener in tuple(self._listeners):
            listener(event)

    def _mention(self, link: Link, detail: str) -> None:
        self.emit(ev.NodeLink(pool=self.name, node=link.node, up=link.up, detail=detail))

    def complain(self, words: str) -> None:
        self.emit(ev.PoolState(pool=self.name, state=self.view.state, detail=words))

    def on_frame(self, link: Link, header: Header, body: bytes) -> None:
        match header["t"]:
            case "log":
                self._belongs(link, rank_of(header["f"]))
                self.on_log(header["f"], header["at"], body)
            case "granted" | "wanted" | "held":
                if self.gang is not None:
                    self.gang.on_frame(link, header)
            case "gang":
                self._gang_broke()
            case "outcome" | "item" | "began" | "stale" | "run":
                self._run_frame(link, header, body)
            case "ending":
                self.ended_by_others(PoolEnd.told(self.name, header))
            case "phase":
                self._enter_phase(link, header)
            case "pong":
                self._learn_lease(header["lease"])
                self._learn_unfetched(link, header)
            case "error":
                self._mention(link, header["message"])

    def _belongs(self, link: Link, rank: int, node: int | None = None) -> None:
        """A node speaks of its own ranks only.

        Raises:
            WireError: it does not.
        """
        if (rank >= 0 and rank // self.ranks_per_node != link.node) or node not in (None, link.node):
            raise WireError(f"node {link.node} speaks of rank {rank} as if it were its own")

    def _learn_lease(self, seconds: float | None) -> None:
        """A node has told in how many seconds it ends itself; all nodes of a pool do at about the same time."""
        before, ends_at = self.view.ends_at, None if seconds is None else time.time() + seconds
        moved = ends_at is None or before is None or abs(ends_at - before) > LEASE_MOVED
        if moved and ends_at != before:
            self.emit(ev.LeaseNews(pool=self.name, ends_at=ends_at))

    def _enter_phase(self, link: Link, header: Header) -> None:
        """A rank is starting, importing, joining; ages travel, as clocks of nodes may be wrong."""
        rank, at = int(header["rank"]), time.time() - header["age"]
        if rank // self.ranks_per_node == link.node:
            self.emit(ev.RankPhase(pool=self.name, rank=rank, phase=header["phase"], at=at))

    def _learn_phases(self, link: Link) -> None:
        """What an agent tells of its ranks to a client that comes; of the others nothing is known any more."""
        told = link.welcome.get("phases", ())
        first = link.node * self.ranks_per_node
        for rank in range(first, first + self.ranks_per_node):
            if rank in self.view.rank_phases and all(header["rank"] != rank for header in told):
                self.emit(ev.RankPhase(pool=self.name, rank=rank, phase=""))
        for header in told:
            self._enter_phase(link, header)

    def _learn_unfetched(self, link: Link, header: Header) -> None:
        """A node has told which results wait there for a client to fetch them."""
        self._unfetched[link.node] = header.get("unfetched", {})
        runs: dict[str, int] = {}
        for told in self._unfetched.values():
            for run, size in told.items():
                runs[run] = runs.get(run, 0) + size
        if runs != self.view.unfetched:
            self.emit(ev.UnfetchedNews(pool=self.name, runs=runs))

    def _run_frame(self, link: Link, header: Header, body: bytes) -> None:
        if header["t"] in ("outcome", "item", "began"):
            self._belongs(link, header["rank"], header.get("node"))
        run = self.runs.get(header["run"])
        if run is None:
            self._foreign.on_frame(link, header)
            return
        if header["t"] == "run":
            return  # we know it best
        if header["i"] >= run.total:
            raise WireError(f"run {run.id} has no call {header['i']}")
        if not run.asked_of(link, header["i"]):
            raise WireError(f"node {link.node} speaks of call {header['i']}, which it was not given")
        match header["t"]:
            case "outcome":
                run.on_outcome(link, header, body)
            case "item":
                run.on_item(link, header, body)
            case "stale":
                run.on_stale(header["i"], header.get("why", ""))
            case "began":
                self.emit(
                    ev.RankBegan(
                        pool=self.name,
                        run=run.id,
                        index=header["i"],
                        rank=header["rank"],
                        node=header["node"],
                        at=link.time_of(header),
                    )
                )

    def on_log(self, name: str, at: int, data: bytes) -> None:
        """A piece of a log file: kept, and shown."""
        self.intake.take(name, at, data)

    def ask_for_logs(self) -> None:
        """Have the nodes send their logs again from where our files end."""
        for link in self.links:
            link.follow()

    def _gang_broke(self) -> None:
        """A worker died. Work that waits for the plugins' contexts needs a new epoch to go on."""
        if (
            self.ending is None
            and self.gang is not None
            and self.runs
            and not self.gang.whole
            and not self.observer
        ):
            self.spawn(self.launch.mend_gang())

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        if self._detached and not up:
            return  # it is we who went
        waiting = not (up or link.silent or link.finished or link.gone or self.leaving or self.ending)
        if waiting and (until := self._suspicion.down(link)):
            detail = f"{detail}; {until}"
        self.emit(ev.NodeLink(pool=self.name, node=link.node, up=up, detail=detail))
        if up:
            self._suspicion.up(link)
            self._learn_lease(link.welcome["lease"])
            for record in link.welcome["runs"]:
                for header in (*record["began"], *record["outcomes"]):
                    self._belongs(link, header["rank"], header["node"])
            self._learn_phases(link)
            self._learn_unfetched(link, link.welcome)
            self._foreign.on_welcome(link)
            if not link.epoch and not self.observer:
                # A new agent; calls that were sent again wait for this.
                self.spawn(self._set_up() if self.alone else self.launch.mend_gang())
            return
        if link.silent:
            return  # still connected: it is shown, nothing is done about it
        if self.gang is not None:
            self.gang.on_down(link)
        if self.leaving or link.gone:
            return
        if self.ending is None:
            self.spawn(self._examine(link))

    def ended_by_others(self, ending: PoolEnd) -> None:
        """The pool has ended, or is about to, and not by us: nothing waits on it any longer."""
        if self.ending is not None or self.leaving:
            return
        self.ending = ending
        self.emit(ev.PoolState(pool=self.name, state="stopping", detail=str(ending.error())))
        for run in list(self.runs.values()):
            run.pool_ended(ending)
        self.spawn(self._see_it_closed())

    async def _ended(self, *, wait: bool) -> bool:
        """Whether another client has ended the pool, as the ledger tells. ``wait``: for one that is just doing so."""
        until = time.monotonic() + (RECEIPT if wait else 0.0)
        row = self.ledger.pool(self.row.token)
        while row.state == "stopping" and time.monotonic() < until:
            await asyncio.sleep(0.05)
            row = self.ledger.pool(self.row.token)
        if row.ended_at is None and not (wait and row.state == "stopping"):
            return False
        self.ended_by_others(PoolEnd.written(row))
        return True

    async def _see_it_closed(self) -> None:
        """Wait for the receipt of who ended it; where nobody writes one, do so."""
        soon = time.monotonic() + self.spec_options.grace + GOODBYE
        while not self.leaving:
            row = self.ledger.pool(self.row.token)
            if row.receipt is not None:
                self.emit(ev.PoolGone(pool=self.name, receipt=row.receipt))
                return
            await close_if_gone(row, self.provider, self.ledger)
            await asyncio.sleep(0.05 if time.monotonic() < soon else 1.0)

    async def _examine(self, link: Link) -> None:
        """Ask the provider whether a node that fell silent still exists."""
        if link.node in self._examining:
            return
        self._examining.add(link.node)
        try:
            async with self.replacements.deciding(link.node) as decided:
                await self._decide(link, decided)
        finally:
            self._examining.discard(link.node)

    async def _decide(self, link: Link, decided: bool) -> None:
        if link is not self.links[link.node] or link.up or link.gone:
            return  # while another client decided
        if decided:
            self._lose(link, "another client sees to another machine in its place")
            return
        if await self._ended(wait=link.finished):
            return
        if link.finished:
            self._lose(link, "its agent was ended on its machine")
            return
        machine = self.machines[link.node]
        (seen,) = await self.provider.describe(self.name, [machine])
        # "unreachable" is a link that is down: a network cut ends no healthy machine.
        # So is "lost" where nodes do not reach each other: that peers get no answer either says nothing.
        alive = ("running", "unreachable", "lost") if self.alone else ("running", "unreachable")
        if seen.state in alive or link.up or self.leaving or self.ending is not None:
            return
        if await self._ended(wait=True):
            return
        if (why := seen.extra.get("why")) and not any(other.up for other in self.links):
            self.ended_by_others(PoolEnd.by_itself(self.name, why.removeprefix("the node ended itself: ")))
            return
        why = f"its machine is {seen.state}"
        if seen.state == "orphaned":
            if not (refused := self._revivals.refused(link.node)):
                if self._revivals.is_due(link.node):
                    await self._revive(link)
                return
            why = refused
        self._lose(link, why)
        await self.provider.terminate(self.name, [machine])

    async def _revive(self, link: Link) -> None:
        """Start an agent where the last one died; it adopts what it finds, and the link finds it.

        Where that fails the link goes on trying, and each of its attempts has the node examined again.
        """
        try:
            report = await self.startup.prepare(link)
        except PoolError as error:
            why = self.redactor.text(str(error))
            self._revivals.failed(link.node, why)
            self.emit(ev.NodeLink(pool=self.name, node=link.node, up=False, detail=why))
            return
        self._revivals.succeeded(link.node)
        report("ready", "a new agent took over")

    def _lose_silent(self, link: Link, why: str) -> None:
        """A node has not answered for too long. Its machine is left as it is; and who only watches goes on trying."""
        if not self.observer and self.ending is None:
            self._lose(link, why)

    def _lose(self, link: Link, why: str) -> None:
        self._suspicion.up(link)
        link.lose(why)
        self.emit(ev.NodePhase(pool=self.name, node=link.node, phase="gone", detail=why))
        left = [other for other in self.links if not other.gone]
        state = "degraded" if left else "failed"
        said = f"node {link.node} is gone: {why}"
        if self.ledger.pool(self.row.token).state != "stopping":
            self.ledger.pool_state(self.row.token, state)
        self.emit(ev.PoolState(pool=self.name, state=state if left else "degraded", detail=said))
        self.replacements.begin(link.node)
        self.drop(link)

    def drop(self, link: Link) -> None:
        """Nothing comes over a link any more: calls on it end as lost."""
        link.lose()
        for run in list(self.runs.values()):
            for index in run.calls_on(link):
                self.lost_call(run, index)

    def lost_call(self, run: Run, index: int) -> None:
        """A call whose node is gone ends as lost."""
        link = run._where[index]
        rank = index if run.kind == "broadcast" else link.node * self.ranks_per_node
        said = (f"node {link.node} is gone", link.lost_why)
        header = {
            "i": index, "rank": rank, "node": link.node, "kind": "lost", "begun": True,
            "error": {"type": "NodeLost", "message": ": ".join(filter(None, said))},
        }  # fmt: skip
        run.on_outcome(link, header, b"")

    def use(self) -> None:
        """From an observer become one whose presence keeps the pool alive."""
        self.observer = False
        for link in self.links:
            link.use()

    async def logs_complete(self, run: str) -> None:
        """Wait until all that the ranks printed during a run is here, or can no longer come."""
        while self.view.is_live and any(link.up for link in self.links):
            ends = self.records.log_ends(run)
            if all(self.intake.shown.get(name, 0) >= end for name, end in ends.items()):
                break
            await asyncio.sleep(0.01)
        self.live.give_up()

    # -- runs --------------------------------------------------------------------------------------------

    async def claim(self, run: str) -> Run:
        """Take over a run whose client is gone: its results come here.

        Raises:
            PoolGone: the pool has ended.
            PoolError: the pool does not remember it, or its results have been fetched.
        """
        if self.ending is not None:
            raise self.ending.error()
        if run in self.runs:
            return self.runs[run]
        view = self.view.runs.get(run)
        if view is None:
            raise PoolError(f"pool {self.name} remembers no run {run}")
        task = Task(view.function, NOTHING, NOTHING)
        taken = self.runs[run] = Run(self, run, view.kind, [task], view.total)
        taken.claim_from(self.links)
        known = await asyncio.gather(*(link.claim(run) for link in self.links if link.up))
        if sum(map(len, known)) < view.total and all(link.up for link in self.links):
            del self.runs[run]
            raise PoolError(
                f"the results of run {run} have been fetched before; skyward-tui results {run} shows what they were"
            )
        return taken

    def link_of(self, rank: int) -> Link:
        return self.links[rank // self.ranks_per_node]

    def next_link(self) -> Link:
        """The next node in turn, of those that have the least to do for us."""
        after = self._turn + 1
        left = [link for link in (*self.links[after:], *self.links[:after]) if not link.gone]
        link = min(left, key=lambda link: (not link.up or link.silent, link.load))
        self._turn = link.node
        return link

    def cancel(self, run: str, why: str = "asked for") -> None:
        """Stop a run, whoever dispatched it."""
        if ours := self.runs.get(run):
            ours.cancel(why)
            return
        for link in self.links:
            grace = self.spec_options.grace
            link.send({"t": "stop", "run": run, "why": "cancel", "grace": grace, "break": link.epoch})

    def ended(self, run: Run) -> None:
        """A run of ours is over."""
        self.runs.pop(run.id, None)
        self._blobs.release(run.id)
        if not self.alone:  # standalone nodes listen nowhere
            self._direct.run_ended(self.links)
        self.records.ended(run.id, run.state, time.time(), run.root_cause)
        self.emit(ev.RunEnded(pool=self.name, run=run.id, state=run.state, root_cause=run.root_cause))

    async def fetch(self, link: Link, name: str, landing: Landing) -> None:
        """Bring a file of a node's spool here, by the best way there is.

        Raises:
            OSError: it is not there, or cannot be written here.
            ConnectionError: the link is down; what has come is kept for the next attempt.
        """
        # Standalone nodes listen nowhere.
        if self.alone or not await self._direct.get(link, name, landing):
            await link.fetch(name, landing)

    def later(self, work: Callable[..., None], *args: Any) -> None:
        """Do a moment later what nobody waits for, in order: a caller who has its result may send the next run first.

        Then it is done while that one's calls are on their way, and costs no time that anybody sees.
        """
        self._later.append((work, args))
        if self._later_timer is None:
            self._later_timer = asyncio.get_running_loop().call_later(A_MOMENT, self._moment_over)

    def _moment_over(self) -> None:
        self._later_timer = None
        self.catch_up()

    def catch_up(self) -> None:
        """Do now what was left for later."""
        while self._later:
            work, args = self._later.popleft()
            work(*args)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside; its failure is reported like any other error of the loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- going down --------------------------------------------------------------------------------------

    async def down(self, *, give_up: bool = False) -> Receipt:
        """Tear the pool down; a second call waits for the first.

        Args:
            give_up: remove results and logs that nobody has fetched, in place of fetching them.
        """
        if self._teardown is None or (self._teardown.done() and not self._torn_down()):
            self._teardown = asyncio.create_task(self._end(give_up))
        return await asyncio.shield(self._teardown)

    async def _end(self, give_up: bool) -> Receipt:
        if self._rising is not None and not self._rising.done():
            # Nothing may come up behind the back of a teardown that has verified that nothing is there.
            self._rising.cancel()
            await asyncio.wait([self._rising])
        receipt = await tear_down(self)
        if not receipt.kept:
            return receipt
        from .unfetched import bring_home

        return await bring_home(self.row, self.ledger, receipt, give_up=give_up)

    async def written_down(self) -> None:
        """Wait for the end of a teardown that has told of its receipt: it is not in the ledger yet."""
        if self._teardown is not None:
            await asyncio.wait([self._teardown])

    def _torn_down(self) -> bool:
        task = self._teardown
        return task is not None and task.done() and task.exception() is None and task.result().ok

    @property
    def leaving(self) -> bool:
        """Whether it is torn down, or this client has left it."""
        return self._teardown is not None or self._detached

    async def detach(self) -> None:
        """Leave the pool as it is; see :meth:`Run.leave` for what becomes of runs."""
        self._detached = True
        for run in list(self.runs.values()):
            run.leave()
        self.catch_up()
        await self.replacements.stop()
        self._suspicion.stop()
        self.intake.stop()
        for link in self.links:
            await link.close()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:  # one that is still there when the process ends has asyncio complain
            await asyncio.wait(tasks, timeout=FAREWELL)
        self._direct.close()
        self.live.give_up()
        self.records.close()
