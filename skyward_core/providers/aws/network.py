"""Where in a region machines go: zones and their subnets; and from where this client comes."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from ...model.errors import PoolError, UsageError
from ...model.value import Value, value
from . import failures
from .calls import Calls, in_thread

WHO_AM_I = "https://checkip.amazonaws.com"
PATIENCE = 5.0  # seconds for its answer


@value
class Zone(Value):
    """A zone, and the subnet in it that machines get."""

    region: str
    zone: str
    subnet: str
    vpc: str


async def places(
    calls: Calls, region: str, *, subnet: str | None = None, zones: Sequence[str] = ()
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
            raise failures.no_default_network(region)
    by_zone = {
        each["AvailabilityZone"]: Zone(region, each["AvailabilityZone"], each["SubnetId"], each["VpcId"])
        for each in found
    }
    if not zones:
        return [by_zone[zone] for zone in sorted(by_zone)]
    wanted = [by_zone[zone] for zone in zones if zone in by_zone]
    if not wanted:
        raise UsageError(
            f"region {region} has none of the zones {', '.join(zones)}; it has {', '.join(by_zone)}"
        )
    return wanted


async def own_address(calls: Calls, region: str) -> str:
    """The network that holds nothing but this client, as AWS sees it.

    Raises:
        PoolError: it cannot be told; says what to do.
    """
    found: str = await in_thread(_own_address, calls, region)
    return found


def _own_address(calls: Calls, region: str) -> str:
    import urllib.request  # late: a rank that reads a script asks nobody

    endpoint = calls.endpoint(region)
    host, port = urlsplit(endpoint).hostname or "", urlsplit(endpoint).port or 443
    try:
        if host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws")):
            with urllib.request.urlopen(WHO_AM_I, timeout=PATIENCE) as answer:
                text = answer.read(100).decode("ascii").strip()
        else:  # EC2 is played by something near: it sees the address from which we speak to it
            with socket.create_connection((host, port), PATIENCE) as line:
                text = line.getsockname()[0]
        address = ipaddress.ip_address(text)
    except (OSError, ValueError) as error:
        raise PoolError(
            f"the address from which this machine reaches AWS cannot be told ({error}); give it, or a network that "
            'holds it: ssh_from="203.0.113.7/32"'
        ) from error
    return f"{address}/{address.max_prefixlen}"
