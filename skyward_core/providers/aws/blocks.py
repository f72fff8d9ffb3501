"""Capacity Blocks: machines that are bought ahead, paid at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...model.errors import UsageError
from ...model.offer import Block
from .calls import Calls
from .failures import CallFailed, CapacityRefused
from .kinds import Kind

DAY = 24  # hours: blocks are sold by days


async def blocks(
    calls: Calls, provider: str, region: str, kinds: Sequence[Kind], nodes: int, hours: int
) -> list[Block]:
    """What is sold in a region now, the earliest first.

    Raises:
        UsageError: none is sold for so long.
        SkywardError: it cannot be told.
    """
    if hours < DAY or hours % DAY:
        raise UsageError(f"Capacity Blocks are sold by days: {DAY} hours, {2 * DAY}, and so on, not {hours}")
    found = await asyncio.gather(
        *(_of_type(calls, provider, region, kind.name, nodes, hours) for kind in kinds)
    )
    return sorted(
        (each for some in found for each in some), key=lambda block: (block.starts_at, block.upfront)
    )


async def still_sold(calls: Calls, block: Block) -> Block | None:
    """A block that was listed earlier, as it is sold now.

    Raises:
        SkywardError: it cannot be told.
    """
    found = await _of_type(calls, block.provider, block.region, block.instance_type, block.count, block.hours)
    return next((each for each in found if each.id == block.id), None)


async def _of_type(
    calls: Calls, provider: str, region: str, instance_type: str, nodes: int, hours: int
) -> list[Block]:
    try:
        told = await calls.call_all(
            "ec2", region, "describe_capacity_block_offerings", "CapacityBlockOfferings",
            InstanceType=instance_type, InstanceCount=nodes, CapacityDurationHours=hours,
        )  # fmt: skip
    except (CallFailed, CapacityRefused, UsageError) as error:
        code = getattr(error, "code", "InvalidParameterValue")
        if not code.startswith(("Invalid", "Unsupported")):
            raise
        return []  # of most types there are none to be bought
    return [
        Block(
            provider=provider,
            id=each["CapacityBlockOfferingId"],
            instance_type=each["InstanceType"],
            region=region,
            zone=each.get("AvailabilityZone", ""),
            count=each["InstanceCount"],
            hours=each["CapacityBlockDurationHours"],
            starts_at=each["StartDate"].timestamp(),
            upfront=float(each["UpfrontFee"]),
        )
        for each in told
        if each.get("CurrencyCode", "USD") == "USD"
    ]
