"""Publication of a pool's events to the view, the listeners, the journal, the ledger and the debug log."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from logging import DEBUG, INFO, WARNING
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from skyward_core.model.errors import Hint
from skyward_core.model.machines_checks_and_gpu_use import total_hourly
from skyward_core.model.outcomes_states_and_alerts import NodePhase, PoolStatus
from skyward_core.model.provider_capability_protocols import hourly_price
from skyward_core.pool.agent_link import ClockSteps, Link
from skyward_core.pool.rank_log_receiver import LiveLogs, LogReceiver, LogSink
from skyward_core.protocol.frame_codec import WireError
from skyward_core.store import debug_log
from skyward_core.store.debug_log import get_logger
from skyward_core.util.redaction import Redactor, secret_values
from skyward_core.views import events
from skyward_core.views.pool_view import apply

if TYPE_CHECKING:
    from skyward_core.model.outcomes_states_and_alerts import RankPhase
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import AgentPong, AgentWelcome, RankPhaseKeys
from skyward_core.pool.ledger_writer import LedgerWriter

_log = get_logger("pool")

# Messages of the debug log by type of event. Events of other types are not logged, and cost only one lookup here.
_LOG_MESSAGES: dict[type[events.Event], tuple[int, Callable[[Any], str]]] = {
    events.PoolOpened: (
        INFO,
        lambda event: f"pool: {event.spec.get('nodes')} nodes of {event.spec.get('provider')}",
    ),
    events.PoolState: (INFO, lambda event: _with_detail(f"pool: {event.state}", event.detail)),
    events.PoolEnded: (INFO, lambda event: "pool: gone"),
    events.NodePhase: (INFO, lambda event: _with_detail(f"node {event.node}: {event.phase}", event.detail)),
    events.NodeLink: (
        DEBUG,
        lambda event: _with_detail(f"node {event.node}: link {'up' if event.up else 'down'}", event.detail),
    ),
    events.RunOpened: (INFO, lambda event: f"run {event.run}: opened, {event.kind} of {event.total}"),
    events.AttemptEnded: (WARNING, lambda event: f"run {event.run}: {event.text}"),
    events.RunEnded: (INFO, lambda event: f"run {event.run}: {event.state}"),
}


def log_event(event: events.Event) -> None:
    """Write an event to the debug log. Its type must be listed in ``_LOG_MESSAGES``."""
    level, message = _LOG_MESSAGES[type(event)]
    if isinstance(event, events.PoolState) and event.state in ("degraded", "failed"):
        level = WARNING
    if _log.isEnabledFor(level):
        _log.log(level, "%s", message(event), extra={"pool": event.pool})


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


LEASE_TOLERANCE = 3.0  # seconds; smaller changes of a lease's end are not published


class EventPublisher:
    """Publisher of one pool's events.

    Attributes:
        records: Writer of the ledger and the journal.
        log_receiver: Receiver of log bytes.
        redactor: Removes the secrets that this client knows.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self.redactor = Redactor()
        self.add_secrets(secret_values(os.environ))
        self.records = LedgerWriter(context)
        self.live_logs = LiveLogs(context)
        self._steps = ClockSteps()
        self.log_receiver = LogReceiver(
            context.archive, self.live_logs.receive, self._request_logs, self.records.warn_write_failed
        )
        self._listeners: list[Callable[[events.Event], None]] = []
        self._unfetched: dict[int, dict[str, int]] = {}  # node -> run -> bytes of unfetched results

    def add_secrets(self, secrets: list[str]) -> None:
        """Redact these values in all later events and logs."""
        self.redactor.add(secrets)
        debug_log.add_secrets(secrets)

    def emit(self, event: events.Event) -> None:
        """Publish an event to the view, the debug log, the journal and all listeners."""
        if (detail := getattr(event, "detail", "")) and self.redactor.has_secrets:
            event = replace(event, detail=self.redactor.redact_text(detail))  # type: ignore[call-arg]
        if isinstance(event, events.PoolState) and (hint := event.hint) is not None and self.redactor.has_secrets:
            subject, path = map(self.redactor.redact_text, (hint.subject, hint.path))
            event = replace(event, hint=replace(hint, subject=subject, path=path))
        apply(self._context.view, event)
        if type(event) in _LOG_MESSAGES:
            log_event(event)
        self.records.add_event(event)
        for listener in tuple(self._listeners):
            listener(event)

    def emit_node_note(self, link: Link, detail: str) -> None:
        """Publish a note about a node without changing the state of the node's link."""
        self.emit_link(link, link.up, detail)

    def emit_link(self, link: Link, up: bool, detail: str) -> None:
        """Publish that the link to a node is up or down."""
        self.emit(events.NodeLink(pool=self._context.name, node=link.node, up=up, detail=detail))

    def emit_phase(
        self, node: int, phase: NodePhase, detail: str = "", retry_at: float | None = None, address: str = ""
    ) -> None:
        """Publish the phase of a node, such as "connected" or "ready"."""
        pool = self._context.name
        event = events.NodePhase(pool=pool, node=node, phase=phase, detail=detail, retry_at=retry_at, address=address)
        self.emit(event)

    def emit_state(self, state: PoolStatus, detail: str = "", hint: Hint | None = None) -> None:
        """Publish the state of the pool."""
        self.emit(events.PoolState(pool=self._context.name, state=state, detail=detail, hint=hint))

    def emit_teardown_progress(self, detail: str) -> None:
        """Publish the current step of a teardown, unless the pool already shows it."""
        view = self._context.view
        if view.state == "stopping" and view.detail != detail:
            self.emit_state("stopping", detail)

    def emit_warning(self, words: str) -> None:
        """Publish a warning without changing the state of the pool."""
        self.emit_state(self._context.view.state, words)

    def emit_opened(self) -> None:
        """Publish that the pool exists, or that more of its specification is known."""
        row = self._context.row
        self.emit(events.PoolOpened(pool=row.name, spec=row.spec, created_at=row.created_at))

    def save_attempt_ends(self, run: str) -> None:
        """Record in the ledger how a run's attempts ended."""
        view = self._context.view.runs.get(run)
        if view is not None and view.ended_attempts:
            self.records.set_columns(run, attempt_ends=[events.attempt_end_row(each) for each in view.ended_attempts])

    # -- listeners -----------------------------------------------------------------------------------------

    def subscribe(
        self, on_event: Callable[[events.Event], None] | None, on_log: LogSink | None, *, missed: bool = False
    ) -> Callable[[], None]:
        """Call ``on_event`` for each event and ``on_log`` for each piece of log, in order, on the pool's loop.

        Args:
            on_event: Called with each event; None to ignore events.
            on_log: Called with each piece of log; None to ignore logs.
            missed: Whether to call ``on_log`` first with all logs since this client connected.

        Returns:
            A function that ends the subscription.
        """
        if on_event is not None:
            self._listeners.append(on_event)
        if on_log is not None:
            if missed:
                self.live_logs.replay(on_log)
            self.live_logs.sinks.append(on_log)
        weak = ref(self)  # a weak reference, because the holder of ``stop`` must not keep the pool and its ledger alive

        def stop() -> None:
            if (news := weak()) is None:
                return
            if on_event in news._listeners:
                news._listeners.remove(on_event)
            if on_log in news.live_logs.sinks:
                news.live_logs.flush_pending()
                news.live_logs.sinks.remove(on_log)

        return stop

    async def wait_logs_complete(self, run: str) -> None:
        """Wait until all output of a run is downloaded, or until no more can arrive."""
        context = self._context
        while context.view.is_live and any(link.up for link in context.links):
            ends = self.records.expected_log_sizes(run)
            if all(self.log_receiver.shown.get(name, 0) >= end for name, end in ends.items()):
                break
            await asyncio.sleep(0.01)
        self.live_logs.flush_pending()

    def close(self) -> None:
        """Flush all pending output and records."""
        self.live_logs.flush_pending()
        self.records.close()

    def _request_logs(self) -> None:
        for link in self._context.links:
            link.request_logs()

    # -- reports from nodes --------------------------------------------------------------------------------

    def set_ranks_per_node(self, number: int) -> None:
        """Set the number of ranks per node to the number that a node reports, if ``ranks_per_node="gpu"``.

        Raises:
            WireError: If the node reports 0 ranks.
        """
        context = self._context
        worker = context.view.spec["worker"]
        if worker["ranks_per_node"] == "gpu":
            if not number:
                raise WireError("a node reported 0 ranks")
            context.ranks_per_node = number
            spec = context.view.spec | {"worker": worker | {"ranks_per_node": number}}
            self.emit(events.PoolOpened(pool=context.name, spec=spec, created_at=context.row.created_at))

    def update_price(self) -> None:
        """Publish the pool's hourly price.

        The price is the sum of the machines' recorded prices, or else the provider's price.
        """
        context = self._context
        hourly = total_hourly(context.machines)
        if hourly is None and (price := hourly_price(context.provider)) is not None:
            hourly = price * len(context.machines)
        if hourly is not None and hourly != context.view.price_hourly:
            self.emit(events.PriceNews(pool=context.name, hourly=hourly))

    def update_lease(self, seconds: float | None) -> None:
        """Publish the end of the lease that one node reports. The leases of all nodes end at nearly the same time.

        Args:
            seconds: Seconds until the node ends itself. None: the node has no lease.
        """
        before, ends_at = self._context.view.ends_at, None if seconds is None else time.time() + seconds
        moved = ends_at is None or before is None or abs(ends_at - before) > LEASE_TOLERANCE
        if moved and ends_at != before:
            self.emit(events.LeaseNews(pool=self._context.name, ends_at=ends_at))

    def update_cpu_time(self, link: Link, header: AgentPong) -> None:
        """Record the CPU time of a node's ranks in the view."""
        if step := self._steps.step():
            self._context.view.activity.shift_clock(step)
        spent = header.get("processor", {})
        for rank in self._context.ranks_of(link.node) if spent else ():
            if (seconds := spent.get(str(rank))) is not None:
                self._context.view.activity.record_cpu_time(rank, seconds, time.time())

    def emit_rank_phase(self, link: Link, header: RankPhaseKeys) -> None:
        """Publish the phase of a rank. Agents send the phase's age, because the nodes' clocks may be wrong."""
        rank, at = int(header["rank"]), time.time() - header["age"]
        if rank in self._context.ranks_of(link.node):
            # Not validated, because a newer agent may send a phase that this client does not know.
            phase = cast("RankPhase", header["phase"])
            until = None if (left := header.get("left")) is None else time.time() + left
            self.emit(events.RankPhase(pool=self._context.name, rank=rank, phase=phase, at=at, until=until))

    def update_rank_phases(self, link: Link) -> None:
        """Publish the rank phases in an agent's welcome frame, and clear the phases of the node's other ranks."""
        reported = link.welcome.get("phases", ())
        for rank in self._context.ranks_of(link.node):
            if rank in self._context.view.rank_phases and all(header["rank"] != rank for header in reported):
                self.emit(events.RankPhase(pool=self._context.name, rank=rank, phase=""))
        for header in reported:
            self.emit_rank_phase(link, header)

    def update_retained_results(self, link: Link, header: AgentPong | AgentWelcome) -> None:
        """Publish the sizes of the unfetched results that the nodes retain, by run."""
        sizes = header.get("unfetched", {})
        if self._unfetched.get(link.node) == sizes:
            return
        self._unfetched[link.node] = sizes
        # Adding Counters drops runs of size 0. This is intended: nodes retain outcomes of such runs, but no results.
        runs = dict(sum(map(Counter, self._unfetched.values()), Counter[str]()))
        if runs != self._context.view.unfetched:
            self.emit(events.UnfetchedNews(pool=self._context.name, runs=runs))
