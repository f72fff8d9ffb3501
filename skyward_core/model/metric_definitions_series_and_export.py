"""Metric series of ranks and machines, their definitions, units and export formats."""

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
    """Definition of a machine metric.

    Attributes:
        unit: Unit; "" for a count.
        help: Description.
        whole: Name of the metric that is the total for this metric.
    """

    unit: Unit
    help: str
    whole: str = ""


NODE_METRIC_DEFINITIONS: dict[str, MetricDefinition] = {
    "cpu": MetricDefinition("%", "CPU time used, relative to all cores"),
    "memory_used": MetricDefinition("B", "memory in use, without reclaimable memory", "memory_total"),
    "memory_total": MetricDefinition("B", "memory of the machine"),
    "cpu_pressure": MetricDefinition("%", "share of the last 10 s in which a task waited for a CPU"),
    "memory_pressure": MetricDefinition("%", "share of the last 10 s in which a task waited for memory"),
    "io_pressure": MetricDefinition("%", "share of the last 10 s in which a task waited for a disk"),
    "net_in": MetricDefinition("B/s", "received over the network"),
    "net_out": MetricDefinition("B/s", "sent over the network"),
    "disk_read": MetricDefinition("B/s", "read from disks"),
    "disk_write": MetricDefinition("B/s", "written to disks"),
    "spool_free": MetricDefinition("B", "free space on the disk of logs and results"),
}
GPU_METRIC_DEFINITIONS: dict[str, MetricDefinition] = {
    "util": MetricDefinition("%", "share of the time in which a kernel ran on the GPU"),
    "sm_active": MetricDefinition("%", "share of the time in which multiprocessors were active (DCGM)"),
    "tensor_active": MetricDefinition("%", "share of the time in which tensor cores were active (DCGM)"),
    "mem_busy": MetricDefinition("%", "share of the time in which GPU memory was read or written"),
    "mem_used": MetricDefinition("B", "memory in use on the GPU", "mem_total"),
    "mem_total": MetricDefinition("B", "memory of the GPU"),
    "power": MetricDefinition("W", "power drawn", "power_limit"),
    "power_limit": MetricDefinition("W", "power limit"),
    "temp": MetricDefinition("°C", "temperature of the GPU"),
    "sm_clock": MetricDefinition("MHz", "clock of the multiprocessors"),
    "mem_clock": MetricDefinition("MHz", "clock of the memory"),
    "throttle": MetricDefinition("", "reasons for throttling, as NVML bits; 0: not throttled"),
    "pcie_in": MetricDefinition("B/s", "received over PCIe"),
    "pcie_out": MetricDefinition("B/s", "sent over PCIe"),
    "nvlink_in": MetricDefinition("B/s", "received over NVLink"),
    "nvlink_out": MetricDefinition("B/s", "sent over NVLink"),
    "ecc": MetricDefinition("", "uncorrectable memory errors since the driver was loaded"),
    "ecc_corrected": MetricDefinition("", "corrected memory errors since the driver was loaded"),
    "processes": MetricDefinition("", "processes that compute on the GPU"),
    "xid": MetricDefinition("", "latest error of the driver in the kernel log (Xid)"),
    "lost": MetricDefinition("", "1: the driver has lost the GPU"),
}
# Unit -> minimum difference. A machine's value that differs from the values of all peers by at least this amount is
# reported.
MIN_DIFFERENCE: dict[Unit, float] = {"%": 10.0, "°C": 10.0, "W": 30.0}
# Bits of the metric "throttle" with their reasons, as NVML defines them.
_REASONS = (
    (0x04, "power cap"),
    (0x08, "hardware slowdown"),
    (0x20, "too hot"),
    (0x40, "too hot (hardware)"),
    (0x80, "power brake"),
)


def describe_throttling(bits: float) -> str:
    """Return the reasons why a GPU is throttled, or ""."""
    found = int(bits)
    return ", ".join(words for bit, words in _REASONS if found & bit)


# Source of a metric that ``sky.log`` did not log -> words in which screens describe the source.
METRIC_ORIGINS = {
    "log": "from the log",
    "torch": "from TensorBoard",
    "tensorboardX": "from TensorBoard",
    "wandb": "from W&B",
    "mlflow": "from MLflow",
    "lightning": "from Lightning",
    "pytorch_lightning": "from Lightning",
    "transformers": "from Hugging Face",
    "keras": "from Keras",
}
COLUMNS = ("name", "unit", "rank", "node", "gpu", "model", "at", "value")


@dataclass(frozen=True, slots=True)
class Curve:
    """Metric series: the values of one metric over time, of one rank, GPU or node.

    Attributes:
        name: Name of the metric: logged by a rank, such as ``loss``, or of a machine, such as ``util``.
        unit: ``%``, ``B``, ``B/s``, ``W``, ``°C`` or ``MHz``; "" for logged metrics and for counts.
        rank: Rank that logged the metric; None for machine metrics.
        node: Node that was measured.
        gpu: Index of the node's GPU; None for the node itself.
        model: Model of the GPU.
        at: Unix times by this machine's clock, oldest first.
        values: One value for each time.
        origin: Source of a rank's metric that was not logged by ``sky.log``, such as "from the log"; else "".
    """

    name: str
    unit: Unit = ""
    rank: int | None = None
    node: int | None = None
    gpu: int | None = None
    model: str = ""
    at: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    origin: str = ""

    def __len__(self) -> int:
        return len(self.at)

    @property
    def latest(self) -> float:
        """Latest value."""
        return self.values[-1]


class Curves(Sequence[Curve]):
    """Metric series of a pool or of a run: of ranks first, then of machines.

        for series in compute.metrics(run).of("loss"):
            print(series.rank, series.latest)

    Attributes:
        notes: Missing metrics and the reasons.
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
        """Names of the metrics, without duplicates."""
        return list(dict.fromkeys(curve.name for curve in self._curves))

    def of(self, name: str) -> list[Curve]:
        """Return the series of one metric: one for each rank, GPU or node."""
        return [curve for curve in self._curves if curve.name == name]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield each point as a row ``name, unit, rank, node, gpu, model, at, value``, with None for missing
        attributes.
        """
        for curve in self._curves:
            about = (curve.name, curve.unit, curve.rank, curve.node, curve.gpu, curve.model or None)
            yield from ((*about, at, value) for at, value in zip(curve.at, curve.values, strict=True))

    def to_csv(self, file: IO[str]) -> None:
        """Write a header and one row for each point. Open the file with ``newline=""``."""
        import csv  # imported late, because few scripts export to CSV

        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((*map(_escape_formula, row[:6]), *row[6:]) for row in self.rows())

    def to_json(self, file: IO[str]) -> None:
        """Write an array with one object for each series. Non-finite values become null."""
        file.write("[")
        for number, curve in enumerate(self._curves):
            file.write(",\n" if number else "\n")
            json.dump(curve_json(curve), file, allow_nan=False)
        file.write("\n]\n")

    def to_parquet(self, path: str) -> None:
        """Write one row for each point.

        Raises:
            UsageError: If pyarrow is not installed.
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
    """Return pyarrow with its Parquet module loaded.

    Raises:
        UsageError: If pyarrow is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "Parquet requires pyarrow, which is not installed. Run pip install pyarrow, or export to .csv or .json."
        ) from error
    return pyarrow


def curve_json(curve: Curve) -> dict[str, Any]:
    """Return a series as a JSON object, without missing attributes."""
    about = {
        "name": curve.name, "unit": curve.unit, "rank": curve.rank, "node": curve.node, "gpu": curve.gpu,
        "model": curve.model or None, "origin": curve.origin or None,
    }  # fmt: skip
    return {key: value for key, value in about.items() if value is not None} | {
        "at": list(curve.at),
        "values": [value if isfinite(value) else None for value in curve.values],
    }


def _escape_formula(cell: Any) -> Any:
    """Quote text that a spreadsheet would evaluate as a formula, because ranks choose the names of metrics."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
