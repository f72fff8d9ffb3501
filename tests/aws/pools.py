"""Pools on the simulated EC2: the provider, and resources that remain."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from tests.aws import Bed


def rented(**wishes: Any) -> sky.AWS:
    """Return the provider for machines with a GPU."""
    return sky.AWS(**{"instance_type": "g4dn.xlarge"} | wishes)


@sky.function
def where() -> tuple[int, int, str]:
    info = sky.instance_info()
    return info.rank, info.total_nodes, socket.gethostname()


def left(bed: Bed, region: str = "us-east-1") -> list[str]:
    """Return all resources that cost money or block other resources."""
    ec2 = bed.client(region=region)
    alive = [each["id"] for each in bed.instances() if each["state"] not in ("terminated", "shutting-down")]
    groups = [each["GroupName"] for each in ec2.describe_security_groups()["SecurityGroups"]]
    keys = [each["KeyName"] for each in ec2.describe_key_pairs()["KeyPairs"]]
    volumes = [each["VolumeId"] for each in ec2.describe_volumes()["Volumes"]]
    placements = [each["GroupName"] for each in ec2.describe_placement_groups()["PlacementGroups"]]
    return [*alive, *placements, *(name for name in groups if name != "default"), *keys, *volumes]


def machine_ids() -> list[str]:
    """Return the machines of the only running pool by node, according to the ledger."""
    with closing(Ledger()) as ledger:
        (row,) = ledger.live_pools()
        return [each.id for each in sorted(ledger.machines(row.token), key=lambda each: each.node)]
