"""Metrics of machines and GPUs."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, nan
from typing import Any, NamedTuple

from skyward_core.model.metric_series import (
    GPU_METRIC_DEFINITIONS,
    NODE_METRIC_DEFINITIONS,
    describe_throttling,
)
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.outliers import Trace
from skyward_core.views.rank_metrics import MAX_TIME, MAX_VALUE

MAX_POINTS = 1024  # of one machine's history; beyond that every other point goes
MAX_NAMES = 48  # of one machine or GPU
MAX_GPUS = 64  # of one machine, slices among them
MAX_NAME_LENGTH = 40  # characters of a figure's name
_KNOWN = NODE_METRIC_DEFINITIONS.keys() | GPU_METRIC_DEFINITIONS.keys()
_NUMBERS = {int, float}
FRESH_SECONDS = 10.0  # seconds after which a figure is not of now
SET_BACK = 1.0  # seconds that what comes is older than what came last where the machine's clock was set back
FULL_SHARE = 0.95  # of a memory
# Hardware slowdown, too hot (by driver, by hardware), power brake. A power cap is how a GPU is run at full load.
SLOWDOWN_BITS = 0x08 | 0x20 | 0x40 | 0x80


def memory_share(figures: Mapping[str, float]) -> float:
    """The part of a machine's or a GPU's memory that is in use; 0 where that is not told."""
    used = figures.get("mem_used", figures.get("memory_used"))
    whole = figures.get("mem_total", figures.get("memory_total"))
    return used / whole if used is not None and whole else 0.0


def slowdown_bits(figures: Mapping[str, float]) -> int:
    """Why a GPU is slowed down, of the reasons that are trouble: bits as NVML has them."""
    return int(figures.get("throttle", 0)) & SLOWDOWN_BITS


def _start_time(before: float | None, at: float, holds: object) -> float | None:
    """Return since when a condition holds that did since ``before``; None if it does not hold now."""
    return (at if before is None else before) if holds else None


class MetricHistory:
    """Figures of one machine, or one GPU, over time: a row for each time, in one array.

    A history that is full is thinned to every other row, and from then on takes half as many: it always spans the
    whole time, evenly. Where the clock was set back, what was later than that is forgotten: curves go on.

    Attributes:
        latest: the newest figures, those only that were among them.
        latest_at: when they were taken, as a Unix time of this machine; 0.0 before the first.
        seen: how often something was taken.
        names: of all figures that it ever had, as they stand in a row.
        full_since, slowed_since: since when its memory has been nearly full, and it has been slowed down, by each time
            that it was measured; None where it is not.
        lost_since: since when the driver has lost a GPU, the same.
        xid, xid_at: the last error that the driver wrote of it into the kernel's log, and when that was first told; 0
            where there was none.
    """

    __slots__ = (
        "_at", "_rows", "_stride", "full_since", "latest", "latest_at", "lost_since", "names", "seen", "slowed_since",
        "xid", "xid_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self.latest: Mapping[str, float] = {}
        self.latest_at = 0.0
        self.seen = 0
        self.full_since: float | None = None
        self.slowed_since: float | None = None
        self.lost_since: float | None = None
        self.xid = self.xid_at = 0.0
        self.names: tuple[str, ...] = ()
        self._at = array("d")
        self._rows = array("d")
        self._stride = 1

    def add(self, at: float, figures: Mapping[str, float]) -> None:
        """Take what was measured at once."""
        self.latest, self.latest_at = figures, at
        self.seen += 1
        self.full_since = _start_time(self.full_since, at, memory_share(figures) > FULL_SHARE)
        self.slowed_since = _start_time(self.slowed_since, at, slowdown_bits(figures))
        self.lost_since = _start_time(self.lost_since, at, figures.get("lost"))
        if (xid := figures.get("xid", 0.0)) and xid != self.xid:
            self.xid, self.xid_at = xid, at
        if self._at and at < self._at[-1] - SET_BACK:
            self._at = self._at[: bisect_left(self._at, at)]
            self._rows = self._rows[: len(self._at) * len(self.names)]
        if (self.seen - 1) % self._stride:
            return
        if len(self._at) >= MAX_POINTS:
            self._thin()
        if tuple(figures) == self.names:  # as nearly always
            self._rows.extend(figures.values())
        else:
            if new := [name for name in figures if name not in self.names]:
                self._add_columns(new[: MAX_NAMES - len(self.names)])
            self._rows.extend([figures.get(name, nan) for name in self.names])
        self._at.append(at)  # last: who reads meanwhile goes by the times

    def _thin(self) -> None:
        width = len(self.names)
        kept = array("d")
        for row in range(0, len(self._at), 2):
            kept.extend(self._rows[row * width : (row + 1) * width])
        self._at, self._rows = self._at[::2], kept
        self._stride *= 2

    def _add_columns(self, names: Sequence[str]) -> None:
        """Have room for more figures; before, there were none of them."""
        width, empty = len(self.names), array("d", [nan]) * len(names)
        wider = array("d")
        for row in range(len(self._at)):
            wider.extend(self._rows[row * width : (row + 1) * width] + empty)
        self._rows, self.names = wider, (*self.names, *names)

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last time at which it was measured, as far as that is kept."""
        return (self._at[0], self._at[-1]) if self._at else (0.0, 0.0)

    def maximum(self, name: str) -> float:
        """The greatest value that a figure has had, as far as that is kept; 0.0 where it had none."""
        names, rows = self.names, self._rows
        if name not in names:
            return 0.0
        column = rows[names.index(name) :: len(names)]
        return max((value for value in column if value == value), default=0.0)

    def trace(self, name: str) -> Trace:
        """One figure's history; without what it was not measured at."""
        names, rows = self.names, self._rows
        if name not in names:
            return Trace(array("d"), array("d"))
        column = rows[names.index(name) :: len(names)]
        pairs = [(at, value) for at, value in zip(self._at, column, strict=False) if value == value]
        return Trace(array("d", [at for at, _ in pairs]), array("d", [value for _, value in pairs]))


class Device(NamedTuple):
    """A GPU, or a slice of one."""

    id: str
    model: str


@dataclass(slots=True)
class MachineView:
    """One node's machine.

    Attributes:
        why: nothing, or nothing of its GPUs, comes; in words.
    """

    host: MetricHistory
    gpus: list[MetricHistory]
    devices: list[Device]
    why: str = ""

    def is_fresh(self, now: float) -> bool:
        """Whether its figures are of now."""
        return now - self.host.latest_at < FRESH_SECONDS


class MachineMetrics:
    """Those of a pool, by node. One thread writes, others may read.

    Attributes:
        version: raised by all that is taken, so that a screen paints only what is new.
    """

    def __init__(self) -> None:
        self.version = 0
        self.nodes: dict[int, MachineView] = {}

    def machine(self, node: int) -> MachineView:
        """A node's; made when it is first spoken of."""
        found = self.nodes.get(node)
        if found is None:
            found = MachineView(MetricHistory(), [], [])
            self.nodes = dict(sorted([*self.nodes.items(), (node, found)]))  # replaced: others iterate over it
        return found

    def set_silence_reason(self, node: int, reason: str) -> None:
        """Why nothing comes of a node, or "": something does."""
        self.machine(node).why = sanitize_line(reason)
        self.version += 1

    def feed(self, node: int, data: bytes, ahead: float = 0.0) -> None:
        """Take lines of samples, oldest first; a line that is none is passed over.

        Args:
            ahead: seconds by which our clock is ahead of the node's.
        """
        machine = self.machine(node)
        for line in data.split(b"\n"):
            try:
                told = json.loads(line) if line else None
            except (ValueError, RecursionError):
                continue
            if isinstance(told, dict):
                self._add_sample(machine, told, ahead)
        self.version += 1

    def _add_sample(self, machine: MachineView, told: dict[str, Any], ahead: float) -> None:
        at = told.get("at")
        if not (isinstance(at, int | float) and 0 <= at < MAX_TIME):
            return
        at += ahead
        devices, gpus, reason = told.get("devices"), told.get("gpus"), told.get("why")
        if isinstance(devices, list):
            machine.devices = [_parse_device(each) for each in devices[:MAX_GPUS]]
        machine.host.add(at, _parse_metrics(told.get("node")))
        machine.why = sanitize_line(reason) if isinstance(reason, str) else ""
        for number, each in enumerate(gpus[:MAX_GPUS] if isinstance(gpus, list) else ()):
            if number == len(machine.gpus):
                machine.gpus.append(MetricHistory())
            machine.gpus[number].add(at, _parse_metrics(each))

    # -- over all ----------------------------------------------------------------------------------------

    def tracks(self) -> Iterator[tuple[int, int | None, MetricHistory]]:
        """Node, GPU or None, and figures, of everything that was measured."""
        for node, machine in self.nodes.items():
            yield node, None, machine.host
            for gpu, track in enumerate(list(machine.gpus)):
                yield node, gpu, track

    def latest(self, name: str) -> dict[tuple[int, int | None], float]:
        """The newest value of a figure, by node and GPU, of all that have it."""
        return {(node, gpu): track.latest[name] for node, gpu, track in self.tracks() if name in track.latest}


def _parse_metrics(told: Any) -> dict[str, float]:
    """What may be kept of figures that somebody tells."""
    if not isinstance(told, dict):
        return {}
    # Nearly all are names that we know with finite numbers; to look at each of 256 GPUs' takes five times as long.
    if told.keys() <= _KNOWN and _NUMBERS.issuperset(map(type, told.values())):
        try:
            if isfinite(fsum(told.values())):
                return dict(zip(told, map(float, told.values()), strict=True))
        except OverflowError:  # one of them is too large, or their sum
            pass
    found: dict[str, float] = {}
    for name, value in told.items():
        if type(value) in _NUMBERS and -MAX_VALUE < value < MAX_VALUE and len(found) < MAX_NAMES:
            found[sanitize_line(name)[:MAX_NAME_LENGTH]] = float(value)
    return found


def _parse_device(told: Any) -> Device:
    known = told if isinstance(told, dict) else {}
    return Device(*(sanitize_line(str(known.get(name, "")))[:80] for name in ("id", "model")))


STALE_SECONDS = 60.0  # seconds before a failure, beyond which figures tell nothing of it
LATE_ERROR_SECONDS = 10.0  # seconds after it in which what the driver writes into the kernel's log is of it
HIGH_SHARE = 0.9  # of a memory, that is worth a word
HOT_CELSIUS = 85.0  # °C
# What people look up, of https://docs.nvidia.com/deploy/xid-errors.
XIDS = {
    13: "graphics engine exception", 31: "memory page fault", 43: "stopped by its program's error",
    45: "cleaned up after another error", 48: "ECC error of two bits", 61: "internal halt", 62: "internal halt",
    63: "a row of memory is to be remapped", 64: "a row of memory could not be remapped", 74: "NVLink error",
    79: "the GPU has fallen off the bus", 92: "many ECC errors", 94: "contained ECC error", 95: "uncontained ECC error",
    119: "no answer of its firmware", 120: "error of its firmware",
}  # fmt: skip


def describe_xid(number: float) -> str:
    """``Xid 79 (the GPU has fallen off the bus)``."""
    meaning = XIDS.get(int(number))
    return f"Xid {number:.0f}" + (f" ({meaning})" if meaning else "")


class FailureMetrics:
    """Those of one node.

    Args:
        machine: of which more may become known: the kernel's log tells of a GPU after its rank has failed.
        failed_at: Unix time in seconds.

    Attributes:
        node: its index.
        at: when they were taken, as a Unix time of this machine.
        host, gpus: by name, as :mod:`skyward_core.model.metric_series` explains them.
    """

    def __init__(self, node: int, machine: MachineView, failed_at: float) -> None:
        self.node = node
        self.at = machine.host.latest_at
        self.failed_at = failed_at
        self.host: Mapping[str, float] = machine.host.latest
        self._gpus = [track.latest for track in machine.gpus]
        self._machine = machine

    @property
    def gpus(self) -> Sequence[Mapping[str, float]]:
        found = []
        for figures, track in zip(self._gpus, self._machine.gpus, strict=False):
            found.append({name: value for name, value in figures.items() if name != "xid"} | self._late_errors(track))
        return found

    def _late_errors(self, track: MetricHistory) -> dict[str, float]:
        """What was told of a GPU until shortly after the failure."""
        signs = {"xid": track.xid} if track.xid and track.xid_at <= self.failed_at + LATE_ERROR_SECONDS else {}
        if track.latest_at <= self.failed_at + LATE_ERROR_SECONDS and track.latest.get("lost"):
            signs["lost"] = 1.0
        return signs

    def describe(self) -> list[str]:
        """What is worth a word, the worst first; at least how much of the memory was in use."""
        bad = [said for number, figures in enumerate(self.gpus) for said in _describe_gpu(number, figures)]
        part = memory_share(self.host)
        memory = [f"memory {100 * part:.0f} % full"] if part else []
        pressure = self.host.get("memory_pressure", 0.0)
        more = [f"waited for memory in {pressure:.0f} % of the time"] if pressure >= 10 else []
        fullest = max(self.gpus, key=memory_share, default={})
        of_gpus = (
            [f"GPU memory {100 * memory_share(fullest):.0f} % at most"] if memory_share(fullest) and not bad else []
        )
        return [*memory, *more, *bad, *of_gpus] if part > HIGH_SHARE else [*bad, *memory, *more, *of_gpus]

    def to_json(self) -> dict[str, Any]:
        told = {
            "node": self.node,
            "at": self.at,
            "before": self.failed_at - self.at,
            "words": self.describe(),
        }
        return told | {"host": dict(self.host), "gpus": [dict(figures) for figures in self.gpus]}


def capture_failure_metrics(node: int, machine: MachineView | None, failed_at: float) -> FailureMetrics | None:
    """A machine's latest figures, as those before a failure just now; None where there are none of about then."""
    if machine is None or not machine.host.latest or abs(failed_at - machine.host.latest_at) > STALE_SECONDS:
        return None
    return FailureMetrics(node, machine, failed_at)


def _describe_gpu(number: int, figures: Mapping[str, float]) -> list[str]:
    said = []
    if xid := figures.get("xid"):
        said.append(describe_xid(xid))
    if figures.get("lost"):
        said.append("lost by the driver")
    if memory_share(figures) > HIGH_SHARE:
        said.append(f"memory {100 * memory_share(figures):.0f} % full")
    if bits := slowdown_bits(figures):
        said.append(f"slowed: {describe_throttling(bits)}")
    if figures.get("ecc"):
        said.append(f"{figures['ecc']:.0f} ECC errors")
    if figures.get("temp", 0.0) >= HOT_CELSIUS:
        said.append(f"{figures['temp']:.0f} °C")
    return [f"GPU {number} {', '.join(said)}"] if said else []
