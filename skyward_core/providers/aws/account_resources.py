"""Resources of ours in an account: found, checked, removed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from skyward_core.model.errors import (
    CredentialsRefused,
    PoolError,
    SkywardError,
    Unreachable,
    UsageError,
    error_hint,
    error_message,
)
from skyward_core.model.machines import Check, Inventory, Leftover, Machine
from skyward_core.providers.aws import instance_lookup_and_end, instance_tags, zones_and_placement
from skyward_core.providers.aws.boto_calls import AwsCalls
from skyward_core.providers.aws.ec2_errors import (
    DENIED_CODES,
    GROUP_NOT_FOUND,
    CallFailed,
    is_region_failure,
    retry_while,
)
from skyward_core.providers.aws.launch_journal_and_keys import KeyPair, LaunchJournal
from skyward_core.providers.aws.zones_and_placement import Zone
from skyward_core.providers.pool_key_folder import known_ledger_id
from skyward_core.providers.provider_calls import poll_until_empty
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.util.user_files import expand_user, is_file

REMOVAL_TIMEOUT = 45.0  # seconds for which a group that machines have only just left is tried to be removed
REMOVAL_PAUSES = (0.5, 5.0)  # seconds between two tries, at first and at most


@value
class SecurityResources(Value):
    """Of one region: the key pair's name, and the group's id."""

    key: str
    group: str


def resource_name(folder: LaunchJournal) -> str:
    """What a pool's group and key pair are called."""
    return f"skyward-{folder.pool}-{folder.token}"


async def create_security_resources(
    calls: AwsCalls, place: Zone, folder: LaunchJournal, login: KeyPair, own_address: str, group: str | None
) -> SecurityResources:
    """Have them there.

    Args:
        login: the key that opens the pool's machines.
        own_address: the network from which SSH is let in.
        group: one of the person's own, in place of one of the pool's.

    Raises:
        SkywardError: one cannot be made.
    """
    region, name = place.region, resource_name(folder)
    marks = instance_tags.pool_tags(folder.pool, folder.token)
    folder.add("belongings", region=region, vpc=place.vpc, group="" if group else name, key=name)
    try:
        await calls.call(
            "ec2", region, "import_key_pair",
            KeyName=name, PublicKeyMaterial=login.public.encode(),
            TagSpecifications=instance_tags.tag_specifications(["key-pair"], marks),
        )  # fmt: skip
    except CallFailed as error:
        if error.code != "InvalidKeyPair.Duplicate":
            raise
    if group:
        return SecurityResources(name, group)
    found = await _ensure_group(calls, place, name, marks)
    # Machines of the pool speak to one another without limit, both ways said by name as some network cards want it.
    within = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": found}]}]
    cidr = {"CidrIpv6": own_address} if ":" in own_address else {"CidrIp": own_address}
    kind = "Ipv6Ranges" if ":" in own_address else "IpRanges"
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, kind: [cidr | {"Description": "its client"}]}
    await _authorize(calls, region, "authorize_security_group_ingress", found, [*within, ssh])
    await _authorize(calls, region, "authorize_security_group_egress", found, within)
    return SecurityResources(name, found)


async def _ensure_group(calls: AwsCalls, place: Zone, name: str, marks: dict[str, str]) -> str:
    try:
        made = await calls.call(
            "ec2", place.region, "create_security_group",
            GroupName=name, Description="machines of one skyward pool", VpcId=place.vpc,
            TagSpecifications=instance_tags.tag_specifications(["security-group"], marks),
        )  # fmt: skip
    except CallFailed as error:
        if error.code != "InvalidGroup.Duplicate":
            raise
        return await retry_while(GROUP_NOT_FOUND, lambda: _find_existing_group(calls, place, name))
    return str(made["GroupId"])


async def _find_existing_group(calls: AwsCalls, place: Zone, name: str) -> str:
    """A group that EC2 says is there: by a call of which nobody heard, say."""
    found = await _find_groups(calls, place.region, name, place.vpc)
    if not found:
        raise CallFailed(f"EC2 in {place.region} does not show security group {name}, which it has", GROUP_NOT_FOUND[0])
    return found[0]


async def _find_groups(calls: AwsCalls, region: str, name: str, vpc: str) -> list[str]:
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}]
    told = await calls.call_all("ec2", region, "describe_security_groups", "SecurityGroups", Filters=filters)
    return [each["GroupId"] for each in told]


async def _authorize(calls: AwsCalls, region: str, action: str, group: str, rules: list[dict[str, Any]]) -> None:
    try:
        await retry_while(
            GROUP_NOT_FOUND, lambda: calls.call("ec2", region, action, GroupId=group, IpPermissions=rules)
        )
    except CallFailed as error:
        if error.code != "InvalidPermission.Duplicate":
            raise
        if len(rules) > 1:  # of several none is taken where one is there
            for rule in rules:
                await _authorize(calls, region, action, group, [rule])


async def remove_security_resources(calls: AwsCalls, folder: LaunchJournal) -> None:
    """Remove all that was made for a pool in any region, and see it gone.

    Raises:
        SkywardError: something is still there; says what.
    """
    noted = {(each["region"], each["vpc"]): each for each in folder.notes() if each["what"] == "belongings"}
    for (region, vpc), each in noted.items():
        await calls.call("ec2", region, "delete_key_pair", KeyName=each["key"])
        if each["group"]:
            for group in await _find_groups(calls, region, each["group"], vpc):
                await remove_group(calls, region, group, each["group"])


async def remove_group(calls: AwsCalls, region: str, group: str, name: str) -> None:
    """Remove one; machines that have ended may hold it for a while by their network cards.

    Raises:
        SkywardError: it is still there; says why.
    """
    held = "DependencyViolation"
    try:
        await retry_while(
            (held,), lambda: calls.call("ec2", region, "delete_security_group", GroupId=group),
            REMOVAL_TIMEOUT, REMOVAL_PAUSES,
        )  # fmt: skip
    except CallFailed as error:
        if error.code == held:
            raise PoolError(
                f"security group {name} ({group}, {region}) is still in use; it costs nothing, and another `down` "
                "removes it"
            ) from error
        if error.code not in GROUP_NOT_FOUND:
            raise


OWN_TAG_FILTER = [{"Name": "tag-key", "Values": [instance_tags.LEDGER]}]
LIVE_STATES = ["pending", "running", "stopping", "stopped"]
TERMINATION_TIMEOUT = 300.0  # seconds in which EC2 says that machines have ended
POLL_PAUSES = (0.2, 5.0)
NO_REGION = 'no AWS region is named: region="us-east-1", or AWS_REGION, or that of a profile'


def merge_accounts(
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


async def account_number(calls: AwsCalls, regions: Sequence[str]) -> str:
    """The account's number, from the first of these regions that tells it.

    Raises:
        SkywardError: none does.
    """
    reason: SkywardError | None = None
    for region in regions:
        try:
            told = await calls.call("sts", region, "get_caller_identity")
        except SkywardError as error:
            reason = reason or error
            if not is_region_failure(error):
                break
        else:
            return str(told["Account"])
    raise reason or UsageError(NO_REGION)


async def list_regions(calls: AwsCalls, home: str) -> list[str]:
    """All that the account uses."""
    told = await calls.call("ec2", home, "describe_regions")
    return sorted(each["RegionName"] for each in told["Regions"])


async def find_leftovers(calls: AwsCalls, places: Sequence[str]) -> Inventory:
    """What is there; reads only. A region that cannot be asked is named."""
    unknown = {}

    async def look(place: str) -> list[Leftover]:
        try:
            return await _find_in_region(calls, place)
        except SkywardError as error:
            unknown[place] = error_message(error)
            return []

    found = await asyncio.gather(*map(look, places))
    return Inventory(tuple(each for some in found for each in some), unknown)


async def _find_in_region(calls: AwsCalls, region: str) -> list[Leftover]:
    alive = [*OWN_TAG_FILTER, {"Name": "instance-state-name", "Values": LIVE_STATES}]
    loose = [*OWN_TAG_FILTER, {"Name": "status", "Values": ["available"]}]
    instances, disks, groups, keys, placements = await asyncio.gather(
        instance_lookup_and_end.describe_instances(calls, region, alive),
        calls.call_all(
            "ec2", region, "describe_volumes", "Volumes", Filters=loose, MaxResults=instance_lookup_and_end.PAGE_SIZE
        ),
        calls.call_all("ec2", region, "describe_security_groups", "SecurityGroups", Filters=OWN_TAG_FILTER),
        calls.call_all("ec2", region, "describe_key_pairs", "KeyPairs", Filters=OWN_TAG_FILTER),
        zones_and_placement.find_placement_groups(calls, region, OWN_TAG_FILTER),
    )
    return [
        *(_make_leftover("instance", each["InstanceId"], region, each) for each in instances.values()),
        *(_make_leftover("disk", each["VolumeId"], region, each) for each in disks),
        *(_make_leftover("security group", each["GroupId"], region, each) for each in groups),
        *(_make_leftover("key pair", each["KeyName"], region, each) for each in keys),
        *(_make_leftover("placement group", each["GroupName"], region, each) for each in placements),
    ]


def _make_leftover(what: str, id: str, place: str, told: Mapping[str, Any]) -> Leftover:
    # Everybody who uses the account may write tags.
    marks = {key: sanitize_line(text) for key, text in instance_tags.parse_tags(told).items()}
    made = told.get("LaunchTime") or told.get("CreateTime")
    ledger = marks.get(instance_tags.LEDGER, "")
    is_machine = what == "instance"
    return Leftover(
        what, id, place, marks.get(instance_tags.POOL, ""), marks.get(instance_tags.TOKEN, ""), ledger,
        ours=bool(ledger) and ledger == known_ledger_id("aws"), owner=marks.get(instance_tags.OWNER, ""),
        is_machine=is_machine, since=made.timestamp() if isinstance(made, datetime) else None,
        expires=instance_tags.tagged_expiry(marks), hourly=instance_tags.tagged_hourly(marks) if is_machine else None,
    )  # fmt: skip


async def remove_leftovers(calls: AwsCalls, things: Iterable[Leftover]) -> list[str]:
    """End them, machines first, and see them gone; gives what is left, in words."""
    left = []
    things = list(things)
    for region in dict.fromkeys(each.place for each in things):
        here = [each for each in things if each.place == region]
        try:
            await _terminate_instances(calls, region, [each.id for each in here if each.is_machine])
        except SkywardError as error:
            left += [_describe_failure(each, error) for each in here]
            continue
        for each in here:
            try:
                await _remove_leftover(calls, region, each)
            except SkywardError as error:
                left.append(_describe_failure(each, error))
    return left


def _describe_failure(thing: Leftover, error: SkywardError) -> str:
    return f"{thing.what} {thing.id} ({thing.place}): {error_message(error)}"


async def _terminate_instances(calls: AwsCalls, region: str, ids: Sequence[str]) -> None:
    """Have machines ended.

    Raises:
        SkywardError: EC2 did not say in time that they have.
    """
    if not ids:
        return
    await instance_lookup_and_end.terminate(calls, [Machine(id, 0, "", "", extra={"region": region}) for id in ids])

    async def find_running() -> list[str]:
        seen = await instance_lookup_and_end.find_instances(calls, region, ids)
        return [id for id, each in seen.items() if each["State"]["Name"] not in instance_lookup_and_end.ENDED_STATES]

    if running := await poll_until_empty(find_running, POLL_PAUSES, TERMINATION_TIMEOUT, factor=1.5):
        raise SkywardError(f"EC2 has not said within {TERMINATION_TIMEOUT:g} s that {', '.join(running)} ended")


async def _remove_leftover(calls: AwsCalls, region: str, thing: Leftover) -> None:
    match thing.what:
        case "disk":
            await calls.call("ec2", region, "delete_volume", VolumeId=thing.id)
        case "security group":
            await remove_group(calls, region, thing.id, f"of pool {thing.pool}")
        case "placement group":
            await zones_and_placement.remove_placement_group(calls, region, thing.id)
        case "key pair":
            await calls.call("ec2", region, "delete_key_pair", KeyName=thing.id)


# Variables that say which credentials to use.
SIGNS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
# Quotas of running machines, in vCPUs, by Service Quotas' codes: family -> on-demand, spot.
# From "Amazon EC2 instance type quotas"; what is said of spot names families more finely, and P5 apart.
QUOTA_FAMILIES = {
    "G and VT": ("L-DB2E81BA", ("L-3819A6DF",)),
    "P": ("L-417A185B", ("L-7212CCBC", "L-C4BD4855")),
    "Trn": ("L-2C3B7624", ("L-6B0D517C",)),
    "Inf": ("L-1945791B", ("L-B5D1601B",)),
    "standard (A, C, D, H, I, M, R, T, Z)": ("L-1216C47A", ("L-34B43A08",)),
}


def has_credentials() -> bool:
    """Whether this machine names some: who has none uses no AWS. To ask boto3 would ask this machine's network, too,
    whether it has a role."""
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
        os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
    )
    return any(map(os.environ.get, SIGNS)) or any(is_file(expand_user(each)) for each in files)


async def check_account(
    calls: AwsCalls, regions: Sequence[str], *, subnet: str | None = None, zones: Sequence[str] = ()
) -> list[Check]:
    """Look at an account; a region takes a few calls, none of which makes anything."""
    try:
        told = await calls.call("sts", regions[0], "get_caller_identity")
    except SkywardError as error:
        return [Check("AWS credentials", "fail", error_message(error), error_hint(error))]
    lines = [Check("AWS credentials", "ok", f"account {told['Account']}, as {told['Arn']}")]
    parts = await asyncio.gather(*(_check_region(calls, region, subnet, zones) for region in regions))
    return lines + [line for part in parts for line in part]


async def _check_region(calls: AwsCalls, region: str, subnet: str | None, zones: Sequence[str]) -> list[Check]:
    try:
        found = await zones_and_placement.list_zones(calls, region, subnet=subnet, zones=zones)
    except SkywardError as error:
        return [Check(region, "fail", error_message(error), error_hint(error))]
    lines = [Check(region, "ok", f"machines can be in {', '.join(place.zone for place in found)}")]
    more = await asyncio.gather(_permissions(calls, region, found[0]), _quotas(calls, region))
    return [*lines, *more]


async def _permissions(calls: AwsCalls, region: str, place: Zone) -> Check:
    subject = f"permissions in {region}"
    asked: dict[str, dict[str, Any]] = {
        "run_instances": {
            "MinCount": 1,
            "MaxCount": 1,
            "InstanceType": "m7i.large",
            "ImageId": "ami-00000000000000000",
            "SubnetId": place.subnet,
        },
        "import_key_pair": {"KeyName": "skyward-check", "PublicKeyMaterial": b""},
        "create_security_group": {
            "GroupName": "skyward-check",
            "Description": "skyward-check",
            "VpcId": place.vpc,
        },
        "create_placement_group": {"GroupName": "skyward-check", "Strategy": "cluster"},
    }
    tried = [_denied_action(calls, region, action, parameters) for action, parameters in asked.items()]
    try:
        refused = [name for name in await asyncio.gather(*tried) if name]
    except SkywardError as error:
        return Check(subject, "warn", error_message(error), error_hint(error))
    if refused:
        said = f"may not do {', '.join(sorted(refused))}: have the actions of the documentation's policy allowed"
        return Check(subject, "fail", said)
    return Check(subject, "ok", "machines, key pairs, security and placement groups may be made")


async def _denied_action(calls: AwsCalls, region: str, action: str, parameters: dict[str, Any]) -> str:
    """AWS's name of an action that these credentials may not do, found out by a dry run."""
    try:
        await calls.call("ec2", region, action, DryRun=True, **parameters)
    except (CredentialsRefused, Unreachable):
        raise
    except SkywardError as error:  # who may do it is told that it was a dry run, or that there is no such image
        if getattr(error, "code", "") in DENIED_CODES:
            return "".join(part.capitalize() for part in action.split("_"))
    return ""


async def _quotas(calls: AwsCalls, region: str) -> Check:
    subject = f"quotas in {region}"
    try:
        told = await calls.call_all("service-quotas", region, "list_service_quotas", "Quotas", ServiceCode="ec2")
    except SkywardError as error:
        return Check(subject, "warn", error_message(error), error_hint(error))
    most = {each["QuotaCode"]: each["Value"] for each in told}
    said, none = [], []
    for family, (on_demand, spot) in QUOTA_FAMILIES.items():
        if on_demand not in most:
            continue
        most_spot = max((most[code] for code in spot if code in most), default=0.0)
        if most[on_demand] or most_spot:
            said.append(f"{family} {most[on_demand]:g} on demand, {most_spot:g} spot")
        else:
            none.append(family)
    text = "; ".join([*said, *([f"none of {', '.join(none)}"] if none else [])])
    if not text:
        return Check(subject, "warn", "AWS names none of machines")
    return Check(subject, "warn" if "G and VT" in none and "P" in none else "ok", f"vCPUs at once: {text}")
