"""Instance types, prices and images."""

from __future__ import annotations

import asyncio
import json
import pkgutil
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
from skyward_core.model.offers import MachineRequirements, Offer, OfferList, describe_nearest, matching_offers
from skyward_core.providers.aws.boto_calls import AwsCalls
from skyward_core.providers.aws.ec2_errors import CallFailed
from skyward_core.store.atomic_file import write_atomic
from skyward_core.store.debug_log import get_logger
from skyward_core.store.state_folder import state_home
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.user_files import parse_json, read_bytes

DEFAULT_INSTANCE_TYPE = "m7i.large"  # where nothing is asked for
ACCELERATOR_FAMILIES = ("g*", "p*", "trn*", "inf*", "dl*")
# Not those that are fast in bursts alone, as t3: who wants one names it.
CPU_FAMILIES = ("c6*", "c7*", "c8*", "m6*", "m7*", "m8*", "r6*", "r7*", "r8*")
MIB_PER_GB = 1024.0


@value
class InstanceType(Value):
    """An instance type.

    Attributes:
        name: such as "g5.xlarge".
        architecture: "x86_64" or "arm64".
        accelerator: name of its accelerators as EC2 has it; "" where there are none.
        count: how many.
        memory_each_gb: of each.
        nvidia: whether they need NVIDIA's driver.
        vcpus: how many.
        memory_gb: the machine's own.
        efa: whether it can have EFA.
        cluster: whether machines of it can stand close together.
        cards: how many network cards it has.
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
        """What is paid for that a machine can be held to, as ``machines.OrderedHardware`` takes it."""
        if not self.nvidia:
            return {}
        return {"accelerator": self.accelerator_name, "count": self.count, "memory_gb": self.memory_each_gb}

    @property
    def accelerator_name(self) -> str:
        """What the catalogue calls its accelerators; EC2's own name for those that are newer than that."""
        try:
            return find(self.accelerator).name if self.accelerator else ""
        except UsageError:
            return self.accelerator


def parse_instance_type(told: Mapping[str, Any]) -> InstanceType:
    """From what ``DescribeInstanceTypes`` tells of one."""
    gpus = _list_accelerators(told)
    first = gpus[0] if gpus else {}
    able = told.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])
    return InstanceType(
        name=told["InstanceType"],
        architecture="arm64" if "arm64" in able else "x86_64",
        accelerator=first.get("Name", ""),
        count=sum(int(each.get("Count", 0)) for each in gpus),
        memory_each_gb=first.get("MemoryInfo", {}).get("SizeInMiB", 0) / MIB_PER_GB,
        nvidia=first.get("Manufacturer", "").upper() == "NVIDIA",
        vcpus=told.get("VCpuInfo", {}).get("DefaultVCpus", 0),
        memory_gb=told.get("MemoryInfo", {}).get("SizeInMiB", 0) / MIB_PER_GB,
        efa=bool(told.get("NetworkInfo", {}).get("EfaSupported")),
        cluster="cluster" in told.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
        cards=told.get("NetworkInfo", {}).get("MaximumNetworkCards", 1),
    )


def _list_accelerators(told: Mapping[str, Any]) -> list[Any]:
    found = (
        told.get("GpuInfo", {}).get("Gpus")
        or told.get("NeuronInfo", {}).get("NeuronDevices")
        or told.get("InferenceAcceleratorInfo", {}).get("Accelerators")
    )
    return list(found or ())


def _is_ordinary(told: Mapping[str, Any]) -> bool:
    """Whether it is a usual machine, with whole accelerators: others are for those who name them."""
    return not told.get("BareMetal") and all(
        each.get("GpuPartitionSize", 1.0) == 1.0 for each in _list_accelerators(told)
    )


async def find_instance_types(calls: AwsCalls, region: str, requirements: MachineRequirements) -> list[InstanceType]:
    """The instance types of a region that a wish is about, those that miss it among them, by name.

    Raises:
        SkywardError: they cannot be told, or the one that is named is none.
    """
    if requirements.instance_type:
        asked: dict[str, Any] = {"InstanceTypes": [requirements.instance_type]}
    else:
        filters = [{"Name": "instance-type", "Values": list(type_patterns(requirements))}]
        asked = {"Filters": filters}
    told = await calls.call_all("ec2", region, "describe_instance_types", "InstanceTypes", **asked)
    found = [parse_instance_type(each) for each in told if requirements.instance_type or _is_ordinary(each)]
    return sorted(found, key=lambda kind: kind.name)


def type_patterns(requirements: MachineRequirements) -> tuple[str, ...]:
    """Patterns of the types that a wish is about."""
    if requirements.accelerator is not None or requirements.any_accelerator:
        return ACCELERATOR_FAMILIES
    return CPU_FAMILIES if has_size(requirements) else (DEFAULT_INSTANCE_TYPE,)


def has_size(requirements: MachineRequirements) -> bool:
    """Whether a wish for machines without accelerators says anything of what they have to be."""
    return bool(requirements.vcpus or requirements.memory_gb or requirements.architecture or requirements.efa)


async def zones_by_type(calls: AwsCalls, region: str, names: list[str]) -> dict[str, list[str]]:
    """In which zones of a region each instance type is sold.

    Raises:
        SkywardError: it cannot be told.
    """
    found: dict[str, list[str]] = {}
    for at in range(0, len(names), 100):
        filters = [{"Name": "instance-type", "Values": names[at : at + 100]}]
        told = await calls.call_all(
            "ec2", region, "describe_instance_type_offerings", "InstanceTypeOfferings",
            LocationType="availability-zone", Filters=filters,
        )  # fmt: skip
        for each in told:
            found.setdefault(each["InstanceType"], []).append(each["Location"])
    return {name: sorted(zones) for name, zones in found.items()}


DEEP_LEARNING_AMI = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
UBUNTU_AMI = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
DEBIAN_NAMES = {"x86_64": "amd64", "arm64": "arm64"}


class NoImage(UsageError):
    """A region has no image of that id."""


@value
class BootImage(Value):
    """A machine image.

    Attributes:
        ami: its id.
        root: the device of its root volume.
        disk_gb: that volume's size.
        user: who logs in.
    """

    ami: str
    root: str
    disk_gb: int
    user: str


async def find_image(calls: AwsCalls, region: str, kind: InstanceType, ami: str | None, user: str | None) -> BootImage:
    """The image for an instance type: with NVIDIA's driver where it has such a GPU, else plain Ubuntu.

    Args:
        ami: the person's own, in place of that.
        user: who logs in; None for the usual one of that image.

    Raises:
        SkywardError: there is no such image.
    """
    ami = ami or await _find_published_ami(calls, region, kind)
    image = await _describe_image(calls, region, ami)
    architecture = image.get("Architecture", kind.architecture)
    if architecture != kind.architecture:
        raise UsageError(f"machine image {ami} is for {architecture}, and {kind.name} is {kind.architecture}")
    root, sizes = _image_volumes(image)
    return BootImage(ami, root, sizes.get(root, 0), user or _default_user(image.get("Name", "")))


async def _describe_image(calls: AwsCalls, region: str, ami: str) -> dict[str, Any]:
    told = await calls.call("ec2", region, "describe_images", ImageIds=[ami])
    if not told["Images"]:
        raise NoImage(f"region {region} has no machine image {ami}; images have another id in each region")
    return dict(told["Images"][0])


def _image_volumes(image: Mapping[str, Any]) -> tuple[str, dict[str, int]]:
    """The device of an image's root volume, and the GB of all volumes by their devices."""
    sizes = {
        each["DeviceName"]: int(each["Ebs"].get("VolumeSize") or 0)
        for each in image.get("BlockDeviceMappings", ())
        if "Ebs" in each
    }
    return image.get("RootDeviceName") or "/dev/sda1", sizes


async def _find_published_ami(calls: AwsCalls, region: str, kind: InstanceType) -> str:
    name = (
        DEEP_LEARNING_AMI.format(kind.architecture)
        if kind.nvidia
        else UBUNTU_AMI.format(DEBIAN_NAMES[kind.architecture])
    )
    try:
        told = await calls.call("ssm", region, "get_parameter", Name=name)
    except CallFailed as error:
        if error.code != "ParameterNotFound":
            raise
        raise UsageError(f'region {region} publishes no machine image as {name}; name one: ami="ami-..."') from error
    return str(told["Parameter"]["Value"])


def _default_user(name: str) -> str:
    """Who logs in to an image of that name."""
    lower = name.lower()
    if lower.startswith(("al20", "amzn")) or "amazon linux" in lower:
        return "ec2-user"
    return "admin" if lower.startswith("debian") else "ubuntu"


_log = get_logger("provider")

DAY_SECONDS = 86400.0
CACHE_FILE = "aws-offers.json"


class PriceCache:
    """A file with pieces of what was told, each with its time.

    It may be lost, broken, or written by two at once: what is not there is asked for again.

    Args:
        of: whose answers these are; those of another endpoint are others.
    """

    def __init__(self, of: str) -> None:
        self._of = of

    async def get(
        self, name: str, ask: Callable[[], Awaitable[Any]], *, lasts: float = DAY_SECONDS
    ) -> tuple[Any, float]:
        """A piece, and when it was told; asked for where there is none that is young enough.

        Args:
            name: of the piece.
            ask: gives it, as JSON can hold it.
            lasts: seconds after which it is asked for again.

        Raises:
            SkywardError: as ``ask`` does.
        """
        key = f"{self._of} {name}"
        found = (await asyncio.to_thread(_read_cache)).get(key)
        now = time.time()
        if found is not None and 0 <= now - found["at"] < lasts:
            return found["told"], found["at"]
        told = await ask()
        await asyncio.to_thread(_add_to_cache, key, {"at": now, "told": told})
        return told, now


def _cache_path() -> Path:
    return state_home() / CACHE_FILE


def _read_cache() -> dict[str, Any]:
    """All pieces; none where the file is not there, or holds something else."""
    try:
        found = parse_json(read_bytes(_cache_path()))
        return {key: each for key, each in found.items() if isinstance(each["at"], int | float) and "told" in each}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.info("%s is of no use and is made anew: %s: %s", CACHE_FILE, type(error).__name__, error)
        return {}


def _add_to_cache(key: str, piece: dict[str, Any]) -> None:
    pieces = {name: each for name, each in _read_cache().items() if time.time() - each["at"] < DAY_SECONDS}
    # Of two that write at once one is left out: it is asked again.
    with suppress(OSError):
        write_atomic(_cache_path(), json.dumps(pieces | {key: piece}).encode())


PRICING_REGION = "us-east-1"  # where AWS answers questions about the prices of all regions
MAX_SINGLE_QUERIES = 6  # types about which it is asked one by one; of more the region's whole list is read
HOURS_PER_MONTH = 730.0  # of a month, as AWS counts
SPOT_HISTORY_DAYS = 3  # of spot prices that are looked back on

_PRODUCT_FILTERS = {
    "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
    "marketoption": "OnDemand",
}  # fmt: skip


async def on_demand_prices(calls: AwsCalls, region: str, types: Sequence[str]) -> dict[str, float]:
    """Dollars for an hour, by instance type; of those that the list does not have there is none.

    Raises:
        SkywardError: it cannot be told.
    """
    wanted = {"regionCode": region} | _PRODUCT_FILTERS
    if len(types) > MAX_SINGLE_QUERIES:
        pages = [await _list_products(calls, "AmazonEC2", wanted)]
    else:
        pages = await asyncio.gather(
            *(_list_products(calls, "AmazonEC2", wanted | {"instanceType": each}) for each in types)
        )
    found = {}
    for product in (each for page in pages for each in page):
        name, price = product["product"]["attributes"].get("instanceType"), _unit_price(product, "Hrs")
        if name in types and price:
            found[name] = price
    return found


async def extra_prices(calls: AwsCalls, region: str) -> dict[str, float]:
    """Dollars for an hour of a gigabyte of disk ("gb"), and of a public address ("address").

    Raises:
        SkywardError: it cannot be told.
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


async def _list_products(calls: AwsCalls, service: str, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": text} for name, text in wanted.items()]
    listed = await calls.call_all(
        "pricing", PRICING_REGION, "get_products", "PriceList",
        ServiceCode=service, Filters=filters, FormatVersion="aws_v1", MaxResults=100,
    )  # fmt: skip
    return [json.loads(each) for each in listed]


def _unit_price(product: Mapping[str, Any], unit: str) -> float:
    """The dearest price on demand by a unit: some are free up to an amount. 0 where there is none."""
    terms = product.get("terms", {}).get("OnDemand", {}).values()
    dimensions = [each for term in terms for each in term["priceDimensions"].values()]
    prices = [float(each["pricePerUnit"].get("USD", 0)) for each in dimensions if each["unit"] == unit]
    return max(prices, default=0.0)


async def spot_prices(calls: AwsCalls, region: str, types: Iterable[str]) -> dict[str, list[float]]:
    """What spot machines cost: "TYPE ZONE" -> dollars for an hour now, the least and the most in the last days.

    Raises:
        SkywardError: it cannot be told.
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
        raise UsageError(f"{__package__} holds no {SHIPPED_FILE}; install the package again")
    found: dict[str, Any] = json.loads(raw)
    return found


def shipped_date() -> str:
    """The day of these prices: "2026-01-19"."""
    return str(_shipped_data()["date"])


def shipped_at() -> float:
    """The same in seconds since the epoch."""
    return datetime.fromisoformat(shipped_date()).replace(tzinfo=UTC).timestamp()


def shipped_regions() -> list[str]:
    """Regions of which prices are there."""
    return list(_shipped_data()["gp3_gb_month"])


def shipped_instance_types() -> list[InstanceType]:
    """The types that are there."""
    columns = _shipped_data()["columns"]
    rows = (dict(zip(columns, row, strict=True)) for row in _shipped_data()["kinds"])
    return [InstanceType(**{name: row[name] for name in columns if name not in shipped_regions()}) for row in rows]


def shipped_prices(region: str) -> dict[str, float]:
    """Dollars for an hour, by type; empty of a region that is not there."""
    if region not in shipped_regions():
        return {}
    column = _shipped_data()["columns"].index(region)
    return {row[0]: row[column] for row in _shipped_data()["kinds"]}


def shipped_extra_prices(region: str) -> dict[str, float]:
    """As :func:`beside`; empty of a region that is not there."""
    if region not in shipped_regions():
        return {}
    return {
        "gb": _shipped_data()["gp3_gb_month"][region] / HOURS_PER_MONTH,
        "address": _shipped_data()["public_address"][region],
    }


DEFAULT_DISK_GB = 100  # GB of a machine's disk where nobody says
SPOT_PRICE_TTL = 3600.0  # seconds for which a spot price is taken as true
PRICING_TIMEOUT = 20.0  # seconds for all questions about prices: nobody's machines wait longer for them


@value
class BilledExtras(Value):
    """What a machine has that is billed beside it.

    Attributes:
        disk_gb: what was asked for as the size of its disk.
        public: whether it has a public address.
        ami: the person's own image, whose volumes may be larger, or more; None for the published ones.
    """

    disk_gb: int
    public: bool
    ami: str | None = None

    async def total_disk_gb(self, calls: AwsCalls, store: PriceCache, region: str) -> int:
        """GB of all that a machine gets in a region.

        Raises:
            NoImage: the region does not have the image.
            SkywardError: it cannot be told.
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
    """What is known of a region: its kinds of machines, and offers of them."""

    kinds: Sequence[InstanceType]
    offers: Sequence[Offer]
    notes: Sequence[str]

    def matching_types(self, requirements: MachineRequirements) -> list[InstanceType]:
        """The kinds that a wish is about."""
        fit = {each.instance_type for each in matching_offers(self.offers, requirements)}
        return [kind for kind in self.kinds if kind.name in fit]


async def list_offers(
    calls: AwsCalls, provider: str, regions: Sequence[str], requirements: MachineRequirements, extras: BilledExtras
) -> OfferList:
    """What there is for a wish, by EC2 or, where it cannot be asked, by this release.

    Raises:
        UsageError: the wish makes no sense there.
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
    return OfferList(offers=[offer for each in found for offer in each.offers], notes=list(notes))


async def query_region(
    calls: AwsCalls, provider: str, region: str, requirements: MachineRequirements, extras: BilledExtras
) -> RegionOffers:
    """What there is for a wish, by EC2's word; prices that it does not say are this release's, or unknown.

    Raises:
        SkywardError: EC2 cannot be asked.
    """
    store = PriceCache(calls.account.endpoint or "aws")
    about = requirements.instance_type or " ".join(type_patterns(requirements))

    async def ask() -> dict[str, Any]:
        there = await find_instance_types(calls, region, requirements)
        zones = await zones_by_type(calls, region, [kind.name for kind in there])
        return {"kinds": [asdict(kind) for kind in there], "zones": zones}

    extras = replace(extras, disk_gb=await extras.total_disk_gb(calls, store, region), ami=None)
    told, _ = await store.get(f"types {region} {about}", ask)
    there = [InstanceType(**each) for each in told["kinds"]]
    # Prices are asked of those alone that may be taken; a person who looks around is told of all.
    sold = [kind for kind in there if told["zones"].get(kind.name)]
    wanted = requirements.accelerator and (requirements.accelerator.name, requirements.accelerator.count)
    named = [kind.name for kind in sold if wanted in (None, (kind.accelerator_name, kind.count))]
    priced = _RegionPrices(calls, store, region, named)
    notes = await priced.load(spot=requirements.allocation != "on-demand")
    offers = [
        offer
        for kind in sold
        for zone in told["zones"][kind.name]
        for offer in priced.offers(provider, kind, zone, extras)
    ]
    return RegionOffers(there, offers, notes)


def select_offers(
    offers: Sequence[Offer], requirements: MachineRequirements, there: Container[str] | None
) -> list[Offer]:
    """The offers that are tried, in order.

    Args:
        there: zones where machines can go; None where that is not known.

    Raises:
        UsageError: there is none; says why.
    """
    order = matching_offers(offers, requirements)
    found = [each for each in order if there is None or not each.zone or each.zone in there]
    if found:
        return found
    if order:
        places = ", ".join(dict.fromkeys(each.zone for each in order))
        raise UsageError(f"{order[0].instance_type} is sold in {places}, and no machine can go there: name other zones")
    raise UsageError(_no_offer_message(offers, requirements))


def _no_offer_message(offers: Sequence[Offer], requirements: MachineRequirements) -> str:
    kind, wanted = requirements.instance_type, requirements.accelerator
    if kind and wanted is not None and (has := next((o for o in offers if o.instance_type == kind), None)):
        carries = f"{has.count} x {has.accelerator}" if has.count else "no accelerator"
        if (has.accelerator, has.count) != (wanted.name, wanted.count):
            return f"{kind} has {carries}, and {wanted} was asked for; leave one of the two out"
    missed = "; ".join(describe_nearest(offers, requirements))
    where = " and ".join(requirements.regions) or "the region"
    return f"nothing in {where} is what was asked for{f'; the nearest: {missed}' if missed else ''}"


class _RegionPrices:
    """Those of some types in a region."""

    def __init__(self, calls: AwsCalls, store: PriceCache, region: str, types: Sequence[str]) -> None:
        self._calls, self._store, self._region, self._types = calls, store, region, types
        self._on_demand: Mapping[str, float] = {}
        self._spot: Mapping[str, Sequence[float]] = {}
        self._extra_prices: Mapping[str, float] = {}
        self._at = self._spot_at = 0.0
        self._shipped = False
        self._market_spot = False

    async def load(self, *, spot: bool) -> list[str]:
        """Have them; gives what a person should know of them."""
        self._market_spot = spot
        notes = []
        try:
            async with asyncio.timeout(PRICING_TIMEOUT):
                await self._load_on_demand()
        except (SkywardError, TimeoutError) as error:
            self._extra_prices, self._on_demand = shipped_extra_prices(self._region), shipped_prices(self._region)
            self._at, self._shipped = shipped_at(), True
            why = error_message(error) or "AWS took too long to say its prices"
            notes.append(_shipped_prices_note(self._region, why))
        if spot and self._types:
            try:
                async with asyncio.timeout(PRICING_TIMEOUT):
                    self._spot, self._spot_at = await self._store.get(
                        f"spot {self._region} {' '.join(self._types)}",
                        lambda: spot_prices(self._calls, self._region, self._types),
                        lasts=SPOT_PRICE_TTL,
                    )
            except (SkywardError, TimeoutError) as error:
                notes.append(f"spot prices in {self._region} are not known: {error_message(error) or 'no answer'}")
        return notes

    async def _load_on_demand(self) -> None:
        calls, region, types = self._calls, self._region, self._types
        self._extra_prices, _ = await self._store.get(f"beside {region}", lambda: extra_prices(calls, region))
        if types:
            self._on_demand, self._at = await self._store.get(
                f"on demand {region} {' '.join(types)}", lambda: on_demand_prices(calls, region, types)
            )

    def offers(self, provider: str, kind: InstanceType, zone: str, extras: BilledExtras) -> list[Offer]:
        """A kind in a zone, on demand and, where that was asked, as spot."""
        price = self._on_demand.get(kind.name)
        base = _offer_fields(provider, kind, self._region, zone, self._extra_prices, extras)
        found = [_make_offer(base, price, self._at, shipped=self._shipped)]
        told = self._spot.get(f"{kind.name} {zone}")
        if self._market_spot and told:
            now, least, most = told
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
    """A region as this release knows it, whose zones it does not."""
    listed, beside = shipped_prices(region), shipped_extra_prices(region)
    patterns = (requirements.instance_type,) if requirements.instance_type else type_patterns(requirements)
    listed_types = [kind for kind in shipped_instance_types() if kind.name in listed]
    there = [kind for kind in listed_types if any(fnmatch(kind.name, pattern) for pattern in patterns)]
    fields = [_offer_fields(provider, kind, region, "", beside, extras) for kind in there]
    offers = [_make_offer(each, listed[each["instance_type"]], shipped_at(), shipped=True) for each in fields]
    reason = reason or "AWS did not answer in time"
    spot = [f"spot prices are not known: {reason}"] if requirements.allocation != "on-demand" else []
    return RegionOffers(there, offers, [*spot, _shipped_prices_note(region, reason)])


def _shipped_prices_note(region: str, reason: str) -> str:
    if region in shipped_regions():
        return f"prices in {region} are those of {shipped_date()}, which came with this release: {reason}"
    return f"prices in {region} are not known, and none came with this release: {reason}"
