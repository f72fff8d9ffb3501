"""Availability zones and subnets, the network of the client, placement groups and the network topology."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_message
from skyward_core.model.machines import Machine
from skyward_core.providers.aws import ec2_errors, instance_tags
from skyward_core.providers.aws.boto_calls import AwsCalls, run_in_thread
from skyward_core.providers.aws.ec2_errors import CallFailed
from skyward_core.providers.aws.instance_lookup_and_end import with_node
from skyward_core.providers.aws.instance_offers import InstanceType
from skyward_core.providers.aws.launch_journal_and_keys import LaunchJournal
from skyward_core.providers.provider_calls import poll_until_empty
from skyward_core.store.debug_log import get_logger
from skyward_core.util.light_dataclass import Value, value

ADDRESS_URL = "https://checkip.amazonaws.com"
ADDRESS_TIMEOUT = 5.0  # seconds for its answer


@value
class Zone(Value):
    """A zone, and the subnet in it that machines get."""

    region: str
    zone: str
    subnet: str
    vpc: str


async def list_zones(
    calls: AwsCalls, region: str, *, subnet: str | None = None, zones: Sequence[str] = ()
) -> list[Zone]:
    """Where in a region machines may go, in order.

    Args:
        subnet: the only one; None for those of the default VPC.
        zones: the only ones, in this order; all where none is named.

    Raises:
        SkywardError: there is no such place; says what to do.
    """
    if subnet:
        told = await calls.call("ec2", region, "describe_subnets", SubnetIds=[subnet])
        found = told["Subnets"]
    else:
        filters = [{"Name": "default-for-az", "Values": ["true"]}]
        found = await calls.call_all("ec2", region, "describe_subnets", "Subnets", Filters=filters)
        if not found:
            raise ec2_errors.no_network_error(region)
    by_zone = {
        each["AvailabilityZone"]: Zone(region, each["AvailabilityZone"], each["SubnetId"], each["VpcId"])
        for each in found
    }
    if not zones:
        return [by_zone[zone] for zone in sorted(by_zone)]
    wanted = [by_zone[zone] for zone in zones if zone in by_zone]
    if not wanted:
        raise UsageError(f"region {region} has none of the zones {', '.join(zones)}; it has {', '.join(by_zone)}")
    return wanted


async def find_client_network(calls: AwsCalls, region: str) -> str:
    """The network that holds nothing but this client, as AWS sees it.

    Raises:
        PoolError: it cannot be told; says what to do.
    """
    return str(await run_in_thread(_query_client_address, calls, region))


def _query_client_address(calls: AwsCalls, region: str) -> str:
    import urllib.request  # late: a rank that reads a script asks nobody

    endpoint = calls.ec2_endpoint(region)
    host, port = urlsplit(endpoint).hostname or "", urlsplit(endpoint).port or 443
    try:
        if host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws")):
            with urllib.request.urlopen(ADDRESS_URL, timeout=ADDRESS_TIMEOUT) as answer:
                text = answer.read(100).decode("ascii").strip()
        else:  # EC2 is played by something near: it sees the address from which we speak to it
            with socket.create_connection((host, port), ADDRESS_TIMEOUT) as line:
                text = line.getsockname()[0]
        address = ipaddress.ip_address(text)
    except (OSError, ValueError) as error:
        raise PoolError(
            f"the address from which this machine reaches AWS cannot be told ({error}); give it, or a network that "
            'holds it: ssh_from="203.0.113.7/32"'
        ) from error
    return f"{address}/{address.max_prefixlen}"


_log = get_logger("provider")

REMOVAL_TIMEOUT = 45.0  # seconds for which a group that machines have only just left is tried to be removed
POLL_PAUSES = (0.3, 5.0)  # seconds between two tries, at first and at most
GROUP_NOT_FOUND = "InvalidPlacementGroup.Unknown"
MAX_TOPOLOGY_IDS = 100  # machines of one question about the network


async def create_placement_group(calls: AwsCalls, region: str, folder: LaunchJournal, name: str) -> None:
    """Have a pool's group in a region; it is written down first.

    Args:
        name: what the pool's things are called.

    Raises:
        SkywardError: it cannot be made.
    """
    folder.add("placement", region=region, name=name)
    marks = instance_tags.pool_tags(folder.pool, folder.token)
    try:
        await calls.call(
            "ec2", region, "create_placement_group", GroupName=name, Strategy="cluster",
            TagSpecifications=instance_tags.tag_specifications(["placement-group"], marks),
        )  # fmt: skip
    except CallFailed as error:
        if error.code != "InvalidPlacementGroup.Duplicate":
            folder.add("no placement", region=region, name=name)  # who may not make it may not remove it, either
            raise


async def remove_placement_groups(calls: AwsCalls, folder: LaunchJournal) -> None:
    """Remove a pool's groups, and see them gone.

    Raises:
        SkywardError: one is still there; says which.
    """
    kinds = ("placement", "no placement")
    last = {(each["region"], each["name"]): each["what"] for each in folder.notes() if each["what"] in kinds}
    for region, name in sorted(place for place, what in last.items() if what == "placement"):
        await remove_placement_group(calls, region, name)


async def remove_placement_group(calls: AwsCalls, region: str, name: str) -> None:
    """Remove one; machines that are ending may hold it for a while.

    Raises:
        SkywardError: it is still there; says why.
    """
    if reason := await poll_until_empty(lambda: _delete_group(calls, region, name), POLL_PAUSES, REMOVAL_TIMEOUT):
        raise PoolError(
            f"placement group {name} ({region}) is still there ({reason}); it costs nothing, and another `down` "
            "removes it"
        )


async def _delete_group(calls: AwsCalls, region: str, name: str) -> str:
    """Have a group removed; why it is there all the same, or ""."""
    try:
        await calls.call("ec2", region, "delete_placement_group", GroupName=name)
    except CallFailed as error:
        if error.code == GROUP_NOT_FOUND:
            return ""
        if error.code != "InvalidPlacementGroup.InUse":
            raise
        return "in use"
    left = await find_placement_groups(calls, region, [{"Name": "group-name", "Values": [name]}])
    return str(left[0]["State"]) if left else ""


async def find_placement_groups(
    calls: AwsCalls, region: str, filters: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The groups of a region that pass filters."""
    told = await calls.call("ec2", region, "describe_placement_groups", Filters=filters)
    return [each for each in told["PlacementGroups"] if each["State"] != "deleted"]


async def order_by_topology(calls: AwsCalls, machines: Sequence[Machine]) -> list[Machine]:
    """Machines of a region as nodes in the order of EC2's network, as far as it tells; else in the order given."""
    if len(machines) < 3:  # of two, each is the other's neighbour
        return list(machines)
    region = machines[0].extra["region"]
    paths: dict[str, tuple[str, ...]] = {}
    try:
        for at in range(0, len(machines), MAX_TOPOLOGY_IDS):
            ids = [each.id for each in machines[at : at + MAX_TOPOLOGY_IDS]]
            told = await calls.call("ec2", region, "describe_instance_topology", InstanceIds=ids)
            paths |= {each["InstanceId"]: tuple(each["NetworkNodes"]) for each in told["Instances"]}
    except SkywardError as error:  # it is as good a pool, only slower
        _log.debug("where machines stand in the network is not known: %s", error_message(error))
    return [with_node(each, node) for node, each in enumerate(sort_by_topology(machines, paths))]


def sort_by_topology(machines: Sequence[Machine], paths: Mapping[str, Sequence[str]]) -> list[Machine]:
    """Machines such that those below one node of the network follow one another, at each of its layers.

    Args:
        paths: by a machine's id the nodes above it, the farthest first; one that is not in it is nobody's neighbour.
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
    """What machines of a type have for speaking to one another and are not given, in words, for a plan."""
    if nodes < 2 or not (kind.efa or kind.cards > 1):
        return []
    cards = f"one of its {kind.cards} network cards" if kind.cards > 1 else "its network card"
    return [f"{kind.name} uses {cards}, without EFA: machines with several get no public address from AWS"]
