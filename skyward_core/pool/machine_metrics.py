"""Machines measured, recorded and watched for stalls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from skyward_core.model.errors import UsageError
from skyward_core.model.metric_series import Curves
from skyward_core.pool.agent_link import Link
from skyward_core.pool.pool_context import Background, PoolContext
from skyward_core.views import events
from skyward_core.views.machine_metrics import MachineBook
from skyward_core.views.metric_curves import curves_of

if TYPE_CHECKING:
    from skyward_core.pool.event_log import News
    from skyward_core.protocol.frame_types import AgentMetrics, AgentPong
    from skyward_core.store.pool_folder import KeptFigures
    from skyward_core.store.recording_file import Entry


PATIENCE = 5.0  # seconds; a node that starts to measure has the first figures within one
PAUSE = 0.05  # seconds between looks
OLDER = "its agent is of an older release, which measures no machine; a pool that is made anew has it"


class Measures:
    """One pool's, as one client has them. Everything here runs on the pool's loop."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._cursors: dict[int, int] = {}  # by node: bytes that are here, or lie behind us
        self._book = context.view.machines = MachineBook()
        for link in context.links:
            if link.up:
                self.greeted(link)

    def greeted(self, link: Link) -> None:
        """A node's agent has greeted us: ask it, from where we are."""
        if "metrics" in link.welcome.get("knows", ()):
            link.send({"t": "metrics", "at": self._cursors.get(link.node, 0)})
        else:
            self._book.explain(link.node, OLDER)

    def on_frame(self, link: Link, header: AgentMetrics, body: bytes) -> None:
        """An agent sends what it has; pieces come in order, and begin anew where the machine is another one."""
        self._cursors[link.node] = header["at"] + len(body)
        if body:
            self._book.feed(link.node, body, link.by_our_clock(0.0))
        if "why" in header:
            self._book.explain(link.node, header["why"])

    async def curves(self, run: str | None) -> Curves:
        """What is known after the next sample of each node; see ``operators.Dispatching.metrics``.

        Raises:
            UsageError: the pool's view has no such run.
        """
        view = self._context.view
        if run is not None and run not in view.runs:
            raise UsageError(f"pool {self._context.name} has had no run {run}, as far as is known here")
        await self.wait()
        return curves_of(view, None if run is None else view.runs[run])

    async def wait(self, patience: float = PATIENCE) -> None:
        """Wait until each node that can be asked has told something of now, or why it does not; so long at most."""
        since, deadline = time.time(), asyncio.get_running_loop().time() + patience
        while asyncio.get_running_loop().time() < deadline and any(map(self._lacks(since), self._context.links)):
            await asyncio.sleep(PAUSE)

    def _lacks(self, since: float) -> Callable[[Link], bool]:
        def lacks(link: Link) -> bool:
            machine = self._book.machine(link.node)
            known = machine.why or (machine.host.latest_at >= since and machine.host.seen > 1)  # rates need two
            return link.up and not link.silent and not known

        return lacks


LONG = 10.0  # seconds that a run goes on before its machines are measured for the record
AFTER = 30.0  # seconds after a run's end that still belong to it


class Recording:
    """One pool's, as one client has it; only the client that writes the journal records. Runs on the pool's loop.

    Args:
        measure: has the machines measured from now on.
    """

    def __init__(self, context: PoolContext, news: News, measure: Callable[[], object]) -> None:
        self._context = context
        self._measure = measure
        self._complain = news.complain
        self._kept: KeptFigures | None = None  # until there is something to keep, which most runs never have
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by run
        self._busy_until = 0.0
        self._stop = news.subscribe(self._heard, None)

    def _heard(self, event: events.Event) -> None:
        if isinstance(event, events.RunOpened):
            if not (self._context.observer or event.run in self._timers):
                loop = asyncio.get_running_loop()
                self._timers[event.run] = loop.call_later(LONG, self._goes_on, event.run)
        elif isinstance(event, events.RunEnded):
            self._busy_until = time.time() + AFTER
            if (timer := self._timers.pop(event.run, None)) is not None:
                timer.cancel()

    def _goes_on(self, run: str) -> None:
        self._timers.pop(run, None)
        self._measure()

    @property
    def _records(self) -> bool:
        """Whether there is something to record, and it is for us to do so."""
        if not self._context.archive.is_ours:
            return False
        runs = self._context.view.runs.values()
        return time.time() < self._busy_until or any(run.state == "running" for run in runs)

    def figures(self, link: Link, header: AgentMetrics, body: bytes) -> None:
        """An agent sends what its machine was measured at, or why it is not."""
        if self._records:
            from skyward_core.views import recorded_events

            now = time.time()
            if body:
                self._put(recorded_events.of_figures(now, link.node, body, link.by_our_clock(0.0)))
            if "why" in header:
                self._put(recorded_events.of_silence(now, link.node, header["why"]))

    def work(self, link: Link, header: AgentPong) -> None:
        """An agent tells what its ranks have taken of the processor."""
        ranks = self._context.ranks_of(link.node)
        told = {rank: seconds for rank in ranks if (seconds := header.get("processor", {}).get(str(rank))) is not None}
        if told and self._records:
            from skyward_core.views import recorded_events

            self._put(recorded_events.of_work(time.time(), told))

    def _put(self, entry: Entry) -> None:
        if self._kept is None:
            from skyward_core.store.pool_folder import KeptFigures

            self._kept = KeptFigures(self._context.archive.folder, self._complain)
        self._kept.put(entry)

    def close(self) -> None:
        """The pool is left."""
        self._stop()
        for timer in self._timers.values():
            timer.cancel()
        if self._kept is not None:
            self._kept.close()


AGAIN = 5.0  # seconds after which it is said again
LASTS = 20.0  # for which a node believes it: this client may die


class StandingStill:
    """Tells the nodes of one pool, as long as this client has a connection to them."""

    def __init__(self, context: PoolContext, background: Background) -> None:
        self._context, self._background = context, background
        self._telling = False

    def look(self) -> None:
        """A rank has come to another phase."""
        if not self._telling and self._still():
            self._telling = True
            self._background.spawn(self._tell())

    def _still(self) -> bool:
        return self._context.view.rhythms.stands

    async def _tell(self) -> None:
        try:
            while self._still():
                self._send(LASTS)
                until = asyncio.get_running_loop().time() + AGAIN
                while self._still() and asyncio.get_running_loop().time() < until:
                    await asyncio.sleep(0.1)
            self._send(0.0)  # not where we leave: others go on to say it
        finally:
            self._telling = False

    def _send(self, seconds: float) -> None:
        for link in self._context.links:
            if link.up and "still" in link.welcome.get("knows", ()):
                link.send({"t": "still", "seconds": seconds})
