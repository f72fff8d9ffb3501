"""What a start tries, and in which order: kinds of machines at places that can take them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ...model.errors import SkywardError
from ...model.offer import Offer, Wish
from ...model.spec import PoolSpec
from . import kinds, placement, reservations
from .calls import Calls
from .failure_scope import of_each
from .launching import Attempt
from .network import Zone
from .offers import Extras, Regional, asked, fitting
from .reservations import Held

Places = Callable[[str], Awaitable[list[Zone]]]


class Attempts:
    """Those of one pool.

    Args:
        provider: the name that offers carry.
        wish: what a machine has to be, with all that the provider was told.
        extras: what is billed beside a machine.
        places: gives the zones of a region in which machines can go.
        reservation: the id of the one that they are taken from, or None.
        together: whether they may be asked for close together.
    """

    def __init__(
        self, calls: Calls, provider: str, spec: PoolSpec, wish: Wish, extras: Extras, places: Places,
        *, reservation: str | None, together: bool,
    ) -> None:  # fmt: skip
        self._calls = calls
        self._provider = provider
        self._spec = spec
        self._wish = wish
        self._extras = extras
        self._places = places
        self._reservation = reservation
        self._together = together

    async def in_order(self, regions: Sequence[str]) -> tuple[list[Attempt], list[tuple[str, SkywardError]]]:
        """Each offer that fits, in a place where machines can go; and regions that are left out, and why.

        Raises:
            UsageError: nothing fits; says what comes nearest.
            SkywardError: no region says anything.
        """
        wish, held = self._wish, await self.held(regions)
        if held is not None:
            wish, regions = held.wish(wish), (held.of.region,)

        async def ask(region: str) -> tuple[Regional, list[Zone]]:
            told = asked(self._calls, self._provider, region, wish, self._extras)
            return await asyncio.gather(told, self._places(region))

        found, left_out = await of_each(regions, ask)
        there = {place.zone: place for _, places in found for place in places}
        all_kinds = {kind.name: kind for told, _ in found for kind in told.kinds}
        order = fitting([offer for told, _ in found for offer in told.offers], wish, there)
        return [
            self._one(each, there[each.zone], all_kinds[each.instance_type], held) for each in order
        ], left_out

    async def held(self, regions: Sequence[str]) -> Held | None:
        """The reservation that machines are taken from."""
        if self._reservation is None:
            return None
        nodes = self._spec.least_nodes
        return await reservations.held(self._calls, regions, self._reservation, self._wish, nodes)

    async def of(self, offer: Offer, place: Zone, held: Held | None) -> Attempt:
        """One for an offer alone."""
        (kind,) = await kinds.kinds_for(self._calls, offer.region, Wish(instance_type=offer.instance_type))
        return self._one(offer, place, kind, held)

    def _one(self, offer: Offer, place: Zone, kind: kinds.Kind, held: Held | None) -> Attempt:
        priced = offer if held is None else held.offer(offer)
        market = offer.market if held is None else held.market
        several = self._together and self._spec.most_nodes > 1
        grouped = held is None and several and placement.helps(kind)  # a reservation is where it is
        return Attempt(place, kind, market, priced.billed_hourly, priced.shipped, grouped=grouped)
