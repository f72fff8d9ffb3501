"""Runs of ours that wait for nodes, in the order in which the pool's head has those of all clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...model.errors import PoolError
from ...views import events as ev
from ..background import Background
from ..context import PoolContext
from ..gang.keeper import Keeper
from ..links.link import Link
from ..news import News
from .book import RunBook
from .run import Run

if TYPE_CHECKING:
    from ...wire.agent_frame_types import OfQueue, QueuedKeys
    from ...wire.client_frame_types import ClientEnqueue

LOOK = 5.0  # seconds after which nodes are asked again, whatever was heard of them


class RunLine:
    """One client's part of it.

    Attributes:
        is_empty: whether nobody's run waits, as far as is known here.
    """

    def __init__(self, context: PoolContext, news: News, background: Background, book: RunBook) -> None:
        self._context = context
        self._news = news
        self._background = background
        self._book = book
        self._turn = ""  # the run of ours that is the first of all
        self._ours: dict[str, ClientEnqueue] = {}
        self._line: list[QueuedKeys] = []
        self._change = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._line and not self._ours

    async def start(self, run: Run, keeper: Keeper) -> None:
        """Start a run as soon as it is its turn, and its nodes are free; gives it up where nobody wants it any more.

        Raises:
            ConnectionError: the head, or a node that it was given, cannot be reached now.
            PoolError: the pool's agents know of no such runs.
        """
        head = self._context.links[0]
        if "queue" not in head.welcome.get("knows", ()):
            raise PoolError(
                f"the agents of pool {self._context.name} are of an earlier release, and run on all nodes only"
            )
        wanted = run.wanted
        asked: ClientEnqueue = {
            "t": "enqueue",
            "run": run.id,
            "name": run.name,
            "nodes": 0 if wanted is None else wanted if isinstance(wanted, int) else len(wanted),
            "only": [] if wanted is None or isinstance(wanted, int) else list(wanted),
        }
        self._ours[run.id] = asked
        try:
            if not head.send(asked):
                raise ConnectionError("the link to the head is down")
            while run.state == "running":
                self._change.clear()
                if self._turn == run.id and await self._begin(run, keeper):
                    return
                await self._news_come()
        finally:
            self._ours.pop(run.id, None)
            if self._turn == run.id:
                self._turn = ""
            if run.state != "running":  # who sees it leave the queue finds in the ledger what became of it
                self._background.catch_up()
                self._news.records.flush()
            head.send({"t": "dequeue", "run": run.id})

    @staticmethod
    async def _begin(run: Run, keeper: Keeper) -> bool:
        if run.wanted is None:
            return await keeper.start(run.send_gang)
        return await keeper.start_on(run.wanted, run.send_gang, run.tasks[0].job)

    async def _news_come(self) -> None:
        try:
            async with asyncio.timeout(LOOK):
                await self._change.wait()
        except TimeoutError:
            pass  # nodes are asked again

    def note(self) -> None:
        """Something has happened by which nodes may have become free, or a run of ours is not wanted any more."""
        self._change.set()

    def on_frame(self, link: Link, header: OfQueue) -> str:
        """The head's word. Gives the run of ours that somebody else does not want any more; "" for none."""
        if link is not self._context.links[0]:
            return ""
        match header["t"]:
            case "queue":
                self._learn(link, header["waiting"])
            case "turn":
                if header["run"] in self._ours:
                    self._turn = header["run"]
                    self.note()
            case "dropped":
                return header["run"] if header["run"] in self._ours else ""
        return ""

    def greeted(self, link: Link) -> None:
        """The head is there (again): it has what waits of ours, in its old place, and tells of all that does."""
        if link is not self._context.links[0]:
            return
        self._turn = ""
        for asked in self._ours.values():
            link.send(asked)
        self._learn(link, link.welcome.get("queue", ()))

    def _learn(self, link: Link, waiting: Iterable[QueuedKeys]) -> None:
        before, self._line = self._line, list(waiting)
        for each in self._line:
            if (asked := self._ours.get(each["run"])) is not None:
                asked["since"] = each["since"]
        for each in self._line:
            if each["run"] not in self._book.runs:
                self._book.others_wait(link, each)
        if {each["run"] for each in before} - {each["run"] for each in self._line}:
            self._book.look_again()
        if before or self._line:
            told = [
                ev.QueuedRun(
                    run=each["run"],
                    name=each["name"],
                    nodes=each["nodes"],
                    only=list(each["only"]),
                    since=link.by_our_clock(each["since"]),
                    who=each["who"],
                )
                for each in self._line
            ]
            self._news.emit(ev.QueueNews(pool=self._context.name, waiting=told))
