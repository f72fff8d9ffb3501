"""What is news of a pool: into its view, into the journal, and to whoever listens. Nothing else writes to the view."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import ref

from ..model.capabilities import price_of
from ..model.machine import hourly_of
from ..store import loggers
from ..views import events as ev
from ..views.views import apply
from ..wire.frames import WireError
from ..wire.redact import Redactor, secret_values
from . import told_events
from .context import PoolContext
from .links.clock_steps import ClockSteps
from .links.link import Link
from .live_logs import LiveLogs, LogSink
from .log_intake import Intake
from .records import Records

if TYPE_CHECKING:
    from ..wire.agent_frame_types import AgentPong, AgentWelcome, RankPhaseKeys

LEASE_MOVED = 3.0  # seconds by which the end of a lease has moved when that is news


class News:
    """One pool's.

    Attributes:
        records: its part of the ledger, and its journal.
        intake: where bytes of logs come in.
        redactor: blanks the secrets that this client knows of.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self.redactor = Redactor()
        self.blank(secret_values(os.environ))
        self.records = Records(context.token, context.ledger, context.archive, self.complain)
        self.live = LiveLogs(context.archive, context.view, context.clock_ahead_of)
        self._steps = ClockSteps()
        self.intake = Intake(context.archive, self.live.take, self._ask_for_logs, self.records.cannot)
        self._listeners: list[Callable[[ev.Event], None]] = []
        self._unfetched: dict[int, dict[str, int]] = {}  # by node

    def blank(self, secrets: list[str]) -> None:
        """Secrets that nobody is to see from now on."""
        self.redactor.add(secrets)
        loggers.blank(secrets)

    def emit(self, event: ev.Event) -> None:
        """Something has happened."""
        if self.redactor and (detail := getattr(event, "detail", "")):
            event = replace(event, detail=self.redactor.text(detail))  # type: ignore[call-arg]
        if self.redactor and isinstance(event, ev.PoolState) and (hint := event.hint) is not None:
            subject, path = map(self.redactor.text, (hint.subject, hint.path))
            event = replace(event, hint=replace(hint, subject=subject, path=path))
        apply(self._context.view, event)
        told_events.tell(event)
        self.records.event(event)
        for listener in tuple(self._listeners):
            listener(event)

    def mention(self, link: Link, detail: str) -> None:
        """Something about a node that changes nothing."""
        self.emit(ev.NodeLink(pool=self._context.name, node=link.node, up=link.up, detail=detail))

    def complain(self, words: str) -> None:
        """Something about the pool that changes nothing."""
        context = self._context
        self.emit(ev.PoolState(pool=context.name, state=context.view.state, detail=words))

    def opened(self) -> None:
        """The pool is there, or more is known of what it is."""
        row = self._context.row
        self.emit(ev.PoolOpened(pool=row.name, spec=row.spec, created_at=row.created_at))

    # -- who listens -------------------------------------------------------------------------------------

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
        weak = ref(self)  # a listener that keeps ``stop`` must not keep the pool and its ledger

        def stop() -> None:
            if (news := weak()) is None:
                return
            if on_event in news._listeners:
                news._listeners.remove(on_event)
            if on_log in news.live.sinks:
                news.live.give_up()
                news.live.sinks.remove(on_log)

        return stop

    async def logs_complete(self, run: str) -> None:
        """Wait until all that the ranks printed during a run is here, or can no longer come."""
        context = self._context
        while context.view.is_live and any(link.up for link in context.links):
            ends = self.records.log_ends(run)
            if all(self.intake.shown.get(name, 0) >= end for name, end in ends.items()):
                break
            await asyncio.sleep(0.01)
        self.live.give_up()

    def close(self) -> None:
        """The pool is left."""
        self.live.give_up()
        self.records.close()

    def _ask_for_logs(self) -> None:
        """Have the nodes send their logs again from where our files end."""
        for link in self._context.links:
            link.follow()

    # -- what nodes tell of themselves -------------------------------------------------------------------

    def learn_ranks(self, number: int) -> None:
        """The first node to answer tells how many ranks "gpu" is.

        Raises:
            WireError: none.
        """
        context = self._context
        worker = context.view.spec["worker"]
        if worker["ranks_per_node"] == "gpu":
            if not number:
                raise WireError("a node cannot have no ranks")
            context.ranks_per_node = number
            spec = context.view.spec | {"worker": worker | {"ranks_per_node": number}}
            self.emit(ev.PoolOpened(pool=context.name, spec=spec, created_at=context.row.created_at))

    def learn_price(self) -> None:
        """What an hour of the pool's machines costs, as was written down of each when it was made, or as their provider
        says of all."""
        context = self._context
        hourly = hourly_of(context.machines)
        if hourly is None and (price := price_of(context.provider)) is not None:
            hourly = price * len(context.machines)
        if hourly is not None and hourly != context.view.price_hourly:
            self.emit(ev.PriceNews(pool=context.name, hourly=hourly))

    def learn_lease(self, seconds: float | None) -> None:
        """A node has told in how many seconds it ends itself; all nodes of a pool do at about the same time."""
        before, ends_at = self._context.view.ends_at, None if seconds is None else time.time() + seconds
        moved = ends_at is None or before is None or abs(ends_at - before) > LEASE_MOVED
        if moved and ends_at != before:
            self.emit(ev.LeaseNews(pool=self._context.name, ends_at=ends_at))

    def learn_work(self, link: Link, header: AgentPong) -> None:
        """A node has told what its ranks have taken of the processor."""
        if step := self._steps.step():
            self._context.view.rhythms.clock_was_set(step)
        spent = header.get("processor", {})
        for rank in self._context.ranks_of(link.node) if spent else ():
            if (seconds := spent.get(str(rank))) is not None:
                self._context.view.rhythms.spent(rank, seconds, time.time())

    def enter_phase(self, link: Link, header: RankPhaseKeys) -> None:
        """A rank is starting, importing, joining; ages travel, as clocks of nodes may be wrong."""
        rank, at = int(header["rank"]), time.time() - header["age"]
        if rank in self._context.ranks_of(link.node):
            self.emit(ev.RankPhase(pool=self._context.name, rank=rank, phase=header["phase"], at=at))

    def learn_phases(self, link: Link) -> None:
        """What an agent tells of its ranks to a client that comes; of the others nothing is known any more."""
        told = link.welcome.get("phases", ())
        for rank in self._context.ranks_of(link.node):
            if rank in self._context.view.rank_phases and all(header["rank"] != rank for header in told):
                self.emit(ev.RankPhase(pool=self._context.name, rank=rank, phase=""))
        for header in told:
            self.enter_phase(link, header)

    def learn_unfetched(self, link: Link, header: AgentPong | AgentWelcome) -> None:
        """A node has told which results wait there for a client to fetch them."""
        self._unfetched[link.node] = header.get("unfetched", {})
        runs: dict[str, int] = {}
        for told in self._unfetched.values():
            for run, size in told.items():
                if size:  # else nothing came of it but its outcome
                    runs[run] = runs.get(run, 0) + size
        if runs != self._context.view.unfetched:
            self.emit(ev.UnfetchedNews(pool=self._context.name, runs=runs))
