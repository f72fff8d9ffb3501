"""Machines that are held for the account: bought ahead, found again by a tag, and launched into."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...model.errors import NoCapacity, Unreachable, UsageError, what_of
from ...model.offer import Block, Offer, Reservation, Wish
from ...model.value import Value, value
from . import tags
from .calls import Calls
from .failures import CallFailed

BLOCK = "capacity-block"  # what EC2 calls this market
LINUX = "Linux/UNIX"
OVER = ("expired", "cancelled", "failed", "payment-failed", "unsupported")
ENDS_BEFORE = 30 * 60.0  # seconds by which EC2 ends a block's machines before the block is over


def _of(told: Mapping[str, Any], region: str) -> Reservation:
    start, end = told.get("StartDate"), told.get("EndDate")
    return Reservation(
        id=told["CapacityReservationId"],
        instance_type=told.get("InstanceType", ""),
        region=region,
        zone=told.get("AvailabilityZone", ""),
        count=told.get("TotalInstanceCount", 0),
        free=told.get("AvailableInstanceCount", 0),
        state=told.get("State", ""),
        is_block=told.get("ReservationType") == BLOCK,
        starts_at=start.timestamp() if start else 0.0,
        ends_at=end.timestamp() if end else None,
    )


async def buy(calls: Calls, block: Block, token: str) -> Reservation:
    """Buy a block. The call has no idempotency token, so that it is made once.

    Raises:
        Unreachable: nobody knows whether it was bought.
        SkywardError: it was not.
    """
    marks = tags.specification(["capacity-reservation"], tags.of_purchase(token))
    try:
        told = await calls.call(
            "ec2", block.region, "purchase_capacity_block", once=True,
            CapacityBlockOfferingId=block.id, InstancePlatform=LINUX, TagSpecifications=marks,
        )  # fmt: skip
    except CallFailed as error:
        if error.code:
            raise
        raise Unreachable(what_of(error)) from error  # an answer that nobody could read
    try:
        return _of(told.get("CapacityReservation") or told["CapacityReservations"][0], block.region)
    except (LookupError, TypeError, AttributeError) as error:
        raise Unreachable(f"EC2's answer names no reservation ({type(error).__name__})") from error


async def find(calls: Calls, region: str, filters: Sequence[Mapping[str, Any]] = ()) -> list[Reservation]:
    """Those of a region that have not ended.

    Raises:
        SkywardError: it cannot be told.
    """
    asked = {"Filters": list(filters)} if filters else {}
    told = await calls.call_all(
        "ec2", region, "describe_capacity_reservations", "CapacityReservations", **asked
    )
    found = [_of(each, region) for each in told if each.get("State") not in OVER]
    return sorted(found, key=lambda each: (each.starts_at, each.id))


async def bought(calls: Calls, region: str, token: str) -> Reservation | None:
    """What a purchase with that token gave; None where nothing is seen of it.

    Raises:
        SkywardError: it cannot be told.
    """
    found = await find(calls, region, [{"Name": f"tag:{tags.PURCHASE}", "Values": [token]}])
    return found[0] if found else None


@value
class Held(Value):
    """A reservation that a pool's machines are taken from."""

    of: Reservation

    @property
    def market(self) -> str:
        return BLOCK if self.of.is_block else "on-demand"

    def wish(self, wish: Wish) -> Wish:
        """What machines have to be, which is what the reservation holds."""
        held = self.of
        return replace(wish, instance_type=held.instance_type, zones=(held.zone,), regions=(held.region,))

    def offer(self, offer: Offer) -> Offer:
        """What one of its machines costs: those of a block are paid."""
        return replace(offer, hourly=0.0) if self.of.is_block else offer

    @property
    def note(self) -> str:
        """What a person should know of it."""
        held = self.of
        said = f"machines are those of reservation {held.id}"
        if not held.is_block:
            return said
        ends = time.localtime((held.ends_at or 0.0) - ENDS_BEFORE)
        return (
            f"{said}, a Capacity Block that is paid; EC2 ends them at {time.strftime('%Y-%m-%d %H:%M', ends)}"
        )


async def held(calls: Calls, regions: Sequence[str], id: str, wish: Wish, nodes: int) -> Held:
    """The reservation of that name, which has what is asked for now.

    Args:
        regions: where it may be.
        wish: what a machine has to be; what it names otherwise than the reservation is refused.

    Raises:
        UsageError: there is none, or it is another kind of machine, or elsewhere.
        NoCapacity: it has not begun, is over, or has too few machines.
        SkywardError: it cannot be told.
    """
    if wish.allocation != "on-demand":
        raise UsageError(f"reservation {id} is no {wish.allocation} market: leave the allocation out")
    found = await _find(calls, regions, id)
    for what, wanted, has in (
        ("type", wish.instance_type and (wish.instance_type,), found.instance_type),
        ("zone", wish.zones, found.zone),
    ):
        if wanted and has not in wanted:
            raise UsageError(
                f"reservation {id} is of {what} {has}, and {' or '.join(wanted)} was asked for: leave one out"
            )
    if found.state in ("scheduled", "payment-pending", "pending"):
        begins = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.starts_at))
        raise NoCapacity(f"reservation {id} begins at {begins}: start the pool then")
    if found.state != "active":
        raise NoCapacity(
            f"reservation {id} is {found.state or 'in no state that EC2 tells'}: name another one"
        )
    if found.free < nodes:
        raise NoCapacity(
            f"reservation {id} has {found.free} of its {found.count} machines free, and {nodes} are wanted"
        )
    return Held(found)


async def _find(calls: Calls, regions: Sequence[str], id: str) -> Reservation:
    for region in regions:
        try:
            told = await calls.call(
                "ec2", region, "describe_capacity_reservations", CapacityReservationIds=[id]
            )
        except CallFailed as error:
            if not error.code.startswith("InvalidCapacityReservationId"):
                raise
            continue
        for each in told["CapacityReservations"]:
            return _of(each, region)
    raise UsageError(f"there is no reservation {id} in {' or '.join(regions)}: name the region that it is in")
