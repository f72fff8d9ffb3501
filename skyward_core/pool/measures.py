"""Has a pool's machines measured, once somebody wants to see it, and takes what comes of it into the view."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..model.curves import Curves
from ..model.errors import UsageError
from ..views.curves import curves_of
from ..views.machines import MachineBook
from .context import PoolContext
from .links.link import Link

if TYPE_CHECKING:
    from ..wire.agent_frame_types import AgentMetrics

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
        """What is known after the next sample of each node; see :meth:`..front.api.dispatch.Dispatching.metrics`.

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
        while asyncio.get_running_loop().time() < deadline and any(
            map(self._lacks(since), self._context.links)
        ):
            await asyncio.sleep(PAUSE)

    def _lacks(self, since: float) -> Callable[[Link], bool]:
        def lacks(link: Link) -> bool:
            machine = self._book.machine(link.node)
            known = machine.why or (
                machine.host.latest_at >= since and machine.host.seen > 1
            )  # rates need two
            return link.up and not link.silent and not known

        return lacks
