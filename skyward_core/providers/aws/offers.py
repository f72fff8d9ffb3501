"""What EC2 has for a wish, region by region, with its price."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatch
from typing import Any

from ...model.errors import PoolError, SkywardError, UsageError, what_of
from ...model.offer import Offer, OfferList, Wish, in_order, nearest
from ...model.value import Value, value
from . import images, kinds, prices, shipped
from .calls import Calls
from .kinds import Kind
from .price_store import PriceStore

DISK = 100  # GB of a machine's disk where nobody says
SPOT_LASTS = 3600.0  # seconds for which a spot price is taken as true
PATIENCE = 20.0  # seconds for all questions about prices: nobody's machines wait longer for them


@value
class Extras(Value):
    """What a machine has that is billed beside it.

    Attributes:
        disk_gb: what was asked for as the size of its disk.
        public: whether it has a public address.
        ami: the person's own image, whose volumes may be larger, or more; None for the published ones.
    """

    disk_gb: int
    public: bool
    ami: str | None = None

    async def volumes(self, calls: Calls, store: PriceStore, region: str) -> int:
        """GB of all that a machine gets in a region.

        Raises:
            NoImage: the region does not have the image.
            SkywardError: it cannot be told.
        """
        if (ami := self.ami) is None:
            return self.disk_gb

        async def ask() -> list[int]:
            return list(await images.volumes_gb(calls, region, ami))

        (root, others), _ = await store.told(f"image {region} {ami}", ask)
        return images.root_gb(self.disk_gb, root) + int(others)


@value
class Regional(Value):
    """What is known of a region: its kinds of machines, and offers of them."""

    kinds: Sequence[Kind]
    offers: Sequence[Offer]
    notes: Sequence[str]

    def fitting(self, wish: Wish) -> list[Kind]:
        """The kinds that a wish is about."""
        fit = {each.instance_type for each in in_order(self.offers, wish)}
        return [kind for kind in self.kinds if kind.name in fit]


async def known(calls: Calls, provider: str, regions: Sequence[str], wish: Wish, extras: Extras) -> OfferList:
    """What there is for a wish, by EC2 or, where it cannot be asked, by this release.

    Raises:
        UsageError: the wish makes no sense there.
    """

    async def one(region: str) -> Regional:
        try:
            return await asked(calls, provider, region, wish, extras)
        except images.NoImage as error:
            if len(regions) == 1:
                raise
            return Regional((), (), [what_of(error)])
        except UsageError:
            raise
        except (PoolError, TimeoutError) as error:
            return _shipped(provider, region, wish, extras, what_of(error))

    found = await asyncio.gather(*map(one, regions))
    notes = dict.fromkeys(note for each in found for note in each.notes)
    return OfferList(offers=[offer for each in found for offer in each.offers], notes=list(notes))


async def asked(calls: Calls, provider: str, region: str, wish: Wish, extras: Extras) -> Regional:
    """What there is for a wish, by EC2's word; prices that it does not say are this release's, or unknown.

    Raises:
        SkywardError: EC2 cannot be asked.
    """
    store = PriceStore(calls.account.endpoint or "aws")
    about = wish.instance_type or " ".join(kinds.families(wish))

    async def ask() -> dict[str, Any]:
        there = await kinds.kinds_for(calls, region, wish)
        zones = await kinds.zones_of(calls, region, [kind.name for kind in there])
        return {"kinds": [asdict(kind) for kind in there], "zones": zones}

    extras = replace(extras, disk_gb=await extras.volumes(calls, store, region), ami=None)
    told, _ = await store.told(f"types {region} {about}", ask)
    there = [Kind(**each) for each in told["kinds"]]
    # Prices are asked of those alone that may be taken; a person who looks around is told of all.
    sold = [kind for kind in there if told["zones"].get(kind.name)]
    priced = _Prices(calls, store, region, [kind.name for kind in _meant(sold, wish)])
    notes = await priced.ask(spot=wish.allocation != "on-demand")
    offers = [
        offer
        for kind in sold
        for zone in told["zones"][kind.name]
        for offer in priced.offers(provider, kind, zone, extras)
    ]
    return Regional(there, offers, notes)


def _meant(sold: Sequence[Kind], wish: Wish) -> list[Kind]:
    wanted = wish.accelerator
    if wanted is None:
        return list(sold)
    return [kind for kind in sold if (kind.known_as, kind.count) == (wanted.name, wanted.count)]


def fitting(offers: Sequence[Offer], wish: Wish, there: Container[str] | None) -> list[Offer]:
    """The offers that are tried, in order.

    Args:
        there: zones where machines can go; None where that is not known.

    Raises:
        UsageError: there is none; says why.
    """
    order = in_order(offers, wish)
    found = [each for each in order if there is None or not each.zone or each.zone in there]
    if found:
        return found
    if order:
        places = ", ".join(dict.fromkeys(each.zone for each in order))
        raise UsageError(
            f"{order[0].instance_type} is sold in {places}, and no machine can go there: name other zones"
        )
    raise UsageError(_nothing_fits(offers, wish))


def _nothing_fits(offers: Sequence[Offer], wish: Wish) -> str:
    kind, wanted = wish.instance_type, wish.accelerator
    if kind and wanted is not None and (has := next((o for o in offers if o.instance_type == kind), None)):
        carries = f"{has.count} x {has.accelerator}" if has.count else "no accelerator"
        if (has.accelerator, has.count) != (wanted.name, wanted.count):
            return f"{kind} has {carries}, and {wanted} was asked for; leave one of the two out"
    missed = "; ".join(nearest(offers, wish))
    where = " and ".join(wish.regions) or "the region"
    return f"nothing in {where} is what was asked for{f'; the nearest: {missed}' if missed else ''}"


class _Prices:
    """Those of some types in a region."""

    def __init__(self, calls: Calls, store: PriceStore, region: str, types: Sequence[str]) -> None:
        self._calls, self._store, self._region, self._types = calls, store, region, types
        self._on_demand: Mapping[str, float] = {}
        self._spot: Mapping[str, Sequence[float]] = {}
        self._beside: Mapping[str, float] = {}
        self._at = self._spot_at = 0.0
        self._shipped = False
        self._market_spot = False

    async def ask(self, *, spot: bool) -> list[str]:
        """Have them; gives what a person should know of them."""
        self._market_spot = spot
        notes = []
        try:
            async with asyncio.timeout(PATIENCE):
                await self._ask_list()
        except (SkywardError, TimeoutError) as error:
            self._beside, self._on_demand = shipped.beside(self._region), shipped.on_demand(self._region)
            self._at, self._shipped = shipped.at(), True
            notes.append(_instead(self._region, what_of(error) or "AWS took too long to say its prices"))
        if spot and self._types:
            try:
                async with asyncio.timeout(PATIENCE):
                    self._spot, self._spot_at = await self._store.told(
                        f"spot {self._region} {' '.join(self._types)}",
                        lambda: prices.spot(self._calls, self._region, self._types),
                        lasts=SPOT_LASTS,
                    )
            except (SkywardError, TimeoutError) as error:
                notes.append(f"spot prices in {self._region} are not known: {what_of(error) or 'no answer'}")
        return notes

    async def _ask_list(self) -> None:
        calls, region, types = self._calls, self._region, self._types
        self._beside, _ = await self._store.told(f"beside {region}", lambda: prices.beside(calls, region))
        if types:
            self._on_demand, self._at = await self._store.told(
                f"on demand {region} {' '.join(types)}", lambda: prices.on_demand(calls, region, types)
            )

    def offers(self, provider: str, kind: Kind, zone: str, extras: Extras) -> list[Offer]:
        """A kind in a zone, on demand and, where that was asked, as spot."""
        price = self._on_demand.get(kind.name)
        base = _offer(provider, kind, self._region, zone, self._beside, extras)
        found = [_priced(base, price, self._at, shipped=self._shipped)]
        told = self._spot.get(f"{kind.name} {zone}")
        if self._market_spot and told:
            now, least, most = told
            extra = {"market": "spot", "lately": (least, most)}
            found.append(_priced(base, now, self._spot_at, shipped=False, **extra))
        return found


def _offer(
    provider: str, kind: Kind, region: str, zone: str, beside: Mapping[str, float], extras: Extras
) -> dict[str, Any]:
    return {
        "provider": provider, "instance_type": kind.name, "region": region, "zone": zone,
        "accelerator": kind.known_as, "count": kind.count, "memory_each_gb": kind.memory_each_gb,
        "vcpus": kind.vcpus, "memory_gb": kind.memory_gb, "architecture": kind.architecture, "efa": kind.efa,
        "beside_hourly": beside.get("gb", 0.0) * extras.disk_gb + beside.get("address", 0.0) * extras.public,
    }  # fmt: skip


def _priced(base: Mapping[str, Any], price: float | None, at: float, *, shipped: bool, **extra: Any) -> Offer:
    known = price is not None
    return Offer(**base, **extra, hourly=price, priced_at=at if known else 0.0, shipped=shipped and known)


def _shipped(provider: str, region: str, wish: Wish, extras: Extras, why: str) -> Regional:
    """A region as this release knows it, whose zones it does not."""
    listed, beside = shipped.on_demand(region), shipped.beside(region)
    patterns = (wish.instance_type,) if wish.instance_type else kinds.families(wish)
    there = [
        kind
        for kind in shipped.kinds()
        if kind.name in listed and any(fnmatch(kind.name, pattern) for pattern in patterns)
    ]
    offers = [
        _priced(
            _offer(provider, kind, region, "", beside, extras), listed[kind.name], shipped.at(), shipped=True
        )
        for kind in there
    ]
    why = why or "AWS did not answer in time"
    spot = [f"spot prices are not known: {why}"] if wish.allocation != "on-demand" else []
    return Regional(there, offers, [*spot, _instead(region, why)])


def _instead(region: str, why: str) -> str:
    if region in shipped.regions():
        return f"prices in {region} are those of {shipped.date()}, which came with this release: {why}"
    return f"prices in {region} are not known, and none came with this release: {why}"
