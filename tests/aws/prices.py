"""Prices of simulated machines in US dollars per hour, close to the real prices of late 2025."""

from __future__ import annotations

from typing import Any

_ON_DEMAND = {
    "t3.micro": 0.0104,
    "t3.medium": 0.0416,
    "c7g.large": 0.0725,
    "g4dn.xlarge": 0.526,
    "g4dn.2xlarge": 0.752,
    "g4dn.4xlarge": 1.204,
    "g4dn.8xlarge": 2.176,
    "g4dn.16xlarge": 4.352,
    "g4dn.12xlarge": 3.912,
    "g5.xlarge": 1.006,
    "g5.2xlarge": 1.212,
    "g5.4xlarge": 1.624,
    "g5.8xlarge": 2.448,
    "g5.16xlarge": 4.096,
    "g5.12xlarge": 5.672,
    "g6.xlarge": 0.8048,
    "g6.2xlarge": 0.9776,
    "g6.4xlarge": 1.3232,
    "g6.8xlarge": 2.0144,
    "g6.16xlarge": 3.3968,
    "g6.12xlarge": 4.6016,
    "p3.2xlarge": 3.06,
    "p3.8xlarge": 12.24,
    "p4d.24xlarge": 21.9576,
    "p4de.24xlarge": 27.4471,
    "p5.48xlarge": 55.04,
}
_REGIONS = {"us-east-1": 1.0, "us-east-2": 1.0, "us-west-2": 1.0, "us-west-1": 1.17, "eu-central-1": 1.25}
_ELSEWHERE = 1.12
GP3_GB_MONTH = 0.08
PUBLIC_ADDRESS = 0.005
_SPOT = (0.36, 0.31, 0.42, 0.38, 0.5, 0.33)  # of the on-demand price, by zone


def on_demand(kind: str, region: str) -> float:
    """Return the price from the table. Types outside the table are priced by their vCPUs."""
    base = _ON_DEMAND.get(kind)
    if base is None:
        base = 0.05 * _type(kind)["VCpuInfo"]["DefaultVCpus"]
    return round(base * _REGIONS.get(region, _ELSEWHERE), 4)


def spot(kind: str, region: str, zone: str) -> float:
    return round(on_demand(kind, region) * _SPOT[(ord(zone[-1]) - ord("a")) % len(_SPOT)], 4)


def _type(kind: str) -> dict[str, Any]:
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    found: dict[str, Any] = INSTANCE_TYPES[kind]
    return found
