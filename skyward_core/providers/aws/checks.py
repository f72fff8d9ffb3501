"""What an account could do for a pool, and nothing made to find out: whose it is, what it may, how much at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from ...model.errors import CredentialsRefused, SkywardError, Unreachable, hint_of, what_of
from ...model.machine import Check
from ...store.user_files import expanded, is_file
from . import network
from .calls import Calls
from .failures import DENIED

# Variables that say which credentials to use.
SIGNS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
# Quotas of running machines, in vCPUs, by Service Quotas' codes: family -> on-demand, spot.
# From "Amazon EC2 instance type quotas"; what is said of spot names families more finely, and P5 apart.
FAMILIES = {
    "G and VT": ("L-DB2E81BA", ("L-3819A6DF",)),
    "P": ("L-417A185B", ("L-7212CCBC", "L-C4BD4855")),
    "Trn": ("L-2C3B7624", ("L-6B0D517C",)),
    "Inf": ("L-1945791B", ("L-B5D1601B",)),
    "standard (A, C, D, H, I, M, R, T, Z)": ("L-1216C47A", ("L-34B43A08",)),
}
# Variables that say which credentials to use.
SIGNS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def has_credentials() -> bool:
    """Whether this machine names some: who has none uses no AWS. To ask boto3 would ask this machine's network, too,
    whether it has a role."""
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
        os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
    )
    return any(map(os.environ.get, SIGNS)) or any(is_file(expanded(each)) for each in files)


async def look(
    calls: Calls, regions: Sequence[str], *, subnet: str | None = None, zones: Sequence[str] = ()
) -> list[Check]:
    """Look at an account; a region takes a few calls, none of which makes anything."""
    try:
        told = await calls.call("sts", regions[0], "get_caller_identity")
    except SkywardError as error:
        return [Check("AWS credentials", "fail", what_of(error), hint_of(error))]
    lines = [Check("AWS credentials", "ok", f"account {told['Account']}, as {told['Arn']}")]
    parts = await asyncio.gather(*(_region(calls, region, subnet, zones) for region in regions))
    return lines + [line for part in parts for line in part]


async def _region(calls: Calls, region: str, subnet: str | None, zones: Sequence[str]) -> list[Check]:
    try:
        found = await network.places(calls, region, subnet=subnet, zones=zones)
    except SkywardError as error:
        return [Check(region, "fail", what_of(error), hint_of(error))]
    lines = [Check(region, "ok", f"machines can be in {', '.join(place.zone for place in found)}")]
    more = await asyncio.gather(_permissions(calls, region, found[0]), _quotas(calls, region))
    return [*lines, *more]


async def _permissions(calls: Calls, region: str, place: network.Zone) -> Check:
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
    tried = [_is_refused(calls, region, action, parameters) for action, parameters in asked.items()]
    try:
        refused = [name for name in await asyncio.gather(*tried) if name]
    except SkywardError as error:
        return Check(subject, "warn", what_of(error), hint_of(error))
    if refused:
        said = (
            f"may not do {', '.join(sorted(refused))}: have the actions of the documentation's policy allowed"
        )
        return Check(subject, "fail", said)
    return Check(subject, "ok", "machines, key pairs, security and placement groups may be made")


async def _is_refused(calls: Calls, region: str, action: str, parameters: dict[str, Any]) -> str:
    """AWS's name of an action that these credentials may not do, found out by a dry run."""
    try:
        await calls.call("ec2", region, action, DryRun=True, **parameters)
    except (CredentialsRefused, Unreachable):
        raise
    except (
        SkywardError
    ) as error:  # who may do it is told that it was a dry run, or that there is no such image
        if getattr(error, "code", "") in DENIED:
            return "".join(part.capitalize() for part in action.split("_"))
    return ""


async def _quotas(calls: Calls, region: str) -> Check:
    subject = f"quotas in {region}"
    try:
        told = await calls.call_all(
            "service-quotas", region, "list_service_quotas", "Quotas", ServiceCode="ec2"
        )
    except SkywardError as error:
        return Check(subject, "warn", what_of(error), hint_of(error))
    most = {each["QuotaCode"]: each["Value"] for each in told}
    said, none = [], []
    for family, (on_demand, spot) in FAMILIES.items():
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
