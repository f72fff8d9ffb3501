"""Calls that moto does not support, or answers without useful content."""

from __future__ import annotations

from collections.abc import Callable

from . import capacity_blocks, placement, public_lists
from .answers import Answer
from .request import Call
from .world import World

MORE: dict[tuple[str, str], Callable[[World, Call], Answer]] = {
    ("ec2", "CreatePlacementGroup"): placement.create_group,
    ("ec2", "DeletePlacementGroup"): placement.delete_group,
    ("ec2", "DescribePlacementGroups"): placement.describe_groups,
    ("ec2", "DescribeCapacityBlockOfferings"): capacity_blocks.offerings,
    ("ec2", "DescribeCapacityReservations"): capacity_blocks.describe_reservations,
    ("ec2", "PurchaseCapacityBlock"): capacity_blocks.purchase,
    ("ec2", "DescribeInstanceTopology"): placement.topology,
    ("ec2", "DescribeSpotPriceHistory"): public_lists.spot_history,
    ("pricing", "GetProducts"): public_lists.products,
    ("ssm", "GetParameter"): public_lists.parameter,
    ("servicequotas", "GetServiceQuota"): public_lists.quota,
    ("servicequotas", "ListServiceQuotas"): public_lists.all_quotas,
}
