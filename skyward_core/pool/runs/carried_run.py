"""A run whose work an engine does, such as Dask: its calls only stand in the ranks while that lasts.

So all panes, clients and the ledger see one run, a row for each rank, and in its log what the rank printed meanwhile.
What becomes of the work is the engine's to say: a node that is lost takes no more than its own row with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.outcome import ErrorInfo, Outcome, Summary
from ...tasks.task import Task
from ..links.link import Link
from .map_run import Bring, MapRun, Release, Share, Tally
from .root_cause import root_cause
from .run import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from .results import Value


class CarriedRun(MapRun):
    """See the module. Its task is what stands in each rank; its reader gets ("end",) by ``arrivals``, besides what it
    puts there itself.

    Attributes:
        on_lost: called with each rank whose node is lost, in the pools' thread: the engine may not have missed it yet.
    """

    __slots__ = ("_failure", "_raised", "on_lost")

    def __init__(
        self, around: Surroundings, run: str, task: Task, ranks: int, bring: Bring, release: Release
    ) -> None:
        super().__init__(around, run, task, ranks, bring, release)
        self._failure: Outcome | None = None
        self._raised: Value = b""
        self.on_lost: Callable[[int], None] | None = None

    def feed(self) -> None:
        if self.state != "running" or self._stopping:
            return  # it was over before the pool could take it: nobody would have its calls end
        self._fed = True
        self._given = self.total
        for rank in range(self.total):
            link = self._context.link_of(rank)
            self._shares[rank] = Share(self.tasks[0], 0)
            if link.gone:
                error = ErrorInfo(link.lost_as, link.lost_why or f"node {link.node} is gone")
                self.refuse(rank, link, "lost", error)
            else:
                self._flying[link.node] = self._flying.get(link.node, 0) + 1
                self._send(link, rank, self.tasks[0], {"rank": rank})

    def _refill(self) -> None:
        """All of it is sent at once."""

    def _take(self, link: Link, outcome: Outcome) -> None:
        if self._shares.pop(outcome.index, None) is None or self.state == "left" or self._ending is not None:
            return
        if self._where.pop(outcome.index, None) is not None:
            link.acknowledge(self.id, outcome.index)
        self.values.pop(outcome.index, None)
        tally = self._tallies.setdefault(outcome.rank, Tally())
        tally.log = self.logs.pop(outcome.index, {})
        if outcome.kind != "returned":
            self._failed[outcome.rank] = outcome
            if outcome.kind == "lost" and self.on_lost is not None:
                self.on_lost(outcome.rank)
            if not self._stopping and not any(index in self._where for index in self._shares):
                self.settle(outcome, b"")  # nowhere is anything left of it
        self._check_end()

    def standing(self) -> int:
        """How many of its calls have not ended; all of them, until the pool can take it."""
        return len(self._shares) if self._fed else self.total

    def progress(self, rank: int, items: int, seconds: float, last: Summary) -> None:
        """The engine has done some items on a rank."""
        tally = self._tallies.setdefault(rank, Tally())
        tally.items += items
        tally.seconds += seconds
        tally.last = last
        self._tell_progress(rank, tally)

    def give_up(self, why: str) -> None:
        """Nobody wants the rest; the engine has been told, and its calls are about to return."""
        if self.state == "running":
            self.cancelled = self.cancelled or why
            self.finish()

    def settle(self, failure: Outcome, value: Value) -> None:
        """The work has failed.

        Args:
            value: the pickled exception.
        """
        if self.state == "running" and self._failure is None:
            self._failure, self._raised = failure, value
            if failure.rank >= 0:
                self._failed[failure.rank] = failure
            self.finish()

    def _end(self) -> None:
        failure = self._failure
        if self.cancelled:
            self.state = "cancelled"
        elif failure is not None:
            self._arrived.append(failure)
            self.outcomes[failure.index], self.values[failure.index] = failure, self._raised
            self.root_cause = root_cause([failure])
            self.state = "failed"
        else:
            self.state = "done"
        self._around.background.later(self._close)
        self._tell()
