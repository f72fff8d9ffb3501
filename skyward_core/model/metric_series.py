"""Metric series and their units."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import IO, Any, Literal

from skyward_core.model.errors import UsageError

Unit = Literal["%", "B", "B/s", "W", "°C", "MHz", ""]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One figure.

    Attributes:
        unit: "" for a number of things.
        whole: the figure that it is a part of.
    """

    unit: Unit
    help: str
    whole: str = ""


NODE_METRIC_DEFINITIONS: dict[str, MetricDefinition] = {
    "cpu": MetricDefinition("%", "processor time used, of all cores together"),
    "memory_used": MetricDefinition("B", "memory in use, without what can be freed at once", "memory_total"),
    "memory_total": MetricDefinition("B", "memory of the machine"),
    "cpu_pressure": MetricDefinition("%", "of the last 10 s, in which something waited for a processor"),
    "memory_pressure": MetricDefinition("%", "of the last 10 s, in which something waited for memory"),
    "io_pressure": MetricDefinition("%", "of the last 10 s, in which something waited for a disk"),
    "net_in": MetricDefinition("B/s", "received over the network"),
    "net_out": MetricDefinition("B/s", "sent over the network"),
    "disk_read": MetricDefinition("B/s", "read from disks"),
    "disk_write": MetricDefinition("B/s", "written to disks"),
    "spool_free": MetricDefinition("B", "free on the disk where logs and results wait"),
}
GPU_METRIC_DEFINITIONS: dict[str, MetricDefinition] = {
    "util": MetricDefinition("%", "of the time, in which something ran on the GPU"),
    "sm_active": MetricDefinition("%", "of the multiprocessors' time in which they worked (DCGM)"),
    "tensor_active": MetricDefinition("%", "of the tensor cores' time in which they worked (DCGM)"),
    "mem_busy": MetricDefinition("%", "of the time, in which its memory was read or written"),
    "mem_used": MetricDefinition("B", "memory in use on the GPU", "mem_total"),
    "mem_total": MetricDefinition("B", "memory of the GPU"),
    "power": MetricDefinition("W", "power drawn", "power_limit"),
    "power_limit": MetricDefinition("W", "power that it may draw"),
    "temp": MetricDefinition("°C", "temperature of the GPU"),
    "sm_clock": MetricDefinition("MHz", "clock of the multiprocessors"),
    "mem_clock": MetricDefinition("MHz", "clock of the memory"),
    "throttle": MetricDefinition("", "why it runs slower than it could, as NVML's bits; 0: it does not"),
    "pcie_in": MetricDefinition("B/s", "received over PCIe"),
    "pcie_out": MetricDefinition("B/s", "sent over PCIe"),
    "nvlink_in": MetricDefinition("B/s", "received over NVLink"),
    "nvlink_out": MetricDefinition("B/s", "sent over NVLink"),
    "ecc": MetricDefinition("", "errors of its memory that could not be corrected, since the driver was loaded"),
    "ecc_corrected": MetricDefinition("", "those that were corrected"),
    "processes": MetricDefinition("", "processes that compute on it"),
    "xid": MetricDefinition("", "the last error that the driver wrote into the kernel's log (Xid)"),
    "lost": MetricDefinition("", "1: the driver has lost the GPU"),
}
# By unit, the least difference from all others that is worth a word.
MIN_DIFFERENCE: dict[Unit, float] = {"%": 10.0, "°C": 10.0, "W": 30.0}
# NVML's bits of "throttle".
_REASONS = (
    (0x04, "power cap"),
    (0x08, "hardware slowdown"),
    (0x20, "too hot"),
    (0x40, "too hot (hardware)"),
    (0x80, "power brake"),
)


def describe_throttling(bits: float) -> str:
    """Why a GPU runs slower than it could, or ""."""
    found = int(bits)
    return ", ".join(words for bit, words in _REASONS if found & bit)


COLUMNS = ("name", "unit", "rank", "node", "gpu", "model", "at", "value")


@dataclass(frozen=True, slots=True)
class Curve:
    """One name's numbers over time, of one rank, one GPU or one node.

    Attributes:
        name: such as ``loss``, as a rank logged it, or ``util``, as ``model.metric_series`` has it.
        unit: ``%``, ``B``, ``B/s``, ``W``, ``°C`` or ``MHz``; "" for what ranks logged, and for numbers of things.
        rank: that logged it; None for machines.
        node: that was measured.
        gpu: which of that node's GPUs; None for the node itself.
        model: of the GPU.
        at: Unix times by this machine's clock, oldest first.
        values: one for each time.
    """

    name: str
    unit: Unit = ""
    rank: int | None = None
    node: int | None = None
    gpu: int | None = None
    model: str = ""
    at: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.at)

    @property
    def latest(self) -> float:
        """The newest value."""
        return self.values[-1]


class Curves(Sequence[Curve]):
    """Those of a pool or of a run: of ranks first, then of machines.

    Attributes:
        notes: what is missing, and why, in words.
    """

    def __init__(self, curves: Iterable[Curve], notes: Sequence[str] = ()) -> None:
        self._curves = [curve for curve in curves if len(curve)]
        self.notes = list(notes)

    def __len__(self) -> int:
        return len(self._curves)

    def __getitem__(self, place: Any) -> Any:
        return self._curves[place]

    @property
    def names(self) -> list[str]:
        """The names there are, each once."""
        return list(dict.fromkeys(curve.name for curve in self._curves))

    def of(self, name: str) -> list[Curve]:
        """The curves of one name: of each rank, or of each GPU or node."""
        return [curve for curve in self._curves if curve.name == name]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Each point as a row of ``name, unit, rank, node, gpu, model, at, value``; None where a curve has no such
        thing."""
        for curve in self._curves:
            about = (curve.name, curve.unit, curve.rank, curve.node, curve.gpu, curve.model or None)
            for at, value in zip(curve.at, curve.values, strict=True):
                yield (*about, at, value)

    def to_csv(self, file: IO[str]) -> None:
        """Write a row for each point, below one with the columns' names; a file opened with ``newline=""``."""
        import csv  # late: for this alone

        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((*map(_escape_formula, row[:6]), *row[6:]) for row in self.rows())

    def to_json(self, file: IO[str]) -> None:
        """Write an array with an object for each curve; what is no finite number is null."""
        file.write("[")
        for number, curve in enumerate(self._curves):
            file.write(",\n" if number else "\n")
            json.dump(curve_json(curve), file, allow_nan=False)
        file.write("\n]\n")

    def to_parquet(self, path: str) -> None:
        """Write a row for each point.

        Raises:
            UsageError: pyarrow is not installed here.
        """
        pyarrow = import_pyarrow()
        types = (
            pyarrow.string(), pyarrow.string(), pyarrow.int32(), pyarrow.int32(), pyarrow.int32(), pyarrow.string(),
            pyarrow.float64(), pyarrow.float64(),
        )  # fmt: skip
        columns = list(zip(*self.rows(), strict=True)) or [()] * len(COLUMNS)
        arrays = [pyarrow.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, names=list(COLUMNS)), path)


def import_pyarrow() -> Any:
    """Return pyarrow with its module for Parquet.

    Raises:
        UsageError: It is not installed here.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "Parquet is written by pyarrow, which is not installed here: pip install pyarrow, or take CSV or JSON"
        ) from error
    return pyarrow


def curve_json(curve: Curve) -> dict[str, Any]:
    """A curve as an object for programs; without what it has not."""
    about = {
        "name": curve.name, "unit": curve.unit, "rank": curve.rank, "node": curve.node, "gpu": curve.gpu,
        "model": curve.model or None,
    }  # fmt: skip
    return {key: value for key, value in about.items() if value is not None} | {
        "at": list(curve.at),
        "values": [value if isfinite(value) else None for value in curve.values],
    }


def _escape_formula(cell: Any) -> Any:
    """A name that a rank made up must do nothing in a spreadsheet."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
