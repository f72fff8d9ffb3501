"""The runs of a pool that this client dispatched or has taken over: what nodes tell gets to them by their ids."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ...model.errors import PoolError
from ...model.hint import Hint
from ...model.states import RunKind
from ...tasks.task import NOTHING, Task
from ...transport.incoming_result import Landing
from ...views import events as ev
from ...wire.frames import WireError
from ..background import Background
from ..context import PoolContext
from ..links.blobs import Blobs
from ..links.direct import Direct
from ..links.link import Link
from ..links.spread import Spread
from ..news import News
from .carried_run import CarriedRun
from .map_run import MapRun
from .others_runs import OthersRuns
from .results import fetched_before
from .run import Run, Surroundings

if TYPE_CHECKING:
    from ...wire.agent_frame_types import OfRuns, QueuedKeys

AGAIN = 10.0  # seconds until it is looked whether a run that lost a node has a client still; then ever longer
SELDOM = 60.0  # the same at most
OVER = 16_384  # runs: more than end between two words to an agent


class RunBook:
    """One pool's, as one client has it.

    Args:
        start_anew: has a broadcast of which no rank has begun started by a whole gang.

    Attributes:
        runs: those that have not ended, by id.
        blobs: large arguments on their way to the nodes.
        direct: lines to the nodes past their SSH connections.
        only_looks: whether nothing is to be changed from here, whatever is seen.
    """

    def __init__(
        self, context: PoolContext, news: News, background: Background, start_anew: Callable[[Run], None]
    ) -> None:
        self._context = context
        self._news = news
        self._others = OthersRuns(context, news)
        self._background = background
        self.only_looks = self._asks_again = False
        self.runs: dict[str, Run] = {}
        # Ended ones that agents may tell of once more, until they hear that the outcomes are here; in order.
        self._over: OrderedDict[str, None] = OrderedDict()
        self.direct = Direct(context.name, news.mention)
        spread = Spread(context.options.cluster, self.direct, news.mention)
        self.blobs = Blobs(spread, lambda: [link for link in context.links if not link.gone])
        self._around = Surroundings(context, news, background, self.fetch, start_anew, self._ended)

    def add(
        self,
        run: str,
        kind: RunKind,
        tasks: Sequence[Task],
        total: int,
        future: Future[Run] | None = None,
        *,
        carried: bool = False,
    ) -> Run:
        """A run of ours, from now on; ``carried``: a map whose work an engine does."""
        if kind == "map":
            made = CarriedRun if carried else MapRun
            added: Run = made(self._around, run, tasks[0], total, self.blobs.bring, self.blobs.release)
        else:
            added = Run(self._around, run, kind, tasks, total, future)
        self.runs[run] = added
        return added

    async def claim(self, run: str) -> Run:
        """Take over a run whose client is gone: its results come here.

        Raises:
            PoolGone: the pool has ended.
            PoolError: the pool does not remember it, or results of it have been fetched, or were never asked for.
        """
        context = self._context
        if context.ending is not None:
            raise context.ending.error()
        if run in self._over:
            raise fetched_before(run)
        if run in self.runs:
            return self.runs[run]
        view = context.view.runs.get(run)
        if view is None:
            raise PoolError(f"pool {context.name} remembers no run {run}")
        if any(each.run == run for each in context.view.waiting):
            raise PoolError(f"run {run} waits for nodes, and is its client's until it has them")
        if view.kind == "map":
            raise PoolError(
                f"run {run} is a map: what it gives goes to its caller, item by item, and nowhere else"
            )
        taken = self.add(run, view.kind, [Task(view.function, NOTHING, NOTHING)], view.total)
        taken.claim_from(context.links, view.nodes)
        asked = [link for link in context.links if link.up]
        known = await asyncio.gather(*(link.claim(run) for link in asked))
        lacks = view.total - sum(map(len, known))
        if lacks > 0 and all(link.up for link in context.links):
            del self.runs[run]
            for link, calls in zip(asked, known, strict=True):
                link.disclaim(run, owned=bool(calls))
            if lacks == view.total:
                raise fetched_before(run)
            raise PoolError(
                f"of run {run} the nodes have {view.total - lacks} of {view.total} results: the others have been "
                "fetched before, or their tasks had been sent to no node when the run's client left",
                hint=Hint("results", run),
            )
        for link in context.links:
            if link.gone:  # before we came, perhaps: nobody else would say so
                self._lose_calls(taken, link)
        return taken

    def cancel(self, run: str, why: str = "asked for") -> None:
        """Stop a run, whoever dispatched it."""
        if ours := self.runs.get(run):
            ours.cancel(why)
            return
        for link in self._context.links:
            grace = self._context.options.grace
            link.send({"t": "stop", "run": run, "why": "cancel", "grace": grace, "break": link.epoch})

    # -- what nodes tell ---------------------------------------------------------------------------------

    def check_welcome(self, link: Link) -> None:
        """See whether an agent that greets us remembers runs of its own ranks only.

        Raises:
            WireError: it does not.
        """
        for record in link.welcome["runs"]:
            for header in (*record["began"], *record["outcomes"]):
                self._context.check_rank(link, header["rank"], header["node"])

    def catch_up(self, link: Link) -> None:
        """Show what an agent remembers of others' runs."""
        if self._others.has_forgotten(link):
            self.saw_loss()
        self._others.on_welcome(link, self._ours)

    @property
    def _ours(self) -> Container[str]:
        """Runs that are told of by ourselves."""
        return self.runs.keys() | self._over.keys()

    def on_frame(self, link: Link, header: OfRuns, body: bytes) -> None:
        """News of a run.

        Raises:
            WireError: there is no such call, or that node was not given it.
        """
        if header["t"] in ("outcome", "item", "began"):
            self._context.check_rank(link, header["rank"], header.get("node"))
        run = self.runs.get(header["run"])
        if run is None:
            if header["run"] not in self._over:
                self._others.on_frame(link, header)
            return
        if header["t"] == "run":
            return  # we know it best
        if not run.is_call(header["i"]):
            raise WireError(f"run {run.id} has no call {header['i']}")
        if not run.asked_of(link, header["i"]):
            raise WireError(f"node {link.node} speaks of call {header['i']}, which it was not given")
        match header["t"]:
            case "outcome":
                run.on_outcome(link, header, body)
            case "item":
                run.on_item(link, header, body)
            case "stale":
                run.on_stale(header["i"], header.get("why", ""), spent=header.get("spent", False))
            case "want":
                run.on_want(link, header)
            case "began":
                run.note_rank(header["i"], header["rank"])
                self._news.emit(
                    ev.RankBegan(
                        pool=self._context.name, run=run.id, index=run.row_of(header["i"], header["rank"]),
                        rank=header["rank"], node=header["node"], at=link.time_of(header),
                    )
                )  # fmt: skip

    def drop(self, link: Link) -> None:
        """Nothing comes over a link any more: calls on it end as lost."""
        link.lose()
        self.lose_calls(link)
        self._others.ask_ledger(self._ours)

    def saw_loss(self) -> None:
        """A node went while we were there, or its agent with all that it knew. Ranks that wait for those of it are
        stopped where nobody else does that, be it later, once their client is gone; and though we may only look: nobody
        who uses the pool need ever come."""
        self._others.stops = not self.only_looks
        if not self._asks_again:
            self._asks_again = True
            self._background.spawn(self._ask_again())

    async def _ask_again(self) -> None:
        """Until no run goes on that may have lost something: one that begins later knows which nodes there are."""
        context, pause = self._context, AGAIN
        while not (context.leaving or context.ending):
            await asyncio.sleep(pause)
            self._others.ask_ledger(self._ours)
            if not self._others.go_on(self._ours):
                break
            pause = min(2 * pause, max(SELDOM, AGAIN))
        self._asks_again = False

    def lose_calls(self, link: Link) -> None:
        """What a node was given and has not answered, it will not."""
        for run in list(self.runs.values()):
            self._lose_calls(run, link)

    @staticmethod
    def _lose_calls(run: Run, link: Link) -> None:
        for index in run.calls_on(link):
            run.lose(index)

    def others_wait(self, link: Link, queued: QueuedKeys) -> None:
        """A run of another client waits for nodes; no node but the head knows of it yet."""
        self._others.waits(link, queued)

    def look_again(self) -> None:
        """We use the pool from now on: see to runs that nobody sees to."""
        self._others.ask_ledger(self._ours)

    async def fetch(self, link: Link, name: str, landing: Landing) -> None:
        """Bring a file of a node's spool here, by the best way there is.

        Raises:
            OSError: it is not there, or cannot be written here.
            ConnectionError: the link is down; what has come is kept for the next attempt.
        """
        # Standalone nodes listen nowhere.
        if self._context.alone or not await self.direct.get(link, name, landing):
            await link.fetch(name, landing)

    def _ended(self, run: Run) -> None:
        """A run of ours is over."""
        self.runs.pop(run.id, None)
        if run.state != "lost":  # of one that its pool ended under more may be heard
            self._over[run.id] = None
            if len(self._over) > OVER:
                self._over.popitem(last=False)
        self.blobs.release(run.id)
        self._news.records.ended(run.id, run.state, time.time(), run.root_cause)
        self._news.emit(
            ev.RunEnded(pool=self._context.name, run=run.id, state=run.state, root_cause=run.root_cause)
        )
