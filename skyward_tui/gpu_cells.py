"""GPUs of hosts that people share, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skyward_core.front.host_groups import GpuUse, HostLook


def free_of(seen: HostLook) -> str:
    """How many are free."""
    return f"{sum(gpu.is_free for gpu in seen.gpus)} of {len(seen.gpus)} free"


def memory(gpu: GpuUse) -> str:
    """What of a GPU's memory is in use; "" where nobody knows."""
    if gpu.used is None or gpu.total is None:
        return ""
    return f"{gpu.used / 1e9:5.1f} of {gpu.total / 1e9:.1f} GB"


def utilization(gpu: GpuUse) -> str:
    """How busy it is; "" where nobody knows."""
    return "" if gpu.util is None else f"{gpu.util:3d} %"
