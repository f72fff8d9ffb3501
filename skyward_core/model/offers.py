"""What can be had, where, and for how much; what a person wishes of a machine; and in which order to try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from skyward_core.model.accelerators.accelerator import Accelerator
from skyward_core.util.light_dataclass import Value, value

Market = Literal["on-demand", "spot"]
Allocation = Literal["spot", "on-demand", "spot-if-available", "cheapest"]
Selection = Literal["cheapest", "first"]

ALLOCATIONS: tuple[str, ...] = get_args(Allocation)
MAX_NEAREST = 5  # misses that are named where nothing fits
MEMORY_TOLERANCE = 0.1  # by which a memory's size may differ from its nominal one: what a maker calls 80 GB may be 79.6


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
        lately: the least and the most that an hour of the machine alone has cost in the last days; None where the
            price does not change so fast, or nobody knows.
        priced_at: when the price was looked up, in seconds since the epoch; 0 where there is none.
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
    lately: tuple[float, float] | None = None
    priced_at: float = 0.0
    shipped: bool = False

    @property
    def billed_hourly(self) -> float | None:
        """Dollars an hour, all told; None where nobody knows what the machine costs."""
        return None if self.hourly is None else self.hourly + self.beside_hourly

    def __str__(self) -> str:
        place = self.zone or self.region
        return f"{self.instance_type} in {place}{' (spot)' if self.market == 'spot' else ''}"

    @property
    def priced(self) -> str:
        """The same with what one of its machines costs, and whose word that is."""
        price = self.billed_hourly
        known = "$?/h" if price is None else f"${price:,.2f}/h"
        return f"{self}, {known} each{', by the list of this release' if self.shipped else ''}"


@value(kw_only=True)
class OfferList(Value):
    """What a provider has, and what a person should know of how that was found out."""

    offers: Sequence[Offer]
    notes: Sequence[str] = ()


@value(kw_only=True)
class Block(Value):
    """Machines that can be bought ahead, for some hours; all of it is paid at once, when it is bought.

    Attributes:
        provider: the name of the one that sells it.
        id: by which it is bought.
        instance_type: the provider's name for the kind of machine.
        region: where it is.
        zone: which part of the region.
        count: how many machines.
        hours: for how long.
        starts_at: Unix time.
        upfront: dollars for all of it.
    """

    provider: str
    id: str
    instance_type: str
    region: str
    zone: str
    count: int
    hours: int
    starts_at: float
    upfront: float

    @property
    def hourly(self) -> float:
        """Dollars for a machine and an hour."""
        return self.upfront / (self.count * self.hours)


@value(kw_only=True)
class Reservation(Value):
    """Machines that are held for an account.

    Attributes:
        id: the provider's name for it.
        instance_type: the kind of machine.
        region: where it is.
        zone: which part of the region.
        count: how many machines.
        free: how many of them nobody has.
        state: as the provider says it, such as "active" or "scheduled".
        is_block: whether it was bought ahead, and is paid.
        starts_at: Unix time; 0 where it has no beginning.
        ends_at: Unix time; None where it has no end.
    """

    id: str
    instance_type: str
    region: str
    zone: str
    count: int
    free: int
    state: str
    is_block: bool = False
    starts_at: float = 0.0
    ends_at: float | None = None


@value(kw_only=True)
class RentalPlan(Value):
    """What would be done to have machines; nothing is made by asking for it.

    Attributes:
        nodes: how many machines, at most.
        least: how many at least, where fewer will do; None where all are needed.
        attempts: what is tried, in this order, until one of them gives all machines, or at least the least of them.
        creates: what comes into being with the first that does, and ends with the pool, in words.
        requests: what is sent to the provider to have the machines of the first attempt, as it takes it; what is only
            made at a start stands there in words. None where that is not known.
        notes: what a person should know of how that was found out.
    """

    nodes: int
    attempts: Sequence[Offer]
    least: int | None = None
    creates: Sequence[str] = ()
    requests: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()

    @property
    def hourly(self) -> float | None:
        """Dollars an hour of all machines of the first attempt, as many as there may be; None where nobody knows, 0
        where nothing is rented."""
        if not self.attempts:
            return 0.0
        price = self.attempts[0].billed_hourly
        return None if price is None else price * self.nodes

    @property
    def cost(self) -> str:
        """The same in words."""
        if self.hourly is None:
            return "$?/h"
        if self.least is None or not self.attempts:
            return f"${self.hourly:,.2f}/h"
        return f"${self.hourly * self.least / self.nodes:,.2f} to ${self.hourly:,.2f}/h"

    def __str__(self) -> str:
        if not self.attempts:
            return "nothing is rented"
        lines = [f"{number}. {each.priced}" for number, each in enumerate(self.attempts, 1)]
        lines += [f"creates {each}" for each in self.creates]
        return "\n".join([*lines, f"costs {self.cost} by the first attempt", *self.notes])


@value(kw_only=True)
class MachineRequirements(Value):
    """What a machine has to be. Numbers are the least that will do.

    Attributes:
        accelerator: which, and exactly how many; None for a machine with none.
        any_accelerator: whether any number of any accelerator will do, where none is named.
        instance_type: exactly this kind; "" for any.
        vcpus: processor threads.
        memory_gb: memory in GB.
        architecture: "x86_64" or "arm64"; "" for either.
        regions: where, best first; empty for anywhere.
        zones: which parts of them, best first; empty for any.
        efa: whether it must have EFA.
        max_hourly: the most dollars that an hour of one machine may cost, all told; None for no limit.
        allocation: "spot", "on-demand", "spot-if-available" (on-demand where no spot machine is to be had), or
            "cheapest" of both.
        selection: "cheapest" first, or the region that was named "first".
        only: nothing but these, where there are any.
    """

    accelerator: Accelerator | None = None
    any_accelerator: bool = False
    instance_type: str = ""
    vcpus: int = 0
    memory_gb: float = 0.0
    architecture: str = ""
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    efa: bool = False
    max_hourly: float | None = None
    allocation: Allocation = "on-demand"
    selection: Selection = "cheapest"
    only: Sequence[Offer] = ()


def mismatch_reason(offer: Offer, requirements: MachineRequirements) -> str:
    """Why an offer is none for a wish, in words; "" where it is one."""
    return next(_shortcomings(offer, requirements), "")


def _shortcomings(offer: Offer, requirements: MachineRequirements) -> Iterator[str]:
    if requirements.only and not any(_is_same(offer, each) for each in requirements.only):
        yield "is not meant now"
    if requirements.instance_type and offer.instance_type != requirements.instance_type:
        yield f"is no {requirements.instance_type}"
    if requirements.regions and offer.region not in requirements.regions:
        yield f"is in {offer.region}"
    if requirements.zones and offer.zone and offer.zone not in requirements.zones:
        yield f"is in {offer.zone}"
    if requirements.allocation in ("spot", "on-demand") and offer.market != requirements.allocation:
        yield f"is {offer.market}"
    if reason := _accelerator_mismatch(offer, requirements):
        yield reason
    if requirements.architecture and offer.architecture != requirements.architecture:
        yield f"is {offer.architecture}"
    if offer.vcpus < requirements.vcpus:
        yield f"has {offer.vcpus} vCPUs"
    if offer.memory_gb < requirements.memory_gb:
        yield f"has {offer.memory_gb:g} GB of memory"
    if requirements.efa and not offer.efa:
        yield "has no EFA"
    if requirements.max_hourly is not None:
        if offer.billed_hourly is None:
            yield "has no known price, and there is a limit"
        elif offer.billed_hourly > requirements.max_hourly:
            yield f"costs ${offer.billed_hourly:.2f}/h"


def _is_same(one: Offer, other: Offer) -> bool:
    """Whether two are the same machines at the same place, whatever they cost; one may not know its zone."""
    place = one.zone == other.zone or not (one.zone and other.zone)
    return place and (one.instance_type, one.region, one.market) == (
        other.instance_type, other.region, other.market,
    )  # fmt: skip


def _accelerator_mismatch(offer: Offer, requirements: MachineRequirements) -> str:
    wanted = requirements.accelerator
    if wanted is None:
        if requirements.any_accelerator:
            return "" if offer.count else "has no accelerator"
        # Whoever names the type knows what it has; nobody else is sold an accelerator that was not asked for.
        named = requirements.instance_type
        return f"has {offer.count} {offer.accelerator}" if offer.accelerator and not named else ""
    if offer.accelerator != wanted.name or offer.count != wanted.count:
        return f"has {offer.count} {offer.accelerator}" if offer.count else "has no accelerator"
    if (
        wanted.memory_gb is not None
        and abs(offer.memory_each_gb - wanted.memory_gb) > MEMORY_TOLERANCE * wanted.memory_gb
    ):
        return f"has {offer.accelerator} of {offer.memory_each_gb:g} GB"
    return ""


def matching_offers(offers: Iterable[Offer], requirements: MachineRequirements) -> list[Offer]:
    """The offers that a wish is tried with, best first.

    Cheaper ones come first, those without a known price last; of equal ones those of the region and the zone that were
    named first, then by name. Under "spot-if-available" all spot offers come before all others. With "first" regions
    come in the order in which they were named, whatever the price.
    """
    return sorted(
        (offer for offer in offers if not mismatch_reason(offer, requirements)),
        key=lambda each: offer_sort_key(each, requirements),
    )


def offer_sort_key(offer: Offer, requirements: MachineRequirements) -> tuple[Any, ...]:
    """By what offers are sorted, best first: also those for several wishes, as far as their prices."""
    price = offer.billed_hourly
    region = requirements.regions.index(offer.region) if offer.region in requirements.regions else 0
    zone = requirements.zones.index(offer.zone) if offer.zone in requirements.zones else 0
    later = requirements.allocation == "spot-if-available" and offer.market == "on-demand"
    first = region if requirements.selection == "first" else 0
    names = (region, zone, offer.region, offer.instance_type, offer.zone, offer.market)
    return later, first, price is None, price or 0.0, *names


def describe_nearest(offers: Sequence[Offer], requirements: MachineRequirements) -> list[str]:
    """What comes nearest to a wish that nothing fits, each kind of machine once, and why it is none, in words."""

    wanted = requirements.accelerator
    # Who wants eight of an accelerator looks at four of it, and at others only where there is none.
    same = [offer for offer in offers if wanted is not None and offer.accelerator == wanted.name]

    def far(offer: Offer) -> tuple[object, ...]:
        missed = len(list(_shortcomings(offer, requirements)))
        price = offer.billed_hourly
        return missed, price is None, price or 0.0, offer.instance_type, offer.region, offer.zone

    kinds: dict[tuple[str, str], Offer] = {}
    for offer in sorted(same or offers, key=far):
        kinds.setdefault((offer.instance_type, offer.market), offer)
    return [
        f"{offer} {' and '.join(_shortcomings(offer, requirements))}" for offer in list(kinds.values())[:MAX_NEAREST]
    ]
