"""Has a pool's ranks set up: makes their keeper once it is known how many there are, and has it renewed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...model.errors import NotPicklableError, UsageError
from ...plugins.base import has_app
from ...wire.frames import PLUGINS
from ..context import PoolContext
from ..links.link import Link
from ..news import News
from ..nodes.roster import Roster
from ..setup_knowledge import SetupKnowledge
from .gang import GangKeeper
from .keeper import Keeper
from .standalone import Standalone

if TYPE_CHECKING:
    from ...wire.agent_frame_types import OfLock
    from ...wire.frame_types import Place


class Upkeep:
    """Of one pool's ranks.

    Attributes:
        keeper: None until the pool is up.
    """

    def __init__(self, context: PoolContext, news: News, knowledge: SetupKnowledge, roster: Roster) -> None:
        self._context = context
        self._news = news
        self._knowledge = knowledge
        self._roster = roster
        self.keeper: Keeper | None = None

    def make(self, plugins: Sequence[Any] | None) -> None:
        """Make the keeper.

        Args:
            plugins: the pool's; None for a client that did not make it.

        Raises:
            UsageError: they are too large to travel.
        """
        blob = None if plugins is None else _pickled(plugins) if plugins else b""
        if blob and len(blob) > PLUGINS:
            said = f"the pool's plugins take {len(blob):,} bytes when they are pickled, and {PLUGINS:,} can travel: "
            raise UsageError(f"{said}have them load on the nodes, in around_process, what is large")
        known = self._knowledge
        values = known.credentials + [value for plugin in plugins or () for value in plugin.secrets()]
        kind = Standalone if self._context.alone else GangKeeper
        self.keeper = known.keeper = kind(
            self._context.links, self._facts(), blob, values, apps=has_app(plugins or ()),
            joins=any(plugin.joins for plugin in plugins or ()),
            fail_fast=self._context.options.fail_fast,
            tell=lambda words: self._news.complain(words) if words else self._roster.tell(), ask=known.learn,
        )  # fmt: skip

    def _facts(self) -> Place:
        context = self._context
        world = len(context.machines) * context.ranks_per_node
        facts: Place = {"total_nodes": len(context.machines), "world_size": world}
        if context.alone:
            return facts | {"head_addr": "", "head_port": 0, "peers": []}
        # A host may be known by a name of the client's alone; its agent knows where peers reach it.
        peers = [
            {"node": m.node, "address": m.private_address or link.welcome.get("address", "")}
            for m, link in zip(context.machines, context.links, strict=True)
        ]
        return facts | {"peers": peers}

    def on_frame(self, link: Link, header: OfLock) -> None:
        """What an agent tells of the gang's lock."""
        if self.keeper is not None:
            self.keeper.on_frame(link, header)

    def on_down(self, link: Link) -> None:
        if self.keeper is not None:
            self.keeper.on_down(link)

    async def renewed(self, form: bool) -> None:
        """A node lives on another machine now. ``form``: have a gang with it, if no other node is gone."""
        if self.keeper is not None:
            self.keeper.renew(self._facts())
            if form and (self._context.alone or not any(link.gone for link in self._context.links)):
                await self.set_up()
        self._roster.note()

    async def renew_processes(self) -> None:
        """Have fresh processes take the ranks' places.

        Raises:
            ConnectionError: a node cannot be reached now.
        """
        if self.keeper is not None:
            await self.keeper.renew_processes()

    async def set_up(self) -> None:
        """Have the ranks set up before they are needed."""
        try:
            if self.keeper is not None:
                await self.keeper.ensure()
        except OSError as error:
            self._news.mention(self._context.links[0], f"{error}; the next run sets the ranks up")


def _pickled(plugins: Sequence[Any]) -> bytes:
    from ...tasks.payload import dumps  # a pool starts sooner without, and most have no plugins
    from ...tasks.value_code import tried, words_of

    data, error = tried(lambda: dumps(tuple(plugins)))
    if error is not None:
        raise NotPicklableError(
            f"the plugins cannot travel to the nodes: {': '.join(words_of(error))}"
        ) from error
    return data or b""
