"""Instance types: what one is, and which have the accelerators that were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model.accelerators import Accelerator, resolve
from ...model.accelerators.catalogue import find
from ...model.errors import UsageError
from ...model.value import Value, value
from .calls import Calls

PLAIN = "m7i.large"  # where nothing is asked for
WITH_GPUS = ("g*", "p*", "trn*", "inf*")
MIB_PER_GB = 1024.0
SLACK = 0.1  # by which a memory's size may differ from its nominal one


@value
class Kind(Value):
    """An instance type.

    Attributes:
        name: such as "g5.xlarge".
        architecture: "x86_64" or "arm64".
        accelerator: name of its accelerators as EC2 has it; "" where there are none.
        count: how many.
        memory_gb: of each.
        nvidia: whether they need NVIDIA's driver.
        vcpus: how many.
    """

    name: str
    architecture: str
    accelerator: str
    count: int
    memory_gb: float
    nvidia: bool
    vcpus: int


def kind_of(told: Mapping[str, Any]) -> Kind:
    """From what ``DescribeInstanceTypes`` tells of one."""
    gpus = told.get("GpuInfo", {}).get("Gpus") or told.get("NeuronInfo", {}).get("NeuronDevices") or []
    first = gpus[0] if gpus else {}
    able = told.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])
    return Kind(
        name=told["InstanceType"],
        architecture="arm64" if "arm64" in able else "x86_64",
        accelerator=first.get("Name", ""),
        count=sum(int(each.get("Count", 0)) for each in gpus),
        memory_gb=first.get("MemoryInfo", {}).get("SizeInMiB", 0) / MIB_PER_GB,
        nvidia=first.get("Manufacturer", "").upper() == "NVIDIA",
        vcpus=told.get("VCpuInfo", {}).get("DefaultVCpus", 0),
    )


async def candidates(calls: Calls, region: str, instance_type: str | None, accelerator: Any) -> list[Kind]:
    """The instance types that will do, the smallest first.

    Args:
        instance_type: the only one.
        accelerator: what each machine needs.

    Raises:
        SkywardError: there is none; says what to do.
    """
    wanted = resolve(accelerator)
    if instance_type or wanted is None:
        told = await calls.call(
            "ec2", region, "describe_instance_types", InstanceTypes=[instance_type or PLAIN]
        )
        kinds = [kind_of(each) for each in told["InstanceTypes"]]
        if instance_type and wanted is not None and not any(fits(each, wanted) for each in kinds):
            has = (
                f"{kinds[0].count} x {kinds[0].accelerator}" if kinds and kinds[0].count else "no accelerator"
            )
            raise UsageError(
                f"{instance_type} has {has}, and {wanted} was asked for; leave one of the two out"
            )
        return kinds
    filters = [{"Name": "instance-type", "Values": list(WITH_GPUS)}]
    told_all = await calls.call_all(
        "ec2", region, "describe_instance_types", "InstanceTypes", Filters=filters
    )
    fitting = [kind for kind in map(kind_of, told_all) if fits(kind, wanted)]
    if not fitting:
        raise UsageError(
            f"region {region} has no instance type with {wanted}; name another region, accelerator or count"
        )
    return sorted(fitting, key=lambda kind: (kind.memory_gb, kind.vcpus, kind.name))


def fits(kind: Kind, wanted: Accelerator) -> bool:
    """Whether a type has exactly these accelerators, of at least that memory where one was named."""
    if not kind.accelerator or kind.count != wanted.count:
        return False
    try:
        name = find(kind.accelerator).name
    except UsageError:  # newer than our catalogue
        return False
    return name == wanted.name and kind.memory_gb >= (wanted.memory_gb or 0.0) * (1 - SLACK)
