"""Export of logs, results and profiles to files."""

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
from skyward_core.model.metric_definitions_series_and_export import import_pyarrow
from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.util.safe_file_access import is_dir
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.log_buffers_and_rank_activity import rank_prefix
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.stack_groups_and_profiles import Profile, speedscope
from skyward_core.views.sweep_trials import TrialTable
from skyward_tui.text.json_output import run_json
from skyward_tui.text.number_time_and_run_state_format import count

if TYPE_CHECKING:
    from skyward_core.client.session_interface import FetchResult


_FIXED = ("index", "rank", "node", "outcome", "seconds", "error", "message")
_MAX_SAME_NAMES = 10_000  # highest number that is appended to a file's name if files of that name exist


def save_error_text(error: OSError, folder: Path) -> str:
    """Return the error message for a failed save to a folder."""
    if not is_dir(folder):
        return f"could not save: the folder {folder} no longer exists. Start the app in another folder"
    return "; ".join([f"could not save in {folder}: {error.strerror or error}", *getattr(error, "__notes__", ())])


def save(path: Path, pieces: Iterable[str]) -> Path:
    """Write a new text file. If the name is taken, append a number to it: ``name-2``.

    Returns:
        Path of the written file.

    Raises:
        OSError: If the file cannot be written; no incomplete file remains.
    """
    for number in range(1, _MAX_SAME_NAMES):
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
    raise FileExistsError(f"cannot save: {_MAX_SAME_NAMES:,} files named like {path} already exist")


def save_all(folder: Path, files: Mapping[str, Iterable[str]]) -> list[Path]:
    """Save several files by name with :func:`save`: either all of them or none.

    Raises:
        OSError: If a file cannot be written. Files that were already written are removed. The error's notes name those
        that could not be removed.
    """
    written: list[Path] = []
    try:
        for name, pieces in files.items():
            written.append(save(folder / name, pieces))
    except BaseException as error:
        if left := [path for path in written if not _is_removed(path)]:
            error.add_note(f"files saved before the error: {brace_names(left)}")
        raise
    return written


def _is_removed(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def brace_names(paths: Iterable[Path]) -> str:
    """Return file names as one text in the brace notation of shells, with the common start written once:
    ``pool-run-{r000.log,results.csv}``.
    """
    names = [path.name for path in paths]
    same = commonprefix(names).rpartition("-")  # noqa: RUF071  names, of which characters are compared
    start = same[0] + same[1]
    if len(names) < 2 or not start:
        return ", ".join(names)
    return f"{start}{{{','.join(name.removeprefix(start) for name in names)}}}"


def log_lines(logs: RunLogs, rank: int | None) -> Iterator[str]:
    """Yield the lines that a rank printed in a run. Without a rank, yield the lines of all ranks merged by time, each
    with its rank.

    The files are read lazily.
    """
    if rank is not None:
        yield from (f"{line.text}\n" for line in logs.lines(rank))
        return
    for _, each, text in heapq.merge(*(_timed_lines(logs, each) for each in sorted(logs.ranges))):
        yield f"{rank_prefix(each)}{text}\n"


def _timed_lines(logs: RunLogs, rank: int) -> Iterator[tuple[float, int, str]]:
    """Yield a rank's lines with times that never decrease. A line without a time gets the time of the line before
    it."""
    latest = 0.0
    for line in logs.lines(rank):
        latest = max(latest, line.about.at or 0.0)
        yield latest, rank, line.text


def profile_files(seen: Profile, called: str) -> dict[str, str]:
    """Return the files to save for a rank's profile, as text by file name."""
    return {f"profile-{called}.speedscope.json": speedscope(seen, called)}


def results_json(run: RunView) -> str:
    """Return all data of a run's results as JSON: the object that ``skyward-tui results RUN --json`` prints."""
    return json.dumps(run_json(run), indent=1) + "\n"


def results_csv(run: RunView) -> str:
    """Return a CSV table with a row for each rank or task, with numbers in full precision.

    A result that is a dict has a column for each key, such as ``value.loss``. Values that are neither text nor numbers
    are written as JSON.
    """
    return _sheet(run, lambda task: task.raw_outcome, ",")


def results_text(run: RunView) -> str:
    """Return the table of :func:`results_csv` for the clipboard: separated by tabs, and without control characters."""
    return _sheet(run, lambda task: task.outcome, "\t")


def trials_csv(found: TrialTable) -> str:
    """Return a CSV table with a row for each trial of a sweep: its arguments, the last value of each metric, and its
    result."""
    rows = []
    for each in found.rows:
        of = {f"argument.{name}": text for name, text in zip(found.names, each.arguments, strict=True)}
        outcome = {"outcome": each.state} if each.task is None else _row(each.task, each.task.raw_outcome, _cell)
        numbers = {f"number.{name}": _cell(value) for name, value in each.numbers.items()}
        rows.append({"trial": each.place, **of, "run": each.run, **outcome, **numbers})
    own = ("trial", *(f"argument.{name}" for name in found.names), "run")
    return _format_csv(rows, (*own, *_FIXED), ",")


def result_rows(run: RunView) -> list[Mapping[str, Any]]:
    """Return the rows of :func:`results_csv`, with unconverted values instead of text."""
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
    """Return a value for a CSV cell: text and None unchanged, anything else as JSON, which preserves numbers
    exactly."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def local_files_text(spec: Mapping[str, Any]) -> str:
    """Return where the ranks of a pool on this machine write their files."""
    return f"its ranks write directly to {sanitize_line(str(spec.get('cwd') or 'your own folder'))}"


def fetch_summary(haul: FetchResult) -> tuple[str, bool]:
    """Return a summary of a download of files, and whether the download was complete."""
    failed = [each for each in haul.files if each.error]
    if failed or haul.notes:
        first = f"{failed[0].file.path}: {failed[0].error}" if failed else haul.notes[0]
        return f"{count(len(failed), 'file')} not fetched: {sanitize_line(first)}", False
    new = [each for each in haul.files if each.is_new]
    if not new:
        return (
            "all files are already on this machine" if haul.files else "the ranks wrote no files on other machines"
        ), True
    folder = commonpath([str(each.target) for each in new])
    size = format_size(sum(each.file.size for each in new))
    return f"{count(len(new), 'file')} fetched, {size}: {sanitize_line(folder)}", True


def require_absent(path: str | Path) -> None:
    """Check that a path does not exist, not even as a broken link.

    Raises:
        UsageError: If the path exists.
    """
    if os.path.lexists(path):
        raise UsageError(f"{path} already exists and was not changed. Name another file")


def write_new(path: Path, pieces: Iterable[bytes], *, private: bool = False) -> None:
    """Write a new file, completely or not at all.

    Args:
        path: Path of the file.
        pieces: Content of the file.
        private: Whether only the user can read the file.

    Raises:
        UsageError: If the path exists.
        OSError: If the file cannot be written.
    """
    try:
        with open(path, "xb", opener=_open_private if private else None) as file:
            file.writelines(pieces)
    except FileExistsError:
        require_absent(path)
        raise
    except BaseException:
        with suppress(FileNotFoundError):
            path.unlink()
        raise


ENDINGS = (".csv", ".json", ".parquet", ".pickle")


def check_output(output: str, endings: Sequence[str] = ENDINGS) -> None:
    """Check that results or metrics can be written to a file, before they are loaded.

    Args:
        output: Path of the file.
        endings: Supported suffixes of the file.

    Raises:
        UsageError: If the format is unknown, the file exists, or pyarrow is needed but not installed.
    """
    if not output.endswith(tuple(endings)):
        raise UsageError(f"unknown file format: {output}. Use {', '.join(endings[:-1])} or {endings[-1]}")
    require_absent(output)
    if output.endswith(".parquet"):
        import_pyarrow()


def write_results(run: RunView, output: str, values: Callable[[RunView], Mapping[int, Path]]) -> str:
    """Write the results of a run to a new file, completely or not at all. Return a note for the user, or "".

    Args:
        output: Path of the file, whose suffix selects the format.
        values: Returns the files with the run's values as pickled by the ranks.

    Raises:
        UsageError: If the file exists, or the format is pickle and the values are not on this machine.
        OSError: If the file cannot be written.
    """
    kinds: dict[str, Callable[[], Iterable[bytes]]] = {
        ".csv": lambda: [results_csv(run).encode("utf-8", "backslashreplace")],
        ".json": lambda: [results_json(run).encode("utf-8", "backslashreplace")],
        ".parquet": lambda: [_to_parquet(result_rows(run))],
        ".pickle": lambda: _pickled_values(values(run)),
    }
    ending = next(each for each in ENDINGS if output.endswith(each))
    write_new(Path(output), kinds[ending](), private=ending == ".pickle")
    if ending == ".pickle":
        return "read the file with repeated calls of pickle.load: first the list of ranks or tasks, then the values"
    return ""


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _pickled_values(found: Mapping[int, Path]) -> Iterator[bytes]:
    """Return a pickle of the list of ranks, then the values as pickled by the ranks. The values are not loaded, because
    loading a value would run code that a rank chose."""
    import pickle

    return iter([pickle.dumps(list(found)), *(path.read_bytes() for path in found.values())])


def _to_parquet(rows: list[Mapping[str, Any]]) -> bytes:
    """Return rows as a Parquet file. A column is numeric if all of its values are numbers. In other columns, values
    that are not text are written as JSON.
    """
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
