"""Instance types: what one is, and which of them a wish is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model.accelerators.catalogue import find
from ...model.errors import UsageError
from ...model.offer import Wish
from ...model.value import Value, value
from .calls import Calls

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
        """What is paid for that a machine can be held to, as :class:`...model.arrival.Bought` takes it."""
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
    return not told.get("BareMetal") and all(
        each.get("GpuPartitionSize", 1.0) == 1.0 for each in _accelerators(told)
    )


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
