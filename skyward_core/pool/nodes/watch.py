"""What becomes of a node that is not heard of any more: a new agent, another machine, or the end of its calls."""

from __future__ import annotations

import asyncio

from ...model.capabilities import notices_of
from ...model.errors import LedgerError, PoolError, SkywardError, what_of
from ...model.machine import Machine
from ...providers.told import answered
from ...store.loggers import logger
from ...views import events as ev
from ..background import Background
from ..context import PoolContext
from ..endings import Endings
from ..links.link import Link
from ..news import News
from ..pool_end import PoolEnd
from ..runs.book import RunBook
from .notices import taken_back
from .replace import Replacements
from .revivals import Revivals
from .roster import Roster
from .startup import Startup
from .suspicion import Suspicion

_log = logger("node")

GLANCE = 10.0  # seconds for a provider to say why a machine ended
AGAIN = 1.0  # seconds before a node that could not be examined is examined once more


class Watch:
    """Over the nodes of one pool.

    Attributes:
        suspicion: of those that are silent; told of those that answer.
    """

    def __init__(
        self, context: PoolContext, news: News, background: Background, roster: Roster, book: RunBook,
        endings: Endings, startup: Startup, replacements: Replacements,
    ) -> None:  # fmt: skip
        self._context = context
        self._news = news
        self._background = background
        self._roster = roster
        self._book = book
        self._endings = endings
        self._startup = startup
        self._replacements = replacements
        self._revivals = Revivals()
        self._examining: set[int] = set()
        self.suspicion = Suspicion(context.options.lost_after, self._lose_silent)

    def down(self, link: Link, detail: str) -> str:
        """A link is down: gives what is to be said of it, with until when it is waited for."""
        context = self._context
        ends = link.silent or link.finished or link.gone or context.leaving or context.ending
        until = "" if ends else self.suspicion.down(link)
        return f"{detail}; {until}" if until else detail

    def examine(self, link: Link) -> None:
        """Have it found out what became of a node, and done what that asks for."""
        self._background.spawn(self._examine(link))

    async def _examine(self, link: Link) -> None:
        if link.node in self._examining:
            return
        self._examining.add(link.node)
        try:
            async with self._roster.deciding(link.node) as decided:
                await self._decide(link, decided)
        except (SkywardError, OSError) as error:
            self._news.mention(link, f"it cannot be told whether node {link.node} is there: {what_of(error)}")
            if link.finished:  # it tries no more, so nothing else would have it examined again
                link.loop.call_later(AGAIN, self._examine_again, link)
        finally:
            self._examining.discard(link.node)

    def _examine_again(self, link: Link) -> None:
        if not (self._context.leaving or link.gone or self._context.ending):
            self.examine(link)

    async def _decide(self, link: Link, decided: bool) -> None:
        context = self._context
        if link is not context.links[link.node] or link.up or link.gone:
            return  # while another client decided
        if decided:
            self._lose(link, "another client sees to another machine in its place")
            return
        if await self._endings.have_come(wait=link.finished):
            return
        if link.finished:
            taken = await self._why_taken_back(link)
            self._lose(link, taken or "its agent was ended on its machine", taken_back=bool(taken))
            return
        machine = context.machines[link.node]
        (seen,) = await answered("describe", context.name, context.provider.describe(context.name, [machine]))
        # "unreachable" is a link that is down: a network cut ends no healthy machine.
        # So is "lost" where nodes do not reach each other: that peers get no answer either says nothing.
        alive = ("running", "unreachable", "lost") if context.alone else ("running", "unreachable")
        if seen.state in alive or link.up or context.leaving or context.ending is not None:
            return
        if await self._endings.have_come(wait=True):
            return
        if (why := seen.extra.get("why")) and not any(other.up for other in context.links):
            words = why.removeprefix("the node ended itself: ")
            self._endings.by_others(PoolEnd.by_itself(context.name, words))
            return
        why = f"its machine is {seen.state}"
        if seen.state == "orphaned":
            if not (refused := self._revivals.refused(link.node)):
                if self._revivals.is_due(link.node):
                    await self._revive(link)
                return
            why = refused
        elif said := seen.extra.get("why"):
            why = f"{why}: {said}"
        taken = self._taken_back(link.node, seen)
        self._lose(link, taken or why, taken_back=bool(taken))
        await answered("terminate", context.name, context.provider.terminate(context.name, [machine]))

    async def _why_taken_back(self, link: Link) -> str:
        """That the machine of an agent which was ended was taken back, in words; "" where nobody knows of it."""
        context, machine = self._context, self._context.machines[link.node]
        if said := self._taken_back(link.node, machine):
            return said
        if not notices_of(context.provider, machine):
            return ""
        try:
            async with asyncio.timeout(GLANCE):
                (seen,) = await answered(
                    "describe", context.name, context.provider.describe(context.name, [machine])
                )
        except (SkywardError, OSError):  # the log tells of it; that it is gone is known
            return ""
        return self._taken_back(link.node, seen)

    def _taken_back(self, node: int, machine: Machine) -> str:
        return taken_back(node, machine, noticed=self._context.view.nodes[node].is_taken_back)

    async def _revive(self, link: Link) -> None:
        """Start an agent where the last one died; it adopts what it finds, and the link finds it.

        Where that fails the link goes on trying, and each of its attempts has the node examined again.
        """
        try:
            report = await self._startup.prepare(link)
        except PoolError as error:
            why = self._news.redactor.text(what_of(error))
            self._revivals.failed(link.node, why)
            _log.warning("node %d: no new agent: %s", link.node, why, extra={"pool": self._context.name})
            self._news.emit(ev.NodeLink(pool=self._context.name, node=link.node, up=False, detail=why))
            return
        self._revivals.succeeded(link.node)
        _log.info("node %d: revived by a new agent", link.node, extra={"pool": self._context.name})
        report("ready", "a new agent took over")

    def _lose_silent(self, link: Link, why: str) -> None:
        """A node has not answered for too long. Its machine is left as it is; and who only watches goes on trying."""
        if not self._context.observer and self._context.ending is None:
            self._lose(link, why)

    def _lose(self, link: Link, why: str, *, taken_back: bool = False) -> None:
        context = self._context
        self.suspicion.up(link)
        link.lose(why, taken_back=taken_back)
        self._news.emit(ev.NodePhase(pool=context.name, node=link.node, phase="gone", detail=why))
        left = [other for other in context.links if not other.gone]
        try:
            if context.ledger.pool(context.token).state != "stopping":
                context.ledger.pool_state(context.token, "degraded" if left else "failed")
        except LedgerError as error:  # what waits for the node must end all the same
            self._news.mention(link, f"that is not written down: {error}")
        said = f"node {link.node} is gone: {why}"
        self._news.emit(ev.PoolState(pool=context.name, state="degraded", detail=said))
        self._replacements.begin(link.node)
        self._book.saw_loss()
        self._book.drop(link)
