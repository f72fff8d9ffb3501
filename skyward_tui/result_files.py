"""A run's results as one file, of the kind that its name says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from skyward_core.front.user_files import exists
from skyward_core.model.errors import UsageError
from skyward_core.views.views import RunView

from .saving import results_csv, results_json, rows_of

ENDINGS = (".csv", ".json", ".parquet", ".pickle")


def check(output: str) -> None:
    """Refuse what would not be written, before anything is looked for.

    Raises:
        UsageError: it has another ending, or is there already; or pyarrow is to write it, and is not installed.
    """
    if not output.endswith(ENDINGS):
        raise UsageError(
            f"{output} says no kind of file: end it with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
        )
    if exists(output):
        raise UsageError(f"{output} is there already")
    if output.endswith(".parquet"):
        _pyarrow()


def write(run: RunView, output: str, values: Callable[[RunView], Mapping[int, Path]]) -> str:
    """Write them, whole or not at all; returns what the person has to know of it.

    Args:
        values: tells the files that have the run's values as ranks pickled them.

    Raises:
        UsageError: their values are not here, and they are to be pickles.
        OSError: it cannot be written.
    """
    kinds: dict[str, Callable[[], Iterable[bytes]]] = {
        ".csv": lambda: [results_csv(run).encode("utf-8", "backslashreplace")],
        ".json": lambda: [results_json(run).encode("utf-8", "backslashreplace")],
        ".parquet": lambda: [_parquet(rows_of(run))],
        ".pickle": lambda: _pickles(values(run)),
    }
    ending = next(each for each in ENDINGS if output.endswith(each))
    pieces = kinds[ending]()
    path = Path(output)
    try:
        with open(path, "xb", opener=_own if ending == ".pickle" else None) as file:
            file.writelines(pieces)
    except FileExistsError:
        raise UsageError(f"{output} is there already") from None
    except BaseException:
        with suppress(FileNotFoundError):
            path.unlink()
        raise
    if ending == ".pickle":
        return "the ranks, or tasks, come first, as a list; then the value of each: pickle.load as often"
    return ""


def _own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _pickles(found: Mapping[int, Path]) -> Iterator[bytes]:
    """The values as ranks pickled them, one behind the other: to load one would run what a rank wrote."""
    import pickle

    return iter([pickle.dumps(list(found)), *(path.read_bytes() for path in found.values())])


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "Parquet is written by pyarrow, which is not installed here: pip install pyarrow, or take .csv or .json"
        ) from error
    return pyarrow


def _parquet(rows: list[Mapping[str, Any]]) -> bytes:
    """Rows as a Parquet file: numbers are numbers where all of a column are; what is no plain value is JSON."""
    arrow = _pyarrow()
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [_column([row.get(name) for row in rows]) for name in names]
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(
        arrow.Table.from_arrays([arrow.array(each) for each in columns], names=names), sink
    )
    return bytes(sink.getvalue())


def _column(cells: list[Any]) -> list[Any]:
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {bool} or kinds <= {str}:
        return cells
    if kinds <= {int} and all(cell is None or -(2**63) <= cell < 2**63 for cell in cells):
        return cells
    if kinds <= {int, float}:
        return [None if cell is None else float(cell) for cell in cells]
    return [cell if cell is None or isinstance(cell, str) else json.dumps(cell) for cell in cells]
