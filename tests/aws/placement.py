"""Placement groups, and the network topology of machines."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from .answers import Answer, Refused, as_xml
from .request import Call
from .world import ACCOUNT, World

_GONE = ("terminated",)


def create_group(world: World, call: Call) -> Answer:
    name = call.params["GroupName"]
    if (call.region, name) in world.groups:
        raise Refused("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    number = f"pg-0{uuid4().hex[:16]}"
    tags = [{"key": key, "value": value} for key, value in _tags(call).items()]
    world.groups[call.region, name] = {
        "groupName": name,
        "state": "available",
        "strategy": call.params.get("Strategy", "cluster"),
        "groupId": number,
        "groupArn": f"arn:aws:ec2:{call.region}:{ACCOUNT}:placement-group/{name}",
        "tagSet": tags,
    }
    return as_xml(call.action, {"placementGroup": world.groups[call.region, name]})


def delete_group(world: World, call: Call) -> Answer:
    name = call.params["GroupName"]
    if (call.region, name) not in world.groups:
        raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    if any(
        m.order.group == name and m.order.region == call.region and m.state not in _GONE
        for m in world.machines.values()
    ):
        raise Refused("InvalidPlacementGroup.InUse", f"The placement group {name} is in use and may not be deleted.")
    del world.groups[call.region, name]
    return as_xml(call.action, {"return": True})


def describe_groups(world: World, call: Call) -> Answer:
    mine = {name: group for (region, name), group in world.groups.items() if region == call.region}
    names = call.many("GroupName")
    for name in names:
        if name not in mine:
            raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    found = [group for name, group in mine.items() if not names or name in names]
    for name, values in call.filters():
        found = [group for group in found if _values(group, name) & set(values)]
    return as_xml(call.action, {"placementGroupSet": found})


def topology(world: World, call: Call) -> Answer:
    """Return three layers of network nodes. Machines of a group share two layers, and every second one the third."""
    ids, groups = call.many("InstanceId"), call.many("GroupName")
    found = []
    for machine in world.machines.values():
        order = machine.order
        if machine.state != "running" or order.region != call.region or not order.has_gpus:
            continue
        if (ids and machine.id not in ids) or (groups and order.group not in groups):
            continue
        place = order.group or machine.id
        found.append(
            {
                "instanceId": machine.id,
                "instanceType": order.type,
                "groupName": order.group or None,
                "networkNodeSet": [f"nn-{order.zone}", f"nn-{place}", f"nn-{place}-{order.index % 2}"],
                "availabilityZone": order.zone,
            }
        )
    return as_xml(call.action, {"instanceSet": found})


def _values(group: dict[str, Any], name: str) -> set[str]:
    if name == "tag-key":
        return {tag["key"] for tag in group["tagSet"]}
    if name.startswith("tag:"):
        return {tag["value"] for tag in group["tagSet"] if tag["key"] == name[4:]}
    known = {"group-name": group["groupName"], "state": group["state"], "strategy": group["strategy"]}
    return {known[name]} if name in known else set()


def _tags(call: Call) -> dict[str, str]:
    params, tags = call.params, {}
    for number in range(1, 51):
        if (key := params.get(f"TagSpecification.1.Tag.{number}.Key")) is not None:
            tags[key] = params.get(f"TagSpecification.1.Tag.{number}.Value", "")
    return tags
