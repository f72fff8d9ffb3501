"""Which machine image a machine starts with, by the parameters under which AWS and Canonical publish theirs."""

from __future__ import annotations

from ...model.errors import UsageError
from ...model.value import Value, value
from .calls import Calls
from .failures import CallFailed
from .kinds import Kind

DEEP_LEARNING = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
DEBIAN_NAMES = {"x86_64": "amd64", "arm64": "arm64"}


@value
class BootImage(Value):
    """A machine image: its id, the device of its root volume and that volume's size in GB, and who logs in."""

    ami: str
    root: str
    disk_gb: int
    user: str


async def image_for(calls: Calls, region: str, kind: Kind, ami: str | None, user: str | None) -> BootImage:
    """The image for an instance type: with NVIDIA's driver where it has such a GPU, else plain Ubuntu.

    Args:
        ami: the person's own, in place of that.
        user: who logs in; None for the usual one of that image.

    Raises:
        SkywardError: there is no such image.
    """
    ami = ami or await _published(calls, region, kind)
    told = await calls.call("ec2", region, "describe_images", ImageIds=[ami])
    if not told["Images"]:
        raise UsageError(f"region {region} has no machine image {ami}; images have another id in each region")
    image = told["Images"][0]
    architecture = image.get("Architecture", kind.architecture)
    if architecture != kind.architecture:
        raise UsageError(f"machine image {ami} is for {architecture}, and {kind.name} is {kind.architecture}")
    root = image.get("RootDeviceName") or "/dev/sda1"
    sizes = {
        each["DeviceName"]: each["Ebs"].get("VolumeSize", 0)
        for each in image.get("BlockDeviceMappings", ())
        if "Ebs" in each
    }
    return BootImage(ami, root, int(sizes.get(root) or 0), user or _usual_user(image.get("Name", "")))


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
