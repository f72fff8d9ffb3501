"""A GPU of a machine that people share: who uses it now, and whether it may be taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..wire.safe_text import field
from .value import Value, value

FREE_BELOW = 512 << 20
"""Bytes that a GPU may have in use and still be free: drivers keep some for themselves, and so does a display."""
FREE = "free"


@value
class GpuProcess(Value):
    """A process that has something on a GPU.

    Attributes:
        pid: its number, as the driver tells it.
        user: whose it is; "" where nobody here can tell, as of one in another container.
        command: what it is called, without arguments; "" likewise. It says so itself: hostile text.
        memory: bytes of the GPU's memory; None where the driver does not tell.
        computes: False of one that only draws, such as a display.
    """

    pid: int
    user: str
    command: str
    memory: int | None
    computes: bool

    def __str__(self) -> str:
        who = field(self.user) or "somebody who cannot be seen from here"
        what = [field(self.command) or f"process {self.pid}"]
        if self.memory:
            what.append(f"{self.memory / 1e9:.1f} GB")
        return f"{who} ({', '.join(what)})"


@value
class GpuUse(Value):
    """A GPU, or a slice of one, as it is now.

    Attributes:
        number: how the machine counts it; "0:1" for the second slice of the first GPU.
        id: what ``CUDA_VISIBLE_DEVICES`` calls it.
        model: what the driver calls it.
        used, total: bytes of memory; None where the driver does not tell.
        util: percent of the time in which it was busy; None likewise.
        processes: all that have something on it.
        holder: who has taken it for a pool of this software, in words; "" where nobody has.
    """

    number: str
    id: str
    model: str
    used: int | None
    total: int | None
    util: int | None
    processes: Sequence[GpuProcess]
    holder: str

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> GpuUse:
        """What a machine told."""
        processes = tuple(GpuProcess(**each) for each in told["processes"])
        return cls(**{**told, "processes": processes})

    @property
    def is_free(self) -> bool:
        """Whether nobody uses it: no pool of ours has taken it, nothing computes on it, and next to none of its memory
        is in use."""
        return not self.holder and not self.is_in_use

    @property
    def is_in_use(self) -> bool:
        """Whether it computes for somebody, or its memory is in use, whoever has taken it."""
        return any(each.computes for each in self.processes) or (self.used or 0) >= FREE_BELOW

    @property
    def state(self) -> str:
        """ "free", or who has it, in words that may be shown."""
        parts = [f"taken by {field(self.holder)}"] if self.holder else []
        if users := [str(each) for each in self.processes if each.computes]:
            parts.append(f"used by {' and '.join(users)}")
        elif self.is_in_use:
            seen = " and ".join(map(str, self.processes)) or "no process that can be seen from here"
            parts.append(f"used: {(self.used or 0) / 1e9:.1f} GB of its memory, by {seen}")
        return "; ".join(parts) or FREE

    def __str__(self) -> str:
        return f"GPU {field(self.number)} ({field(self.model)}) is {self.state}"
