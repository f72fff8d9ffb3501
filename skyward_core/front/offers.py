"""What could be had of all providers that tell their offers, and for how much."""

from __future__ import annotations

import asyncio
from typing import Any

from ..model.capabilities import Offers, SellsBlocks
from ..model.errors import SkywardError, UsageError, what_of
from ..model.offer import Block, OfferList, Wish
from ..providers import by_name, names
from ..providers.making import make
from ..transport.background_loop import submit


def offered(wish: Wish) -> OfferList:
    """What all providers have that a wish is about; nothing is made.

    Raises:
        UsageError: no provider tells its offers; or the wish makes no sense to the only one that does.
    """
    asked, notes = _asked(Offers)
    if not asked:
        raise UsageError("; ".join(["no provider here tells what can be had of it", *notes]))
    found = submit(_all(asked, wish)).result()
    return OfferList(offers=found.offers, notes=[*notes, *found.notes])


def blocks(wish: Wish, nodes: int, hours: int) -> list[Block]:
    """Machines that can be bought ahead, of all providers that sell some, the earliest first; nothing is bought.

    Raises:
        UsageError: no provider sells any, or none for so long.
        PoolError: one of them cannot be asked.
    """
    asked, notes = _asked(SellsBlocks)
    if not asked:
        raise UsageError("; ".join(["no provider here sells machines ahead", *notes]))
    found = [each for one in asked for each in submit(one.blocks(wish, nodes, hours)).result()]
    return sorted(found, key=lambda block: (block.starts_at, block.upfront))


def _asked(capability: type) -> tuple[list[Any], list[str]]:
    """The providers that have a capability, and why others are left out."""
    asked, notes = [], []
    for name in names():
        try:
            found = by_name(name)
            if isinstance(found, capability):
                asked.append(make(found, {}))
        except SkywardError as error:  # one of another package; the others are asked all the same
            notes.append(f"provider {name} is left out: {what_of(error)}")
    return asked, notes


async def _all(asked: list[Offers], wish: Wish) -> OfferList:
    found = await asyncio.gather(*(each.offers(wish) for each in asked), return_exceptions=True)
    lists = [each for each in found if isinstance(each, OfferList)]
    errors = [each for each in found if isinstance(each, BaseException)]
    for error in errors:
        if not lists or not isinstance(error, SkywardError):
            raise error
    return OfferList(
        offers=[offer for each in lists for offer in each.offers],
        notes=[*(note for each in lists for note in each.notes), *map(what_of, errors)],
    )
