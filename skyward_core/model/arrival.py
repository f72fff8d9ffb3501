"""What was bought of a machine, what it was found to be, and whether the one is the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from .value import Value, value

ENOUGH = 0.85  # of the memory of a GPU that was bought: drivers and error correction keep some
SLOWEST_DISK = 5.0  # MB/s below which a machine is of no use
CLOCK = 30.0  # seconds by which a clock may be off before that is said apart


@value
class Bought(Value):
    """What is paid for.

    Attributes:
        accelerator: its name; "" for none.
        count: how many there are.
        memory_gb: of each.
    """

    accelerator: str = ""
    count: int = 0
    memory_gb: float = 0.0


@value(kw_only=True)
class Arrived(Value):
    """What was found.

    Attributes:
        gpus: name and GB of memory of each; None where that could not be told.
        disk: MB/s; None as above, and so on.
        tflops: of its slowest GPU, float16.
        offset: seconds by which its clock is ahead.
        neighbour: the node that it sent to.
        rate: MB/s to that.
        notes: what could not be told, and why.
    """

    gpus: Sequence[tuple[str, float]] | None = None
    disk: float | None = None
    tflops: float | None = None
    offset: float | None = None
    neighbour: int | None = None
    rate: float | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def __str__(self) -> str:
        parts = []
        if self.gpus:
            name, memory = self.gpus[0]
            parts.append(f"{len(self.gpus)} x {name} of {memory:.0f} GB")
        if self.tflops:
            parts.append(f"{self.tflops:,.0f} TFLOP/s in float16")
        if self.disk is not None:
            parts.append(f"disk {self.disk:,.0f} MB/s")
        if self.rate is not None:
            parts.append(f"to node {self.neighbour} {self.rate:,.0f} MB/s")
        if self.offset is not None:
            off = f"{abs(self.offset):.0f} s {'ahead' if self.offset > 0 else 'behind'}"
            parts.append("clock right" if abs(self.offset) < 2 else f"clock {off}")
        return ", ".join([*parts, *self.notes])


def lie(bought: Bought, arrived: Arrived) -> str:
    """What a machine is not that was bought, with the figure; "" where it is all that, as far as could be told."""
    if arrived.gpus is not None and bought.count:
        wanted = f"{bought.count} x {bought.accelerator} of {bought.memory_gb:.0f} GB"
        if len(arrived.gpus) < bought.count:
            return f"it has {len(arrived.gpus)} GPUs, and {wanted} were bought"
        if (least := min(memory for _, memory in arrived.gpus)) < ENOUGH * bought.memory_gb:
            return f"a GPU of it has {least:.1f} GB, and {wanted} were bought"
    if arrived.disk is not None and arrived.disk < SLOWEST_DISK:
        return (
            f"its disk takes {arrived.disk:.1f} MB/s, and {SLOWEST_DISK:g} MB/s is the least that is of use"
        )
    return ""
