"""IAM permission checks with the documented policy, including its conditions on tags."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from .answers import Refused
from .request import Call
from .world import ACCOUNT, World

_PREFIX = "aws:ResourceTag/"
_FREE = ("sts", "iam")  # services that need no permission here


def check(world: World, call: Call) -> None:
    """Check a call against the account's policy, if there is one.

    A resource that does not exist, or does not exist any more, has no tags. A condition on its tags therefore fails.

    Raises:
        Refused: If no statement allows the call.
    """
    if world.rules.policy is None or call.service in _FREE:
        return
    action = f"{call.service}:{call.action}"
    allowed = all(_allows(world, action, _keys(world, call, name)) for name in _resources(call) or [""])
    if any(name.startswith("TagSpecification.") for name in call.params):
        allowed = allowed and _allows(world, "ec2:CreateTags", {"ec2:CreateAction": call.action})
    if not allowed:
        raise denied(call)


def denied(call: Call) -> Refused:
    """Return the refusal of a call without permission."""
    user = f"arn:aws:iam::{ACCOUNT}:user/bed is not authorized to perform: {call.service}:{call.action}"
    if call.service == "ec2":
        return Refused("UnauthorizedOperation", f"You are not authorized to perform this operation. User: {user}")
    return Refused("AccessDenied" if call.service in _FREE else "AccessDeniedException", f"User: {user}")


def _allows(world: World, action: str, keys: dict[str, str]) -> bool:
    statements = (world.rules.policy or {})["Statement"]
    return any(action in each["Action"] and _holds(each.get("Condition", {}), keys) for each in statements)


def _holds(condition: dict[str, Any], keys: dict[str, str]) -> bool:
    for allowed in condition.values():  # StringEquals and StringLike
        for key, patterns in allowed.items():
            patterns = [patterns] if isinstance(patterns, str) else patterns
            if key not in keys or not any(fnmatchcase(keys[key], each) for each in patterns):
                return False
    return True


def _resources(call: Call) -> list[str]:
    """Return the existing resources that a call names."""
    match call.action:
        case "TerminateInstances":
            return call.many("InstanceId")
        case "CreateTags":
            return call.many("ResourceId")
        case "DeleteKeyPair":
            return [call.params["KeyName"]]
        case "DeletePlacementGroup":
            return [call.params["GroupName"]]
        case "DeleteVolume":
            return [call.params["VolumeId"]]
    return [call.params["GroupId"]] if "GroupId" in call.params else []


def _keys(world: World, call: Call, name: str) -> dict[str, str]:
    return {f"{_PREFIX}{each['key']}": each["value"] for each in _tags(world, call, name)}


def _tags(world: World, call: Call, name: str) -> list[dict[str, str]]:
    from moto.ec2.models import ec2_backends

    if name in world.machines:
        machine = world.machines[name]
        return machine.instance.get_tags() if machine.is_visible else []  # type: ignore[no-any-return]
    if call.action == "DeletePlacementGroup":
        return world.groups.get((call.region, name), {}).get("tagSet", [])  # type: ignore[no-any-return]
    backend = ec2_backends[ACCOUNT][call.region]
    found = backend.key_pairs.get(name) or backend.volumes.get(name) or backend.get_security_group_from_id(name)
    return [] if found is None else found.get_tags()
