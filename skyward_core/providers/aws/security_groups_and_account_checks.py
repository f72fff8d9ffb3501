"""Security groups and key pairs of pools, and checks of an AWS account: credentials, permissions and quotas."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from skyward_core.model.errors import (
    CredentialsRefused,
    PoolError,
    SkywardError,
    Unreachable,
    UsageError,
    error_message,
)
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.model.offers_and_rental_plans import Offer
from skyward_core.providers.aws import instance_tags_and_launch_journal, zones_and_placement
from skyward_core.providers.aws.boto_calls import AwsCalls, run_in_thread
from skyward_core.providers.aws.ec2_errors import (
    DENIED_CODES,
    GROUP_NOT_FOUND,
    VISIBILITY_TIMEOUT,
    CallFailed,
    delete_unless_gone,
    is_region_failure,
    retry_while,
)
from skyward_core.providers.aws.instance_tags_and_launch_journal import KeyPair, LaunchJournal
from skyward_core.providers.aws.zones_and_placement import Zone
from skyward_core.providers.provider_call_logs_polling_and_cache import report_progress
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import expand_user, is_file

REMOVAL_TIMEOUT = 45.0  # seconds for removing a security group, which machines that are shutting down may still use
REMOVAL_PAUSES = (0.5, 5.0)  # first and longest pause between two attempts to remove a security group, in seconds
# seconds after SSH was allowed from a new address of the client during which the address is not queried again
ADMISSION_TTL = 5.0


@value
class SecurityResources(Value):
    """Resources of a pool in one region: the key pair's name and the security group's id."""

    key: str
    group: str


def resource_name(folder: LaunchJournal) -> str:
    """Return the name of a pool's security group and key pair."""
    return f"skyward-{folder.pool}-{folder.token}"


async def create_security_resources(
    calls: AwsCalls, place: Zone, folder: LaunchJournal, login: KeyPair, own_address: str, group: str | None
) -> SecurityResources:
    """Create a pool's key pair and security group in a region, unless they exist.

    Args:
        login: SSH key that opens the pool's machines.
        own_address: Network from which SSH connections are allowed.
        group: Id of the user's security group, which is used instead of a new one.

    Raises:
        SkywardError: If a resource cannot be created.
    """
    region, name = place.region, resource_name(folder)
    marks = instance_tags_and_launch_journal.pool_tags(folder.pool, folder.token)
    facts = {"group": "" if group else name, "network": "" if group else own_address, "at": time.time()}
    folder.add("belongings", region=region, vpc=place.vpc, key=name, **facts)
    try:
        await calls.call(
            "ec2", region, "import_key_pair",
            KeyName=name, PublicKeyMaterial=login.public.encode(),
            TagSpecifications=instance_tags_and_launch_journal.tag_specifications(["key-pair"], marks),
        )  # fmt: skip
    except CallFailed as error:
        if error.code != "InvalidKeyPair.Duplicate":
            raise
    if group:
        return SecurityResources(name, group)
    found = await _ensure_group(calls, place, folder, name, marks)
    # Machines of the pool may exchange all traffic. Some network cards (EFA) need rules that name the group in both
    # directions.
    within = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": found}]}]
    await _authorize(calls, region, "authorize_security_group_ingress", found, [*within, _ssh_rule(own_address)])
    await _authorize(calls, region, "authorize_security_group_egress", found, within)
    return SecurityResources(name, found)


def _ssh_rule(network: str) -> dict[str, Any]:
    kind, cidr = ("Ipv6Ranges", "CidrIpv6") if ":" in network else ("IpRanges", "CidrIp")
    ranges = [{cidr: network, "Description": "its client"}]
    return {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, kind: ranges}


_admissions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, asyncio.Lock]] = WeakKeyDictionary()


async def admit_client(calls: AwsCalls, folder: LaunchJournal, find_network: Callable[[], Awaitable[str]]) -> float:
    """Allow SSH connections from the client's present network, instead of its former one.

    Args:
        find_network: Returns the network that contains only the client's present address.

    Returns:
        Unix time of the last change of the network; 0 if it never changed.

    Raises:
        SkywardError: If the present network cannot be determined or allowed.
    """
    locks = _admissions.setdefault(asyncio.get_running_loop(), {})
    # Only one call at a time, because all machines of a pool lose their connections together, and each of them calls
    # this function.
    async with locks.setdefault(folder.path, asyncio.Lock()):
        notes = await asyncio.to_thread(folder.notes)
        changes = [each for each in notes if each.get("network")]
        last, changed_at = (changes[-1]["network"], float(changes[-1].get("at", 0.0))) if changes else ("", 0.0)
        if not last or time.time() - changed_at < ADMISSION_TTL or (network := await find_network()) == last:
            return changed_at
        reason = ""
        groups = {(each["region"], each["vpc"]): each["group"] for each in notes if each["what"] == "belongings"}
        for (region, vpc), name in groups.items():
            for group in await _find_groups(calls, region, name, vpc):
                await _authorize(calls, region, "authorize_security_group_ingress", group, [_ssh_rule(network)])
                reason = await _withdraw(calls, region, group, last) or reason
        folder.add("network", network=network, at=(at := time.time()))
        rest = f"{last} is still allowed: {reason}" if reason else f"{last} is no longer allowed"
        report_progress(f"this machine's address has changed: SSH is now allowed from {network}; {rest}")
        return at


async def _withdraw(calls: AwsCalls, region: str, group: str, network: str) -> str:
    """Stop allowing SSH from a network. Return the reason if this fails, otherwise ""."""
    try:
        await calls.call(
            "ec2", region, "revoke_security_group_ingress", GroupId=group, IpPermissions=[_ssh_rule(network)]
        )
    except CallFailed as error:
        return "" if error.code == "InvalidPermission.NotFound" else error_message(error)
    return ""


async def _ensure_group(calls: AwsCalls, place: Zone, folder: LaunchJournal, name: str, marks: dict[str, str]) -> str:
    try:
        made = await calls.call(
            "ec2", place.region, "create_security_group",
            GroupName=name, Description="machines of one skyward pool", VpcId=place.vpc,
            TagSpecifications=instance_tags_and_launch_journal.tag_specifications(["security-group"], marks),
        )  # fmt: skip
        found = str(made["GroupId"])
    except Unreachable:
        raise  # no answer, so the group may have been created
    except SkywardError as error:
        if not isinstance(error, CallFailed) or error.code != "InvalidGroup.Duplicate":
            folder.add("group", region=place.region, vpc=place.vpc, id="")
            raise
        found = await retry_while(GROUP_NOT_FOUND, lambda: _find_existing_group(calls, place, name))
    folder.add("group", region=place.region, vpc=place.vpc, id=found)
    return found


async def _find_existing_group(calls: AwsCalls, place: Zone, name: str) -> str:
    """Return the id of a security group that EC2 reports as existing, for example after EC2's answer was lost."""
    found = await _find_groups(calls, place.region, name, place.vpc)
    if not found:
        raise CallFailed(
            f"EC2 in {place.region} reports security group {name} as existing but does not list it", GROUP_NOT_FOUND[0]
        )
    return found[0]


async def _find_groups(calls: AwsCalls, region: str, name: str, vpc: str) -> list[str]:
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}]
    listed = await calls.call_all("ec2", region, "describe_security_groups", "SecurityGroups", Filters=filters)
    return [each["GroupId"] for each in listed]


async def _authorize(calls: AwsCalls, region: str, action: str, group: str, rules: list[dict[str, Any]]) -> None:
    try:
        await retry_while(
            GROUP_NOT_FOUND, lambda: calls.call("ec2", region, action, GroupId=group, IpPermissions=rules)
        )
    except CallFailed as error:
        if error.code != "InvalidPermission.Duplicate":
            raise
        # EC2 rejects a call with several rules if one of them exists already, so add them one by one
        if len(rules) > 1:
            for rule in rules:
                await _authorize(calls, region, action, group, [rule])


async def remove_security_resources(calls: AwsCalls, folder: LaunchJournal) -> None:
    """Remove a pool's key pairs and security groups in all regions.

    Raises:
        SkywardError: If a resource still exists, or may still appear. The message names the resource.
    """
    notes = folder.notes()
    noted = {(each["region"], each["vpc"]): each for each in notes if each["what"] == "belongings"}
    made = {(each["region"], each["vpc"]): each["id"] for each in notes if each["what"] == "group"}
    for (region, vpc), each in noted.items():
        await remove_key_pair(calls, region, each["key"])
        if not (name := each["group"]):
            continue
        # group that the journal names, because queries may not show a new group yet
        known = [made[region, vpc]] if made.get((region, vpc)) else []
        groups = dict.fromkeys([*known, *await _find_groups(calls, region, name, vpc)])
        for group in groups:
            await remove_group(calls, region, group, name)
        left = each.get("at", 0.0) + VISIBILITY_TIMEOUT - time.time()
        if not groups and (region, vpc) not in made and 0 < left <= VISIBILITY_TIMEOUT:
            raise PoolError(
                f"security group {name} ({region}) may still appear: EC2's answer is unknown. It costs nothing. "
                f"Run `down` again in {math.ceil(left)} s to remove it"
            )


async def remove_key_pair(calls: AwsCalls, region: str, name: str) -> None:
    filters = [{"Name": "key-name", "Values": [name]}]
    await delete_unless_gone(
        lambda: calls.call("ec2", region, "delete_key_pair", KeyName=name),
        lambda: calls.call_all("ec2", region, "describe_key_pairs", "KeyPairs", Filters=filters),
    )


async def remove_group(calls: AwsCalls, region: str, group: str, name: str) -> None:
    """Remove a security group, waiting for the network cards of ended machines to release the group.

    Raises:
        SkywardError: If the group still exists. The message has the reason.
    """
    held, filters = "DependencyViolation", [{"Name": "group-id", "Values": [group]}]
    ask = partial(calls.call, "ec2", region, "delete_security_group", GroupId=group)
    try:
        await delete_unless_gone(
            lambda: retry_while((held,), ask, REMOVAL_TIMEOUT, REMOVAL_PAUSES),
            lambda: calls.call_all("ec2", region, "describe_security_groups", "SecurityGroups", Filters=filters),
        )
    except CallFailed as error:
        if error.code != held:
            raise
        raise PoolError(
            f"security group {name} ({group}, {region}) is still in use. It costs nothing. Run `down` again "
            "to remove it"
        ) from error


ADDRESS_TIMEOUT = 5.0  # seconds for the answer of the service that reports the client's public address


async def find_client_network(calls: AwsCalls, region: str) -> str:
    """Return the network that contains only this client's address, as AWS sees that address.

    Raises:
        PoolError: If the address cannot be determined. The message has a remedy.
    """
    return str(await run_in_thread(_query_client_address, calls, region))


def _query_client_address(calls: AwsCalls, region: str) -> str:
    import urllib.request  # imported late, because ranks that load a script do not need it

    endpoint = calls.ec2_endpoint(region)
    host, port = urlsplit(endpoint).hostname or "", urlsplit(endpoint).port or 443
    try:
        if host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws")):
            with urllib.request.urlopen("https://checkip.amazonaws.com", timeout=ADDRESS_TIMEOUT) as answer:
                text = answer.read(100).decode("ascii").strip()
        else:  # not AWS but a local emulator of EC2, which sees the local address of this connection
            with socket.create_connection((host, port), ADDRESS_TIMEOUT) as line:
                text = line.getsockname()[0]
        address = ipaddress.ip_address(text)
    except (OSError, ValueError) as error:
        raise PoolError(
            f"cannot determine the address of this machine at AWS ({error}): pass the address or its network, "
            'for example ssh_from="203.0.113.7/32"'
        ) from error
    return f"{address}/{address.max_prefixlen}"


NO_REGION = (
    'no AWS region is set: pass region="us-east-1" (command line: --set region=us-east-1), or set AWS_REGION or the '
    "region of a profile"
)


def merge_accounts(
    used: Iterable[tuple[str | None, str | None, Sequence[str] | None]],
) -> Iterator[tuple[str | None, str | None, tuple[str, ...] | None]]:
    """Yield each account, given by profile and endpoint, once with all its named regions.

    An account that is used without regions yields a separate entry with None, which means its default region.
    """
    found: dict[tuple[str | None, str | None], dict[str | None, None]] = {}
    for profile, endpoint, places in used:
        found.setdefault((profile, endpoint), {}).update(dict.fromkeys(places or (None,)))
    for (profile, endpoint), regions in found.items():
        if named := tuple(filter(None, regions)):
            yield profile, endpoint, named
        if None in regions:
            yield profile, endpoint, None


async def account_number(calls: AwsCalls, regions: Sequence[str]) -> str:
    """Return the number of the AWS account. Queries the regions in order until one answers.

    Raises:
        SkywardError: If no region answers.
    """
    reason: SkywardError | None = None
    for region in regions:
        try:
            identity = await calls.call("sts", region, "get_caller_identity")
        except SkywardError as error:
            reason = reason or error
            if not is_region_failure(error):
                break
        else:
            return str(identity["Account"])
    raise reason or UsageError(NO_REGION)


async def list_regions(calls: AwsCalls, home: str) -> list[str]:
    """Return the names of all regions that are enabled for the account."""
    listed = await calls.call("ec2", home, "describe_regions")
    return sorted(each["RegionName"] for each in listed["Regions"])


EXPIRY_TIMEOUT = 5.0  # seconds for determining when the credentials expire
# Seconds from now. For a pool without a time to live, credentials that expire later than this cause no warning.
EXPIRY_WARNING_SECONDS = 3600.0


async def expiry_warnings(expires: Callable[[], float | None], ttl: float | None) -> list[str]:
    """Return warnings about credentials that expire during a pool's lifetime.

    Args:
        expires: Returns the expiry time; runs in a thread because it may block.
        ttl: Seconds that the pool may live; None for no limit.
    """
    try:
        async with asyncio.timeout(EXPIRY_TIMEOUT):
            at = await run_in_thread(expires)
    # no warning, because the first call that needs the credentials reports the error
    except (SkywardError, TimeoutError):
        return []
    return list(filter(None, [expiry_warning(at, ttl, time.time())]))


def expiry_warning(at: float | None, ttl: float | None, now: float) -> str:
    """Return a warning if credentials expire before the pool's time to live ends, else "".

    Args:
        at: Unix time at which the credentials expire; None if unknown.
        ttl: Seconds that the pool may live; None for no limit.
        now: Unix time.
    """
    if at is None or at - now > (EXPIRY_WARNING_SECONDS if ttl is None else ttl):
        return ""
    ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    remaining = "already expired" if at <= now else f"in {max(1, int((at - now) / 60))} min"
    before = "soon" if ttl is None else "before the pool's time to live ends"
    return (
        f"the AWS credentials expire at {ends} ({remaining}), {before}: renew them, for example with `aws sso login`. "
        "Otherwise the teardown cannot verify anything, and machines end only when their lease expires"
    )


CREDENTIAL_VARIABLES = (  # environment variables that supply or select AWS credentials
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
# Quotas for running machines, in vCPUs, by instance family: pattern of the family's types, code of the on-demand quota,
# code of the Spot quota. Source: "Amazon EC2 instance type quotas". For Spot, P5 has a quota of its own.
QUOTA_FAMILIES = {
    "G and VT": (r"(g|vt)\d", "L-DB2E81BA", {"": "L-3819A6DF"}),
    "P": (r"p\d", "L-417A185B", {"p5": "L-C4BD4855", "": "L-7212CCBC"}),
    "Trn": (r"trn\d", "L-2C3B7624", {"": "L-6B0D517C"}),
    "Inf": (r"inf\d", "L-1945791B", {"": "L-B5D1601B"}),
    "standard (A, C, D, H, I, M, R, T, Z)": (r"([acdhimrtz]|im|is)\d", "L-1216C47A", {"": "L-34B43A08"}),
}


def has_credentials() -> bool:
    """Check whether this machine has AWS credentials in variables or files.

    boto3 would also query the network for a machine role, which is slow.
    """
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
        os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
    )
    return any(map(os.environ.get, CREDENTIAL_VARIABLES)) or any(is_file(expand_user(each)) for each in files)


async def check_account(
    calls: AwsCalls, regions: Sequence[str], *, subnet: str | None = None, zones: Sequence[str] = ()
) -> list[Check]:
    """Check an account with read-only calls and dry runs, a few per region."""
    try:
        identity = await calls.call("sts", regions[0], "get_caller_identity")
    except SkywardError as error:
        return [Check.from_error("AWS credentials", error)]
    lines = [Check("AWS credentials", "ok", f"account {identity['Account']}, as {identity['Arn']}")]
    parts = await asyncio.gather(*(_check_region(calls, region, subnet, zones) for region in regions))
    return lines + [line for part in parts for line in part]


async def _check_region(calls: AwsCalls, region: str, subnet: str | None, zones: Sequence[str]) -> list[Check]:
    try:
        found = await zones_and_placement.list_zones(calls, region, subnet=subnet, zones=zones)
    except SkywardError as error:
        return [Check.from_error(region, error)]
    lines = [Check(region, "ok", f"machines can run in {', '.join(place.zone for place in found)}")]
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
        return Check.from_error(subject, error, "warn")
    if refused:
        denied = ", ".join(sorted(refused))
        return Check(subject, "fail", f"missing permissions: {denied}. Attach the policy from the documentation")
    return Check(subject, "ok", "machines, key pairs, security and placement groups can be created")


async def _denied_action(calls: AwsCalls, region: str, action: str, parameters: dict[str, Any]) -> str:
    """Return AWS's name of an action if a dry run shows that the credentials do not allow this action, else ""."""
    try:
        await calls.call("ec2", region, action, DryRun=True, **parameters)
    except (CredentialsRefused, Unreachable):
        raise
    # A dry run always fails: if the action is allowed, because it is a dry run or because the image is missing.
    except SkywardError as error:
        if getattr(error, "code", "") in DENIED_CODES:
            return "".join(part.capitalize() for part in action.split("_"))
    return ""


def quota_code(instance_type: str, market: str) -> str:
    """Return the code of the quota that limits the vCPUs of a type; "" if unknown."""
    for pattern, on_demand, spot in QUOTA_FAMILIES.values():
        if re.match(pattern, instance_type):
            codes = spot if market == "spot" else {"": on_demand}
            return next(code for prefix, code in codes.items() if instance_type.startswith(prefix))
    return ""


async def _list_quotas(calls: AwsCalls, region: str) -> dict[str, dict[str, Any]]:
    quotas = await calls.call_all("service-quotas", region, "list_service_quotas", "Quotas", ServiceCode="ec2")
    return {each["QuotaCode"]: each for each in quotas}


async def quota_shortage(calls: AwsCalls, region: str, code: str, vcpus: int, *, refused: bool = False) -> str:
    """Return a sentence about a quota that is too small, with the command that requests more; "" if it suffices.

    Args:
        code: Code of the quota.
        vcpus: vCPUs of the machines to launch.
        refused: Whether EC2 has refused the machines, because other machines use a part of the quota.

    Raises:
        SkywardError: If the quotas cannot be listed.
    """
    quota = (await _list_quotas(calls, region)).get(code)
    if quota is None or (quota["Value"] >= vcpus and not refused):
        return ""
    has = int(quota["Value"])
    return (
        f"the quota '{quota['QuotaName']}' of {region} is {has} vCPUs, and the machines need {vcpus}: request more "
        f"with `aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} "
        f"--desired-value {has + vcpus} --region {region}`"
    )


async def quota_notes(calls: AwsCalls, offers: Iterable[Offer], nodes: int) -> list[str]:
    """Return sentences for a plan about quotas that are too small for some offers.

    Args:
        nodes: Smallest number of machines.
    """
    needs: dict[tuple[str, str], int] = {}
    for each in offers:
        if each.zone and (code := quota_code(each.instance_type, each.market)):
            key, need = (each.region, code), each.vcpus * nodes
            needs[key] = min(need, needs.get(key, need))
    try:
        found = [await quota_shortage(calls, region, code, need) for (region, code), need in needs.items()]
    except SkywardError as error:
        return [f"cannot check the quotas: {error_message(error)}"]
    return list(filter(None, found))


async def _quotas(calls: AwsCalls, region: str) -> Check:
    subject = f"quotas in {region}"
    try:
        quotas = await _list_quotas(calls, region)
    except SkywardError as error:
        return Check.from_error(subject, error, "warn")
    most = {code: each["Value"] for code, each in quotas.items()}
    limits, none = [], []
    for family, (_, on_demand, spot) in QUOTA_FAMILIES.items():
        if on_demand not in most:
            continue
        most_spot = max((most[code] for code in spot.values() if code in most), default=0.0)
        if most[on_demand] or most_spot:
            limits.append(f"{family} {most[on_demand]:g} on demand, {most_spot:g} spot")
        else:
            none.append(family)
    text = "; ".join([*limits, *([f"none of {', '.join(none)}"] if none else [])])
    if not text:
        return Check(subject, "warn", "AWS lists no quotas for machines")
    return Check(subject, "warn" if "G and VT" in none and "P" in none else "ok", f"running vCPUs: {text}")
