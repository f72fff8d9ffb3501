"""Offers of EC2: instance types, zones, prices and machine images, from AWS or from the list in this release."""

from __future__ import annotations

import asyncio
import json
import pkgutil
import re
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

from skyward_core.model.accelerators.catalog import find
from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_message
from skyward_core.model.offers_and_rental_plans import (
    MachineRequirements,
    Offer,
    OfferList,
    describe_nearest,
    matching_offers,
)
from skyward_core.providers.aws.boto_calls import AwsCalls
from skyward_core.providers.aws.ec2_errors import CallFailed, NoImage
from skyward_core.store.debug_log import get_logger
from skyward_core.store.state_folder import state_home
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import parse_json, read_bytes, write_atomic

DEFAULT_INSTANCE_TYPE = "m7i.large"  # instance type for a pool without any machine requirements
# Patterns of the types for machines without accelerators. Burstable families such as t3 are only used if the user names
# the type.
CPU_FAMILIES = ("c6*", "c7*", "c8*", "m6*", "m7*", "m8*", "r6*", "r7*", "r8*")
MIB_PER_GB = 1024.0


@value
class InstanceType(Value):
    """An instance type.

    Attributes:
        name: Name, for example "g5.xlarge".
        architecture: "x86_64" or "arm64".
        accelerator: EC2's name of its accelerators; "" if it has none.
        count: Number of accelerators.
        memory_each_gb: Memory of each accelerator in GB.
        nvidia: Whether the accelerators need NVIDIA's driver.
        vcpus: Number of vCPUs.
        memory_gb: Memory of the machine in GB.
        efa: Whether the type supports EFA.
        cluster: Whether cluster placement groups support the type.
        cards: Number of network cards.
    """

    name: str
    architecture: str
    accelerator: str
    count: int
    memory_each_gb: float
    nvidia: bool
    vcpus: int
    memory_gb: float
    efa: bool
    cluster: bool = False
    cards: int = 1

    @property
    def purchased_hardware(self) -> dict[str, Any]:
        """Hardware that the user pays for and that a machine is checked against, as fields of
        ``machines.OrderedHardware``.
        """
        if not self.nvidia:
            return {}
        return {"accelerator": self.accelerator_name, "count": self.count, "memory_gb": self.memory_each_gb}

    @property
    def accelerator_name(self) -> str:
        """The catalog's name of the accelerators; EC2's name for accelerators that the catalog does not contain."""
        try:
            return find(self.accelerator).name if self.accelerator else ""
        except UsageError:
            return self.accelerator


def parse_instance_type(description: Mapping[str, Any]) -> InstanceType:
    """Convert one instance type in EC2's answer to ``DescribeInstanceTypes``."""
    gpus = _list_accelerators(description)
    first = gpus[0] if gpus else {}
    able = description.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])
    return InstanceType(
        name=description["InstanceType"],
        architecture="arm64" if "arm64" in able else "x86_64",
        accelerator=first.get("Name", ""),
        count=sum(int(each.get("Count", 0)) for each in gpus),
        memory_each_gb=first.get("MemoryInfo", {}).get("SizeInMiB", 0) / MIB_PER_GB,
        nvidia=first.get("Manufacturer", "").upper() == "NVIDIA",
        vcpus=description.get("VCpuInfo", {}).get("DefaultVCpus", 0),
        memory_gb=description.get("MemoryInfo", {}).get("SizeInMiB", 0) / MIB_PER_GB,
        efa=bool(description.get("NetworkInfo", {}).get("EfaSupported")),
        cluster="cluster" in description.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
        cards=description.get("NetworkInfo", {}).get("MaximumNetworkCards", 1),
    )


def _list_accelerators(description: Mapping[str, Any]) -> list[Any]:
    found = (
        description.get("GpuInfo", {}).get("Gpus")
        or description.get("NeuronInfo", {}).get("NeuronDevices")
        or description.get("InferenceAcceleratorInfo", {}).get("Accelerators")
    )
    return list(found or ())


def _is_ordinary(description: Mapping[str, Any]) -> bool:
    """Check that a type is virtualized and has whole accelerators. Other types are used only if the user names the
    type.
    """
    return not description.get("BareMetal") and all(
        each.get("GpuPartitionSize", 1.0) == 1.0 for each in _list_accelerators(description)
    )


async def find_instance_types(calls: AwsCalls, region: str, requirements: MachineRequirements) -> list[InstanceType]:
    """Return the instance types that a request may select, sorted by name; some may not meet its requirements.

    Raises:
        SkywardError: If EC2 cannot be queried, or the named type does not exist.
    """
    if requirements.instance_type:
        parameters: dict[str, Any] = {"InstanceTypes": [requirements.instance_type]}
    else:
        parameters = {"Filters": [{"Name": "instance-type", "Values": list(type_patterns(requirements))}]}
    rows = await calls.call_all("ec2", region, "describe_instance_types", "InstanceTypes", **parameters)
    found = [parse_instance_type(each) for each in rows if requirements.instance_type or _is_ordinary(each)]
    return sorted(found, key=lambda kind: kind.name)


def type_patterns(requirements: MachineRequirements) -> tuple[str, ...]:
    """Return the name patterns of the types that a request may select."""
    if requirements.accelerator is not None or requirements.any_accelerator:
        return ("g*", "p*", "trn*", "inf*", "dl*")
    return CPU_FAMILIES if has_size(requirements) else (DEFAULT_INSTANCE_TYPE,)


def has_size(requirements: MachineRequirements) -> bool:
    """Check whether a request for machines without accelerators has any requirements."""
    return bool(requirements.vcpus or requirements.memory_gb or requirements.architecture or requirements.efa)


async def zones_by_type(calls: AwsCalls, region: str, names: list[str]) -> dict[str, list[str]]:
    """Return the zones of a region that offer each instance type.

    Raises:
        SkywardError: If EC2 cannot be queried.
    """
    found: dict[str, list[str]] = {}
    for at in range(0, len(names), 100):
        filters = [{"Name": "instance-type", "Values": names[at : at + 100]}]
        rows = await calls.call_all(
            "ec2", region, "describe_instance_type_offerings", "InstanceTypeOfferings",
            LocationType="availability-zone", Filters=filters,
        )  # fmt: skip
        for each in rows:
            found.setdefault(each["InstanceType"], []).append(each["Location"])
    return {name: sorted(zones) for name, zones in found.items()}


DEEP_LEARNING_AMI = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
UBUNTU_AMI = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
DEBIAN_NAMES = {"x86_64": "amd64", "arm64": "arm64"}
NEURON_FAMILIES = re.compile(r"(trn|inf[2-9])")
# By pattern of an instance family: accelerator for which none of these images has a driver.
FAMILIES_WITHOUT_IMAGE = {
    r"p2": "NVIDIA K80", r"p3(dn)?": "NVIDIA V100", r"g2": "NVIDIA K520", r"g3s?": "NVIDIA M60", r"g4ad": "AMD V520",
    r"inf1": "Inferentia", r"dl1": "Gaudi", r"dl2q": "Qualcomm AI 100", r"vt1": "Xilinx U30",
}  # fmt: skip
# Default login names, by a pattern that matches the image's name or platform.
LOGIN_NAMES = {
    r"^(al20|amzn|rhel|suse|sles|opensuse|almalinux|ol\d)|amazon linux|red hat|suse linux": "ec2-user",
    r"^centos stream (9|\d\d)": "ec2-user",
    r"^debian": "admin", r"^rocky": "rocky", r"^centos": "centos", r"^fedora": "fedora",
}  # fmt: skip


@value
class BootImage(Value):
    """A machine image.

    Attributes:
        ami: Id of the image.
        root: Device of the root volume.
        disk_gb: Size of the root volume in GB.
        user: Login name.
    """

    ami: str
    root: str
    disk_gb: int
    user: str


async def find_image(calls: AwsCalls, region: str, kind: InstanceType, ami: str | None, user: str | None) -> BootImage:
    """Return the image for an instance type: a Deep Learning image for NVIDIA GPUs or Neuron, else plain Ubuntu.

    Args:
        ami: Id of the user's image, which replaces the default images.
        user: Login name; None for the image's default.

    Raises:
        SkywardError: If the image does not exist, or is for another architecture.
    """
    if not ami:
        if reason := missing_image_reason(kind.name):
            raise UsageError(reason)
        ami = await _find_published_ami(calls, region, kind)
    image = await _describe_image(calls, region, ami)
    if image.get("Platform", "").lower() == "windows":
        raise UsageError(f"machine image {ami} runs Windows: choose an image with Linux")
    architecture = image.get("Architecture", kind.architecture)
    if architecture != kind.architecture:
        raise UsageError(f"machine image {ami} is for {architecture}, and {kind.name} is {kind.architecture}")
    root, sizes = _image_volumes(image)
    return BootImage(ami, root, sizes.get(root, 0), user or _default_user(image))


async def _describe_image(calls: AwsCalls, region: str, ami: str) -> dict[str, Any]:
    images = (await calls.call("ec2", region, "describe_images", ImageIds=[ami]))["Images"]
    if not images:
        raise NoImage(f"region {region} has no machine image {ami}; image ids differ between regions")
    return dict(images[0])


def _image_volumes(image: Mapping[str, Any]) -> tuple[str, dict[str, int]]:
    """Return the device of an image's root volume, and the sizes of all volumes in GB by device."""
    sizes = {
        each["DeviceName"]: int(each["Ebs"].get("VolumeSize") or 0)
        for each in image.get("BlockDeviceMappings", ())
        if "Ebs" in each
    }
    return image.get("RootDeviceName") or "/dev/sda1", sizes


async def _find_published_ami(calls: AwsCalls, region: str, kind: InstanceType) -> str:
    if NEURON_FAMILIES.match(kind.name):
        name = "/aws/service/neuron/dlami/base/ubuntu-24.04/latest/image_id"
    elif kind.nvidia:
        name = DEEP_LEARNING_AMI.format(kind.architecture)
    else:
        name = UBUNTU_AMI.format(DEBIAN_NAMES[kind.architecture])
    try:
        answer = await calls.call("ssm", region, "get_parameter", Name=name)
    except CallFailed as error:
        if error.code != "ParameterNotFound":
            raise
        raise NoImage(f'region {region} has no published machine image {name}: pass ami="ami-..."') from error
    return str(answer["Parameter"]["Value"])


def missing_image_reason(instance_type: str) -> str:
    """Return why no published image works on a type; "" if one does."""
    family = instance_type.partition(".")[0]
    for pattern, accelerator in FAMILIES_WITHOUT_IMAGE.items():
        if re.fullmatch(pattern, family):
            return (
                f"AWS publishes no current machine image with a driver for {instance_type} ({accelerator}): pass "
                'ami="ami-..." with an image of your own'
            )
    return ""


def _default_user(image: Mapping[str, Any]) -> str:
    """Return the default login name of an image, by its name or platform."""
    texts = [image.get(name, "").lower() for name in ("Name", "PlatformDetails")]
    found = (user for pattern, user in LOGIN_NAMES.items() if any(re.search(pattern, text) for text in texts))
    return next(found, "ubuntu")


_log = get_logger("provider")

DAY_SECONDS = 86400.0
CACHE_FILE = "aws-offers.json"


class PriceCache:
    """Cache file of AWS's answers, each with its time.

    The file may be lost, invalid, or written by two processes at once. AWS is queried again for missing answers.

    Args:
        of: Source of the answers (such as an endpoint); answers of different sources are stored separately.
    """

    def __init__(self, of: str) -> None:
        self._of = of

    async def get(
        self, name: str, ask: Callable[[], Awaitable[Any]], *, lasts: float = DAY_SECONDS
    ) -> tuple[Any, float]:
        """Return an answer and the Unix time of its query. If the cached answer is too old, query again.

        Args:
            name: Name of the answer.
            ask: Queries the answer, which must be JSON.
            lasts: Seconds for which the answer is valid.

        Raises:
            SkywardError: As ``ask`` does.
        """
        key = f"{self._of} {name}"
        found = (await asyncio.to_thread(_read_cache)).get(key)
        now = time.time()
        if found is not None and 0 <= now - found["at"] < lasts:
            return found["told"], found["at"]
        answer = await ask()
        await asyncio.to_thread(_add_to_cache, key, {"at": now, "told": answer})
        return answer, now


def _cache_path() -> Path:
    return state_home() / CACHE_FILE


def _read_cache() -> dict[str, Any]:
    """Return all cached answers; empty if the file is missing or invalid."""
    try:
        found = parse_json(read_bytes(_cache_path()))
        return {key: each for key, each in found.items() if isinstance(each["at"], int | float) and "told" in each}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.info("%s is invalid and is recreated: %s: %s", CACHE_FILE, type(error).__name__, error)
        return {}


def _add_to_cache(key: str, piece: dict[str, Any]) -> None:
    pieces = {name: each for name, each in _read_cache().items() if time.time() - each["at"] < DAY_SECONDS}
    # If two processes write the cache at the same time, one answer is lost and must be queried again.
    with suppress(OSError):
        write_atomic(_cache_path(), json.dumps(pieces | {key: piece}).encode())


PRICING_REGION = "us-east-1"  # region whose price service has the prices of all regions
# Maximum number of types whose prices are queried one by one. For more types, the region's complete price list is read.
MAX_SINGLE_QUERIES = 6
HOURS_PER_MONTH = 730.0  # number of hours by which AWS divides monthly prices
SPOT_HISTORY_DAYS = 3  # number of days of past spot prices that are queried

CHINA = "cn-"
# Partitions of AWS whose accounts have no prices in dollars, by prefix of the region.
UNPRICED_PARTITIONS = {
    CHINA: "AWS in China bills in CNY", "us-gov-": "accounts of GovCloud cannot query prices",
    "us-iso": "its accounts cannot query prices", "eusc-": "AWS bills in euros there",
}  # fmt: skip

_PRODUCT_FILTERS = {
    "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
    "marketoption": "OnDemand",
}  # fmt: skip


async def on_demand_prices(calls: AwsCalls, region: str, types: Sequence[str]) -> dict[str, float]:
    """Return dollars per hour by instance type; types without a listed price are missing.

    Raises:
        SkywardError: If AWS cannot be queried.
    """
    filters = {"regionCode": region} | _PRODUCT_FILTERS
    if len(types) > MAX_SINGLE_QUERIES:
        pages = [await _list_products(calls, "AmazonEC2", filters)]
    else:
        pages = await asyncio.gather(
            *(_list_products(calls, "AmazonEC2", filters | {"instanceType": each}) for each in types)
        )
    found = {}
    for product in (each for page in pages for each in page):
        name, price = product["product"]["attributes"].get("instanceType"), _unit_price(product, "Hrs")
        if name in types and price:
            found[name] = price
    return found


async def extra_prices(calls: AwsCalls, region: str) -> dict[str, float]:
    """Return dollars per hour for a gigabyte of disk ("gb") and for a public address ("address").

    Raises:
        SkywardError: If AWS cannot be queried.
    """
    here = {"regionCode": region}
    disks, addresses = await asyncio.gather(
        _list_products(calls, "AmazonEC2", here | {"productFamily": "Storage", "volumeApiName": "gp3"}),
        _list_products(calls, "AmazonVPC", here | {"group": "VPCPublicIPv4Address"}),
    )
    used = [each for each in addresses if "InUse" in each["product"]["attributes"].get("usagetype", "")]
    month = max((_unit_price(each, "GB-Mo") for each in disks), default=0.0)
    address = max((_unit_price(each, "Hrs") for each in used), default=0.0)
    return {"gb": month / HOURS_PER_MONTH, "address": address}


async def _list_products(calls: AwsCalls, service: str, field_filters: Mapping[str, str]) -> list[dict[str, Any]]:
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": text} for name, text in field_filters.items()]
    listed = await calls.call_all(
        "pricing", PRICING_REGION, "get_products", "PriceList",
        ServiceCode=service, Filters=filters, FormatVersion="aws_v1", MaxResults=100,
    )  # fmt: skip
    return [json.loads(each) for each in listed]


def _unit_price(product: Mapping[str, Any], unit: str) -> float:
    """Return the highest on-demand price per unit, because some products have a free tier; 0 without a price."""
    terms = product.get("terms", {}).get("OnDemand", {}).values()
    dimensions = [each for term in terms for each in term["priceDimensions"].values()]
    prices = [float(each["pricePerUnit"].get("USD", 0)) for each in dimensions if each["unit"] == unit]
    return max(prices, default=0.0)


async def spot_prices(calls: AwsCalls, region: str, types: Iterable[str]) -> dict[str, list[float]]:
    """Return spot prices: "TYPE ZONE" -> dollars per hour: current price, lowest and highest of the last days.

    Raises:
        SkywardError: If EC2 cannot be queried.
    """
    rows = await calls.call_all(
        "ec2", region, "describe_spot_price_history", "SpotPriceHistory",
        InstanceTypes=sorted(types), ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.now(UTC) - timedelta(days=SPOT_HISTORY_DAYS),
    )  # fmt: skip
    found: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda each: each["Timestamp"], reverse=True):
        price = float(row["SpotPrice"])
        before = found.setdefault(f"{row['InstanceType']} {row['AvailabilityZone']}", [price, price, price])
        before[1:] = [min(before[1], price), max(before[2], price)]
    return found


SHIPPED_FILE = "shipped_offers.json"


@cache
def _shipped_data() -> dict[str, Any]:
    raw = pkgutil.get_data(__package__, SHIPPED_FILE)
    if raw is None:
        raise UsageError(f"{__package__} contains no {SHIPPED_FILE}: reinstall the package")
    found: dict[str, Any] = json.loads(raw)
    return found


def shipped_date() -> str:
    """Return the date of the shipped prices, for example "2026-01-19"."""
    return str(_shipped_data()["date"])


def shipped_at() -> float:
    """Return the date of the shipped prices as Unix time."""
    return datetime.fromisoformat(shipped_date()).replace(tzinfo=UTC).timestamp()


def shipped_regions() -> list[str]:
    """Return the regions with shipped prices."""
    return list(_shipped_data()["gp3_gb_month"])


def shipped_instance_types() -> list[InstanceType]:
    """Return the instance types in the shipped list."""
    columns = _shipped_data()["columns"]
    rows = (dict(zip(columns, row, strict=True)) for row in _shipped_data()["kinds"])
    return [InstanceType(**{name: row[name] for name in columns if name not in shipped_regions()}) for row in rows]


def shipped_prices(region: str) -> dict[str, float]:
    """Return the shipped dollars per hour by type; empty for other regions."""
    if region not in shipped_regions():
        return {}
    column = _shipped_data()["columns"].index(region)
    return {row[0]: row[column] for row in _shipped_data()["kinds"]}


def shipped_extra_prices(region: str) -> dict[str, float]:
    """Return the shipped prices in the format of :func:`extra_prices`; empty for other regions."""
    if region not in shipped_regions():
        return {}
    return {
        "gb": _shipped_data()["gp3_gb_month"][region] / HOURS_PER_MONTH,
        "address": _shipped_data()["public_address"][region],
    }


DEFAULT_DISK_GB = 100  # default size of a machine's disk in GB
SPOT_PRICE_TTL = 3600.0  # seconds for which a queried spot price counts as current
# seconds for the queries of a region's on-demand prices, and for its spot prices; a launch must not wait longer
PRICING_TIMEOUT = 20.0


@value
class BilledExtras(Value):
    """Extras of a machine that are billed separately.

    Attributes:
        disk_gb: Requested size of the disk in GB.
        public: Whether the machine has a public address.
        ami: Id of the user's image, which may have larger or more volumes; None for the published images.
    """

    disk_gb: int
    public: bool
    ami: str | None = None

    async def total_disk_gb(self, calls: AwsCalls, store: PriceCache, region: str) -> int:
        """Return the GB of all disks of a machine in a region.

        Raises:
            NoImage: If the region does not have the image.
            SkywardError: If EC2 cannot be queried.
        """
        if (ami := self.ami) is None:
            return self.disk_gb

        async def ask() -> list[int]:
            root, sizes = _image_volumes(await _describe_image(calls, region, ami))
            first = sizes.pop(root, 0)
            return [first, sum(sizes.values())]

        (root, others), _ = await store.get(f"image {region} {ami}", ask)
        return max(self.disk_gb, int(root)) + int(others)


@value
class RegionOffers(Value):
    """Instance types of a region, and offers for them."""

    kinds: Sequence[InstanceType]
    offers: Sequence[Offer]
    notes: Sequence[str]

    def matching_types(self, requirements: MachineRequirements) -> list[InstanceType]:
        """Return the types with offers that fit a request."""
        fit = {each.instance_type for each in matching_offers(self.offers, requirements)}
        return [kind for kind in self.kinds if kind.name in fit]


async def list_offers(
    calls: AwsCalls, provider: str, regions: Sequence[str], requirements: MachineRequirements, extras: BilledExtras
) -> OfferList:
    """Return the offers for a request, from EC2 or, if EC2 cannot be queried, from the list in this release.

    Raises:
        UsageError: If the request is invalid, for example because a region or type does not exist.
    """

    async def one(region: str) -> RegionOffers:
        try:
            return await query_region(calls, provider, region, requirements, extras)
        except NoImage as error:
            if len(regions) == 1:
                raise
            return RegionOffers((), (), [error_message(error)])
        except UsageError:
            raise
        except (PoolError, TimeoutError) as error:
            return _shipped_offers(provider, region, requirements, extras, error_message(error))

    found = await asyncio.gather(*map(one, regions))
    notes = dict.fromkeys(note for each in found for note in each.notes)
    return OfferList(offers=[offer for each in found for offer in each.offers], notes=_shorten_repeated_reasons(notes))


def _shorten_repeated_reasons(notes: Iterable[str]) -> list[str]:
    """Return notes about failed queries. A reason that occurs in several notes is kept only in the first of them."""
    shortened, seen = [], set()
    for note in notes:
        fact, _, reason = note.partition(": ")
        shortened.append(fact if reason in seen else note)
        seen.add(reason)
    return shortened


async def query_region(
    calls: AwsCalls, provider: str, region: str, requirements: MachineRequirements, extras: BilledExtras
) -> RegionOffers:
    """Return the offers of a region from EC2. Missing prices come from the shipped list, or are unknown.

    Raises:
        SkywardError: If EC2 cannot be queried.
    """
    store = PriceCache(calls.account.endpoint or "aws")
    about = requirements.instance_type or " ".join(type_patterns(requirements))

    async def ask() -> dict[str, Any]:
        types = await find_instance_types(calls, region, requirements)
        zones = await zones_by_type(calls, region, [kind.name for kind in types])
        return {"kinds": [asdict(kind) for kind in types], "zones": zones}

    extras = replace(extras, disk_gb=await extras.total_disk_gb(calls, store, region), ami=None)
    answer, _ = await store.get(f"types {region} {about}", ask)
    types = [InstanceType(**each) for each in answer["kinds"]]
    # Query prices only for the types that fit the requested accelerator, because price queries are slow.
    sold = [kind for kind in types if answer["zones"].get(kind.name)]
    accelerator = requirements.accelerator and (requirements.accelerator.name, requirements.accelerator.count)
    named = [kind.name for kind in sold if accelerator in (None, (kind.accelerator_name, kind.count))]
    priced = _RegionPrices(calls, store, region, named)
    notes = await priced.load(spot=requirements.allocation != "on-demand")
    offers = [
        offer
        for kind in sold
        for zone in answer["zones"][kind.name]
        for offer in priced.offers(provider, kind, zone, extras)
    ]
    return RegionOffers(types, offers, notes)


def select_offers(
    offers: Sequence[Offer], requirements: MachineRequirements, usable_zones: Container[str] | None, ami: str | None
) -> list[Offer]:
    """Return the fitting offers in usable zones, in the order of attempts.

    Args:
        offers: All offers.
        requirements: Machine requirements.
        usable_zones: Zones with a subnet; None if unknown.
        ami: Id of the user's image; None for the published images.

    Raises:
        UsageError: If no offer remains. The message has the reason.
    """
    fitting = matching_offers(offers, requirements)
    order = [each for each in fitting if ami or not missing_image_reason(each.instance_type)]
    if fitting and not order:
        raise UsageError(missing_image_reason(fitting[0].instance_type))
    found = [each for each in order if usable_zones is None or not each.zone or each.zone in usable_zones]
    if found:
        return found
    if order:
        places = ", ".join(dict.fromkeys(each.zone for each in order))
        raise UsageError(
            f"{order[0].instance_type} is only offered in {places}, which have no usable subnet: choose other zones"
        )
    raise UsageError(_no_offer_message(offers, requirements))


def _no_offer_message(offers: Sequence[Offer], requirements: MachineRequirements) -> str:
    kind, accelerator = requirements.instance_type, requirements.accelerator
    if kind and accelerator is not None and (has := next((o for o in offers if o.instance_type == kind), None)):
        carries = f"{has.count} x {has.accelerator}" if has.count else "no accelerator"
        if (has.accelerator, has.count) != (accelerator.name, accelerator.count):
            return f"{kind} has {carries}, but {accelerator} was requested: remove one of the two"
    missed = "; ".join(describe_nearest(offers, requirements))
    where = " and ".join(requirements.regions) or "the region"
    if not offers:
        return f"no offer in {where} is known"
    return f"no offer in {where} fits the request{f'; the nearest: {missed}' if missed else ''}"


class _RegionPrices:
    """Prices of some instance types in a region."""

    def __init__(self, calls: AwsCalls, store: PriceCache, region: str, types: Sequence[str]) -> None:
        self._calls, self._store, self._region, self._types = calls, store, region, types
        self._on_demand: Mapping[str, float] = {}
        self._spot: Mapping[str, Sequence[float]] = {}
        self._extra_prices: Mapping[str, float] = {}
        self._at = self._spot_at = 0.0
        self._shipped = False
        self._market_spot = False

    async def load(self, *, spot: bool) -> list[str]:
        """Query the prices; return notes for the user about prices that are missing or old."""
        self._market_spot = spot
        notes = []
        calls, region, types = self._calls, self._region, self._types
        partition = next((reason for prefix, reason in UNPRICED_PARTITIONS.items() if region.startswith(prefix)), "")
        try:
            if partition:
                raise PoolError(partition)
            async with asyncio.timeout(PRICING_TIMEOUT):
                self._extra_prices, _ = await self._store.get(f"beside {region}", lambda: extra_prices(calls, region))
                if types:
                    self._on_demand, self._at = await self._store.get(
                        f"on demand {region} {' '.join(types)}", lambda: on_demand_prices(calls, region, types)
                    )
        except (SkywardError, TimeoutError) as error:
            self._extra_prices, self._on_demand = shipped_extra_prices(self._region), shipped_prices(self._region)
            self._at, self._shipped = shipped_at(), True
            reason = error_message(error) or "AWS did not answer in time"
            notes.append(_shipped_prices_note(self._region, reason))
        if spot and self._types and not region.startswith(CHINA):
            try:
                async with asyncio.timeout(PRICING_TIMEOUT):
                    self._spot, self._spot_at = await self._store.get(
                        f"spot {self._region} {' '.join(self._types)}",
                        lambda: spot_prices(self._calls, self._region, self._types),
                        lasts=SPOT_PRICE_TTL,
                    )
            except (SkywardError, TimeoutError) as error:
                notes.append(f"spot prices in {self._region} are unknown: {error_message(error) or 'no answer'}")
        return notes

    def offers(self, provider: str, kind: InstanceType, zone: str, extras: BilledExtras) -> list[Offer]:
        """Return the offers of a type in a zone: an on-demand offer and, if requested, a spot offer."""
        price = self._on_demand.get(kind.name)
        base = _offer_fields(provider, kind, self._region, zone, self._extra_prices, extras)
        found = [_make_offer(base, price, self._at, shipped=self._shipped)]
        spot = self._spot.get(f"{kind.name} {zone}")
        if self._market_spot and spot:
            now, least, most = spot
            extra = {"market": "spot", "lately": (least, most)}
            found.append(_make_offer(base, now, self._spot_at, shipped=False, **extra))
        return found


def _offer_fields(
    provider: str,
    kind: InstanceType,
    region: str,
    zone: str,
    beside: Mapping[str, float],
    extras: BilledExtras,
) -> dict[str, Any]:
    return {
        "provider": provider, "instance_type": kind.name, "region": region, "zone": zone,
        "accelerator": kind.accelerator_name, "count": kind.count, "memory_each_gb": kind.memory_each_gb,
        "vcpus": kind.vcpus, "memory_gb": kind.memory_gb, "architecture": kind.architecture, "efa": kind.efa,
        "beside_hourly": beside.get("gb", 0.0) * extras.disk_gb + beside.get("address", 0.0) * extras.public,
    }  # fmt: skip


def _make_offer(base: Mapping[str, Any], price: float | None, at: float, *, shipped: bool, **extra: Any) -> Offer:
    known = price is not None
    return Offer(**base, **extra, hourly=price, priced_at=at if known else 0.0, shipped=shipped and known)


def _shipped_offers(
    provider: str, region: str, requirements: MachineRequirements, extras: BilledExtras, reason: str
) -> RegionOffers:
    """Return the offers of a region from the shipped list, which has no zones."""
    listed, beside = shipped_prices(region), shipped_extra_prices(region)
    patterns = (requirements.instance_type,) if requirements.instance_type else type_patterns(requirements)
    listed_types = [kind for kind in shipped_instance_types() if kind.name in listed]
    types = [kind for kind in listed_types if any(fnmatch(kind.name, pattern) for pattern in patterns)]
    fields = [_offer_fields(provider, kind, region, "", beside, extras) for kind in types]
    offers = [_make_offer(each, listed[each["instance_type"]], shipped_at(), shipped=True) for each in fields]
    reason = reason or "AWS did not answer in time"
    spot = [f"spot prices are unknown: {reason}"] if requirements.allocation != "on-demand" else []
    return RegionOffers(types, offers, [*spot, _shipped_prices_note(region, reason)])


def _shipped_prices_note(region: str, reason: str) -> str:
    if region in shipped_regions():
        return f"prices in {region} are from {shipped_date()} (price list of this release): {reason}"
    return f"prices in {region} are unknown, also in the price list of this release: {reason}"
