"""Calls that moto does not know, or answers with nothing of use."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime

from . import capacity_blocks, placement, public_lists
from .answers import Answer, Refused, as_xml
from .request import Call
from .world import World


def console(world: World, call: Call) -> Answer:
    """What cloud-init said, and the fingerprints of the host keys that sshd shows."""
    machine = world.machines.get(call.params["InstanceId"])
    if machine is None:
        raise Refused("InvalidInstanceID.NotFound", f"The instance ID '{call.params['InstanceId']}' does not exist")
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    text = base64.b64encode(machine.console().encode()).decode()
    return as_xml(call.action, {"instanceId": machine.id, "timestamp": at, "output": text})


MORE: dict[tuple[str, str], Callable[[World, Call], Answer]] = {
    ("ec2", "CreatePlacementGroup"): placement.create_group,
    ("ec2", "DeletePlacementGroup"): placement.delete_group,
    ("ec2", "DescribePlacementGroups"): placement.describe_groups,
    ("ec2", "DescribeCapacityBlockOfferings"): capacity_blocks.offerings,
    ("ec2", "DescribeCapacityReservations"): capacity_blocks.describe_reservations,
    ("ec2", "PurchaseCapacityBlock"): capacity_blocks.purchase,
    ("ec2", "DescribeInstanceTopology"): placement.topology,
    ("ec2", "DescribeSpotPriceHistory"): public_lists.spot_history,
    ("ec2", "GetConsoleOutput"): console,
    ("pricing", "GetProducts"): public_lists.products,
    ("ssm", "GetParameter"): public_lists.parameter,
    ("ssm", "GetParameters"): public_lists.parameters,
    ("servicequotas", "GetServiceQuota"): public_lists.quota,
    ("servicequotas", "ListServiceQuotas"): public_lists.all_quotas,
}
