"""Numbers over time in one shape: what ranks logged, and what machines were measured at; also as files."""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import IO, Any

from .errors import UsageError
from .figures import Unit

COLUMNS = ("name", "unit", "rank", "node", "gpu", "model", "at", "value")


@dataclass(frozen=True, slots=True)
class Curve:
    """One name's numbers over time, of one rank, one GPU or one node.

    Attributes:
        name: such as ``loss``, as a rank logged it, or ``util``, as :mod:`.figures` has it.
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
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((*map(_not_a_formula, row[:6]), *row[6:]) for row in self.rows())

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
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise UsageError(
                "Parquet is written by pyarrow, which is not installed here: pip install pyarrow, or take CSV or JSON"
            ) from error
        types = (
            pyarrow.string(), pyarrow.string(), pyarrow.int32(), pyarrow.int32(), pyarrow.int32(), pyarrow.string(),
            pyarrow.float64(), pyarrow.float64(),
        )  # fmt: skip
        columns = list(zip(*self.rows(), strict=True)) or [()] * len(COLUMNS)
        arrays = [pyarrow.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        parquet.write_table(pyarrow.Table.from_arrays(arrays, names=list(COLUMNS)), path)


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


def _not_a_formula(cell: Any) -> Any:
    """A name that a rank made up must do nothing in a spreadsheet."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
