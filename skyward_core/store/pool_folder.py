"""Folders of pools on the client: logs, results, journal, metrics, package locks, launches. Also the SSH keys of pools.

Log files mirror the nodes' spools, with the same names and offsets. The size of a file is its cursor, so each client
continues where the last one stopped. Two clients that write the same bytes to the same place do no harm.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, Self

from skyward_core.model.errors import UsageError
from skyward_core.protocol.frame_codec import encode_record
from skyward_core.protocol.validators import is_log_name
from skyward_core.store.recording_file import SUFFIX, Entry, RecordingReader, RecordingWriter
from skyward_core.store.state_folder import ensure_pool_folder, pool_path, state_home
from skyward_core.util.content_hash import BLOB_PREFIX
from skyward_core.util.safe_file_access import read_bytes, read_own_json, try_lock, write_atomic
from skyward_core.views import events, group_pairs
from skyward_core.views.machine_metrics import (
    LATE_ERROR_SECONDS,
    FailureMetrics,
    MachineMetrics,
    capture_failure_metrics,
)
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.recording_entries import apply_entry, entry_time, parse_event
from skyward_core.views.recording_entries import parse_rank as parse_rank

EXCEPTION_SUFFIX = ".raised"  # ending of the file with the exception of a failed run's root cause
MIN_FREE_BYTES = 1 << 20  # minimum free bytes of the disk for writing logs; a node sends less than this in one piece
MAX_EVENT_BYTES = 64 << 20  # maximum bytes of a journal line that is read; even the largest outcomes are far smaller
JOURNAL_TAIL_BYTES = 1 << 16  # bytes at the end of the journal that contain its last events


# Error numbers of a read-only or full disk.
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


class PoolFolder:
    """Folder of one pool on the client.

    Attributes:
        is_writer: Whether this client writes the journal. Other clients only read it.
    """

    def __init__(self, key: str) -> None:
        self.folder = pool_path(key)
        self.logs = self.folder / "logs"
        self.results = self.folder / "results"
        self._files: dict[str, int] = {}
        self._pending_events: list[events.Event] = []
        self._journal: BinaryIO | None = None
        self.is_writer = False
        try:
            ensure_pool_folder(key)
            self.logs.mkdir(exist_ok=True)
            self.results.mkdir(mode=0o700, exist_ok=True)
            self._open_journal(self.folder / "events.jsonl")
        except OSError as error:
            if error.errno not in UNWRITABLE or not self.logs.is_dir():
                raise
            # Continue, because a pool whose disk accepts no writes can still be watched and torn down.
        self.cursors = self.log_sizes()

    def _open_journal(self, path: Path) -> None:
        """Open the journal, a file of JSON lines. The first client locks the journal and becomes its writer."""
        self._journal = journal = open(path, "ab")  # noqa: SIM115  held for the pool's life
        self.is_writer = try_lock(journal)
        if self.is_writer and read_tail(path, 1) not in (b"", b"\n"):
            journal.write(b"\n")  # end the line that a crash cut short, so that the next event begins on its own line

    def write_log(self, name: str, at: int, data: bytes) -> None:
        """Write log bytes at their offset.

        Args:
            name: Name of the log file; see ``validators.is_log_name``.
            at: Offset of the bytes.
            data: The bytes.

        Raises:
            OSError: If the disk is full or fails.
            ValueError: If ``name`` is not the name of a log file.
        """
        descriptor = self._files.get(name)
        if descriptor is None:
            if not is_log_name(name):
                raise ValueError(f"{name!r} is not the name of a log file")
            descriptor = self._files[name] = os.open(self.logs / name, os.O_RDWR | os.O_CREAT, 0o600)
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, at)
            view, at = view[written:], at + written
            self.cursors[name] = at

    def has_room(self) -> bool:
        """Check whether the disk has room for the largest piece that any log file may get next."""
        probe = self.logs.with_name("room")
        end = max(self.log_sizes().values(), default=0)
        try:
            try:
                with open(probe, "wb") as file:
                    os.pwrite(file.fileno(), bytes(MIN_FREE_BYTES), end)
            finally:
                probe.unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def read_log_tail(self, name: str, size: int) -> bytes:
        """Return the last bytes of a stored log file."""
        return read_tail(self.logs / name, size)

    def log_sizes(self) -> dict[str, int]:
        """Return the size on disk of each log file."""
        return {path.name: path.stat().st_size for path in log_files(self.logs)}

    def add_event(self, event: events.Event) -> None:
        """Queue an event for the journal, to be written by :meth:`flush`."""
        if self.is_writer:
            self._pending_events.append(event)

    def flush(self, texts: Mapping[int, str] = MappingProxyType({})) -> None:
        """Write queued events to disk.

        Args:
            texts: ``id()`` of an outcome -> the outcome as JSON, if it is already encoded.
        """
        pending, self._pending_events = self._pending_events, []
        if pending and self._journal is not None:
            self._journal.write("".join([_event_line(event, texts) for event in pending]).encode())
            self._journal.flush()

    def remove_stale_arguments(self) -> None:
        """Remove large arguments that an interrupted client left behind."""
        for path in self.folder.glob(f"{BLOB_PREFIX}*"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self.flush()
        self.is_writer = False  # this client stops writing the journal, and another client writes the later events
        if self._journal is not None:
            self._journal.close()


@lru_cache(16)
def _encode_about(pool: str, run: str) -> str:
    """Return the start of the journal line about the end of a call, which all calls of a run share, so it is cached."""
    return encode_record({"event": "RankEnded", "pool": pool, "run": run})[:-1]


def _event_line(event: events.Event, texts: Mapping[int, str]) -> str:
    if isinstance(event, events.RankEnded) and (outcome := texts.get(id(event.outcome))) is not None:
        return f'{_encode_about(event.pool, event.run)},"at":{event.at!r},"outcome":{outcome}}}\n'
    return encode_record(events.to_json(event)) + "\n"


def read_events(folder: Path) -> Iterator[events.Event]:
    """Yield the events of a pool's journal. Incomplete and invalid lines are skipped."""
    return _parse_events(_journal_lines(folder))


def _parse_events(lines: Iterable[bytes]) -> Iterator[events.Event]:
    return filter(None, map(_parse_event, lines))


def _parse_event(line: bytes) -> events.Event | None:
    """Parse a line of the journal. Returns None for an invalid line, because views trust the fields of events."""
    try:
        return parse_event(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _journal_lines(folder: Path) -> Iterator[bytes]:
    """Yield the lines of a journal. An overlong line is split into pieces, none of which is a valid event."""
    with open(folder / "events.jsonl", "rb") as source:
        yield from iter(partial(source.readline, MAX_EVENT_BYTES), b"")


def last_event_at(folder: Path) -> float | None:
    """Return the Unix time of the last event in a pool's folder. None if there is no event or it cannot be read."""
    try:
        lines = read_tail(folder / "events.jsonl", JOURNAL_TAIL_BYTES).splitlines()
    except OSError:
        return None
    return max((event.at for event in _parse_events(lines)), default=None)


def node_events(folder: Path, before: float) -> Iterator[events.NodePhase]:
    """Yield the phase events of a pool's nodes before a Unix time. Other lines are not parsed."""
    kind = f'"{events.NodePhase.__name__}"'.encode()
    for event in _parse_events(line for line in _journal_lines(folder) if kind in line):
        if isinstance(event, events.NodePhase) and event.at < before:
            yield event


def log_files(folder: Path) -> list[Path]:
    """Return the files of a folder with names of logs or metrics, sorted."""
    return sorted(path for path in folder.iterdir() if is_log_name(path.name))


def read_tail(path: Path, size: int) -> bytes:
    """Return the last bytes of a file."""
    with open(path, "rb") as source:
        source.seek(max(0, source.seek(0, os.SEEK_END) - size))
        return source.read()


LAUNCHES_FOLDER = "launches"


def save_launch(pool: str, run: str, launch: dict[str, Any]) -> None:
    """Save the launch of a run, unless the pool's folder was deleted.

    Args:
        pool: Key of the pool.
        run: Id of the run.
        launch: The launch as JSON.

    Raises:
        OSError: If the file cannot be written.
    """
    folder = pool_path(pool)
    if not folder.is_dir():
        return
    launches = folder / LAUNCHES_FOLDER
    launches.mkdir(mode=0o700, exist_ok=True)
    write_atomic(_launch_file(launches, run), json.dumps(launch).encode())


def save_source(pool: str, run: str, kind: str, data: bytes) -> None:
    """Save a part of a run's source code next to the saved launch of the run. Only the user can read the file.

    Args:
        kind: ``diff`` for a patch of the uncommitted changes, ``text`` for the text of the script.

    Raises:
        OSError: If the file cannot be written.
    """
    if (pool_path(pool) / LAUNCHES_FOLDER).is_dir():
        write_atomic(source_path(pool, run, kind), data)


def source_path(pool: str, run: str, kind: str) -> Path:
    """Return the path of the file that :func:`save_source` writes. The file may not exist."""
    return pool_path(pool) / LAUNCHES_FOLDER / f"{run}.{kind}"


def read_source(pool: str, run: str, kind: str) -> bytes:
    """Return the data that :func:`save_source` saved for a run; empty if there is none.

    Raises:
        OSError: If the file cannot be read.
    """
    with suppress(FileNotFoundError):
        return read_bytes(source_path(pool, run, kind))
    return b""


def remove_launch(pool: str, run: str) -> None:
    """Remove the launch of a run that did not start."""
    with suppress(OSError):
        _launch_file(pool_path(pool) / LAUNCHES_FOLDER, run).unlink(missing_ok=True)
        source_path(pool, run, "text").unlink(missing_ok=True)


def read_launch(pool: str, run: str) -> dict[str, Any] | None:
    """Return the saved launch of a run, or None.

    Raises:
        OSError, ValueError: If the file cannot be read.
    """
    found = read_own_json(_launch_file(pool_path(pool) / LAUNCHES_FOLDER, run))
    if not isinstance(found, dict | None):
        raise ValueError("it is not a launch")
    return found


def _launch_file(folder: Path, run: str) -> Path:
    return folder / f"{run}.json"


LOCKS_FOLDER = "locks"


def save_locks(folder: Path, texts: Mapping[int, str]) -> None:
    """Save the package lock of each node, unless it equals the node's last one.

    Args:
        folder: Folder of the pool.
        texts: Lock files by node.

    Raises:
        OSError: If a file cannot be written.
    """
    locks = folder / LOCKS_FOLDER
    saved = _locks_by_node(locks)
    locks.mkdir(mode=0o700, exist_ok=True)
    for node, text in texts.items():
        before = saved.get(node, [])
        if not before or before[-1].read_text(encoding="utf-8") != text:
            write_atomic(locks / f"n{node:04}.{len(before):04}.txt", text.encode())


def read_lock(pool: str, until: float | None = None) -> dict[int, str]:
    """Return the package locks of a pool by node.

    Args:
        pool: Key of the pool.
        until: Unix time; later locks are ignored. None: now.

    Raises:
        OSError: If a file cannot be read.
    """
    found = {}
    for node, paths in _locks_by_node(pool_path(pool) / LOCKS_FOLDER).items():
        early = [path for path in paths if until is None or path.stat().st_mtime <= until]
        found[node] = (early or paths)[-1 if early else 0].read_text(encoding="utf-8")
    return found


def _locks_by_node(locks: Path) -> dict[int, list[Path]]:
    """Return the paths of the package lock files by node. The folder is listed only once, because it may be large."""
    return group_pairs((int(path.name[1:5]), path) for path in sorted(locks.glob("n????.????.txt")))


DASHBOARDS_FILE = "dashboards.json"


def save_dashboards(pool: str, name: str, plugins: Iterable[Any]) -> None:
    """Save the dashboards of a pool's plugins.

    Args:
        pool: Key of the pool.
        name: Name of the pool.
        plugins: Plugins of the pool.

    Raises:
        OSError: If the file cannot be written.
    """
    places = ((plugin.name, getattr(plugin, "dashboard_at", lambda pool: None)(name)) for plugin in plugins)
    if found := [[plugin, *place] for plugin, place in places if place is not None]:
        write_atomic(ensure_pool_folder(pool) / DASHBOARDS_FILE, json.dumps(found).encode())


def read_dashboards(pool: str) -> list[tuple[str, int, str]]:
    """Return the dashboards of a pool: plugin, port on the head's loopback interface, path.

    Raises:
        OSError, ValueError: If the file cannot be read.
    """
    saved = read_own_json(pool_path(pool) / DASHBOARDS_FILE) or ()
    return [(str(name), int(port), str(path)) for name, port, path in saved]


METRICS_FILE_BYTES = 2 << 20  # bytes after which a new file for metrics is begun
# Maximum bytes of all metric files; above this total, the oldest files except the first one are deleted.
METRICS_TOTAL_BYTES = 24 << 20
FLUSH_BYTES = 64 << 10  # bytes of lines after which a block is written
# Seconds until a block that is not full is written; metrics that are not written are lost if the process is killed.
FLUSH_SECONDS = 5.0


class MetricsWriter:
    """Writer of one pool's machine metrics. One client per pool writes them.

    Args:
        folder: Folder of the pool.
        complain: Called once with a message if the disk fails. The writer then stops writing.
    """

    def __init__(self, folder: Path, complain: Callable[[str], None]) -> None:
        self._folder = folder
        self._report_failure = complain
        self._writer: RecordingWriter | None = None
        self._flushed = 0.0
        self._is_closed = False

    def put(self, entry: dict[str, Any]) -> None:
        """Add an entry to the recorded metrics; see ``views.recording_entries``."""
        if self._is_closed:
            return
        try:
            writer = self._writer
            if writer is None:
                writer = self._writer = self._open_next_file()
                self._flushed = time.monotonic()
            writer.put(entry)
            if writer.pending_bytes >= FLUSH_BYTES or time.monotonic() - self._flushed >= FLUSH_SECONDS:
                writer.flush()
                self._flushed = time.monotonic()
            if writer.size >= METRICS_FILE_BYTES:
                self._writer = None
                writer.close()
        except OSError as error:
            self._stop(error)

    def close(self) -> None:
        """Write the pending entries and stop."""
        self._is_closed = True
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                self._stop(error)

    def _stop(self, error: OSError) -> None:
        self._is_closed = True
        self._report_failure(f"stopped recording machine metrics: {error}")

    def _open_next_file(self) -> RecordingWriter:
        """Open the next file. Files that a killed process left incomplete are not changed."""
        found = _metrics_files(self._folder)
        number = 1 + max((_metrics_file_number(path) for path in found), default=-1)
        sizes = {path: path.stat().st_size for path in found}
        for path in found[1:]:
            if sum(sizes.values()) <= METRICS_TOTAL_BYTES - METRICS_FILE_BYTES:
                break
            del sizes[path]
            path.unlink(missing_ok=True)
        return RecordingWriter(self._folder / f"figures-{number:06}{SUFFIX}", {})


def read_metrics(folder: Path, around: float = -inf) -> Iterator[Entry]:
    """Yield all recorded metrics of a pool's folder in order.

    Args:
        folder: Folder of the pool.
        around: Unix time. Reading starts with the last file that begins before this time.
    """
    begun: list[RecordingReader] = []
    for path in reversed(_metrics_files(folder)):
        try:
            begun.insert(0, RecordingReader.read(path))
        except (UsageError, FileNotFoundError):
            # Skip a file whose beginning is incomplete, or that was deleted in the meantime.
            continue
        first_at = next(_metrics_entries(begun[0]), {}).get("at")
        if isinstance(first_at, int | float) and first_at <= around:
            break
    for record in begun:
        yield from _metrics_entries(record)


def _metrics_entries(record: RecordingReader) -> Iterator[Entry]:
    return (entry for entry in record.entries() if entry.get("k") != "about")


def has_metrics(folder: Path) -> bool:
    """Check whether a pool's folder has recorded metrics."""
    return bool(_metrics_files(folder))


def _metrics_files(folder: Path) -> list[Path]:
    found = [path for path in folder.glob(f"figures-*{SUFFIX}") if path.stem[8:].isdigit()]
    return sorted(found, key=_metrics_file_number)


def _metrics_file_number(path: Path) -> int:
    return int(path.stem[8:])


def fill_last_metrics(run: RunView, folder: Path) -> None:
    """Add the metrics of the root cause's machine to a failed run, if they were recorded.

    Raises:
        OSError: If a file cannot be read.
    """
    if run.root_cause is None or run.figures:
        return
    task = next((task for task in run.tasks.values() if task.rank == run.root_cause.rank and task.outcome), None)
    if (
        task is not None
        and (found := _metrics_before(folder, run, task.node, _task_failed_at(run, task.index))) is not None
    ):
        run.figures = {task.node: found}


def _task_failed_at(run: RunView, index: int) -> float:
    """Estimate when a task failed. Ranks of a broadcast begin together, and the slowest rank ended with the run."""
    seconds = [outcome.seconds for outcome in run.outcomes()]
    own = run.tasks[index].outcome
    ended = run.opened_at if run.ended_at is None else run.ended_at
    return ended - (max(seconds) - own.seconds if own is not None and run.kind == "broadcast" else 0.0)


def _metrics_before(folder: Path, run: RunView, node: int, failed_at: float) -> FailureMetrics | None:
    view = PoolView(run.pool)
    view.machines = metrics = MachineMetrics()
    found: FailureMetrics | None = None
    for entry in read_metrics(folder, failed_at):
        at = entry_time(entry)
        if at is None or entry.get("k") != "figures" or entry.get("node") != node:
            continue
        if found is None and at > failed_at:
            found = capture_failure_metrics(node, metrics.nodes.get(node), failed_at)
        if at > failed_at + LATE_ERROR_SECONDS:
            break
        apply_entry(view, entry)
    return found or capture_failure_metrics(node, metrics.nodes.get(node), failed_at)


MAX_DISMISSED = 10_000  # maximum number of stored ids; the oldest ones are dropped
_RUN = re.compile(r"[0-9A-Za-z_-]{1,64}")


def read_dismissed() -> list[str]:
    """Return the ids of runs whose failures the user has dismissed, in this order.

    Empty if the file is missing or invalid.
    """
    try:
        saved = read_own_json(_dismissed_alerts_file())
    except (OSError, ValueError):
        return []
    return [run for run in saved if isinstance(run, str) and _RUN.fullmatch(run)] if isinstance(saved, list) else []


def add_dismissed(runs: Iterable[str]) -> None:
    """Record that the user has dismissed the failures of runs.

    Raises:
        OSError: If the file cannot be written.
    """
    known = dict.fromkeys([*read_dismissed(), *runs])
    write_atomic(_dismissed_alerts_file(), json.dumps(list(known)[-MAX_DISMISSED:]).encode())


NOTES_FILE = "notes.json"


def read_notes() -> dict[str, str]:
    """Return the user's notes by run. Empty if the file is missing, unreadable or invalid."""
    with suppress(OSError):
        return _read_notes()
    return {}


def _read_notes() -> dict[str, str]:
    path = state_home() / NOTES_FILE
    try:
        saved = read_own_json(path)
    except ValueError as error:
        raise OSError(f"{path} is invalid: {error}. Repair or delete the file") from error
    found = saved.items() if isinstance(saved, dict) else ()
    return {run: text for run, text in found if isinstance(text, str) and _RUN.fullmatch(run)}


def write_note(run: str, text: str) -> None:
    """Replace the user's note of a run; "" deletes the note.

    Raises:
        OSError: If the file cannot be read or written, or is invalid. The other notes are kept.
    """
    notes = {**_read_notes(), run: text}
    write_atomic(state_home() / NOTES_FILE, json.dumps({key: note for key, note in notes.items() if note}).encode())


def _dismissed_alerts_file() -> Path:
    return state_home() / "dismissed.json"


class PoolKeyFolder:
    """Folder with the keys of one pool and the journal of requests to its provider.

    Args:
        pool: Name of the pool.
        token: Token of the pool.

    Attributes:
        provider: Name of the parent folder, which contains the folders of all pools of a provider.
    """

    provider: ClassVar[str]

    def __init__(self, pool: str, token: str) -> None:
        self.pool, self.token = pool, token
        self.path = state_home() / self.provider / f"{pool}.{token}"

    @classmethod
    def find_all(cls, pool: str) -> Iterator[Self]:
        """Yield the folders of all pools with a name: the current pool's, and those that earlier pools left."""
        for path in sorted((state_home() / cls.provider).glob(f"{pool}.*")):
            yield cls(pool, path.name.rpartition(".")[2])

    @property
    def login_key(self) -> Path:
        """File of the SSH key that opens the pool's machines."""
        return self.path / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """File with the host keys of the pool's machines."""
        return self.path / "known_hosts"

    def remove(self) -> None:
        """Remove the folder.

        Raises:
            OSError: If the folder cannot be removed.
        """
        while self.path.exists():
            # Ignore a missing folder, because another client may remove it at the same time.
            with suppress(FileNotFoundError):
                shutil.rmtree(self.path)
