"""What machines cost, and what is billed beside them: their disks and public addresses. In dollars."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from .calls import Calls

LISTED_IN = "us-east-1"  # where AWS answers questions about the prices of all regions
ONE_BY_ONE = 6  # types about which it is asked one by one; of more the region's whole list is read
HOURS = 730.0  # of a month, as AWS counts
DAYS = 3  # of spot prices that are looked back on

_MACHINE = {
    "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
    "marketoption": "OnDemand",
}  # fmt: skip


async def on_demand(calls: Calls, region: str, types: Sequence[str]) -> dict[str, float]:
    """Dollars for an hour, by instance type; of those that the list does not have there is none.

    Raises:
        SkywardError: it cannot be told.
    """
    wanted = {"regionCode": region} | _MACHINE
    if len(types) > ONE_BY_ONE:
        pages = [await _products(calls, "AmazonEC2", wanted)]
    else:
        pages = await asyncio.gather(
            *(_products(calls, "AmazonEC2", wanted | {"instanceType": each}) for each in types)
        )
    found = {}
    for product in (each for page in pages for each in page):
        name, price = product["product"]["attributes"].get("instanceType"), _dollars(product, "Hrs")
        if name in types and price:
            found[name] = price
    return found


async def beside(calls: Calls, region: str) -> dict[str, float]:
    """Dollars for an hour of a gigabyte of disk ("gb"), and of a public address ("address").

    Raises:
        SkywardError: it cannot be told.
    """
    disks, addresses = await asyncio.gather(
        _products(
            calls,
            "AmazonEC2",
            {"regionCode": region, "productFamily": "Storage", "volumeApiName": "gp3"},
        ),
        _products(calls, "AmazonVPC", {"regionCode": region, "group": "VPCPublicIPv4Address"}),
    )
    used = [each for each in addresses if "InUse" in each["product"]["attributes"].get("usagetype", "")]
    month = max((_dollars(each, "GB-Mo") for each in disks), default=0.0)
    return {"gb": month / HOURS, "address": max((_dollars(each, "Hrs") for each in used), default=0.0)}


async def _products(calls: Calls, service: str, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": text} for name, text in wanted.items()]
    listed = await calls.call_all(
        "pricing", LISTED_IN, "get_products", "PriceList",
        ServiceCode=service, Filters=filters, FormatVersion="aws_v1", MaxResults=100,
    )  # fmt: skip
    return [json.loads(each) for each in listed]


def _dollars(product: Mapping[str, Any], unit: str) -> float:
    """The dearest price on demand by a unit: some are free up to an amount. 0 where there is none."""
    terms = product.get("terms", {}).get("OnDemand", {}).values()
    dimensions = [each for term in terms for each in term["priceDimensions"].values()]
    return max(
        (float(each["pricePerUnit"].get("USD", 0)) for each in dimensions if each["unit"] == unit),
        default=0.0,
    )


async def spot(calls: Calls, region: str, types: Iterable[str]) -> dict[str, list[float]]:
    """What spot machines cost: "TYPE ZONE" -> dollars for an hour now, the least and the most in the last days.

    Raises:
        SkywardError: it cannot be told.
    """
    rows = await calls.call_all(
        "ec2", region, "describe_spot_price_history", "SpotPriceHistory",
        InstanceTypes=sorted(types), ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.now(UTC) - timedelta(days=DAYS),
    )  # fmt: skip
    found: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda each: each["Timestamp"], reverse=True):
        price = float(row["SpotPrice"])
        before = found.setdefault(f"{row['InstanceType']} {row['AvailabilityZone']}", [price, price, price])
        before[1:] = [min(before[1], price), max(before[2], price)]
    return found
