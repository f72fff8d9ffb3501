"""Waits of the simulation's own tests."""

from __future__ import annotations

from typing import Any

from tests.lab.tools import wait_until

from . import Bed
from .images import UBUNTU


def launch(ec2: Any, count: int = 1, **more: Any) -> list[str]:
    """Launch small machines, all or none, and return their ids."""
    given = {"ImageId": UBUNTU.ami, "InstanceType": "t3.micro", "MinCount": count, "MaxCount": count, **more}
    return [instance["InstanceId"] for instance in ec2.run_instances(**given)["Instances"]]


def until_state(bed: Bed, ids: list[str], state: str) -> list[dict[str, Any]]:
    """Wait until all instances are in a state, and return them."""

    def there() -> bool:
        return all(found["state"] == state for found in bed.instances() if found["id"] in ids)

    wait_until(there, f"{ids} to be {state}")
    return [found for found in bed.instances() if found["id"] in ids]
