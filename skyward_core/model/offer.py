"""What can be had, where, and for how much; what a person wishes of a machine; and in which order to try."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from .accelerators.model import Accelerator
from .value import Value, value

Market = Literal["on-demand", "spot"]
Allocation = Literal["spot", "on-demand", "spot-if-available", "cheapest"]

ALLOCATIONS: tuple[str, ...] = get_args(Allocation)


@value(kw_only=True)
class Offer(Value):
    """A kind of machine, where it can be had, and for how much.

    Attributes:
        provider: the name of the one that has it.
        instance_type: the provider's name for the kind of machine.
        region: where it is.
        zone: which part of the region; "" where that makes no difference.
        market: "spot" machines are cheaper and can be taken back at any time.
        accelerator: name of its accelerators as the catalogue writes it, or, of one that it does not have, as the
            provider does; "" for none.
        count: how many accelerators it has.
        memory_each_gb: memory of each of them in GB (of 1024^3 bytes, as makers count).
        vcpus: processor threads.
        memory_gb: its memory in GB.
        architecture: "x86_64" or "arm64".
        efa: whether its machines can have EFA, the fast network between machines of AWS.
        hourly: dollars for an hour of the machine alone; None where nobody knows.
        beside_hourly: dollars for an hour of what is billed beside it: its disk and its public address.
        priced_at: when the price was looked up, in seconds since the epoch.
        shipped: whether the price is of the list that came with this release, and not of the provider.
    """

    provider: str
    instance_type: str
    region: str
    zone: str = ""
    market: Market = "on-demand"
    accelerator: str = ""
    count: int = 0
    memory_each_gb: float = 0.0
    vcpus: int = 0
    memory_gb: float = 0.0
    architecture: str = "x86_64"
    efa: bool = False
    hourly: float | None = None
    beside_hourly: float = 0.0
    priced_at: float = 0.0
    shipped: bool = False

    @property
    def billed_hourly(self) -> float | None:
        """Dollars an hour, all told; None where nobody knows what the machine costs."""
        return None if self.hourly is None else self.hourly + self.beside_hourly


@value(kw_only=True)
class Wish(Value):
    """What a machine has to be. Numbers are the least that will do.

    Attributes:
        accelerator: which, and exactly how many; None for a machine with none.
        instance_type: exactly this kind; "" for any.
        vcpus: processor threads.
        memory_gb: memory in GB.
        architecture: "x86_64" or "arm64"; "" for either.
        regions: where, best first; empty for anywhere.
        zones: which parts of them; empty for any.
        efa: whether it must have EFA.
        max_hourly: the most dollars that an hour of one machine may cost, all told; None for no limit.
        allocation: "spot", "on-demand", "spot-if-available" (on-demand where no spot machine is to be had), or
            "cheapest" of both.
    """

    accelerator: Accelerator | None = None
    instance_type: str = ""
    vcpus: int = 0
    memory_gb: float = 0.0
    architecture: str = ""
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    efa: bool = False
    max_hourly: float | None = None
    allocation: Allocation = "on-demand"


def why_not(offer: Offer, wish: Wish) -> str:
    """Why an offer is none for a wish, in words; "" where it is one."""
    if wish.instance_type and offer.instance_type != wish.instance_type:
        return f"is no {wish.instance_type}"
    if wish.regions and offer.region not in wish.regions:
        return f"is in {offer.region}"
    if wish.zones and offer.zone and offer.zone not in wish.zones:
        return f"is in {offer.zone}"
    if wish.allocation in ("spot", "on-demand") and offer.market != wish.allocation:
        return f"is {offer.market}"
    if why := _lacks_accelerator(offer, wish):
        return why
    if wish.architecture and offer.architecture != wish.architecture:
        return f"is {offer.architecture}"
    if offer.vcpus < wish.vcpus:
        return f"has {offer.vcpus} vCPUs"
    if offer.memory_gb < wish.memory_gb:
        return f"has {offer.memory_gb:g} GB of memory"
    if wish.efa and not offer.efa:
        return "has no EFA"
    if wish.max_hourly is not None:
        if offer.billed_hourly is None:
            return "has no known price, and there is a limit"
        if offer.billed_hourly > wish.max_hourly:
            return f"costs ${offer.billed_hourly:.2f}/h"
    return ""


def _lacks_accelerator(offer: Offer, wish: Wish) -> str:
    wanted = wish.accelerator
    if wanted is None:
        # Whoever names the type knows what it has; nobody else is sold an accelerator that was not asked for.
        named = wish.instance_type
        return f"has {offer.count} {offer.accelerator}" if offer.accelerator and not named else ""
    if offer.accelerator != wanted.name or offer.count != wanted.count:
        return f"has {offer.count} {offer.accelerator}" if offer.count else "has no accelerator"
    # What a maker calls 80 GB a provider may call 79.6.
    if wanted.memory_gb is not None and abs(offer.memory_each_gb - wanted.memory_gb) > 0.1 * wanted.memory_gb:
        return f"has {offer.accelerator} of {offer.memory_each_gb:g} GB"
    return ""


def in_order(offers: Iterable[Offer], wish: Wish) -> list[Offer]:
    """The offers that a wish is tried with, best first.

    Cheaper ones come first, those without a known price last; of equal ones those of the region that was named first,
    then by name. Under "spot-if-available" all spot offers come before all others.
    """

    def rank(offer: Offer) -> tuple[object, ...]:
        price = offer.billed_hourly
        region = wish.regions.index(offer.region) if offer.region in wish.regions else 0
        later = wish.allocation == "spot-if-available" and offer.market == "on-demand"
        names = (region, offer.region, offer.instance_type, offer.zone, offer.market)
        return later, price is None, price or 0.0, *names

    return sorted((offer for offer in offers if not why_not(offer, wish)), key=rank)
