"""What a pool has in a region beside its machines: a security group and a key pair. They are called by the pool's name
and token, so that making them again makes nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ...model.errors import PoolError
from ...model.value import Value, value
from . import tags
from .appearing import NO_GROUP, once_known
from .calls import Calls
from .failures import CallFailed
from .host_keys import KeyPair
from .network import Zone
from .pool_folder import PoolFolder

LINGERS = 45.0  # seconds for which a group that machines have only just left is tried to be removed
PAUSES = (0.5, 5.0)  # seconds between two tries, at first and at most


@value
class Belongings(Value):
    """Of one region: the key pair's name, and the group's id."""

    key: str
    group: str


def name_of(folder: PoolFolder) -> str:
    """What a pool's group and key pair are called."""
    return f"skyward-{folder.pool}-{folder.token}"


async def make(
    calls: Calls, place: Zone, folder: PoolFolder, login: KeyPair, own_address: str, group: str | None
) -> Belongings:
    """Have them there.

    Args:
        login: the key that opens the pool's machines.
        own_address: the network from which SSH is let in.
        group: one of the person's own, in place of one of the pool's.

    Raises:
        SkywardError: one cannot be made.
    """
    region, name = place.region, name_of(folder)
    marks = tags.of_pool(folder.pool, folder.token)
    folder.note("belongings", region=region, vpc=place.vpc, group="" if group else name, key=name)
    try:
        await calls.call(
            "ec2", region, "import_key_pair",
            KeyName=name, PublicKeyMaterial=login.public.encode(),
            TagSpecifications=tags.specification(["key-pair"], marks),
        )  # fmt: skip
    except CallFailed as error:
        if error.code != "InvalidKeyPair.Duplicate":
            raise
    if group:
        return Belongings(name, group)
    found = await _group(calls, place, name, marks)
    # Machines of the pool speak to one another without limit, both ways said by name as some network cards want it.
    within = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": found}]}]
    network = {"CidrIpv6": own_address} if ":" in own_address else {"CidrIp": own_address}
    kind = "Ipv6Ranges" if ":" in own_address else "IpRanges"
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, kind: [network | {"Description": "its client"}]}
    await _allow(calls, region, "authorize_security_group_ingress", found, [*within, ssh])
    await _allow(calls, region, "authorize_security_group_egress", found, within)
    return Belongings(name, found)


async def _group(calls: Calls, place: Zone, name: str, marks: dict[str, str]) -> str:
    try:
        made = await calls.call(
            "ec2", place.region, "create_security_group",
            GroupName=name, Description="machines of one skyward pool", VpcId=place.vpc,
            TagSpecifications=tags.specification(["security-group"], marks),
        )  # fmt: skip
    except CallFailed as error:
        if error.code != "InvalidGroup.Duplicate":
            raise
        return await once_known(NO_GROUP, lambda: _made_before(calls, place, name))
    return str(made["GroupId"])


async def _made_before(calls: Calls, place: Zone, name: str) -> str:
    """A group that EC2 says is there: by a call of which nobody heard, say."""
    found = await _groups(calls, place.region, name, place.vpc)
    if not found:
        raise CallFailed(
            f"EC2 in {place.region} does not show security group {name}, which it has", NO_GROUP[0]
        )
    return found[0]


async def _groups(calls: Calls, region: str, name: str, vpc: str) -> list[str]:
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}]
    told = await calls.call_all("ec2", region, "describe_security_groups", "SecurityGroups", Filters=filters)
    return [each["GroupId"] for each in told]


async def _allow(calls: Calls, region: str, action: str, group: str, rules: list[dict[str, Any]]) -> None:
    try:
        await once_known(
            NO_GROUP, lambda: calls.call("ec2", region, action, GroupId=group, IpPermissions=rules)
        )
    except CallFailed as error:
        if error.code != "InvalidPermission.Duplicate":
            raise
        if len(rules) > 1:  # of several none is taken where one is there
            for rule in rules:
                await _allow(calls, region, action, group, [rule])


async def remove(calls: Calls, folder: PoolFolder) -> None:
    """Remove all that was made for a pool in any region, and see it gone.

    Raises:
        SkywardError: something is still there; says what.
    """
    noted = {(each["region"], each["vpc"]): each for each in folder.notes() if each["what"] == "belongings"}
    for (region, vpc), each in noted.items():
        await calls.call("ec2", region, "delete_key_pair", KeyName=each["key"])
        if each["group"]:
            for group in await _groups(calls, region, each["group"], vpc):
                await remove_group(calls, region, group, each["group"])


async def remove_group(calls: Calls, region: str, group: str, name: str) -> None:
    """Remove one; machines that have ended may hold it for a while by their network cards.

    Raises:
        SkywardError: it is still there; says why.
    """
    deadline, pause = time.monotonic() + LINGERS, PAUSES[0]
    while True:
        try:
            await calls.call("ec2", region, "delete_security_group", GroupId=group)
        except CallFailed as error:
            if error.code in NO_GROUP:
                return
            if error.code != "DependencyViolation":
                raise
            if time.monotonic() + pause > deadline:
                raise PoolError(
                    f"security group {name} ({group}, {region}) is still in use; it costs nothing, and another `down` "
                    "removes it"
                ) from error
            await asyncio.sleep(pause)
            pause = min(PAUSES[1], pause * 2)
        else:
            return
