"""Collection and recording of the machine metrics of a pool."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from skyward_core.model.errors import UsageError
from skyward_core.model.metric_definitions_series_and_export import Curves
from skyward_core.pool.agent_link import Link
from skyward_core.pool.pool_context import PoolContext
from skyward_core.store.past_pool_views import load_metrics
from skyward_core.views import events
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.pool_view import build_curves

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentMetrics, AgentPong
    from skyward_core.store.pool_folder import MetricsWriter
    from skyward_core.store.recording_file import Entry


SAMPLE_TIMEOUT = 5.0  # seconds to wait for new samples; a node's first samples arrive within one second
POLL_INTERVAL = 0.05  # seconds between checks whether new samples have arrived
AGENT_TOO_OLD = "its agent is from an older release without machine metrics. Create a new pool to get them."


class MetricsCollector:
    """Requests for the machine metrics of a pool's nodes, and the received samples. Runs on the pool's loop."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._cursors: dict[int, int] = {}  # node -> offset of the next byte of its samples
        self._book = context.view.machines = MachineMetrics()
        for link in context.links:
            if link.up:
                self.on_connect(link)

    def on_connect(self, link: Link) -> None:
        """Request a node's metric samples, beginning after the received ones, if its agent supports metrics."""
        if "metrics" in link.welcome.get("knows", ()):
            link.send({"t": "metrics", "at": self._cursors.get(link.node, 0)})
        else:
            self._book.set_silence_reason(link.node, AGENT_TOO_OLD)

    def on_frame(self, link: Link, header: AgentMetrics, body: bytes) -> None:
        """Store samples of a node. Samples arrive in order; after a replacement the offsets restart."""
        self._cursors[link.node] = header["at"] + len(body)
        if body:
            self._book.feed(link.node, body, link.to_client_time(0.0))
        if "why" in header:
            self._book.set_silence_reason(link.node, header["why"])

    async def fetch_series(self, run: str | None) -> Curves:
        """Wait for the next sample of each node and return all known series, as ``PoolOperations.metrics`` does.

        Raises:
            UsageError: If the pool's view has no such run.
        """
        view = self._context.view
        if run is not None and run not in view.runs:
            raise UsageError(
                f"Pool {self._context.name} has no known run {run}. List the runs with: skyward-tui history"
            )
        await self.wait_for_samples()
        if run is None:
            return build_curves(view)
        folder = self._context.archive.logs
        metrics = await asyncio.to_thread(load_metrics, folder, run, sys.maxsize, None, thin=False)
        return build_curves(view, view.runs[run], metrics)

    async def wait_for_samples(self) -> None:
        """Wait until each connected node has sent a new sample or the reason for sending none, within a time limit."""
        since = time.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(SAMPLE_TIMEOUT):
                while any(self._lacks_sample(link, since) for link in self._context.links):
                    await asyncio.sleep(POLL_INTERVAL)

    def _lacks_sample(self, link: Link, since: float) -> bool:
        machine = self._book.machine(link.node)
        # A rate such as bytes per second is the difference of two samples.
        known = machine.why or (machine.host.latest_at >= since and machine.host.seen > 1)
        return link.up and not link.silent and not known


LONG_RUN = 10.0  # seconds; machine metrics are recorded only for runs that last longer
RUN_MARGIN = 30.0  # seconds of metrics after the end of a run that are recorded as part of the run


class MetricsRecorder:
    """Recorder of the machine metrics of one pool. Runs on the pool's loop.

    Only the client that writes the journal records metrics.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._collector: MetricsCollector | None = None
        # Opened when the first sample is recorded, because most runs end before that.
        self._recording_file: MetricsWriter | None = None
        # run -> loop time at which its recording starts, oldest run first; one timer for all of them
        self._due_at: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._busy_until = 0.0
        self._stop = context.news.subscribe(self._on_event, None)

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.RunOpened):
            if self._collector is None and not self._context.observer:
                loop = asyncio.get_running_loop()
                self._due_at.setdefault(event.run, loop.time() + LONG_RUN)
                self._timer = self._timer or loop.call_later(LONG_RUN, self._start_if_due)
        elif isinstance(event, events.RunEnded):
            self._busy_until = time.time() + RUN_MARGIN
            self._due_at.pop(event.run, None)

    def _start_if_due(self) -> None:
        """Start the collector if the oldest run has become long. Otherwise set the timer for that run."""
        loop, due, self._timer = asyncio.get_running_loop(), next(iter(self._due_at.values()), None), None
        if due is not None and due <= loop.time():
            self.start_collector()
        elif due is not None:
            self._timer = loop.call_at(due, self._start_if_due)

    def start_collector(self) -> MetricsCollector:
        """Return the collector of samples. The first call starts sampling on the nodes."""
        if self._collector is None:
            self._collector = MetricsCollector(self._context)
        return self._collector

    def on_connect(self, link: Link) -> None:
        """Request samples from a node that has connected, if sampling has started."""
        if self._collector is not None:
            self._collector.on_connect(link)

    @property
    def _is_recording(self) -> bool:
        """Whether this client writes the journal and a run is active or has just ended."""
        if not self._context.archive.is_writer:
            return False
        runs = self._context.view.runs.values()
        return time.time() < self._busy_until or any(run.state == "running" for run in runs)

    def on_frame(self, link: Link, header: AgentMetrics, body: bytes) -> None:
        """Store and record the samples of a node, or the reason why the node sends none."""
        if self._collector is None:
            return
        self._collector.on_frame(link, header, body)
        if self._is_recording:
            from skyward_core.views import recording_entries

            now = time.time()
            if body:
                self._append(recording_entries.machine_entry(now, link.node, body, link.to_client_time(0.0)))
            if "why" in header:
                self._append(recording_entries.silence_entry(now, link.node, header["why"]))

    def save_cpu_time(self, link: Link, header: AgentPong) -> None:
        """Record the CPU time of a node's ranks."""
        ranks = self._context.ranks_of(link.node)
        cpu_times = {
            rank: seconds for rank in ranks if (seconds := header.get("processor", {}).get(str(rank))) is not None
        }
        if cpu_times and self._is_recording:
            from skyward_core.views import recording_entries

            self._append(recording_entries.cpu_time_entry(time.time(), cpu_times))

    def _append(self, entry: Entry) -> None:
        if self._recording_file is None:
            from skyward_core.store.pool_folder import MetricsWriter

            self._recording_file = MetricsWriter(self._context.archive.folder, self._context.news.emit_warning)
        self._recording_file.put(entry)

    def close(self) -> None:
        """Stop recording and close the file."""
        self._stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._recording_file is not None:
            self._recording_file.close()
