"""Metrics of machines and GPUs: history, newest values, and values before a failure."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, nan
from typing import Any, NamedTuple

from skyward_core.model.metric_definitions_series_and_export import (
    GPU_METRIC_DEFINITIONS,
    NODE_METRIC_DEFINITIONS,
    describe_throttling,
)
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views import group_pairs
from skyward_core.views.outliers_and_bands import Trace
from skyward_core.views.rank_metrics_and_progress import MAX_TIME, MAX_VALUE

MAX_POINTS = 1024  # maximum rows per history; of a full history, every other row is dropped
MAX_NAMES = 48  # maximum number of metrics per machine or GPU
MAX_GPUS = 64  # maximum number of GPUs per machine, including slices
MAX_NAME_LENGTH = 40  # maximum characters of a metric's name
_KNOWN = NODE_METRIC_DEFINITIONS.keys() | GPU_METRIC_DEFINITIONS.keys()
_NUMBERS = {int, float}
FRESH_SECONDS = 10.0  # seconds for which a metric's value counts as current
# seconds by which samples may be out of order; a larger step back means that the machine's clock was set back
SET_BACK = 1.0
FULL_SHARE = 0.95  # share of used memory from which a machine's or GPU's memory counts as nearly full
# NVML bits of throttling reasons that indicate a problem: hardware slowdown, software and hardware thermal slowdown,
# power brake. A power cap is normal under full load.
SLOWDOWN_BITS = 0x08 | 0x20 | 0x40 | 0x80


def memory_share(figures: Mapping[str, float]) -> float:
    """Return the used share of a machine's or a GPU's memory; 0 if unknown."""
    used = figures.get("mem_used", figures.get("memory_used"))
    whole = figures.get("mem_total", figures.get("memory_total"))
    return used / whole if used is not None and whole else 0.0


def slowdown_bits(figures: Mapping[str, float]) -> int:
    """Return those throttling reasons of a GPU, as NVML bits, that indicate a problem."""
    return int(figures.get("throttle", 0)) & SLOWDOWN_BITS


def _start_time(before: float | None, at: float, holds: object) -> float | None:
    """Return the time since which a condition holds: ``before`` if known, otherwise ``at``; None if it is false."""
    return (at if before is None else before) if holds else None


class MetricHistory:
    """Metrics of one machine or GPU over time, stored in one array with a row per sample.

    A full history is thinned to every other row, and later samples are thinned in the same way. The history therefore
    always covers the whole time evenly. If the clock is set back, rows with later times are dropped.

    Attributes:
        latest: The newest sample.
        latest_at: Unix time of the newest sample on the client's clock; 0.0 before the first one.
        seen: Number of samples.
        names: Names of all metrics, in the order of the columns.
        full_since, slowed_since: Unix time since which the memory is nearly full, or the GPU is throttled. None if that
            is not the case.
        lost_since: Unix time since which the driver has lost the GPU. None if the driver sees the GPU.
        xid, xid_at: Last error of the GPU in the kernel log, and the Unix time of its first report; 0 if there is none.
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
        """Add a sample of the metrics."""
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
        if tuple(figures) == self.names:  # Usually a sample has the same metrics as the previous one.
            self._rows.extend(figures.values())
        else:
            if new := [name for name in figures if name not in self.names]:
                self._add_columns(new[: MAX_NAMES - len(self.names)])
            self._rows.extend([figures.get(name, nan) for name in self.names])
        self._at.append(at)  # Append the time last, because concurrent readers take the number of rows from it.

    def _thin(self) -> None:
        width = len(self.names)
        thinned = array("d")
        for row in range(0, len(self._at), 2):
            thinned.extend(self._rows[row * width : (row + 1) * width])
        self._at, self._rows = self._at[::2], thinned
        self._stride *= 2

    def _add_columns(self, names: Sequence[str]) -> None:
        """Add columns for new metrics, with empty values in all existing rows."""
        width, empty = len(self.names), array("d", [nan]) * len(names)
        wider = array("d")
        for row in range(len(self._at)):
            wider.extend(self._rows[row * width : (row + 1) * width] + empty)
        self._rows, self.names = wider, (*self.names, *names)

    @property
    def span(self) -> tuple[float, float]:
        """Unix times of the first and the last stored sample."""
        return (self._at[0], self._at[-1]) if self._at else (0.0, 0.0)

    def maximum(self, name: str) -> float:
        """Return the greatest stored value of a metric; 0.0 if there is none."""
        names, rows = self.names, self._rows
        if name not in names:
            return 0.0
        return max(filter(isfinite, rows[names.index(name) :: len(names)]), default=0.0)

    def trace(self, name: str) -> Trace:
        """Return the history of one metric, without samples that lack it."""
        names, rows = self.names, self._rows
        if name not in names:
            return Trace(array("d"), array("d"))
        column = rows[names.index(name) :: len(names)]
        pairs = [(at, value) for at, value in zip(self._at, column, strict=False) if value == value]
        return Trace(array("d", [at for at, _ in pairs]), array("d", [value for _, value in pairs]))


class Device(NamedTuple):
    """A GPU of a machine, or a MIG slice of a GPU."""

    id: str
    model: str


@dataclass(slots=True)
class MachineView:
    """Metrics of one node's machine.

    Attributes:
        host: Metrics of the machine.
        gpus: Metrics of the GPUs.
        devices: The GPUs.
        boot: Id that nodes on the same machine share; "" if unknown.
        why: Reason why no samples, or no GPU samples, arrive; "" if all samples arrive.
        ahead: Seconds by which the client's clock was ahead of the node's at the newest sample.
    """

    host: MetricHistory
    gpus: list[MetricHistory]
    devices: list[Device]
    why: str = ""
    boot: str = ""
    ahead: float = 0.0

    def is_fresh(self, now: float) -> bool:
        """Check whether the newest sample is recent enough to count as current."""
        return now - self.host.latest_at < FRESH_SECONDS


class MachineMetrics:
    """Machine metrics of a pool by node. One thread writes; other threads may read.

    Attributes:
        version: Increased by each change, so that screens repaint only new data.
    """

    def __init__(self) -> None:
        self.version = 0
        self.nodes: dict[int, MachineView] = {}

    def machine(self, node: int) -> MachineView:
        """Return a node's metrics, created on first use."""
        found = self.nodes.get(node)
        if found is None:
            found = MachineView(MetricHistory(), [], [])
            # Create a new dict, because other threads iterate over the old one.
            self.nodes = dict(sorted([*self.nodes.items(), (node, found)]))
        return found

    def nodes_by_machine(self, now: float) -> list[list[int]]:
        """Return the nodes of each machine. A node without current data is separate, because its metrics differ."""
        keys = ((each.boot or node, each.is_fresh(now), each.why) for node, each in self.nodes.items())
        return list(group_pairs(zip(keys, self.nodes, strict=True)).values())

    def set_silence_reason(self, node: int, reason: str) -> None:
        """Set the reason why a node sends no samples; "" if it sends samples."""
        self.machine(node).why = sanitize_line(reason)
        self.version += 1

    def feed(self, node: int, data: bytes, ahead: float = 0.0) -> None:
        """Add lines with samples of a node, oldest first. Skip invalid lines.

        Args:
            node: Index of the node.
            data: The lines.
            ahead: Seconds by which the client's clock is ahead of the node's.
        """
        machine = self.machine(node)
        for line in data.split(b"\n"):
            try:
                sample = json.loads(line) if line else None
            except (ValueError, RecursionError):
                continue
            if isinstance(sample, dict):
                self._add_sample(machine, sample, ahead)
        self.version += 1

    def _add_sample(self, machine: MachineView, sample: dict[str, Any], ahead: float) -> None:
        at = sample.get("at")
        if not (isinstance(at, int | float) and 0 <= at < MAX_TIME):
            return
        at, machine.ahead = at + ahead, ahead
        devices, gpus, reason = sample.get("devices"), sample.get("gpus"), sample.get("why")
        if isinstance(devices, list):
            machine.devices = [_parse_device(each) for each in devices[:MAX_GPUS]]
            machine.boot = str(sample.get("boot", ""))[:80]
        machine.host.add(at, _parse_metrics(sample.get("node")))
        machine.why = sanitize_line(reason) if isinstance(reason, str) else ""
        for number, each in enumerate(gpus[:MAX_GPUS] if isinstance(gpus, list) else ()):
            if number == len(machine.gpus):
                machine.gpus.append(MetricHistory())
            machine.gpus[number].add(at, _parse_metrics(each))

    # -- all nodes -----------------------------------------------------------------------------------------

    def tracks(self) -> Iterator[tuple[int, int | None, MetricHistory]]:
        """Yield node, GPU (None for the machine itself) and history of each machine and GPU with samples."""
        for node, machine in self.nodes.items():
            yield node, None, machine.host
            yield from ((node, gpu, track) for gpu, track in enumerate(list(machine.gpus)))

    def latest(self, name: str) -> dict[tuple[int, int | None], float]:
        """Return the newest value of a metric for each node and GPU that has one."""
        return {(node, gpu): track.latest[name] for node, gpu, track in self.tracks() if name in track.latest}


def _parse_metrics(data: Any) -> dict[str, float]:
    """Return the valid metrics of a sample, which may contain any JSON."""
    if not isinstance(data, dict):
        return {}
    # Usually all values are valid. Checking their sum is five times as fast as checking each value of 256 GPUs.
    if data.keys() <= _KNOWN and _NUMBERS.issuperset(map(type, data.values())):
        try:
            if isfinite(fsum(data.values())):
                return dict(zip(data, map(float, data.values()), strict=True))
        except OverflowError:  # One of the values, or their sum, is too large for a float.
            pass
    found: dict[str, float] = {}
    for name, value in data.items():
        if type(value) in _NUMBERS and -MAX_VALUE < value < MAX_VALUE and len(found) < MAX_NAMES:
            found[sanitize_line(name)[:MAX_NAME_LENGTH]] = float(value)
    return found


def _parse_device(data: Any) -> Device:
    known = data if isinstance(data, dict) else {}
    return Device(*(sanitize_line(str(known.get(name, "")))[:80] for name in ("id", "model")))


STALE_SECONDS = 60.0  # maximum seconds between a sample and a failure for the sample to be shown with the failure
# seconds after a failure in which GPU errors in the kernel log still count as part of the failure
LATE_ERROR_SECONDS = 10.0
HIGH_SHARE = 0.9  # share of used memory above which a failure's description mentions the memory
HOT_CELSIUS = 85.0  # °C above which a failure's description mentions the temperature
# Descriptions of frequent GPU errors, from https://docs.nvidia.com/deploy/xid-errors.
XIDS = {
    13: "graphics engine exception", 31: "memory page fault", 43: "stopped by its program's error",
    45: "cleaned up after another error", 48: "ECC error of two bits", 61: "internal halt", 62: "internal halt",
    63: "a row of memory is to be remapped", 64: "a row of memory could not be remapped", 74: "NVLink error",
    79: "the GPU has fallen off the bus", 92: "many ECC errors", 94: "contained ECC error", 95: "uncontained ECC error",
    119: "no answer of its firmware", 120: "error of its firmware",
}  # fmt: skip


def describe_xid(number: float) -> str:
    """Describe a GPU error, for example ``Xid 79 (the GPU has fallen off the bus)``."""
    meaning = XIDS.get(int(number))
    return f"Xid {number:.0f}" + (f" ({meaning})" if meaning else "")


class FailureMetrics:
    """Metrics of one node's machine shortly before a failure on the node.

    Args:
        node: Index of the node.
        machine: Metrics of the node. They are read later, too: a GPU error may appear in the log after the rank's
            failure.
        failed_at: Unix time in seconds.

    Attributes:
        node: Index of the node.
        at: Unix time of the sample on the client's clock.
        host, gpus: Values by name, as defined in :mod:`skyward_core.model.metric_definitions_series_and_export`.
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
        """Return the errors of a GPU that were reported until :data:`LATE_ERROR_SECONDS` after the failure."""
        signs = {"xid": track.xid} if track.xid and track.xid_at <= self.failed_at + LATE_ERROR_SECONDS else {}
        if track.latest_at <= self.failed_at + LATE_ERROR_SECONDS and track.latest.get("lost"):
            signs["lost"] = 1.0
        return signs

    def describe(self) -> list[str]:
        """Return short texts about unusual values, worst first; empty if nothing is unusual."""
        bad = [text for number, figures in enumerate(self.gpus) for text in _describe_gpu(number, figures)]
        part = memory_share(self.host)
        memory = [f"memory {100 * part:.0f} % full"] if part > HIGH_SHARE else []
        pressure = self.host.get("memory_pressure", 0.0)
        more = [f"stalled by memory pressure {pressure:.0f} % of the time"] if pressure >= 10 else []
        return [*memory, *more, *bad] if memory else [*bad, *more]

    def to_json(self) -> dict[str, Any]:
        data = {"node": self.node, "at": self.at, "before": self.failed_at - self.at, "words": self.describe()}
        return data | {"host": dict(self.host), "gpus": [dict(figures) for figures in self.gpus]}


def capture_failure_metrics(node: int, machine: MachineView | None, failed_at: float) -> FailureMetrics | None:
    """Return a machine's metrics before a failure, from its newest samples; None if none are from about that time."""
    if machine is None or not machine.host.latest or abs(failed_at - machine.host.latest_at) > STALE_SECONDS:
        return None
    return FailureMetrics(node, machine, failed_at)


def _describe_gpu(number: int, figures: Mapping[str, float]) -> list[str]:
    problems = []
    if xid := figures.get("xid"):
        problems.append(describe_xid(xid))
    if figures.get("lost"):
        problems.append("lost by the driver")
    if memory_share(figures) > HIGH_SHARE:
        problems.append(f"memory {100 * memory_share(figures):.0f} % full")
    if bits := slowdown_bits(figures):
        problems.append(f"slowed: {describe_throttling(bits)}")
    if figures.get("ecc"):
        problems.append(f"{figures['ecc']:.0f} ECC errors")
    if figures.get("temp", 0.0) >= HOT_CELSIUS:
        problems.append(f"{figures['temp']:.0f} °C")
    return [f"GPU {number} {', '.join(problems)}"] if problems else []
