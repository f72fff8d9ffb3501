"""Public data of AWS: on-demand and spot prices, parameters that name images, and quotas."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from .answers import Answer, Refused, as_json, as_xml
from .images import IMAGES
from .prices import GP3_GB_MONTH, PUBLIC_ADDRESS, on_demand, spot
from .quotas import DEFAULT, QUOTAS, Quota
from .request import Call
from .world import World

_LOCATIONS = {
    "US East (N. Virginia)": "us-east-1",
    "US East (Ohio)": "us-east-2",
    "US West (N. California)": "us-west-1",
    "US West (Oregon)": "us-west-2",
    "EU (Frankfurt)": "eu-central-1",
    "EU (Ireland)": "eu-west-1",
}


def products(world: World, call: Call) -> Answer:
    """Answer Pricing's GetProducts: JSON documents inside a document, in pages."""
    filters = {found["Field"]: found["Value"] for found in call.params.get("Filters", [])}
    region = filters.pop("regionCode", None) or _LOCATIONS.get(filters.pop("location", ""), "us-east-1")
    filters.pop("location", None)
    listed = [p for p in _listed(call.params["ServiceCode"], region, filters) if _fits(p, filters)]
    size, start = int(call.params.get("MaxResults", 100)), int(call.params.get("NextToken", 0))
    page = [json.dumps(product) for product in listed[start : start + size]]
    more = {"NextToken": str(start + size)} if start + size < len(listed) else {}
    return as_json({"FormatVersion": "aws_v1", "PriceList": page, **more})


def _listed(service: str, region: str, filters: dict[str, str]) -> list[dict[str, Any]]:
    if service == "AmazonVPC":
        about = {"group": "VPCPublicIPv4Address", "usagetype": "USE1-PublicIPv4:InUseAddress"}
        return [_product(service, None, region, about, PUBLIC_ADDRESS, "Hrs")]
    if service != "AmazonEC2":
        return []
    if filters.get("productFamily") == "Storage" or "volumeApiName" in filters:
        return [_product(service, "Storage", region, {"volumeApiName": "gp3"}, GP3_GB_MONTH, "GB-Mo")]
    return [_machine(kind, region) for kind in _types(region) if filters.get("instanceType") in (None, kind)]


@cache  # hundreds are listed, for each page of them anew
def _machine(kind: str, region: str) -> dict[str, Any]:
    about = {
        "instanceType": kind,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "licenseModel": "No License required",
    }
    return _product("AmazonEC2", "Compute Instance", region, about, on_demand(kind, region), "Hrs")


def _product(
    service: str, family: str | None, region: str, about: dict[str, str], usd: float, unit: str
) -> dict[str, Any]:
    location = next((name for name, code in _LOCATIONS.items() if code == region), region)
    sku = f"{abs(hash((service, region, *about.values()))):016X}"[:16]
    dimension = {"unit": unit, "description": f"${usd} per {unit}", "pricePerUnit": {"USD": f"{usd:.10f}"}}
    term = {
        "sku": sku,
        "effectiveDate": "2025-11-01T00:00:00Z",
        "priceDimensions": {f"{sku}.JRTCKXETXF.6YS6EN2CT7": dimension},
    }
    attributes = {**about, "regionCode": region, "location": location, "servicecode": service}
    product = {"sku": sku, "attributes": attributes, **({"productFamily": family} if family else {})}
    return {
        "product": product,
        "serviceCode": service,
        "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": term}},
        "publicationDate": "2025-11-20T00:00:00Z",
    }


def _fits(product: dict[str, Any], filters: dict[str, str]) -> bool:
    attributes = {**product["product"]["attributes"], "productFamily": product["product"].get("productFamily")}
    attributes |= {"termType": "OnDemand", "servicecode": product["serviceCode"]}
    return all(attributes.get(field) == value for field, value in filters.items())


@cache
def _types(region: str) -> list[str]:
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

    offered = {found["InstanceType"] for found in INSTANCE_TYPE_OFFERINGS["region"].get(region, [])}
    return sorted(kind for kind in offered if kind in INSTANCE_TYPES)


def spot_history(world: World, call: Call) -> Answer:
    """Return the prices of now, yesterday and two days ago, newest first, by type and zone."""
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

    kinds, zones = set(call.many("InstanceType")), set()
    if zone := call.params.get("AvailabilityZone"):
        zones.add(zone)
    for name, values in call.filters():
        if name == "instance-type":
            kinds |= set(values)
        elif name == "availability-zone":
            zones |= set(values)
    since = call.params.get("StartTime")
    now = datetime.now(UTC)
    rows = []
    for offered in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(call.region, []):
        kind, zone = offered["InstanceType"], offered["Location"]
        if (kinds and kind not in kinds) or (zones and zone not in zones) or kind not in INSTANCE_TYPES:
            continue
        # The last one before StartTime is told as well: it is what counted then.
        for days, factor in ((0, 1.0), (1, 0.95), (2, 1.1)):
            at = now - timedelta(days=days, minutes=7)
            rows.append(
                {
                    "availabilityZone": zone,
                    "instanceType": kind,
                    "productDescription": "Linux/UNIX",
                    "spotPrice": f"{spot(kind, call.region, zone) * factor:.6f}",
                    "timestamp": at.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
                }
            )
            if since and at.isoformat() < since:
                break
    rows.sort(key=lambda row: row["timestamp"], reverse=True)
    size, start = int(call.params.get("MaxResults", 1000)), int(call.params.get("NextToken") or 0)
    more = str(start + size) if start + size < len(rows) else ""
    return as_xml(call.action, {"spotPriceHistorySet": rows[start : start + size], "nextToken": more})


def parameter(world: World, call: Call) -> Answer:
    name = call.params["Name"]
    found = _parameters(call.region).get(name)
    if found is None:
        raise Refused("ParameterNotFound", f"Parameter {name} not found.")
    return as_json({"Parameter": found})


def _parameters(region: str) -> dict[str, dict[str, Any]]:
    return {
        image.parameter: {
            "Name": image.parameter,
            "Type": "String",
            "Value": image.ami,
            "Version": 1,
            "DataType": "aws:ec2:image",
            "ARN": f"arn:aws:ssm:{region}::parameter{image.parameter}",
        }
        for image in IMAGES.values()
        if image.parameter
    }


def quota(world: World, call: Call) -> Answer:
    code = call.params["QuotaCode"]
    for one in QUOTAS:
        if one.code == code and call.params["ServiceCode"] == "ec2":
            return as_json({"Quota": _quota(world, one)})
    raise Refused("NoSuchResourceException", "The request failed because the specified service quota does not exist.")


def all_quotas(world: World, call: Call) -> Answer:
    return as_json({"Quotas": [_quota(world, one) for one in QUOTAS if call.params["ServiceCode"] == "ec2"]})


def _quota(world: World, one: Quota) -> dict[str, Any]:
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaCode": one.code,
        "QuotaName": one.name,
        "Value": world.rules.quota.get(one.code, DEFAULT),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
