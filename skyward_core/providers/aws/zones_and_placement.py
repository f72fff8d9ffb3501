"""Availability zones and subnets, placement groups and the network topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_message
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.providers.aws import ec2_errors, instance_tags_and_launch_journal
from skyward_core.providers.aws.boto_calls import AwsCalls
from skyward_core.providers.aws.ec2_errors import CallFailed
from skyward_core.providers.aws.instance_tags_and_launch_journal import LaunchJournal, machine_folder
from skyward_core.providers.aws.offers_and_images import InstanceType
from skyward_core.providers.provider_call_logs_polling_and_cache import poll_until_empty
from skyward_core.store.debug_log import get_logger
from skyward_core.util.light_dataclass import Value, value


@value
class Zone(Value):
    """An availability zone and the subnet in which machines of this zone are started."""

    region: str
    zone: str
    subnet: str
    vpc: str


async def list_zones(
    calls: AwsCalls, region: str, *, subnet: str | None = None, zones: Sequence[str] = ()
) -> list[Zone]:
    """Return the usable zones of a region, in order of preference.

    Args:
        subnet: The only subnet; None for the subnets of the default VPC.
        zones: The only zones, in this order; empty for all.

    Raises:
        SkywardError: If there is no such zone. The message has a remedy.
    """
    if subnet:
        found = (await calls.call("ec2", region, "describe_subnets", SubnetIds=[subnet]))["Subnets"]
    else:
        filters = [{"Name": "default-for-az", "Values": ["true"]}]
        found = await calls.call_all("ec2", region, "describe_subnets", "Subnets", Filters=filters)
        if not found:
            raise ec2_errors.no_network_error(region)
    if not (found := [each for each in found if not each.get("Ipv6Native")]):
        raise UsageError(f"subnet {subnet or region} has IPv6 addresses only: choose a subnet with IPv4 addresses")
    by_zone = {
        each["AvailabilityZone"]: Zone(region, each["AvailabilityZone"], each["SubnetId"], each["VpcId"])
        for each in found
    }
    if not zones:
        return [by_zone[zone] for zone in sorted(by_zone)]
    listed = [by_zone[zone] for zone in zones if zone in by_zone]
    if not listed:
        raise UsageError(f"region {region} has none of the zones {', '.join(zones)}; it has {', '.join(by_zone)}")
    return listed


_log = get_logger("provider")

REMOVAL_TIMEOUT = 45.0  # seconds for removing a placement group, which machines that are shutting down may still use
POLL_PAUSES = (0.3, 5.0)  # first and longest pause between two attempts or queries, in seconds
MAX_TOPOLOGY_IDS = 100  # maximum instances per query of the network topology


async def create_placement_group(calls: AwsCalls, region: str, folder: LaunchJournal, name: str) -> None:
    """Create a pool's placement group in a region, recording it in the journal first.

    Args:
        name: Name of the group.

    Raises:
        SkywardError: If the group cannot be created.
    """
    folder.add("placement", region=region, name=name)
    marks = instance_tags_and_launch_journal.pool_tags(folder.pool, folder.token)
    try:
        await calls.call(
            "ec2", region, "create_placement_group", GroupName=name, Strategy="cluster",
            TagSpecifications=instance_tags_and_launch_journal.tag_specifications(["placement-group"], marks),
        )  # fmt: skip
    except CallFailed as error:
        if error.code != "InvalidPlacementGroup.Duplicate":
            # Record the failed creation, so that the teardown does not try to remove this group, which might be denied
            # as well.
            folder.add("no placement", region=region, name=name)
            raise


async def remove_placement_groups(calls: AwsCalls, folder: LaunchJournal) -> None:
    """Remove a pool's placement groups, and wait until they are gone.

    Raises:
        SkywardError: If a group still exists. The message names the group.
    """
    kinds = ("placement", "no placement")
    last = {(each["region"], each["name"]): each["what"] for each in folder.notes() if each["what"] in kinds}
    for region, name in sorted(place for place, what in last.items() if what == "placement"):
        await remove_placement_group(calls, region, name)


async def remove_placement_group(calls: AwsCalls, region: str, name: str) -> None:
    """Remove a placement group, waiting for machines that are ending to release the group.

    Raises:
        SkywardError: If the group still exists. The message has the reason.
    """
    if reason := await poll_until_empty(lambda: _delete_group(calls, region, name), POLL_PAUSES, REMOVAL_TIMEOUT):
        raise PoolError(
            f"placement group {name} ({region}) is still there ({reason}). It costs nothing. Run `down` again "
            "to remove it"
        )


async def _delete_group(calls: AwsCalls, region: str, name: str) -> str:
    """Try to delete a group; return the reason why it still exists, or ""."""
    find = partial(find_placement_groups, calls, region, [{"Name": "group-name", "Values": [name]}])
    delete = partial(calls.call, "ec2", region, "delete_placement_group", GroupName=name)
    try:
        await ec2_errors.delete_unless_gone(delete, find)
    except CallFailed as error:
        if error.code != "InvalidPlacementGroup.InUse":
            raise
        return "in use"
    # EC2's answer may be outdated and still show the group as available.
    return "deleting" if any(each["State"] == "deleting" for each in await find()) else ""


async def find_placement_groups(
    calls: AwsCalls, region: str, filters: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the placement groups of a region that match filters."""
    answer = await calls.call("ec2", region, "describe_placement_groups", Filters=filters)
    return [each for each in answer["PlacementGroups"] if each["State"] != "deleted"]


async def order_by_topology(calls: AwsCalls, machines: Sequence[Machine]) -> list[Machine]:
    """Return the machines of a region, numbered in the order of EC2's network topology.

    Without topology data, the given order is kept.
    """
    if len(machines) < 3:  # with one or two machines, the order has no effect on their distance
        return list(machines)
    region = machines[0].extra["region"]
    paths: dict[str, tuple[str, ...]] = {}
    try:
        for at in range(0, len(machines), MAX_TOPOLOGY_IDS):
            ids = [each.id for each in machines[at : at + MAX_TOPOLOGY_IDS]]
            answer = await calls.call("ec2", region, "describe_instance_topology", InstanceIds=ids)
            paths |= {each["InstanceId"]: tuple(each["NetworkNodes"]) for each in answer["Instances"]}
    except SkywardError as error:  # continue in the given order, because the order only affects speed
        _log.debug("cannot determine the network topology: %s", error_message(error))
    return [_with_node(each, node) for node, each in enumerate(sort_by_topology(machines, paths))]


def _with_node(machine: Machine, node: int) -> Machine:
    """Return a machine that no node uses yet, with another node index."""
    extra = machine.extra
    folder = machine_folder(extra["folder"].partition(".")[0], extra["token"], node, machine.id)
    return replace(machine, node=node, extra=extra | {"folder": folder})


def sort_by_topology(machines: Sequence[Machine], paths: Mapping[str, Sequence[str]]) -> list[Machine]:
    """Sort machines so that machines below the same network node are consecutive, at each layer.

    Args:
        paths: By machine id, the network nodes above the machine, the most distant first. A machine without an entry
            has no neighbors.
    """
    own = {each.id: tuple(paths.get(each.id) or (each.id,)) for each in machines}
    first: dict[tuple[str, ...], int] = {}
    for index, each in enumerate(machines):
        for depth in range(1, len(own[each.id]) + 1):
            first.setdefault(own[each.id][:depth], index)

    def key(machine: Machine) -> list[int]:
        path = own[machine.id]
        return [first[path[:depth]] for depth in range(1, len(path) + 1)]

    return sorted(machines, key=key)


def unused_network_notes(kind: InstanceType, nodes: int) -> list[str]:
    """Return notes for a plan about network features of a type that the machines do not use."""
    if nodes < 2 or not (kind.efa or kind.cards > 1):
        return []
    cards = f"one of its {kind.cards} network cards" if kind.cards > 1 else "its network card"
    return [f"{kind.name} uses {cards}, without EFA: machines with several get no public address from AWS"]
