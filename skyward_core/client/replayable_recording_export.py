"""Export of a pool's recording to one file that can be replayed.

The file contains the events, logs and metrics on this machine, merged by time. Known secrets are redacted.
"""

from __future__ import annotations

import heapq
import json
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from skyward_core.client.doctor_and_bug_report import Clean, make_cleaner, strip_variable_values
from skyward_core.model.errors import UsageError
from skyward_core.protocol.node_paths import METRICS
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.pool_folder import log_files, read_events, read_metrics
from skyward_core.store.recording_file import Entry, RecordingWriter
from skyward_core.store.state_folder import pool_path
from skyward_core.store.sweep_trial_files import read_all_trials
from skyward_core.util.redaction import map_strings
from skyward_core.views import events
from skyward_core.views import recording_entries as entries
from skyward_core.views.stdout_stderr_order import Piece, Place, end_place, merge_streams

# maximum bytes of all logs together; of longer logs, only the beginning and the end are exported
MAX_LOG_BYTES = 32 << 20
MAX_METRIC_BYTES = 16 << 20  # maximum bytes of the metrics of all ranks together; longer ones are cut in the same way
MIN_WORKER_BYTES = 64 << 10  # minimum bytes that each worker may contribute
# maximum bytes of an incomplete line that wait for its end, so that the line is redacted as a whole
MAX_PARTIAL_LINE = 64 << 10

Timed = tuple[float, Entry]


@dataclass(frozen=True, slots=True)
class RecordingExport:
    """Description of the file of an exported recording.

    Attributes:
        size: Bytes of the file.
        entries: Number of entries.
        left_out: Bytes of logs and metrics that were omitted because of ``MAX_LOG_BYTES`` and ``MAX_METRIC_BYTES``.
    """

    path: Path
    size: int
    entries: int
    left_out: int


class RecordingExporter:
    """Exporter of the recording of one pool, or of one of its runs.

    Args:
        run: ID of a run; "" for all.
        about: Further metadata of the recording.
    """

    def __init__(self, row: PoolRow, run: str = "", about: Mapping[str, Any] | None = None) -> None:
        self._row, self._run = row, run
        self._folder = pool_path(row.key)
        self._about = {"pool": row.name, "created_at": row.created_at, "run": run} | dict(about or {})
        self._clean: Clean = make_cleaner()
        self._left_out = 0

    def write(self, target: Path) -> RecordingExport:
        """Write the recording to a new file.

        Raises:
            UsageError: If the pool has no stored data.
            FileExistsError: If the target exists.
            OSError: If data cannot be read or written; no partial file remains.
        """
        if not (self._folder / "events.jsonl").is_file():
            raise UsageError(f"pool {self._row.name} has no stored data on this machine to record")
        _raise_file_limit(self._folder / "logs")
        sources = [self._sheets(), self._events(), self._figures(), *self._logs(), *self._metric_sources()]
        writer = RecordingWriter(target, map_strings(self._about, self._clean) | {"left_out": self._left_out})
        count = 0
        try:
            for _, entry in heapq.merge(*sources, key=itemgetter(0)):
                count += writer.put(entry)
            writer.close()
        except BaseException:
            # Delete the partial file, because an incomplete recording would be misleading.
            target.unlink(missing_ok=True)
            raise
        return RecordingExport(target, writer.size, count, self._left_out)

    # -- each source, ordered by time -----------------------------------------------------------------------

    def _events(self) -> Iterator[Timed]:
        latest = self._row.created_at
        # Add this event, because journals of older releases do not contain it.
        opened = events.PoolOpened(pool=self._row.name, spec=self._row.spec, created_at=latest, at=latest)
        for event in (opened, *read_events(self._folder)):
            if self._run and getattr(event, "run", self._run) != self._run:
                continue
            latest = max(latest, event.at)
            entry = map_strings(strip_variable_values(entries.event_entry(event)), self._clean)
            yield latest, entry | {"at": latest}

    def _sheets(self) -> Iterator[Timed]:
        # Use the creation time of the pool, so that a replay knows the trials before the first run.
        at = self._row.created_at
        for run, sheet in read_all_trials(self._row.key):
            if not self._run or self._run in (run, *sheet.runs.values()):
                yield at, map_strings(entries.sheet_entry(at, run, sheet), self._clean)

    def _figures(self) -> Iterator[Timed]:
        # Each client receives all samples of an agent from the first one on, so files contain samples twice and out of
        # order. Sort the samples, and drop repeated ones.
        found: dict[tuple[object, ...], Timed] = {}
        for entry in read_metrics(self._folder):
            if (at := entries.entry_time(entry)) is None:
                continue
            if entry.get("k") != "figures":
                found[at, len(found)] = (at, entry)
                continue
            for line, when in _samples(entry):
                found[entry["node"], when] = (when, entries.machine_entry(when, entry["node"], line, entry["ahead"]))
        yield from sorted(found.values(), key=itemgetter(0))

    def _logs(self) -> list[Iterator[Timed]]:
        folder = self._folder / "logs"
        stems = sorted({path.stem for path in log_files(folder) if path.suffix != METRICS})
        budget = max(MIN_WORKER_BYTES, MAX_LOG_BYTES // max(1, len(stems)))
        return [self._log(folder, stem, budget) for stem in stems]

    def _log(self, folder: Path, stem: str, budget: int) -> Iterator[Timed]:
        end = end_place(folder, stem)
        spans: list[tuple[Place, Place]] = [((0, 0), end)]
        if sum(end) > budget:
            head, tail = (tuple(size * budget // 2 // sum(end) for size in end) for _ in range(2))
            spans = [((0, 0), (head[0], head[1])), ((end[0] - tail[0], end[1] - tail[1]), end)]
            self._left_out += sum(end) - sum(head) - sum(tail)
        return self._pieces(folder, stem, spans)

    def _pieces(self, folder: Path, stem: str, spans: list[tuple[Place, Place]]) -> Iterator[Timed]:
        latest = self._row.created_at
        lines = _LineAssembler()
        for number, (start, end) in enumerate(spans):
            if number:
                before = spans[number - 1][1]
                missing = start[0] - before[0] + start[1] - before[1]
                notice = f"\n… {missing:,} bytes of this log are not in the recording …\n"
                yield latest, entries.log_entry(latest, stem, "out", self._run, notice.encode())
            for piece in merge_streams(folder, stem, start, end):
                latest = max(latest, piece.at or 0.0)
                yield from self._log_entries(latest, stem, lines.pop_complete(piece))
            yield from self._log_entries(latest, stem, lines.flush())

    def _log_entries(self, at: float, stem: str, pieces: list[Piece]) -> Iterator[Timed]:
        for piece in pieces:
            if not self._run or piece.run in ("", self._run):
                yield at, entries.log_entry(at, stem, piece.stream, piece.run, self._redact(piece.data))

    def _redact(self, data: bytes) -> bytes:
        return self._clean(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _metric_sources(self) -> list[Iterator[Timed]]:
        files = [path for path in log_files(self._folder / "logs") if path.suffix == METRICS]
        budget = max(MIN_WORKER_BYTES, MAX_METRIC_BYTES // max(1, len(files)))
        for path in files:
            self._left_out += max(0, path.stat().st_size - budget)
        return [self._metric_lines(path, budget) for path in files]

    def _metric_lines(self, path: Path, budget: int) -> Iterator[Timed]:
        latest = self._row.created_at
        size = path.stat().st_size
        skipped = (budget // 2, size - budget // 2) if size > budget else (size, size)
        with open(path, "rb") as source:
            at = 0
            for line in source:
                start, at = at, at + len(line)
                if skipped[0] <= start < skipped[1] or not line.endswith(b"\n"):
                    continue
                try:
                    metrics = json.loads(line)
                    latest, run = max(latest, float(metrics["at"])), metrics["run"]
                except (ValueError, TypeError, KeyError, RecursionError):
                    continue
                if not self._run or run == self._run:
                    yield latest, entries.metrics_entry(latest, path.name, line)


def _samples(entry: Entry) -> Iterator[tuple[bytes, float]]:
    """Yield the machine samples of a recorded entry, each with its time converted to this machine's clock."""
    for line in entry["text"].splitlines(keepends=True):
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            yield line.encode(), float(json.loads(line)["at"]) + entry["ahead"]


def _raise_file_limit(folder: Path) -> None:
    """Raise the limit of open files, because all logs are open while they are merged."""
    needed = 2 * len(log_files(folder)) + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed and soft != resource.RLIM_INFINITY:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _LineAssembler:
    """Assembler of complete lines from pieces of a worker's streams, so that a secret split over two pieces is
    redacted.
    """

    def __init__(self) -> None:
        self._held: dict[str, Piece] = {}

    def pop_complete(self, piece: Piece) -> list[Piece]:
        """Add a piece, and return the lines that are complete by now."""
        before = self._held.pop(piece.stream, None)
        found = []
        if before is not None and before.run != piece.run:
            found, before = [before], None
        data = piece.data if before is None else before.data + piece.data
        whole = len(data) if len(data) - 1 - data.rfind(b"\n") > MAX_PARTIAL_LINE else data.rfind(b"\n") + 1
        if whole < len(data):
            self._held[piece.stream] = piece._replace(data=data[whole:])
        return [*found, piece._replace(data=data[:whole])] if whole else found

    def flush(self) -> list[Piece]:
        """Return the lines that are still incomplete."""
        held, self._held = self._held, {}
        return list(held.values())


def export_recording(ledger: Ledger, row: PoolRow, run: str, target: Path) -> RecordingExport:
    """Write the recording of a pool, or of one of its runs; see :meth:`RecordingExporter.write`.

    Args:
        run: ID of the run; "" for all runs.
    """
    runs = [each for each in ledger.runs(row.token) if not run or each.run == run]
    return RecordingExporter(row, run, {"functions": sorted({each.function for each in runs})}).write(target)
