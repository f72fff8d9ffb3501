"""What a pool's ranks are set up with: their places, and the plugins whose contexts they enter."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from ..links.link import Link

if TYPE_CHECKING:
    from ...wire.agent_frame_types import OfLock
    from ...wire.client_frame_types import ClientGang
    from ...wire.frame_types import Place


NodesWanted = int | tuple[int, ...]  # how many nodes a run wants, or which


class Keeper(ABC):
    """Has the ranks of a pool set up before they are given work; how, depends on whether they are a gang.

    Args:
        links: of all nodes, by index; the pool puts others in their places.
        facts: what is the same in every rank's place.
        plugins: the pickled plugins; None for a client that did not make the pool and has not asked yet.
        secrets: what the agents blank.
        apps: whether one of the plugins has an ``around_app``.
        joins: whether one of them makes one world of the ranks.
        fail_fast: whether a rank's failure stops the others of its gang.
        tell: told what runs wait for, and "" when they do not any more.
        ask: has the nodes asked for the plugins; what they know comes by :meth:`learn`.
    """

    def __init__(
        self,
        links: Sequence[Link],
        facts: Place,
        plugins: bytes | None,
        secrets: Sequence[str] = (),
        *,
        apps: bool = False,
        joins: bool = False,
        fail_fast: bool = True,
        tell: Callable[[str], None] = lambda words: None,
        ask: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._links = links
        self._facts = facts
        self._plugins = plugins
        self._secrets = list(secrets)
        self._apps, self._joins = apps, joins
        self._fail_fast = fail_fast
        self._tell = tell
        self._ask = ask
        self._busy = asyncio.Lock()

    def renew(self, facts: Place) -> None:
        """A node has another machine: peers are found elsewhere."""
        self._facts = facts

    @property
    def knows_plugins(self) -> bool:
        return self._plugins is not None

    @property
    def plugins(self) -> bytes:
        """They, pickled, as far as is known here; empty where there are none."""
        return self._plugins or b""

    def learn(self, plugins: bytes, secrets: Sequence[str], *, apps: bool, joins: bool) -> None:
        """What the pool's plugins are, as one of its agents has told."""
        self._plugins, self._secrets, self._apps, self._joins = plugins, list(secrets), apps, joins

    def _setup(self, epoch: int, info: Place, *, fresh: bool = False) -> tuple[ClientGang, bytes]:
        """The frame that sets a node's ranks up; ``fresh``: in processes that have run nothing before."""
        header: ClientGang = {"t": "gang", "epoch": epoch, "info": info, "hooks": bool(self._plugins)}
        header["apps"], header["joins"] = self._apps, self._joins
        if fresh:
            header["fresh"] = True
        if self._secrets:
            header["secrets"] = self._secrets
        return header, self.plugins

    async def _know_plugins(self) -> None:
        """Have the plugins known here.

        Raises:
            ConnectionError: no node that could be asked knows them.
        """
        if self._plugins is None and self._ask is not None:
            await self._ask()
        if self._plugins is None:
            raise ConnectionError(
                "the pool's plugins are known neither here nor on any node that answers: its agents were started "
                "anew, and the client that made it is gone; make the pool anew"
            )

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Whether all ranks are set up, as far as their nodes are there."""

    @property
    def ready(self) -> bool:
        """Whether all ranks are set up for calls that need no gang, be it in several gangs."""
        return self.whole

    @abstractmethod
    def start_now(self, send: Callable[[int], None]) -> bool:
        """Start a broadcast without waiting, when nothing stands in the way; says whether it did."""

    @abstractmethod
    async def start(self, send: Callable[[int], None]) -> bool:
        """Start a broadcast: ``send(epoch)`` hands its calls to the links. False where it cannot be yet, for runs on
        some of the nodes only have not ended.

        Raises:
            ConnectionError: a node that is needed for that cannot be reached now.
        """

    @abstractmethod
    async def start_on(
        self, wanted: NodesWanted, send: Callable[[int, tuple[int, ...]], None], job: str = ""
    ) -> bool:
        """Start a broadcast on some of the nodes: ``send(epoch, nodes)`` hands its calls to their links. False where
        not enough of them are free yet.

        Args:
            wanted: how many, or which.
            job: that it is a step of; nodes that are kept for that it may have.

        Raises:
            ConnectionError: a node that is needed for that cannot be reached now.
        """

    @abstractmethod
    async def ensure(self) -> None:
        """Have the ranks set up, for work that is no broadcast but needs the plugins' contexts."""

    @abstractmethod
    async def renew_processes(self) -> None:
        """Have fresh processes take the ranks' places, once broadcasts that are under way have ended.

        Raises:
            ConnectionError: a node that is needed for that cannot be reached now.
        """

    def on_frame(self, link: Link, header: OfLock) -> None:  # noqa: B027  only some need to know
        """An agent's word about starting broadcasts."""

    def on_down(self, link: Link) -> None:  # noqa: B027
        """A link went down."""
