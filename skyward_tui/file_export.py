"""Logs and results saved to files."""

from __future__ import annotations

import csv
import heapq
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from os.path import commonpath, commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.client.run_history import RunLogs
from skyward_core.model.errors import UsageError
from skyward_core.model.metric_definitions_and_series import import_pyarrow
from skyward_core.model.outcomes import Outcome
from skyward_core.util.format_bytes import format_size
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.util.user_files import exists, is_dir
from skyward_core.views.log_buffer import rank_prefix
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.stack_groups import Profile, speedscope
from skyward_core.views.sweep_trials import TrialTable
from skyward_tui.text.json_output import run_json
from skyward_tui.text.number_and_time_format import count

if TYPE_CHECKING:
    from skyward_core.client.session_interface import FetchResult


_FIXED = ("index", "rank", "node", "outcome", "seconds", "error", "message")
_MOST = 10_000  # files of one name


def save_error_text(error: OSError, folder: Path) -> str:
    """Why something could not be saved there, in words."""
    if not is_dir(folder):
        return f"could not save: {folder}, which the app was started in, is not there any more"
    return "; ".join([f"could not save in {folder}: {error.strerror or error}", *getattr(error, "__notes__", ())])


def save(path: Path, pieces: Iterable[str]) -> Path:
    """Write a new file; where there is one of that name, beside it as ``name-2``.

    Returns:
        where it was written.

    Raises:
        OSError: it cannot be written; nothing of it is left.
    """
    for number in range(1, _MOST):
        free = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        try:
            target = open(free, "x", encoding="utf-8", errors="backslashreplace", newline="")  # noqa: SIM115  closed below
        except FileExistsError:
            continue
        try:
            with target:
                target.writelines(pieces)
        except BaseException:
            free.unlink(missing_ok=True)
            raise
        return free
    raise FileExistsError(f"there are {_MOST:,} files named like {path} already")


def save_all(folder: Path, files: Mapping[str, Iterable[str]]) -> list[Path]:
    """:func:`save` several files, by their names: all of them, or none.

    Raises:
        OSError: one cannot be written. Those before it are gone again; its notes name those that could not be removed.
    """
    written: list[Path] = []
    try:
        for name, pieces in files.items():
            written.append(save(folder / name, pieces))
    except BaseException as error:
        if left := [path for path in written if not _is_removed(path)]:
            error.add_note(f"saved all the same: {brace_names(left)}")
        raise
    return written


def _is_removed(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def brace_names(paths: Iterable[Path]) -> str:
    """The names of files, what all begin with said once, as a shell takes it: ``pool-run-{r000.log,results.csv}``."""
    names = [path.name for path in paths]
    same = commonprefix(names).rpartition("-")  # noqa: RUF071  names, of which characters are compared
    start = same[0] + same[1]
    if len(names) < 2 or not start:
        return ", ".join(names)
    return f"{start}{{{','.join(name.removeprefix(start) for name in names)}}}"


def log_lines(logs: RunLogs, rank: int | None) -> Iterator[str]:
    """What a rank printed in a run, or all ranks in the order of time, each line with its rank; read as it goes."""
    if rank is not None:
        for line in logs.lines(rank):
            yield f"{line.text}\n"
        return
    for _, each, text in heapq.merge(
        *(_timed_lines(logs, each) for each in sorted(logs.ranges)), key=lambda line: line[0]
    ):
        yield f"{rank_prefix(each)}{text}\n"


def _timed_lines(logs: RunLogs, rank: int) -> Iterator[tuple[float, int, str]]:
    """A rank's lines, with times that never go back; a line of which nothing tells when goes with the one before."""
    latest = 0.0
    for line in logs.lines(rank):
        latest = max(latest, line.about.at or 0.0)
        yield latest, rank, line.text


def profile_files(seen: Profile, called: str) -> dict[str, str]:
    """What is worth keeping of a rank's profile, by the files' names."""
    return {f"profile-{called}.speedscope.json": speedscope(seen, called)}


def results_json(run: RunView) -> str:
    """All that is known of a run's results: the object that ``skyward-tui results RUN --json`` prints."""
    return json.dumps(run_json(run), indent=1) + "\n"


def results_csv(run: RunView) -> str:
    """A row for each rank or task, numbers to the last digit. A result that is a dict has a column for each of its
    keys, ``value.loss``; what is no plain text or number stands there as JSON."""
    return _sheet(run, lambda task: task.raw_outcome, ",")


def results_text(run: RunView) -> str:
    """The same to be pasted somewhere: between tabs, and with nothing in it that acts on a terminal."""
    return _sheet(run, lambda task: task.outcome, "\t")


def trials_csv(found: TrialTable) -> str:
    """A row for each trial of a sweep: its arguments, the last number of each name, and what a result has."""
    rows = []
    for each in found.rows:
        of = {f"argument.{name}": text for name, text in zip(found.names, each.arguments, strict=True)}
        came = {"outcome": each.state} if each.task is None else _row(each.task, each.task.raw_outcome, _cell)
        numbers = {f"number.{name}": _cell(value) for name, value in each.numbers.items()}
        rows.append({"trial": each.place, **of, "run": each.run, **came, **numbers})
    own = ("trial", *(f"argument.{name}" for name in found.names), "run")
    return _format_csv(rows, (*own, *_FIXED), ",")


def result_rows(run: RunView) -> list[Mapping[str, Any]]:
    """A row for each rank or task, as :func:`results_csv` has them, with values that are numbers, texts or lists."""
    return [_row(task, task.raw_outcome, lambda value: value) for _, task in sorted(run.tasks.items())]


def _sheet(run: RunView, outcome: Callable[[TaskView], Outcome | None], delimiter: str) -> str:
    return _format_csv([_row(task, outcome(task), _cell) for _, task in sorted(run.tasks.items())], _FIXED, delimiter)


def _format_csv(rows: Sequence[Mapping[str, Any]], first: Sequence[str], delimiter: str) -> str:
    columns = dict.fromkeys(first) | dict.fromkeys(name for row in rows for name in row)
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, list(columns), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return sheet.getvalue()


def _row(task: TaskView, outcome: Outcome | None, cell: Callable[[Any], Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "index": task.index,
        "rank": task.rank,
        "node": task.node,
        "outcome": task.state,
        "seconds": outcome.seconds if outcome else None,
        "error": outcome.error.type if outcome and outcome.error else None,
        "message": outcome.error.message if outcome and outcome.error else None,
    }
    summary = outcome.summary if outcome else None
    if summary is None:
        return row
    if not summary.is_json:
        parts = summary.json if isinstance(summary.json, dict) else {}
        return row | {"value": summary.text} | {f"value.{key}": text for key, text in parts.items()}
    if isinstance(summary.json, dict):
        return row | {f"value.{key}": cell(value) for key, value in summary.json.items()}
    return row | {"value": cell(summary.json)}


def _cell(value: Any) -> Any:
    """A text as it is, no value as nothing, a number so that it is read back as the same; all else as JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def fetch_summary(haul: FetchResult) -> tuple[str, bool]:
    """What came of fetching files, in words, and whether all is well."""
    failed = [each for each in haul.files if each.error]
    if failed or haul.notes:
        first = f"{failed[0].file.path}: {failed[0].error}" if failed else haul.notes[0]
        return f"{count(len(failed), 'file')} not fetched: {sanitize_line(first)}", False
    new = [each for each in haul.files if each.is_new]
    if not new:
        return ("its files are here already" if haul.files else "its ranks wrote no files elsewhere"), True
    folder = commonpath([str(each.target) for each in new])
    size = format_size(sum(each.file.size for each in new))
    return f"{count(len(new), 'file')} fetched, {size}: {sanitize_line(folder)}", True


ENDINGS = (".csv", ".json", ".parquet", ".pickle")


def check_output(output: str) -> None:
    """Refuse what would not be written, before anything is looked for.

    Raises:
        UsageError: If the format is unknown, the file exists, or pyarrow is needed but not installed.
    """
    if not output.endswith(ENDINGS):
        raise UsageError(f"unknown file format: {output}. Use {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if exists(output):
        raise UsageError(f"{output} already exists. Name another file")
    if output.endswith(".parquet"):
        import_pyarrow()


def write_results(run: RunView, output: str, values: Callable[[RunView], Mapping[int, Path]]) -> str:
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
        ".parquet": lambda: [_to_parquet(result_rows(run))],
        ".pickle": lambda: _pickled_values(values(run)),
    }
    ending = next(each for each in ENDINGS if output.endswith(each))
    pieces = kinds[ending]()
    path = Path(output)
    try:
        with open(path, "xb", opener=_open_private if ending == ".pickle" else None) as file:
            file.writelines(pieces)
    except FileExistsError:
        raise UsageError(f"{output} already exists. Name another file") from None
    except BaseException:
        with suppress(FileNotFoundError):
            path.unlink()
        raise
    if ending == ".pickle":
        return "the ranks, or tasks, come first, as a list; then the value of each: pickle.load as often"
    return ""


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _pickled_values(found: Mapping[int, Path]) -> Iterator[bytes]:
    """The values as ranks pickled them, one behind the other: to load one would run what a rank wrote."""
    import pickle

    return iter([pickle.dumps(list(found)), *(path.read_bytes() for path in found.values())])


def _to_parquet(rows: list[Mapping[str, Any]]) -> bytes:
    """Rows as a Parquet file: numbers are numbers where all of a column are; what is no plain value is JSON."""
    arrow = import_pyarrow()
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [_column([row.get(name) for row in rows]) for name in names]
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(arrow.Table.from_arrays([arrow.array(each) for each in columns], names=names), sink)
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
