"""The part of the provider that deals in machines bought ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...model.offer import Block, Reservation, Wish
from . import blocks, reservations
from .calls import Calls
from .offers import Extras, asked


class BlockSales:
    """Of a provider that has these:

    Attributes:
        name: how people name it.
    """

    name: ClassVar[str]

    @property
    def _calls(self) -> Calls:
        raise NotImplementedError

    @property
    def _extras(self) -> Extras:
        raise NotImplementedError

    async def _regions(self) -> Sequence[str]:
        raise NotImplementedError

    async def blocks(self, wish: Wish, nodes: int, hours: int) -> list[Block]:
        """Capacity Blocks that can be bought now; nothing is bought.

        Args:
            wish: what a machine has to be.
            nodes: how many.
            hours: for how long.

        Raises:
            UsageError: none is sold for so long.
            SkywardError: EC2 cannot be asked.
        """
        found = []
        for region in wish.regions or await self._regions():
            told = await asked(self._calls, self.name, region, wish, self._extras)
            found += await blocks.blocks(self._calls, self.name, region, told.fitting(wish), nodes, hours)
        return found

    async def still_sold(self, block: Block) -> Block | None:
        """A block that was listed earlier, as it is sold now; None where it is not any more.

        Args:
            block: as ``blocks`` named it.

        Raises:
            SkywardError: EC2 cannot be asked.
        """
        return await blocks.still_sold(self._calls, block)

    async def buy(self, block: Block, token: str) -> Reservation:
        """Buy a Capacity Block, once; a call that gets no answer is not made again.

        Args:
            block: as ``blocks`` named it.
            token: a tag of what is bought.

        Raises:
            Unreachable: nobody knows whether it was bought.
            SkywardError: it was not.
        """
        return await reservations.buy(self._calls, block, token)

    async def bought(self, region: str, token: str) -> Reservation | None:
        """What was bought with a token, by its tag; None where nothing of it is seen.

        Args:
            region: where.
            token: as ``buy`` was given it.

        Raises:
            SkywardError: it cannot be told.
        """
        return await reservations.bought(self._calls, region, token)

    async def reserved(self) -> list[Reservation]:
        """All capacity reservations of its regions that have not ended.

        Raises:
            SkywardError: they cannot be told.
        """
        found = [await reservations.find(self._calls, each) for each in await self._regions()]
        return [each for some in found for each in some]
