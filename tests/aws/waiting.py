"""What tests of the bed wait for."""

from __future__ import annotations

import socket
import time
from typing import Any

from tests.lab.tools import wait_until

from . import Bed
from .images import UBUNTU


def launch(ec2: Any, count: int = 1, **more: Any) -> list[str]:
    """Small machines, all or none; their ids."""
    given = {"ImageId": UBUNTU.ami, "InstanceType": "t3.micro", "MinCount": count, "MaxCount": count, **more}
    return [instance["InstanceId"] for instance in ec2.run_instances(**given)["Instances"]]


def until_state(bed: Bed, ids: list[str], state: str) -> list[dict[str, Any]]:
    """The instances once all are in that state."""

    def there() -> bool:
        return all(found["state"] == state for found in bed.instances() if found["id"] in ids)

    wait_until(there, f"{ids} to be {state}")
    return [found for found in bed.instances() if found["id"] in ids]


def until_ssh(address: str, seconds: float = 30) -> None:
    """Until somebody listens at port 22."""

    def listens() -> bool:
        try:
            with socket.create_connection((address, 22), timeout=1):
                return True
        except OSError:
            time.sleep(0.02)
            return False

    wait_until(listens, f"sshd at {address}", seconds)
