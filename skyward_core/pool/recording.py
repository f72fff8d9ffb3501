"""Has what cannot be had again later recorded beside a pool's logs and events: what its machines are measured at, and
what its ranks take of the processor. Batches go to disk; nobody waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..views import events as ev

if TYPE_CHECKING:
    from ..store.kept_figures import KeptFigures
    from ..store.record_file import Entry
    from ..wire.agent_frame_types import AgentMetrics, AgentPong
    from .context import PoolContext
    from .links.link import Link
    from .news import News

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

    def _heard(self, event: ev.Event) -> None:
        if isinstance(event, ev.RunOpened):
            if not (self._context.observer or event.run in self._timers):
                loop = asyncio.get_running_loop()
                self._timers[event.run] = loop.call_later(LONG, self._goes_on, event.run)
        elif isinstance(event, ev.RunEnded):
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
            from ..views import record_entries as entries

            now = time.time()
            if body:
                self._put(entries.of_figures(now, link.node, body, link.by_our_clock(0.0)))
            if "why" in header:
                self._put(entries.of_silence(now, link.node, header["why"]))

    def work(self, link: Link, header: AgentPong) -> None:
        """An agent tells what its ranks have taken of the processor."""
        ranks = self._context.ranks_of(link.node)
        told = {
            rank: seconds
            for rank in ranks
            if (seconds := header.get("processor", {}).get(str(rank))) is not None
        }
        if told and self._records:
            from ..views import record_entries as entries

            self._put(entries.of_work(time.time(), told))

    def _put(self, entry: Entry) -> None:
        if self._kept is None:
            from ..store.kept_figures import KeptFigures

            self._kept = KeptFigures(self._context.archive.folder, self._complain)
        self._kept.put(entry)

    def close(self) -> None:
        """The pool is left."""
        self._stop()
        for timer in self._timers.values():
            timer.cancel()
        if self._kept is not None:
            self._kept.close()
