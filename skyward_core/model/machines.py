"""Machines, their measured hardware, GPU use, leftovers of an account."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Literal

from skyward_core.model.outcomes import MachineStatus
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skyward_core.model.errors import Hint


@value
class Machine(Value):
    """One machine of a pool, as its provider knows it. Everything in it can be written to the ledger.

    Attributes:
        id: the provider's own identifier.
        node: index of the node it is.
        address: where the client reaches it; for people to read.
        private_address: where its peers reach it.
        state: what the provider found when it looked last.
        extra: what the provider needs to reach it again. No secrets. "loaded_with": the Python that pickles its
            pool's functions, as ``script_interpreter.Interpreter.for_hosts`` has it. Of one that is gone also "why", in
            words, and "kept": what of it was not fetched and lies on its host (see ``agent.retained_results``). Of one
            that is rented "hourly", what an hour of it costs in dollars, all told; None where nobody knows.
        logs_from: of a machine in another's place: log file -> bytes of it that came from those before it.
    """

    id: str
    node: int
    address: str
    private_address: str
    state: MachineStatus = "running"
    extra: dict[str, Any] = field(default_factory=dict)
    logs_from: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def total_hourly(machines: Iterable[Machine]) -> float | None:
    """What an hour of machines costs, all together, in dollars; None where that of one is not known."""
    prices = [each.extra.get("hourly") for each in machines]
    known = [float(price) for price in prices if price is not None]
    return sum(known) if known and len(known) == len(prices) else None


@value
class Check(Value):
    """One line of a check-up: what was looked at, how it went, in words; and what to do about it, where that is
    not among them."""

    subject: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    hint: Hint | None = None


MIN_MEMORY_SHARE = 0.85  # of the memory of a GPU that was bought: drivers and error correction keep some
MIN_DISK_RATE = 5.0  # MB/s below which a machine is of no use
MAX_CLOCK_OFFSET = 30.0  # seconds by which a clock may be off before that is said apart


@value
class OrderedHardware(Value):
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
class MeasuredHardware(Value):
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


def find_mismatch(bought: OrderedHardware, arrived: MeasuredHardware) -> str:
    """What a machine is not that was bought, with the figure; "" where it is all that, as far as could be told."""
    if arrived.gpus is not None and bought.count:
        wanted = f"{bought.count} x {bought.accelerator} of {bought.memory_gb:.0f} GB"
        if len(arrived.gpus) < bought.count:
            return f"it has {len(arrived.gpus)} GPUs, and {wanted} were bought"
        if (least := min(memory for _, memory in arrived.gpus)) < MIN_MEMORY_SHARE * bought.memory_gb:
            return f"a GPU of it has {least:.1f} GB, and {wanted} were bought"
    if arrived.disk is not None and arrived.disk < MIN_DISK_RATE:
        return f"its disk takes {arrived.disk:.1f} MB/s, and {MIN_DISK_RATE:g} MB/s is the least that is of use"
    return ""


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
        who = sanitize_line(self.user) or "somebody who cannot be seen from here"
        what = [sanitize_line(self.command) or f"process {self.pid}"]
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
        parts = [f"taken by {sanitize_line(self.holder)}"] if self.holder else []
        if users := [str(each) for each in self.processes if each.computes]:
            parts.append(f"used by {' and '.join(users)}")
        elif self.is_in_use:
            seen = " and ".join(map(str, self.processes)) or "no process that can be seen from here"
            parts.append(f"used: {(self.used or 0) / 1e9:.1f} GB of its memory, by {seen}")
        return "; ".join(parts) or FREE

    def __str__(self) -> str:
        return f"GPU {sanitize_line(self.number)} ({sanitize_line(self.model)}) is {self.state}"


@value
class Leftover(Value):
    """One thing.

    Attributes:
        what: it is, as people call it there.
        id: the provider's own identifier.
        place: where it is.
        pool: name of the pool that it was made for.
        token: the pool's.
        ledger: which ledger knew of that pool.
        ours: whether that is the ledger of this machine's user.
        owner: who made it, as it says.
        is_machine: whether it is a machine.
        since: when it was made, Unix time; None where nobody tells.
        expires: when it should have ended, Unix time; None where nobody tells.
        hourly: dollars for an hour, as they were when it was made; None where nobody tells.
    """

    what: str
    id: str
    place: str
    pool: str
    token: str
    ledger: str
    ours: bool
    owner: str
    is_machine: bool = False
    since: float | None = None
    expires: float | None = None
    hourly: float | None = None

    @property
    def spent(self) -> float | None:
        """Dollars that it has cost; None where nobody can tell."""
        return self.spent_by(time.time())

    def spent_by(self, now: float) -> float | None:
        """The same at some Unix time."""
        if self.hourly is None or self.since is None:
            return None
        return self.hourly * max(0.0, now - self.since) / 3600

    @property
    def is_expired(self) -> bool:
        """Whether it should have ended."""
        return self.expires is not None and self.expires < time.time()


@value
class Inventory(Value):
    """What an account was found to hold.

    Attributes:
        things: what was made for pools.
        unknown: places that could not be looked at, and why.
    """

    things: Sequence[Leftover] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
