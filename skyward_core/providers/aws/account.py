"""All that carries our tags in an account: looked for in a few calls for each region, and ended by its ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ...model.errors import SkywardError, UsageError, what_of
from ...model.leftover import Inventory, Leftover
from ...model.machine import Machine
from ...wire.safe_text import field as safe
from . import belongings, placement, tags
from . import machines as rented
from .calls import Calls
from .failure_scope import is_of_region

OURS = [{"Name": "tag-key", "Values": [tags.LEDGER]}]
ALIVE = ["pending", "running", "stopping", "stopped"]
ENDED_IN = 300.0  # seconds in which EC2 says that machines have ended
PAUSES = (0.2, 5.0)
NO_REGION = 'no AWS region is named: region="us-east-1", or AWS_REGION, or that of a profile'


def each(
    used: Iterable[tuple[str | None, str | None, Sequence[str] | None]],
) -> Iterator[tuple[str | None, str | None, tuple[str, ...] | None]]:
    """Accounts, by profile and endpoint, each once with all regions that were named; one for which none was is that of
    environment or profile, and has an entry of its own."""
    found: dict[tuple[str | None, str | None], dict[str | None, None]] = {}
    for profile, endpoint, places in used:
        found.setdefault((profile, endpoint), {}).update(dict.fromkeys(places or (None,)))
    for (profile, endpoint), there in found.items():
        if named := tuple(filter(None, there)):
            yield profile, endpoint, named
        if None in there:
            yield profile, endpoint, None


async def number(calls: Calls, regions: Sequence[str]) -> str:
    """The account's number, from the first of these regions that tells it.

    Raises:
        SkywardError: none does.
    """
    why: SkywardError | None = None
    for region in regions:
        try:
            told = await calls.call("sts", region, "get_caller_identity")
        except SkywardError as error:
            why = why or error
            if not is_of_region(error):
                break
        else:
            return str(told["Account"])
    raise why or UsageError(NO_REGION)


async def regions(calls: Calls, home: str) -> list[str]:
    """All that the account uses."""
    told = await calls.call("ec2", home, "describe_regions")
    return sorted(each["RegionName"] for each in told["Regions"])


async def look(calls: Calls, places: Sequence[str]) -> Inventory:
    """What is there; reads only. A region that cannot be asked is named."""
    found = await asyncio.gather(*(_region(calls, each) for each in places), return_exceptions=True)
    things: list[Leftover] = []
    unknown = {}
    for place, each in zip(places, found, strict=True):
        if isinstance(each, SkywardError):
            unknown[place] = what_of(each)
        elif isinstance(each, BaseException):
            raise each
        else:
            things += each
    return Inventory(tuple(things), unknown)


async def _region(calls: Calls, region: str) -> list[Leftover]:
    alive = [*OURS, {"Name": "instance-state-name", "Values": ALIVE}]
    loose = [*OURS, {"Name": "status", "Values": ["available"]}]
    instances, disks, groups, keys, placements = await asyncio.gather(
        rented.described(calls, region, alive),
        calls.call_all("ec2", region, "describe_volumes", "Volumes", Filters=loose, MaxResults=rented.PAGE),
        calls.call_all("ec2", region, "describe_security_groups", "SecurityGroups", Filters=OURS),
        calls.call_all("ec2", region, "describe_key_pairs", "KeyPairs", Filters=OURS),
        placement.groups(calls, region, OURS),
    )
    return [
        *(_thing("instance", each["InstanceId"], region, each) for each in instances.values()),
        *(_thing("disk", each["VolumeId"], region, each) for each in disks),
        *(_thing("security group", each["GroupId"], region, each) for each in groups),
        *(_thing("key pair", each["KeyName"], region, each) for each in keys),
        *(_thing("placement group", each["GroupName"], region, each) for each in placements),
    ]


def _thing(what: str, id: str, place: str, told: Mapping[str, Any]) -> Leftover:
    marks = {
        key: safe(text) for key, text in tags.read(told).items()
    }  # anybody of the account may write them
    made = told.get("LaunchTime") or told.get("CreateTime")
    ledger = marks.get(tags.LEDGER, "")
    is_machine = what == "instance"
    return Leftover(
        what, id, place, marks.get(tags.POOL, ""), marks.get(tags.TOKEN, ""), ledger,
        ours=bool(ledger) and ledger == tags.known_ledger_id(), owner=marks.get(tags.OWNER, ""),
        is_machine=is_machine, since=made.timestamp() if isinstance(made, datetime) else None,
        expires=tags.expires(marks), hourly=tags.hourly(marks) if is_machine else None,
    )  # fmt: skip


async def remove(calls: Calls, things: Iterable[Leftover]) -> list[str]:
    """End them, machines first, and see them gone; gives what is left, in words."""
    left = []
    by_region: dict[str, list[Leftover]] = {}
    for each in things:
        by_region.setdefault(each.place, []).append(each)
    for region, here in by_region.items():
        try:
            await _end(calls, region, [each.id for each in here if each.is_machine])
        except SkywardError as error:
            left += [_remains(each, error) for each in here]
            continue
        for each in here:
            try:
                await _remove(calls, region, each)
            except SkywardError as error:
                left.append(_remains(each, error))
    return left


def _remains(thing: Leftover, error: SkywardError) -> str:
    return f"{thing.what} {thing.id} ({thing.place}): {what_of(error)}"


async def _end(calls: Calls, region: str, ids: Sequence[str]) -> None:
    """Have machines ended.

    Raises:
        SkywardError: EC2 did not say in time that they have.
    """
    if not ids:
        return
    await rented.terminate(calls, [Machine(id, 0, "", "", extra={"region": region}) for id in ids])
    deadline, pause = time.monotonic() + ENDED_IN, PAUSES[0]
    while True:
        seen = await rented.instances(calls, region, ids)
        going = [id for id, each in seen.items() if each["State"]["Name"] not in rented.ENDED]
        if not going:
            return
        if time.monotonic() > deadline:
            raise SkywardError(f"EC2 has not said within {ENDED_IN:g} s that {', '.join(going)} ended")
        await asyncio.sleep(pause)
        pause = min(PAUSES[1], pause * 1.5)


async def _remove(calls: Calls, region: str, thing: Leftover) -> None:
    match thing.what:
        case "disk":
            await calls.call("ec2", region, "delete_volume", VolumeId=thing.id)
        case "security group":
            await belongings.remove_group(calls, region, thing.id, f"of pool {thing.pool}")
        case "placement group":
            await placement.remove_group(calls, region, thing.id)
        case "key pair":
            await calls.call("ec2", region, "delete_key_pair", KeyName=thing.id)
