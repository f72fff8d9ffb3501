"""Offers of machines, requirements for machines, and the order in which offers are tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from skyward_core.model.accelerators.accelerator import Accelerator
from skyward_core.util.light_dataclass import Value, value

Market = Literal["on-demand", "spot"]
Allocation = Literal["spot", "on-demand", "spot-if-available", "cheapest"]
Selection = Literal["cheapest", "first"]

ALLOCATIONS: tuple[str, ...] = get_args(Allocation)
MAX_NEAREST = 5  # maximum number of offers that an error lists if no offer satisfies the requirements
MEMORY_TOLERANCE = 0.1  # fraction by which a GPU's memory may differ; a GPU with nominally 80 GB may report 79.6 GB


@value(kw_only=True)
class Offer(Value):
    """Type of machine at one place, with its price.

    Attributes:
        provider: Name of the provider.
        instance_type: The provider's name of the machine type.
        region: Region.
        zone: Zone of the region; "" if zones make no difference.
        market: "on-demand" or "spot". Spot machines are cheaper and can be preempted at any time.
        accelerator: Name of the machine's accelerators: the catalogue's name or, if the catalogue lacks them, the
            provider's name; "" for none.
        count: Number of accelerators.
        memory_each_gb: Memory of each accelerator in GB (1024^3 bytes, as makers count).
        vcpus: CPU threads.
        memory_gb: Memory in GB.
        architecture: "x86_64" or "arm64".
        efa: Whether the machines support EFA, the fast network of AWS.
        hourly: Price of the machine in dollars per hour. None if unknown.
        beside_hourly: Dollars per hour for the machine's disk and public address.
        lately: Minimum and maximum price of the last days in dollars per hour. None if prices do not vary or are
            unknown.
        priced_at: Unix time of the price; 0 without a price.
        shipped: Whether the price comes from this release's list instead of the provider.
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
        """Full price in dollars per hour. None if the machine's price is unknown."""
        return None if self.hourly is None else self.hourly + self.beside_hourly

    def __str__(self) -> str:
        return f"{self.instance_type} in {self.zone or self.region}{' (spot)' if self.market == 'spot' else ''}"

    @property
    def priced(self) -> str:
        """The offer as text with the price of one machine, and a note if the price comes from this release's list."""
        price = self.billed_hourly
        known = "$?/h" if price is None else f"${price:,.2f}/h"
        return f"{self}, {known} each{' (price list of this release)' if self.shipped else ''}"


@value(kw_only=True)
class OfferList(Value):
    """Offers of a provider, with notes about their source."""

    offers: Sequence[Offer]
    notes: Sequence[str] = ()


@value(kw_only=True)
class Block(Value):
    """Capacity block: machines that are sold for a fixed number of hours and paid in full when bought.

    Attributes:
        provider: Name of the provider.
        id: Identifier for the purchase.
        instance_type: The provider's name of the machine type.
        region: Region.
        zone: Zone of the region.
        count: Number of machines.
        hours: Duration in hours.
        starts_at: Unix time of the start.
        upfront: Total price in dollars.
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
        """Price of one machine in dollars per hour."""
        return self.upfront / (self.count * self.hours)


@value(kw_only=True)
class Reservation(Value):
    """Reserved capacity: machines that an account holds.

    Attributes:
        id: The provider's identifier.
        instance_type: Machine type.
        region: Region.
        zone: Zone of the region.
        count: Number of machines.
        free: Number of unused machines.
        state: State as the provider names it, such as "active" or "scheduled".
        is_block: Whether the reservation is a purchased capacity block.
        starts_at: Unix time of the start; 0 for no start.
        ends_at: Unix time of the end. None for no end.
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
    """Plan of a rental. Creating a plan rents nothing.

    Attributes:
        nodes: Maximum number of machines.
        least: Minimum number of machines. None if all are required.
        attempts: Offers in the order in which they are tried, until one provides at least the minimum.
        creates: Descriptions of the resources that the first successful attempt creates and the teardown removes.
        requests: Requests to the provider for the first attempt. Values that are only known at the start are described
            in words. Empty if unknown.
        notes: Notes about the source of the offers.
    """

    nodes: int
    attempts: Sequence[Offer]
    least: int | None = None
    creates: Sequence[str] = ()
    requests: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()

    @property
    def hourly(self) -> float | None:
        """Price of the maximum number of machines of the first attempt in dollars per hour. None if unknown; 0 if no
        machine is rented.
        """
        if not self.attempts:
            return 0.0
        price = self.attempts[0].billed_hourly
        return None if price is None else price * self.nodes

    @property
    def cost(self) -> str:
        """The price as text; a range if the number of machines is a range."""
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
        return "\n".join([*lines, f"costs {self.cost} if the first attempt succeeds", *self.notes])


@value(kw_only=True)
class MachineRequirements(Value):
    """Requirements for a machine. Numbers are minimums.

    Attributes:
        accelerator: Accelerator and its exact count. None for a machine without accelerators.
        any_accelerator: Whether any number of any accelerator is accepted. Only used if ``accelerator`` is None.
        instance_type: Exact machine type; "" for any.
        vcpus: CPU threads.
        memory_gb: Memory in GB.
        architecture: "x86_64" or "arm64"; "" for either.
        regions: Regions, preferred first; empty for any.
        zones: Zones, preferred first; empty for any.
        efa: Whether EFA is required.
        max_hourly: Maximum full price of one machine in dollars per hour. None for no limit.
        allocation: "spot", "on-demand", "spot-if-available" (on-demand if no spot machine is available), or "cheapest"
            (the cheaper market).
        selection: "cheapest" tries cheap offers first, "first" tries regions in the given order.
        only: Accept only these offers; empty for all.
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
    """Return why an offer does not satisfy requirements. "" if it does."""
    return next(_shortcomings(offer, requirements), "")


def _shortcomings(offer: Offer, requirements: MachineRequirements) -> Iterator[str]:
    if requirements.only and not any(_is_same(offer, each) for each in requirements.only):
        yield "is not part of this attempt"
    if requirements.instance_type and offer.instance_type != requirements.instance_type:
        yield f"is not {requirements.instance_type}"
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
            yield "has no known price, but a limit is set"
        elif offer.billed_hourly > requirements.max_hourly:
            yield f"costs ${offer.billed_hourly:.2f}/h"


def _is_same(one: Offer, other: Offer) -> bool:
    """Check whether two offers are the same machine type at the same place. A missing zone matches any zone."""
    place = one.zone == other.zone or not (one.zone and other.zone)
    return place and (one.instance_type, one.region, one.market) == (
        other.instance_type, other.region, other.market,
    )  # fmt: skip


def _accelerator_mismatch(offer: Offer, requirements: MachineRequirements) -> str:
    accelerator = requirements.accelerator
    if accelerator is None:
        if requirements.any_accelerator:
            return "" if offer.count else "has no accelerator"
        # Accept an offer with accelerators only if the user names its machine type, because users must not pay for
        # accelerators that they did not request.
        named = requirements.instance_type
        return f"has {offer.count} {offer.accelerator}" if offer.accelerator and not named else ""
    if offer.accelerator != accelerator.name or offer.count != accelerator.count:
        return f"has {offer.count} {offer.accelerator}" if offer.count else "has no accelerator"
    if (
        accelerator.memory_gb is not None
        and abs(offer.memory_each_gb - accelerator.memory_gb) > MEMORY_TOLERANCE * accelerator.memory_gb
    ):
        return f"has {offer.accelerator} of {offer.memory_each_gb:g} GB"
    return ""


def matching_offers(offers: Iterable[Offer], requirements: MachineRequirements) -> list[Offer]:
    """Return the offers that satisfy requirements, in the order of attempts.

    Cheap offers come first, offers without a known price last. Equal prices are ordered by the given regions and zones,
    then by name. With "spot-if-available" all spot offers come first. With "first" the given order of regions precedes
    the price.
    """
    return sorted(
        (offer for offer in offers if not mismatch_reason(offer, requirements)),
        key=lambda each: offer_sort_key(each, requirements),
    )


def offer_sort_key(offer: Offer, requirements: MachineRequirements) -> tuple[Any, ...]:
    """Return the sort key of an offer. If offers belong to different requirements, only their prices are compared."""
    price = offer.billed_hourly
    region = requirements.regions.index(offer.region) if offer.region in requirements.regions else 0
    zone = requirements.zones.index(offer.zone) if offer.zone in requirements.zones else 0
    later = requirements.allocation == "spot-if-available" and offer.market == "on-demand"
    first = region if requirements.selection == "first" else 0
    names = (region, zone, offer.region, offer.instance_type, offer.zone, offer.market)
    return later, first, price is None, price or 0.0, *names


def describe_nearest(offers: Sequence[Offer], requirements: MachineRequirements) -> list[str]:
    """Return the offers that come closest to requirements, with the reasons why they do not fit. Each type once."""

    accelerator = requirements.accelerator
    # Other counts of the requested accelerator are better suggestions than other accelerators.
    same = [offer for offer in offers if accelerator is not None and offer.accelerator == accelerator.name]

    def distance(offer: Offer) -> tuple[object, ...]:
        missed = len(list(_shortcomings(offer, requirements)))
        price = offer.billed_hourly
        return missed, price is None, price or 0.0, offer.instance_type, offer.region, offer.zone

    kinds: dict[tuple[str, str], Offer] = {}
    for offer in sorted(same or offers, key=distance):
        kinds.setdefault((offer.instance_type, offer.market), offer)
    return [
        f"{offer} {' and '.join(_shortcomings(offer, requirements))}" for offer in list(kinds.values())[:MAX_NEAREST]
    ]
