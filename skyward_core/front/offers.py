"""What could be had of all providers that tell their offers, and for how much."""

from __future__ import annotations

import asyncio

from ..model.capabilities import Offers
from ..model.errors import SkywardError, UsageError, what_of
from ..model.offer import OfferList, Wish
from ..providers import by_name, names
from ..providers.making import make
from ..transport.background_loop import submit


def offered(wish: Wish) -> OfferList:
    """What all providers have that a wish is about; nothing is made.

    Raises:
        UsageError: no provider tells its offers; or the wish makes no sense to the only one that does.
    """
    asked: list[Offers] = []
    notes = []
    for name in names():
        try:
            found = by_name(name)
            if isinstance(found, Offers):
                asked.append(make(found, {}))
        except SkywardError as error:  # one of another package; the others are asked all the same
            notes.append(f"provider {name} is left out: {what_of(error)}")
    if not asked:
        raise UsageError("; ".join(["no provider here tells what can be had of it", *notes]))
    found = submit(_all(asked, wish)).result()
    return OfferList(offers=found.offers, notes=[*notes, *found.notes])


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
