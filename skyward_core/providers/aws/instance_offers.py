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
from skyward_core.model.errors import PoolError, SkywardError, UsageError, what_of
from skyward_core.model.offers import Offer, OfferList, Wish, in_order, nearest
from skyward_core.providers.aws.boto_calls import Calls
from skyward_core.providers.aws.ec2_errors import CallFailed
from skyward_core.store.atomic_file import write_whole
from skyward_core.store.debug_log import logger
from skyward_core.store.state_folder import home
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.user_files import json_of, read_bytes

PLAIN = "m7i.large"  # where nothing is asked for
WITH_ACCELERATORS = ("g*", "p*", "trn*", "inf*", "dl*")
# Not those that are fast in bursts alone, as t3: who wants one names it.
WITHOUT = ("c6*", "c7*", "c8*", "m6*", "m7*", "m8*", "r6*", "r7*", "r8*")
MIB_PER_GB = 1024.0


@value
class Kind(Value):
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
    def bought(self) -> dict[str, Any]:
        """What is paid for that a machine can be held to, as ``machines.Bought`` takes it."""
        if not self.nvidia:
            return {}
        return {"accelerator": self.known_as, "count": self.count, "memory_gb": self.memory_each_gb}

    @property
    def known_as(self) -> str:
        """What the catalogue calls its accelerators; EC2's own name for those that are newer than that."""
        try:
            return find(self.accelerator).name if self.accelerator else ""
        except UsageError:
            return self.accelerator


def kind_of(told: Mapping[str, Any]) -> Kind:
    """From what ``DescribeInstanceTypes`` tells of one."""
    gpus = _accelerators(told)
    first = gpus[0] if gpus else {}
    able = told.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])
    return Kind(
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


def _accelerators(told: Mapping[str, Any]) -> list[Any]:
    found = (
        told.get("GpuInfo", {}).get("Gpus")
        or told.get("NeuronInfo", {}).get("NeuronDevices")
        or told.get("InferenceAcceleratorInfo", {}).get("Accelerators")
    )
    return list(found or ())


def _is_whole(told: Mapping[str, Any]) -> bool:
    """Whether it is a usual machine, with whole accelerators: others are for those who name them."""
    return not told.get("BareMetal") and all(each.get("GpuPartitionSize", 1.0) == 1.0 for each in _accelerators(told))


async def kinds_for(calls: Calls, region: str, wish: Wish) -> list[Kind]:
    """The instance types of a region that a wish is about, those that miss it among them, by name.

    Raises:
        SkywardError: they cannot be told, or the one that is named is none.
    """
    if wish.instance_type:
        asked: dict[str, Any] = {"InstanceTypes": [wish.instance_type]}
    else:
        filters = [{"Name": "instance-type", "Values": list(families(wish))}]
        asked = {"Filters": filters}
    told = await calls.call_all("ec2", region, "describe_instance_types", "InstanceTypes", **asked)
    found = [kind_of(each) for each in told if wish.instance_type or _is_whole(each)]
    return sorted(found, key=lambda kind: kind.name)


def families(wish: Wish) -> tuple[str, ...]:
    """Patterns of the types that a wish is about."""
    if wish.accelerator is not None or wish.any_accelerator:
        return WITH_ACCELERATORS
    return WITHOUT if says_size(wish) else (PLAIN,)


def says_size(wish: Wish) -> bool:
    """Whether a wish for machines without accelerators says anything of what they have to be."""
    return bool(wish.vcpus or wish.memory_gb or wish.architecture or wish.efa)


async def zones_of(calls: Calls, region: str, names: list[str]) -> dict[str, list[str]]:
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


DEEP_LEARNING = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
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


def root_gb(wanted: int, image_gb: int) -> int:
    """How large a machine's root volume is: what was asked for, or what its image takes."""
    return max(wanted, image_gb)


async def image_for(calls: Calls, region: str, kind: Kind, ami: str | None, user: str | None) -> BootImage:
    """The image for an instance type: with NVIDIA's driver where it has such a GPU, else plain Ubuntu.

    Args:
        ami: the person's own, in place of that.
        user: who logs in; None for the usual one of that image.

    Raises:
        SkywardError: there is no such image.
    """
    ami = ami or await _published(calls, region, kind)
    image = await _described(calls, region, ami)
    architecture = image.get("Architecture", kind.architecture)
    if architecture != kind.architecture:
        raise UsageError(f"machine image {ami} is for {architecture}, and {kind.name} is {kind.architecture}")
    root, sizes = _volumes(image)
    return BootImage(ami, root, sizes.get(root, 0), user or _usual_user(image.get("Name", "")))


async def volumes_gb(calls: Calls, region: str, ami: str) -> tuple[int, int]:
    """GB of an image's root volume, and of all others that each machine gets with it.

    Raises:
        NoImage: the region has none of that id.
        SkywardError: it cannot be told.
    """
    root, sizes = _volumes(await _described(calls, region, ami))
    first = sizes.pop(root, 0)
    return first, sum(sizes.values())


async def _described(calls: Calls, region: str, ami: str) -> dict[str, Any]:
    told = await calls.call("ec2", region, "describe_images", ImageIds=[ami])
    if not told["Images"]:
        raise NoImage(f"region {region} has no machine image {ami}; images have another id in each region")
    return dict(told["Images"][0])


def _volumes(image: Mapping[str, Any]) -> tuple[str, dict[str, int]]:
    """The device of an image's root volume, and the GB of all volumes by their devices."""
    sizes = {
        each["DeviceName"]: int(each["Ebs"].get("VolumeSize") or 0)
        for each in image.get("BlockDeviceMappings", ())
        if "Ebs" in each
    }
    return image.get("RootDeviceName") or "/dev/sda1", sizes


async def _published(calls: Calls, region: str, kind: Kind) -> str:
    name = DEEP_LEARNING.format(kind.architecture) if kind.nvidia else UBUNTU.format(DEBIAN_NAMES[kind.architecture])
    try:
        told = await calls.call("ssm", region, "get_parameter", Name=name)
    except CallFailed as error:
        if error.code != "ParameterNotFound":
            raise
        raise UsageError(f'region {region} publishes no machine image as {name}; name one: ami="ami-..."') from error
    return str(told["Parameter"]["Value"])


def _usual_user(name: str) -> str:
    """Who logs in to an image of that name."""
    lower = name.lower()
    if lower.startswith(("al20", "amzn")) or "amazon linux" in lower:
        return "ec2-user"
    return "admin" if lower.startswith("debian") else "ubuntu"


_log = logger("provider")

DAY = 86400.0
FILE = "aws-offers.json"


class PriceStore:
    """A file with pieces of what was told, each with its time.

    It may be lost, broken, or written by two at once: what is not there is asked for again.

    Args:
        of: whose answers these are; those of another endpoint are others.
    """

    def __init__(self, of: str) -> None:
        self._of = of

    async def told(self, name: str, ask: Callable[[], Awaitable[Any]], *, lasts: float = DAY) -> tuple[Any, float]:
        """A piece, and when it was told; asked for where there is none that is young enough.

        Args:
            name: of the piece.
            ask: gives it, as JSON can hold it.
            lasts: seconds after which it is asked for again.

        Raises:
            SkywardError: as ``ask`` does.
        """
        key = f"{self._of} {name}"
        found = (await asyncio.to_thread(_read)).get(key)
        now = time.time()
        if found is not None and 0 <= now - found["at"] < lasts:
            return found["told"], found["at"]
        told = await ask()
        await asyncio.to_thread(_add, key, {"at": now, "told": told})
        return told, now


def _path() -> Path:
    return home() / FILE


def _read() -> dict[str, Any]:
    """All pieces; none where the file is not there, or holds something else."""
    try:
        found = json_of(read_bytes(_path()))
        return {key: each for key, each in found.items() if isinstance(each["at"], int | float) and "told" in each}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.info("%s is of no use and is made anew: %s: %s", FILE, type(error).__name__, error)
        return {}


def _add(key: str, piece: dict[str, Any]) -> None:
    pieces = {name: each for name, each in _read().items() if time.time() - each["at"] < DAY}
    # Of two that write at once one is left out: it is asked again.
    with suppress(OSError):
        write_whole(_path(), json.dumps(pieces | {key: piece}).encode())


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


async def spot_prices(calls: Calls, region: str, types: Iterable[str]) -> dict[str, list[float]]:
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


SHIPPED_FILE = "shipped_offers.json"


@cache
def _data() -> dict[str, Any]:
    raw = pkgutil.get_data(__package__, SHIPPED_FILE)
    if raw is None:
        raise UsageError(f"{__package__} holds no {SHIPPED_FILE}; install the package again")
    found: dict[str, Any] = json.loads(raw)
    return found


def date() -> str:
    """The day of these prices: "2026-01-19"."""
    return str(_data()["date"])


def at() -> float:
    """The same in seconds since the epoch."""
    return datetime.fromisoformat(date()).replace(tzinfo=UTC).timestamp()


def regions() -> list[str]:
    """Regions of which prices are there."""
    return list(_data()["gp3_gb_month"])


def kinds() -> list[Kind]:
    """The types that are there."""
    columns = _data()["columns"]
    rows = (dict(zip(columns, row, strict=True)) for row in _data()["kinds"])
    return [Kind(**{name: row[name] for name in columns if name not in regions()}) for row in rows]


def shipped_prices(region: str) -> dict[str, float]:
    """Dollars for an hour, by type; empty of a region that is not there."""
    if region not in regions():
        return {}
    column = _data()["columns"].index(region)
    return {row[0]: row[column] for row in _data()["kinds"]}


def shipped_extra_prices(region: str) -> dict[str, float]:
    """As :func:`beside`; empty of a region that is not there."""
    if region not in regions():
        return {}
    return {
        "gb": _data()["gp3_gb_month"][region] / HOURS,
        "address": _data()["public_address"][region],
    }


DISK = 100  # GB of a machine's disk where nobody says
SPOT_LASTS = 3600.0  # seconds for which a spot price is taken as true
PATIENCE = 20.0  # seconds for all questions about prices: nobody's machines wait longer for them


@value
class Extras(Value):
    """What a machine has that is billed beside it.

    Attributes:
        disk_gb: what was asked for as the size of its disk.
        public: whether it has a public address.
        ami: the person's own image, whose volumes may be larger, or more; None for the published ones.
    """

    disk_gb: int
    public: bool
    ami: str | None = None

    async def volumes(self, calls: Calls, store: PriceStore, region: str) -> int:
        """GB of all that a machine gets in a region.

        Raises:
            NoImage: the region does not have the image.
            SkywardError: it cannot be told.
        """
        if (ami := self.ami) is None:
            return self.disk_gb

        async def ask() -> list[int]:
            return list(await volumes_gb(calls, region, ami))

        (root, others), _ = await store.told(f"image {region} {ami}", ask)
        return root_gb(self.disk_gb, root) + int(others)


@value
class Regional(Value):
    """What is known of a region: its kinds of machines, and offers of them."""

    kinds: Sequence[Kind]
    offers: Sequence[Offer]
    notes: Sequence[str]

    def fitting(self, wish: Wish) -> list[Kind]:
        """The kinds that a wish is about."""
        fit = {each.instance_type for each in in_order(self.offers, wish)}
        return [kind for kind in self.kinds if kind.name in fit]


async def known(calls: Calls, provider: str, regions: Sequence[str], wish: Wish, extras: Extras) -> OfferList:
    """What there is for a wish, by EC2 or, where it cannot be asked, by this release.

    Raises:
        UsageError: the wish makes no sense there.
    """

    async def one(region: str) -> Regional:
        try:
            return await asked(calls, provider, region, wish, extras)
        except NoImage as error:
            if len(regions) == 1:
                raise
            return Regional((), (), [what_of(error)])
        except UsageError:
            raise
        except (PoolError, TimeoutError) as error:
            return _shipped(provider, region, wish, extras, what_of(error))

    found = await asyncio.gather(*map(one, regions))
    notes = dict.fromkeys(note for each in found for note in each.notes)
    return OfferList(offers=[offer for each in found for offer in each.offers], notes=list(notes))


async def asked(calls: Calls, provider: str, region: str, wish: Wish, extras: Extras) -> Regional:
    """What there is for a wish, by EC2's word; prices that it does not say are this release's, or unknown.

    Raises:
        SkywardError: EC2 cannot be asked.
    """
    store = PriceStore(calls.account.endpoint or "aws")
    about = wish.instance_type or " ".join(families(wish))

    async def ask() -> dict[str, Any]:
        there = await kinds_for(calls, region, wish)
        zones = await zones_of(calls, region, [kind.name for kind in there])
        return {"kinds": [asdict(kind) for kind in there], "zones": zones}

    extras = replace(extras, disk_gb=await extras.volumes(calls, store, region), ami=None)
    told, _ = await store.told(f"types {region} {about}", ask)
    there = [Kind(**each) for each in told["kinds"]]
    # Prices are asked of those alone that may be taken; a person who looks around is told of all.
    sold = [kind for kind in there if told["zones"].get(kind.name)]
    priced = _Prices(calls, store, region, [kind.name for kind in _meant(sold, wish)])
    notes = await priced.ask(spot=wish.allocation != "on-demand")
    offers = [
        offer
        for kind in sold
        for zone in told["zones"][kind.name]
        for offer in priced.offers(provider, kind, zone, extras)
    ]
    return Regional(there, offers, notes)


def _meant(sold: Sequence[Kind], wish: Wish) -> list[Kind]:
    wanted = wish.accelerator
    if wanted is None:
        return list(sold)
    return [kind for kind in sold if (kind.known_as, kind.count) == (wanted.name, wanted.count)]


def fitting(offers: Sequence[Offer], wish: Wish, there: Container[str] | None) -> list[Offer]:
    """The offers that are tried, in order.

    Args:
        there: zones where machines can go; None where that is not known.

    Raises:
        UsageError: there is none; says why.
    """
    order = in_order(offers, wish)
    found = [each for each in order if there is None or not each.zone or each.zone in there]
    if found:
        return found
    if order:
        places = ", ".join(dict.fromkeys(each.zone for each in order))
        raise UsageError(f"{order[0].instance_type} is sold in {places}, and no machine can go there: name other zones")
    raise UsageError(_nothing_fits(offers, wish))


def _nothing_fits(offers: Sequence[Offer], wish: Wish) -> str:
    kind, wanted = wish.instance_type, wish.accelerator
    if kind and wanted is not None and (has := next((o for o in offers if o.instance_type == kind), None)):
        carries = f"{has.count} x {has.accelerator}" if has.count else "no accelerator"
        if (has.accelerator, has.count) != (wanted.name, wanted.count):
            return f"{kind} has {carries}, and {wanted} was asked for; leave one of the two out"
    missed = "; ".join(nearest(offers, wish))
    where = " and ".join(wish.regions) or "the region"
    return f"nothing in {where} is what was asked for{f'; the nearest: {missed}' if missed else ''}"


class _Prices:
    """Those of some types in a region."""

    def __init__(self, calls: Calls, store: PriceStore, region: str, types: Sequence[str]) -> None:
        self._calls, self._store, self._region, self._types = calls, store, region, types
        self._on_demand: Mapping[str, float] = {}
        self._spot: Mapping[str, Sequence[float]] = {}
        self._beside: Mapping[str, float] = {}
        self._at = self._spot_at = 0.0
        self._shipped = False
        self._market_spot = False

    async def ask(self, *, spot: bool) -> list[str]:
        """Have them; gives what a person should know of them."""
        self._market_spot = spot
        notes = []
        try:
            async with asyncio.timeout(PATIENCE):
                await self._ask_list()
        except (SkywardError, TimeoutError) as error:
            self._beside, self._on_demand = (
                shipped_extra_prices(self._region),
                shipped_prices(self._region),
            )
            self._at, self._shipped = at(), True
            notes.append(_instead(self._region, what_of(error) or "AWS took too long to say its prices"))
        if spot and self._types:
            try:
                async with asyncio.timeout(PATIENCE):
                    self._spot, self._spot_at = await self._store.told(
                        f"spot {self._region} {' '.join(self._types)}",
                        lambda: spot_prices(self._calls, self._region, self._types),
                        lasts=SPOT_LASTS,
                    )
            except (SkywardError, TimeoutError) as error:
                notes.append(f"spot prices in {self._region} are not known: {what_of(error) or 'no answer'}")
        return notes

    async def _ask_list(self) -> None:
        calls, region, types = self._calls, self._region, self._types
        self._beside, _ = await self._store.told(f"beside {region}", lambda: beside(calls, region))
        if types:
            self._on_demand, self._at = await self._store.told(
                f"on demand {region} {' '.join(types)}", lambda: on_demand(calls, region, types)
            )

    def offers(self, provider: str, kind: Kind, zone: str, extras: Extras) -> list[Offer]:
        """A kind in a zone, on demand and, where that was asked, as spot."""
        price = self._on_demand.get(kind.name)
        base = _offer(provider, kind, self._region, zone, self._beside, extras)
        found = [_priced(base, price, self._at, shipped=self._shipped)]
        told = self._spot.get(f"{kind.name} {zone}")
        if self._market_spot and told:
            now, least, most = told
            extra = {"market": "spot", "lately": (least, most)}
            found.append(_priced(base, now, self._spot_at, shipped=False, **extra))
        return found


def _offer(
    provider: str, kind: Kind, region: str, zone: str, beside: Mapping[str, float], extras: Extras
) -> dict[str, Any]:
    return {
        "provider": provider, "instance_type": kind.name, "region": region, "zone": zone,
        "accelerator": kind.known_as, "count": kind.count, "memory_each_gb": kind.memory_each_gb,
        "vcpus": kind.vcpus, "memory_gb": kind.memory_gb, "architecture": kind.architecture, "efa": kind.efa,
        "beside_hourly": beside.get("gb", 0.0) * extras.disk_gb + beside.get("address", 0.0) * extras.public,
    }  # fmt: skip


def _priced(base: Mapping[str, Any], price: float | None, at: float, *, shipped: bool, **extra: Any) -> Offer:
    known = price is not None
    return Offer(**base, **extra, hourly=price, priced_at=at if known else 0.0, shipped=shipped and known)


def _shipped(provider: str, region: str, wish: Wish, extras: Extras, why: str) -> Regional:
    """A region as this release knows it, whose zones it does not."""
    listed, beside = shipped_prices(region), shipped_extra_prices(region)
    patterns = (wish.instance_type,) if wish.instance_type else families(wish)
    there = [
        kind for kind in kinds() if kind.name in listed and any(fnmatch(kind.name, pattern) for pattern in patterns)
    ]
    offers = [
        _priced(_offer(provider, kind, region, "", beside, extras), listed[kind.name], at(), shipped=True)
        for kind in there
    ]
    why = why or "AWS did not answer in time"
    spot = [f"spot prices are not known: {why}"] if wish.allocation != "on-demand" else []
    return Regional(there, offers, [*spot, _instead(region, why)])


def _instead(region: str, why: str) -> str:
    if region in regions():
        return f"prices in {region} are those of {date()}, which came with this release: {why}"
    return f"prices in {region} are not known, and none came with this release: {why}"
