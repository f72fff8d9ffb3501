"""Capacity blocks: machines bought in advance for some hours and paid at once. A purchase has no idempotency token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

from .answers import Answer, Refused, as_xml
from .prices import on_demand
from .request import Call
from .world import World

_SOLD = ("p4d.", "p4de.", "p5.", "p5e.", "p5en.", "trn1.", "trn2.")
_DISCOUNT = 0.6
_ZONES = ("a", "b")


def offerings(world: World, call: Call) -> Answer:
    """Return two offerings for a request: for tomorrow, and for the day after."""
    kind = call.params.get("InstanceType", "")
    count, hours = int(call.params.get("InstanceCount", 1)), int(call.params["CapacityDurationHours"])
    if hours % 24:
        raise Refused("InvalidParameterValue", "The capacity duration hours must be a multiple of 24.")
    found = [_offering(call.region, kind, count, hours, day) for day in (1, 2)] if kind.startswith(_SOLD) else []
    for offering in found:
        world.offerings[offering["capacityBlockOfferingId"]] = offering
    return as_xml(call.action, {"capacityBlockOfferingSet": found})


def _offering(region: str, kind: str, count: int, hours: int, day: int) -> dict[str, Any]:
    start = datetime.now(UTC).replace(hour=11, minute=30, second=0, microsecond=0) + timedelta(days=day)
    return {
        "capacityBlockOfferingId": f"cb-0{_name(region, kind, count, hours, start)}",
        "instanceType": kind,
        "availabilityZone": region + _ZONES[day % 2],
        "instanceCount": count,
        "startDate": start.isoformat(),
        "endDate": (start + timedelta(hours=hours)).isoformat(),
        "capacityBlockDurationHours": hours,
        "upfrontFee": f"{on_demand(kind, region) * _DISCOUNT * count * hours:.2f}",
        "currencyCode": "USD",
        "tenancy": "default",
    }


def _name(*offered: Any) -> str:
    """Return the id of an offering, which is the same for as long as the offering is sold."""
    return sha256(repr(offered).encode()).hexdigest()[:16]


def purchase(world: World, call: Call) -> Answer:
    """Buy a block. Each call is a separate purchase."""
    offering = world.offerings.get(call.params["CapacityBlockOfferingId"])
    if offering is None:
        raise Refused("InvalidParameterValue", "The Capacity Block offering does not exist or has expired.")
    reservation = {
        "capacityReservationId": f"cr-0{uuid4().hex[:16]}",
        "instanceType": offering["instanceType"],
        "instancePlatform": call.params["InstancePlatform"],
        "availabilityZone": offering["availabilityZone"],
        "totalInstanceCount": offering["instanceCount"],
        "availableInstanceCount": offering["instanceCount"],
        "state": "active",
        "startDate": offering["startDate"],
        "endDate": offering["endDate"],
        "endDateType": "limited",
        "reservationType": "capacity-block",
        "tagSet": _tags(call),
    }
    world.reservations[call.region, reservation["capacityReservationId"]] = reservation
    return as_xml(call.action, {"capacityReservation": reservation})


def _tags(call: Call) -> list[dict[str, str]]:
    """Return the tags for the reservation."""
    name = "TagSpecification.1.Tag"
    found: list[dict[str, str]] = []
    while (key := call.params.get(f"{name}.{len(found) + 1}.Key")) is not None:
        found.append({"key": key, "value": call.params[f"{name}.{len(found) + 1}.Value"]})
    return found


def describe_reservations(world: World, call: Call) -> Answer:
    mine = {name: each for (region, name), each in world.reservations.items() if region == call.region}
    ids = call.many("CapacityReservationId")
    for name in ids:
        if name not in mine:
            raise Refused(
                "InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{name}' does not exist"
            )
    found = [mine[name] for name in ids or mine]
    for name, values in call.filters():
        key = name.removeprefix("tag:")
        found = [each for each in found if any(tag["key"] == key and tag["value"] in values for tag in each["tagSet"])]
    return as_xml(call.action, {"capacityReservationSet": found})


def check(world: World, call: Call) -> None:
    """Check that a launch into a reservation names an existing one of its type.

    Raises:
        Refused: If it does not exist, or is of another type.
    """
    name = call.params.get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId")
    is_block = call.params.get("InstanceMarketOptions.MarketType") == "capacity-block"
    if name is None:
        if is_block:
            raise Refused("InvalidParameterCombination", "A Capacity Block takes a capacity reservation ID.")
        return
    reservation = world.reservations.get((call.region, name))
    if reservation is None:
        raise Refused("InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{name}' does not exist")
    if reservation["instanceType"] != call.params.get("InstanceType"):
        raise Refused("InvalidParameterValue", f"The capacity reservation '{name}' is for another instance type.")
    if reservation["availableInstanceCount"] < int(call.params["MinCount"]):
        raise Refused("ReservationCapacityExceeded", "The requested reservation has too few machines.")
