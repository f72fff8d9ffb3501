"""Machines measured, recorded and watched for stalls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from skyward_core.model.errors import UsageError
from skyward_core.model.metric_series import Curves
from skyward_core.pool.agent_link import Link
from skyward_core.pool.pool_context import PoolContext
from skyward_core.views import events
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.pool_view import build_curves

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentMetrics, AgentPong
    from skyward_core.store.pool_folder import MetricsWriter
    from skyward_core.store.recording_file import Entry


SAMPLE_TIMEOUT = 5.0  # seconds; a node that starts to measure has the first figures within one
POLL_INTERVAL = 0.05  # seconds between looks
AGENT_TOO_OLD = "its agent is of an older release, which measures no machine; a pool that is made anew has it"


class MetricsCollector:
    """One pool's, as one client has them. Everything here runs on the pool's loop."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._cursors: dict[int, int] = {}  # by node: bytes that are here, or lie behind us
        self._book = context.view.machines = MachineMetrics()
        for link in context.links:
            if link.up:
                self.on_connect(link)

    def on_connect(self, link: Link) -> None:
        """A node's agent has greeted us: ask it, from where we are."""
        if "metrics" in link.welcome.get("knows", ()):
            link.send({"t": "metrics", "at": self._cursors.get(link.node, 0)})
        else:
            self._book.set_silence_reason(link.node, AGENT_TOO_OLD)

    def on_frame(self, link: Link, header: AgentMetrics, body: bytes) -> None:
        """An agent sends what it has; pieces come in order, and begin anew where the machine is another one."""
        self._cursors[link.node] = header["at"] + len(body)
        if body:
            self._book.feed(link.node, body, link.to_client_time(0.0))
        if "why" in header:
            self._book.set_silence_reason(link.node, header["why"])

    async def fetch_series(self, run: str | None) -> Curves:
        """What is known after the next sample of each node; see ``operators.PoolOperations.metrics``.

        Raises:
            UsageError: the pool's view has no such run.
        """
        view = self._context.view
        if run is not None and run not in view.runs:
            raise UsageError(f"pool {self._context.name} has had no run {run}, as far as is known here")
        await self.wait_for_samples()
        return build_curves(view, None if run is None else view.runs[run])

    async def wait_for_samples(self, patience: float = SAMPLE_TIMEOUT) -> None:
        """Wait until each node that can be asked has told something of now, or why it does not; so long at most."""
        since, deadline = time.time(), asyncio.get_running_loop().time() + patience
        while asyncio.get_running_loop().time() < deadline and any(map(self._lacks_sample(since), self._context.links)):
            await asyncio.sleep(POLL_INTERVAL)

    def _lacks_sample(self, since: float) -> Callable[[Link], bool]:
        def lacks(link: Link) -> bool:
            machine = self._book.machine(link.node)
            known = machine.why or (machine.host.latest_at >= since and machine.host.seen > 1)  # rates need two
            return link.up and not link.silent and not known

        return lacks


LONG_RUN = 10.0  # seconds that a run goes on before its machines are measured for the record
RUN_MARGIN = 30.0  # seconds after a run's end that still belong to it


class MetricsRecorder:
    """Metrics of one pool's machines, as one client has them. Runs on the pool's loop.

    Only the client that writes the journal records metrics.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._collector: MetricsCollector | None = None
        self._recording_file: MetricsWriter | None = (
            None  # until there is something to keep, which most runs never have
        )
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by run
        self._busy_until = 0.0
        self._stop = context.news.subscribe(self._on_event, None)

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.RunOpened):
            if not (self._context.observer or event.run in self._timers):
                loop = asyncio.get_running_loop()
                self._timers[event.run] = loop.call_later(LONG_RUN, self._on_long_run, event.run)
        elif isinstance(event, events.RunEnded):
            self._busy_until = time.time() + RUN_MARGIN
            if (timer := self._timers.pop(event.run, None)) is not None:
                timer.cancel()

    def _on_long_run(self, run: str) -> None:
        self._timers.pop(run, None)
        self.start_collector()

    def start_collector(self) -> MetricsCollector:
        """Return the collector of the machines' samples; the first call starts the measuring."""
        if self._collector is None:
            self._collector = MetricsCollector(self._context)
        return self._collector

    def on_connect(self, link: Link) -> None:
        """Ask a node for samples, if machines are measured."""
        if self._collector is not None:
            self._collector.on_connect(link)

    @property
    def _is_recording(self) -> bool:
        """Whether there is something to record, and it is for us to do so."""
        if not self._context.archive.is_writer:
            return False
        runs = self._context.view.runs.values()
        return time.time() < self._busy_until or any(run.state == "running" for run in runs)

    def on_frame(self, link: Link, header: AgentMetrics, body: bytes) -> None:
        """An agent sends what its machine was measured at, or why it is not."""
        if self._collector is None:
            return
        self._collector.on_frame(link, header, body)
        if self._is_recording:
            from skyward_core.views import recorded_events

            now = time.time()
            if body:
                self._append(recorded_events.machine_entry(now, link.node, body, link.to_client_time(0.0)))
            if "why" in header:
                self._append(recorded_events.silence_entry(now, link.node, header["why"]))

    def save_cpu_time(self, link: Link, header: AgentPong) -> None:
        """An agent tells what its ranks have taken of the processor."""
        ranks = self._context.ranks_of(link.node)
        told = {rank: seconds for rank in ranks if (seconds := header.get("processor", {}).get(str(rank))) is not None}
        if told and self._is_recording:
            from skyward_core.views import recorded_events

            self._append(recorded_events.cpu_time_entry(time.time(), told))

    def _append(self, entry: Entry) -> None:
        if self._recording_file is None:
            from skyward_core.store.pool_folder import MetricsWriter

            self._recording_file = MetricsWriter(self._context.archive.folder, self._context.news.emit_warning)
        self._recording_file.put(entry)

    def close(self) -> None:
        """The pool is left."""
        self._stop()
        for timer in self._timers.values():
            timer.cancel()
        if self._recording_file is not None:
            self._recording_file.close()


NOTIFY_INTERVAL = 5.0  # seconds after which it is said again
PAUSE_VALIDITY = 20.0  # for which a node believes it: this client may die


class PauseNotifier:
    """Tells the nodes of one pool, as long as this client has a connection to them."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._is_notifying = False

    def on_phase(self) -> None:
        """A rank has come to another phase."""
        if not self._is_notifying and self._is_paused():
            self._is_notifying = True
            self._context.background.spawn(self._notify())

    def _is_paused(self) -> bool:
        return self._context.view.activity.is_paused

    async def _notify(self) -> None:
        try:
            while self._is_paused():
                self._send(PAUSE_VALIDITY)
                until = asyncio.get_running_loop().time() + NOTIFY_INTERVAL
                while self._is_paused() and asyncio.get_running_loop().time() < until:
                    await asyncio.sleep(0.1)
            self._send(0.0)  # not where we leave: others go on to say it
        finally:
            self._is_notifying = False

    def _send(self, seconds: float) -> None:
        for link in self._context.links:
            if link.up and "still" in link.welcome.get("knows", ()):
                link.send({"t": "still", "seconds": seconds})
