"""Which machine image a machine starts with, by the parameters under which AWS and Canonical publish theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model.errors import UsageError
from ...model.value import Value, value
from .calls import Calls
from .failures import CallFailed
from .kinds import Kind

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
    name = (
        DEEP_LEARNING.format(kind.architecture)
        if kind.nvidia
        else UBUNTU.format(DEBIAN_NAMES[kind.architecture])
    )
    try:
        told = await calls.call("ssm", region, "get_parameter", Name=name)
    except CallFailed as error:
        if error.code != "ParameterNotFound":
            raise
        raise UsageError(
            f'region {region} publishes no machine image as {name}; name one: ami="ami-..."'
        ) from error
    return str(told["Parameter"]["Value"])


def _usual_user(name: str) -> str:
    """Who logs in to an image of that name."""
    lower = name.lower()
    if lower.startswith(("al20", "amzn")) or "amazon linux" in lower:
        return "ec2-user"
    return "admin" if lower.startswith("debian") else "ubuntu"
