"""Simulated GPU driver of a machine, with the GPUs of its instance type."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.lab.tools import call

_SOURCE = Path(__file__).parents[1] / "support" / "fake_nvml.c"
_NAMES = {
    "T4": "Tesla T4",
    "V100": "Tesla V100-SXM2-16GB",
    "A10G": "NVIDIA A10G",
    "L4": "NVIDIA L4",
    "L40S": "NVIDIA L40S",
}
_CAN_MIG = ("A100", "H100", "H200", "B200")
_compiles = threading.Lock()


def gpus_of(kind: str) -> dict[str, str]:
    """Return the GPUs of an instance type as the variables that fake_nvml.c reads."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    listed = INSTANCE_TYPES[kind].get("GpuInfo", {}).get("Gpus", [])
    if not listed or listed[0]["Manufacturer"] != "NVIDIA":
        return {}
    gpu = listed[0]
    name, memory = gpu["Name"], gpu["MemoryInfo"]["SizeInMiB"]
    shown = _NAMES.get(name, f"NVIDIA {name}")
    layout = ("w" if name.startswith(_CAN_MIG) else "n") * gpu["Count"]
    return {"FAKE_GPUS": layout, "FAKE_GPU_NAME": shown, "FAKE_GPU_MIB": str(memory)}


def library(folder: Path) -> Path:
    """Return the path of the driver, compiled once per lab."""
    made = folder / "libnvidia-ml.so.1"
    with _compiles:
        if not made.exists():
            call(["cc", "-O1", "-shared", "-fPIC", "-o", str(made), str(_SOURCE)])
    return made
