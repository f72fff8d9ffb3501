"""GPUs of hosts that people share, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from skyward_core.wire.safe_text import field

from .words import count

if TYPE_CHECKING:
    from skyward_core.front.host_groups import GpuUse, HostLook


def free_of(seen: HostLook) -> str:
    """How many are free."""
    return f"{sum(gpu.is_free for gpu in seen.gpus)} of {len(seen.gpus)} free"


def by_whom(gpus: Iterable[GpuUse]) -> list[str]:
    """A line for each who has some of them, with how many and how much memory there; those that are free first."""
    found: Counter[str] = Counter()
    held: Counter[str] = Counter()
    free = 0
    for gpu in gpus:
        users = {field(each.user): each.memory or 0 for each in gpu.processes if each.computes}
        free += gpu.is_free
        for who, used in (
            {gpu.holder: gpu.used or 0} if gpu.holder else users or {"": gpu.used or 0}
        ).items():
            if not gpu.is_free:
                found[field(who)] += 1
                held[field(who)] += used
    lines = [f"○ free: {count(free, 'GPU')}"] if free else []
    for who, many in found.most_common():
        by = who or "somebody who cannot be seen from here"
        lines.append(f"● {by}: {count(many, 'GPU')}" + (f", {held[who] / 1e9:.1f} GB" if held[who] else ""))
    return lines


def memory(gpu: GpuUse) -> str:
    """What of a GPU's memory is in use; "" where nobody knows."""
    if gpu.used is None or gpu.total is None:
        return ""
    return f"{gpu.used / 1e9:5.1f} of {gpu.total / 1e9:.1f} GB"


def utilization(gpu: GpuUse) -> str:
    """How busy it is; "" where nobody knows."""
    return "" if gpu.util is None else f"{gpu.util:3d} %"
