"""Machines of pools, their measured hardware and their GPU use, and result lines of checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Literal

from skyward_core.model.errors import Hint, SkywardError, error_hint, error_message
from skyward_core.model.outcomes_states_and_alerts import MachineStatus
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_line


@value
class Machine(Value):
    """One machine of a pool as its provider describes it. All attributes can be written to the ledger.

    Attributes:
        id: The provider's identifier.
        node: Index of the node.
        address: Address that the client connects to; for display.
        private_address: Address that peers connect to.
        state: State at the provider's last inspection.
        extra: Data that the provider needs to reach the machine again; no secrets. "loaded_with" is the Python that
            pickles the pool's functions (``specs.Interpreter.for_hosts``). A machine that no longer exists
            also has "why", the reason, and "kept", its retained results (``agent.results_retained_after_node_end``). A
            rented machine has "hourly", its full price in dollars per hour, or None if unknown.
        logs_from: For a replacement machine: for each log file, the number of bytes that earlier machines wrote.
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
    """Return the total price of machines in dollars per hour. None if the price of any machine is unknown."""
    prices = [each.extra.get("hourly") for each in machines]
    known = [float(price) for price in prices if price is not None]
    return sum(known) if known and len(known) == len(prices) else None


@value
class Check(Value):
    """One line of a check-up: the subject, its state, the details, and a hint if the details do not contain the fix."""

    subject: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    hint: Hint | None = None

    @classmethod
    def from_error(cls, subject: str, error: SkywardError | OSError, state: Literal["warn", "fail"] = "fail") -> Check:
        """Return the line for a check that raised an error."""
        return cls(subject, state, error_message(error), error_hint(error))


# Minimum fraction of a GPU's nominal memory that must be measured. Drivers and error correction reserve the rest.
MIN_MEMORY_SHARE = 0.85
MIN_DISK_RATE = 5.0  # MB/s; a machine with a slower disk counts as a mismatch, because it is unusable
MAX_CLOCK_OFFSET = 30.0  # seconds; clock offsets above this are not a mismatch of hardware and are reported separately


@value
class OrderedHardware(Value):
    """Hardware that was paid for.

    Attributes:
        accelerator: Name of the accelerator; "" for none.
        count: Number of accelerators.
        memory_gb: Memory of each accelerator in GB.
    """

    accelerator: str = ""
    count: int = 0
    memory_gb: float = 0.0


@value(kw_only=True)
class MeasuredHardware(Value):
    """Hardware that was found on a machine. None for values that could not be measured.

    Attributes:
        gpus: Name and memory in GB of each GPU.
        disk: Disk throughput in MB/s.
        tflops: float16 TFLOP/s of the slowest GPU.
        offset: Seconds by which the machine's clock is ahead of the client's.
        neighbour: Node that received the network test's data.
        rate: Network throughput to that node in MB/s.
        notes: Reasons for missing values.
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
    """Return the first difference between ordered and measured hardware, with the measured value. "" for none."""
    if arrived.gpus is not None and bought.count:
        ordered_gpus = f"{bought.count} x {bought.accelerator} of {bought.memory_gb:.0f} GB"
        if len(arrived.gpus) < bought.count:
            return f"it has {len(arrived.gpus)} GPUs instead of {ordered_gpus}"
        if (least := min(memory for _, memory in arrived.gpus)) < MIN_MEMORY_SHARE * bought.memory_gb:
            return f"one of its GPUs has {least:.1f} GB, but {ordered_gpus} were bought"
    if arrived.disk is not None and arrived.disk < MIN_DISK_RATE:
        return f"its disk writes {arrived.disk:.1f} MB/s, less than the required {MIN_DISK_RATE:g} MB/s"
    return ""


# Bytes of used memory below which a GPU counts as free: drivers and displays always use some.
FREE_BELOW = 512 << 20
FREE = "free"


@value
class GpuProcess(Value):
    """Process that uses a GPU.

    Attributes:
        pid: Process id, as the driver reports it.
        user: Owner of the process; "" if unknown, for example in another container.
        command: Name of the program without arguments; "" if unknown. Chosen by the process, so untrusted text.
        memory: Bytes of GPU memory in use. None if the driver does not report them.
        computes: False for a process that only draws on the screen, such as a display server.
    """

    pid: int
    user: str
    command: str
    memory: int | None
    computes: bool

    def __str__(self) -> str:
        owner = sanitize_line(self.user) or "unknown user"
        details = [sanitize_line(self.command) or f"process {self.pid}"]
        if self.memory:
            details.append(f"{self.memory / 1e9:.1f} GB")
        return f"{owner} ({', '.join(details)})"


@value
class GpuUse(Value):
    """Current use of a GPU, or of a MIG slice.

    Attributes:
        number: Index of the GPU on the machine; "0:1" for the second slice of the first GPU.
        id: Name for ``CUDA_VISIBLE_DEVICES``.
        model: Name from the driver.
        used: Bytes of used memory. None if the driver does not report them.
        total: Bytes of memory. None if the driver does not report them.
        util: Percent of the time in which the GPU was busy. None if the driver does not report it.
        processes: All processes that use the GPU.
        holder: Description of the pool (of this software) that reserves the GPU; "" if no pool does.
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
    def from_json(cls, report: Mapping[str, Any]) -> GpuUse:
        """Return the use of a GPU from its entry in a machine's report."""
        return cls(**{**report, "processes": tuple(GpuProcess(**each) for each in report["processes"])})

    @property
    def is_free(self) -> bool:
        """Whether the GPU is unused: no pool of this software reserves the GPU, no process computes on it, and hardly
        any memory is used.
        """
        return not self.holder and not self.is_in_use

    @property
    def is_in_use(self) -> bool:
        """Whether a process computes on the GPU or uses its memory, even if no pool reserves the GPU."""
        return any(each.computes for each in self.processes) or (self.used or 0) >= FREE_BELOW

    @property
    def state(self) -> str:
        """ "free", or the users of the GPU as sanitized text."""
        parts = [f"taken by {sanitize_line(self.holder)}"] if self.holder else []
        if users := [str(each) for each in self.processes if each.computes]:
            parts.append(f"used by {' and '.join(users)}")
        elif self.is_in_use:
            seen = " and ".join(map(str, self.processes)) or "unknown processes"
            parts.append(f"used: {(self.used or 0) / 1e9:.1f} GB of memory, by {seen}")
        return "; ".join(parts) or FREE

    def __str__(self) -> str:
        return f"GPU {sanitize_line(self.number)} ({sanitize_line(self.model)}) is {self.state}"
