"""Machine images of the simulation, and the public parameters that name them.

The real parameters are described in "Calling AMI public parameters" of the Systems Manager guide, in Canonical's "Find
Ubuntu images", and in the release notes of the Deep Learning AMIs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Image:
    """A machine image.

    Attributes:
        user: Login name for keys.
        has_python: Whether the image has Python or uv.
        parameter: Public SSM parameter that names the image, if any.
    """

    ami: str
    name: str
    architecture: str
    user: str = "ubuntu"
    has_python: bool = True
    parameter: str | None = None


_UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
_DEEP = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"

UBUNTU = Image("ami-0000000000000bed0", "ubuntu-noble-24.04-amd64", "x86_64", parameter=_UBUNTU.format("amd64"))
UBUNTU_ARM = Image("ami-0000000000000bed1", "ubuntu-noble-24.04-arm64", "arm64", parameter=_UBUNTU.format("arm64"))
DEEP = Image(
    "ami-0000000000000bed2", "Deep Learning Base OSS Nvidia Driver GPU AMI", "x86_64", parameter=_DEEP.format("x86_64")
)
DEEP_ARM = Image(
    "ami-0000000000000bed3", "Deep Learning Base OSS ARM64 GPU AMI", "arm64", parameter=_DEEP.format("arm64")
)
NO_PYTHON = Image("ami-0000000000000bed4", "without Python", "x86_64", has_python=False)
IMAGES = {image.ami: image for image in (UBUNTU, UBUNTU_ARM, DEEP, DEEP_ARM, NO_PYTHON)}


def for_moto() -> list[dict[str, Any]]:
    """Return the images in the format of the file at MOTO_AMIS_PATH."""
    return [
        {
            "ami_id": image.ami,
            "name": image.name,
            "description": image.name,
            "owner_id": "099720109477",
            "public": True,
            "virtualization_type": "hvm",
            "architecture": image.architecture,
            "state": "available",
            "platform": None,
            "image_type": "machine",
            "image_location": f"amazon/{image.name}",
            "hypervisor": "xen",
            "root_device_type": "ebs",
            "root_device_name": "/dev/sda1",
            "sriov": "simple",
        }
        for image in IMAGES.values()
    ]
