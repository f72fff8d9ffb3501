"""Pools on the bed: what a test wants there, and what of them is left at the API."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from tests.aws import Bed


def rented(**wishes: Any) -> sky.AWS:
    """The provider, for machines with a GPU."""
    return sky.AWS(**{"instance_type": "g4dn.xlarge"} | wishes)


@sky.function
def where() -> tuple[int, int, str]:
    info = sky.instance_info()
    return info.rank, info.total_nodes, socket.gethostname()


def left(bed: Bed, region: str = "us-east-1") -> list[str]:
    """All that costs money there, or is in somebody's way."""
    ec2 = bed.client(region=region)
    alive = [each["id"] for each in bed.instances() if each["state"] not in ("terminated", "shutting-down")]
    groups = [each["GroupName"] for each in ec2.describe_security_groups()["SecurityGroups"]]
    keys = [each["KeyName"] for each in ec2.describe_key_pairs()["KeyPairs"]]
    volumes = [each["VolumeId"] for each in ec2.describe_volumes()["Volumes"]]
    placements = [each["GroupName"] for each in ec2.describe_placement_groups()["PlacementGroups"]]
    return [*alive, *placements, *(name for name in groups if name != "default"), *keys, *volumes]


def machine_ids() -> list[str]:
    """The machines of the one pool that is up, by node, by the ledger's word."""
    with closing(Ledger()) as ledger:
        (row,) = ledger.live_pools()
        return [each.id for each in sorted(ledger.machines(row.token), key=lambda each: each.node)]
