"""A pool's folder on the client: logs, results, metrics, packages locked.

Log files mirror the nodes' spools: same names, same offsets. A file's size is the cursor, so that whoever comes
next goes on where the last one stopped; two clients writing the same bytes to the same place do no harm.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from skyward_core.model.errors import UsageError
from skyward_core.protocol.frame_codec import encoder
from skyward_core.protocol.validators import is_log
from skyward_core.store.atomic_file import write_whole
from skyward_core.store.ledger_rows import RUN, process_lives
from skyward_core.store.recording_file import ENDING, Entry, RecordFile, RecordWriter
from skyward_core.store.state_folder import home, pool_dir, pool_path
from skyward_core.util.content_hash import BLOB
from skyward_core.util.user_files import MOST_OF_OURS, json_of, read_bytes, read_text
from skyward_core.views import events
from skyward_core.views.machine_metrics import LATER, LastFigures, MachineBook, last_figures
from skyward_core.views.pool_view import PoolView, RunView, TrialSheet
from skyward_core.views.recorded_events import event_of, feed, time_of

RAISED = ".raised"  # ending of the file that has the exception which is a failed run's root cause
_json = encoder(only_ascii=True)
ROOM = 1 << 20  # bytes; more than a node sends of a log at once
LONGEST = 64 << 20  # bytes of an event's line that is read; an outcome with all that it tells has far fewer
TAIL = 1 << 16  # bytes of the journal in which its last events are


class Archive:
    """One pool's folder on the client."""

    def __init__(self, key: str) -> None:
        self.folder = pool_dir(key)
        self.logs = self.folder / "logs"
        self.results = self.folder / "results"
        self.logs.mkdir(exist_ok=True)
        self.results.mkdir(mode=0o700, exist_ok=True)
        self._files: dict[str, int] = {}
        self._journal = EventJournal(self.folder / "events.jsonl")
        self.cursors = self.sizes()

    def write(self, name: str, at: int, data: bytes) -> None:
        """Put log bytes where they belong.

        Args:
            name: of the log file, as ``frame_schema.is_log`` has it.

        Raises:
            OSError: the disk does not take them.
            ValueError: it has another name than logs have.
        """
        descriptor = self._files.get(name)
        if descriptor is None:
            if not is_log(name):
                raise ValueError(f"{name!r} is no log")
            path = self.logs / name
            descriptor = self._files[name] = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, at)
            view, at = view[written:], at + written
            self.cursors[name] = at

    def has_room(self) -> bool:
        """Whether the disk takes more log bytes now: as many as a piece of a log may have, behind the longest file."""
        probe = self.logs.with_name("room")
        end = max(self.sizes().values(), default=0)
        try:
            with open(probe, "wb") as file:
                os.pwrite(file.fileno(), bytes(ROOM), end)
        except OSError:
            return False
        finally:
            probe.unlink(missing_ok=True)
        return True

    def tail(self, name: str, size: int) -> bytes:
        """The last bytes of a log file that were kept before we came."""
        path = self.logs / name
        with open(path, "rb") as source:
            source.seek(max(0, path.stat().st_size - size))
            return source.read()

    def sizes(self) -> dict[str, int]:
        """How many bytes of each log file are on disk, whoever wrote them."""
        return {path.name: path.stat().st_size for path in log_files(self.logs)}

    @property
    def is_ours(self) -> bool:
        """Whether this client is the one that writes events; others only watch."""
        return self._journal.ours

    def note(self, event: events.Event) -> None:
        """Queue an event for the journal; see :meth:`flush`."""
        self._journal.add(event)

    def flush(self) -> None:
        """Write queued events to disk."""
        self._journal.flush()

    def sweep(self) -> None:
        """Remove large arguments that a client left which was interrupted on its way to the nodes."""
        for path in self.folder.glob(f"{BLOB}*"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._journal.close()


class EventJournal:
    """The events of a pool as JSON lines. One client writes, whoever came first; the others only watch.

    Attributes:
        ours: whether that is this one.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab")  # noqa: SIM115  held for the pool's life
        self._pending: list[events.Event] = []
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.ours = True
        except BlockingIOError:
            self.ours = False
            return
        if _last_byte(path) not in (b"", b"\n"):
            self._file.write(b"\n")  # a crash cut the last line short: let the next one begin its own

    def add(self, event: events.Event) -> None:
        if self.ours:
            self._pending.append(event)

    def flush(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            self._file.write("".join([_json(events.to_json(event)) + "\n" for event in pending]).encode())
            self._file.flush()

    def close(self) -> None:
        """Write what is queued; what comes after the end of a pool's time with us is nobody's news."""
        self.flush()
        self.ours = False
        self._file.close()


def replay(folder: Path) -> Iterator[events.Event]:
    """The events of a pool from its folder; lines that a crash cut short, or that are none of ours, are left out."""
    return _events(_journal_lines(folder))


def _events(lines: Iterable[bytes]) -> Iterator[events.Event]:
    return filter(None, map(_event, lines))


def _event(line: bytes) -> events.Event | None:
    """What a line tells; None for one that nobody of ours has written as it stands there: views, and the screens that
    look at them, believe what an event's fields say."""
    try:
        return event_of(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _journal_lines(folder: Path) -> Iterator[bytes]:
    """The lines of a journal; one that is too long comes in pieces, none of which is an event."""
    with open(folder / "events.jsonl", "rb") as source:
        yield from iter(partial(source.readline, LONGEST), b"")


def last_event(folder: Path) -> float | None:
    """When the last one happened that is in a pool's folder, as Unix time; None where there is none, or it cannot be
    read."""
    try:
        with open(folder / "events.jsonl", "rb") as source:
            source.seek(max(0, source.seek(0, os.SEEK_END) - TAIL))
            lines = source.read().splitlines()
    except OSError:
        return None
    return max((event.at for event in _events(lines)), default=None)


def said_of_nodes(folder: Path, before: float) -> Iterator[events.NodePhase]:
    """What was said of a pool's nodes before a time, out of the same; other lines are not parsed."""
    kind = f'"{events.NodePhase.__name__}"'.encode()
    for event in _events(line for line in _journal_lines(folder) if kind in line):
        if isinstance(event, events.NodePhase) and event.at < before:
            yield event


def log_files(folder: Path) -> list[Path]:
    """What is a log, or numbers, by its name; whatever else lies in the folder is none of ours."""
    return sorted(path for path in folder.iterdir() if is_log(path.name))


def rank_of(name: str) -> int:
    """The rank of a log file: ``r003.out`` -> 3, ``r003.1.err`` -> 3."""
    return int(name[1:].partition(".")[0])


def _last_byte(path: Path) -> bytes:
    with open(path, "rb") as source:
        size = source.seek(0, os.SEEK_END)
        source.seek(max(0, size - 1))
        return source.read(1)


FOLDER = "launches"


def keep(pool: str, run: str, launch: dict[str, Any]) -> None:
    """Keep what a run was asked for with.

    Args:
        pool: its key; a pool of which nothing is kept any more is passed by.

    Raises:
        OSError: it cannot be written.
    """
    folder = pool_path(pool)
    if not folder.is_dir():
        return
    launches = folder / FOLDER
    launches.mkdir(mode=0o700, exist_ok=True)
    write_whole(_file(launches, run), json.dumps(launch).encode())


def keep_diff(pool: str, run: str, diff: bytes) -> None:
    """Keep a patch beside it, which is yours alone.

    Raises:
        OSError: it cannot be written.
    """
    if (pool_path(pool) / FOLDER).is_dir():
        write_whole(diff_path(pool, run), diff)


def diff_path(pool: str, run: str) -> Path:
    """Where the patch is, where there is one."""
    return pool_path(pool) / FOLDER / f"{run}.diff"


def diff(pool: str, run: str) -> bytes:
    """The patch; nothing where there is none.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return read_bytes(diff_path(pool, run))
    except FileNotFoundError:
        return b""


def forget(pool: str, run: str) -> None:
    """A run that was to be launched never was."""
    with suppress(OSError):
        _file(pool_path(pool) / FOLDER, run).unlink(missing_ok=True)


def kept(pool: str, run: str) -> dict[str, Any] | None:
    """What was kept of a run; None where nothing is.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    try:
        text = read_text(_file(pool_path(pool) / FOLDER, run), most=MOST_OF_OURS)
    except FileNotFoundError:
        return None
    found = json_of(text)
    if not isinstance(found, dict):
        raise ValueError("it is no launch")
    return found


def _file(folder: Path, run: str) -> Path:
    return folder / f"{run}.json"


LOCKS_FOLDER = "locks"


def save_lock(folder: Path, node: int, text: str) -> None:
    """Keep a node's lock where it is not the one that it had last.

    Args:
        folder: the pool's.

    Raises:
        OSError: it cannot be written.
    """
    locks = folder / LOCKS_FOLDER
    before = _of_node(locks, node)
    if before and before[-1].read_text(encoding="utf-8") == text:
        return
    locks.mkdir(mode=0o700, exist_ok=True)
    write_whole(locks / f"n{node:04}.{len(before):04}.txt", text.encode())


def read_lock(pool: str, until: float | None = None) -> dict[int, str]:
    """The locks of a pool, node by node.

    Args:
        pool: its key.
        until: seconds since the epoch; of later ones none counts. None for now.

    Raises:
        OSError: one cannot be read.
    """
    locks = pool_path(pool) / LOCKS_FOLDER
    nodes = sorted({int(path.name[1:5]) for path in locks.glob("n????.????.txt")})
    found = {}
    for node in nodes:
        paths = _of_node(locks, node)
        early = [path for path in paths if until is None or path.stat().st_mtime <= until]
        found[node] = (early or paths)[-1 if early else 0].read_text(encoding="utf-8")
    return found


def _of_node(locks: Path, node: int) -> list[Path]:
    return sorted(locks.glob(f"n{node:04}.????.txt"))


TRIALS_FOLDER = "trials"


def save_trials(pool: str, run: str, sheet: TrialSheet) -> None:
    """Keep the sheet of a run, before that begins.

    Args:
        pool: its key.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(_folder(pool) / f"{run}.json", json.dumps(sheet.to_json()).encode())
    if sheet.after is not None:
        before, sweep = sheet.after
        write_whole(_folder(before) / f"{sweep}.next", json.dumps([pool, run]).encode())


def keep_part(pool: str, run: str, sweep: str) -> None:
    """Keep that a run is one of a sweep by gangs, before it begins.

    Args:
        pool: its key.
        sweep: what that is called, and its sheet.

    Raises:
        OSError: it cannot be written.
    """
    if run != sweep:
        write_whole(_folder(pool) / f"{run}.json", json.dumps({"of": sweep}).encode())


def over(pool: str, sweep: str) -> None:
    """A sweep by gangs begins no more runs.

    Raises:
        OSError: it cannot be written.
    """
    (_folder(pool) / f"{sweep}.over").touch()


def goes_on(pool: str, sheet: TrialSheet) -> bool:
    """Whether runs of a sweep by gangs may still be begun: its client is there, and has not done with it.

    Args:
        pool: its key.
    """
    marked = (pool_path(pool) / TRIALS_FOLDER / f"{sheet.name}.over").exists()
    return not marked and process_lives(sheet.client)


class Claimed(Exception):
    """Another process of this machine has it; says which, and since when, in words."""


@contextmanager
def claimed(pool: str, sweep: str) -> Iterator[None]:
    """Have what is missing of a sweep alone: until then, or the end of this process, however it ends.

    Args:
        pool: its key.
        sweep: the run that its sheet is kept under.

    Raises:
        Claimed: another process has it.
        OSError: it cannot be written.
    """
    path = pool_path(pool) / TRIALS_FOLDER / f"{sweep}.claim"
    with _for_locks(path) as file:
        # A process that finds the claim locked reads its owner's name. The turn ends once that name is written.
        with _for_locks(path.with_suffix(".turn")) as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Claimed(file.read(100)) from None
            file.truncate()
            file.write(f"another client (process {os.getpid()}, since {time.strftime('%H:%M:%S')})")
            file.flush()
        yield


def _for_locks(path: Path) -> IO[str]:
    """Open a file that stays, to lock it and to read or write it."""
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+", encoding="utf-8")


def gone_on_by(pool: str, sweep: str) -> tuple[str, str] | None:
    """The run that was to go on with a sweep, and may have begun: the key of its pool, and its id; None for none.

    Args:
        pool: the key of the sweep's.
        sweep: the run that its sheet is kept under.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    try:
        told = json_of(read_text(pool_path(pool) / TRIALS_FOLDER / f"{sweep}.next"))
    except FileNotFoundError:
        return None
    if not (isinstance(told, list) and len(told) == 2 and all(isinstance(each, str) for each in told)):
        raise ValueError("it is no run")
    return told[0], told[1]


def _folder(pool: str) -> Path:
    folder = pool_dir(pool) / TRIALS_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def read_trials(pool: str, run: str) -> TrialSheet | None:
    """The sheet of a run; None where none is kept.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    data = _read(pool, run)
    if isinstance(data, dict) and isinstance(sweep := data.get("of"), str) and RUN.fullmatch(sweep):
        data = _read(pool, sweep)
    if data is None:
        return None
    sheet = TrialSheet.from_json(data)
    if sheet.gang and not sheet.runs and sheet.tasks:  # of an earlier release, which kept a sheet of each run
        sheet = replace(sheet, runs={sheet.tasks[0]: run})
    return sheet


def all_kept(pool: str) -> Iterator[tuple[str, TrialSheet]]:
    """All sheets of a pool that can be read, each with the run that it is kept under.

    Args:
        pool: its key.
    """
    for path in sorted((pool_path(pool) / TRIALS_FOLDER).glob("*.json")):
        with suppress(OSError, ValueError):
            data = _read(pool, path.stem)
            if isinstance(data, dict) and "of" not in data:
                yield path.stem, TrialSheet.from_json(data)


def _read(pool: str, run: str) -> Any:
    try:
        text = read_text(pool_path(pool) / TRIALS_FOLDER / f"{run}.json", most=MOST_OF_OURS)
    except FileNotFoundError:
        return None
    return json_of(text)


FILE = "dashboards.json"


def save_dashboards(pool: str, name: str, plugins: Iterable[Any]) -> None:
    """Keep those of a pool's plugins that have one.

    Args:
        pool: its key.
        name: its name.

    Raises:
        OSError: it cannot be written.
    """
    asked = ((plugin.name, getattr(plugin, "dashboard_at", lambda pool: None)(name)) for plugin in plugins)
    if found := [[plugin, *place] for plugin, place in asked if place is not None]:
        write_whole(pool_dir(pool) / FILE, json.dumps(found).encode())


def read_dashboards(pool: str) -> list[tuple[str, int, str]]:
    """Of each the plugin's name, the port on the head's loopback, and the path there.

    Raises:
        OSError, ValueError: they cannot be read.
    """
    try:
        told = json_of(read_text(pool_path(pool) / FILE))
    except FileNotFoundError:
        return []
    return [(str(name), int(port), str(path)) for name, port, path in told]


FIGURES_FILE_BYTES = 2 << 20  # bytes after which another file is begun
ALL = 24 << 20  # bytes of all together, beyond which the oldest go, but for the first
WAITING = 64 << 10  # bytes of lines that are worth a block
SECONDS = 5.0  # for which they may wait for others, and so are lost where this process is killed


class KeptFigures:
    """One pool's, as the one client that writes them has them.

    Args:
        folder: the pool's.
        complain: told once, in words, when the disk takes no more; nothing more is kept then.
    """

    def __init__(self, folder: Path, complain: Callable[[str], None]) -> None:
        self._folder = folder
        self._complain = complain
        self._writer: RecordWriter | None = None
        self._flushed = 0.0
        self._over = False

    def put(self, entry: dict[str, Any]) -> None:
        """Keep an entry; see ``views.recorded_events``."""
        if self._over:
            return
        try:
            writer = self._writer
            if writer is None:
                writer = self._writer = self._begun()
                self._flushed = time.monotonic()
            writer.put(entry)
            if writer.waiting >= WAITING or time.monotonic() - self._flushed >= SECONDS:
                writer.flush()
                self._flushed = time.monotonic()
            if writer.size >= FIGURES_FILE_BYTES:
                self._writer = None
                writer.close()
        except OSError as error:
            self._stop(error)

    def close(self) -> None:
        """Write what waits; nothing more is kept."""
        self._over = True
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                self._stop(error)

    def _stop(self, error: OSError) -> None:
        self._over = True
        self._complain(f"figures of machines are recorded no more: {error}")

    def _begun(self) -> RecordWriter:
        """Another file: one that was left half written by a process that was killed stays as it is."""
        found = _files(self._folder)
        number = 1 + max((_number(path) for path in found), default=-1)
        sizes = {path: path.stat().st_size for path in found}
        for path in found[1:]:
            if sum(sizes.values()) <= ALL - FIGURES_FILE_BYTES:
                break
            del sizes[path]
            path.unlink(missing_ok=True)
        return RecordWriter(self._folder / f"figures-{number:06}{ENDING}", {})


def kept_figures(folder: Path) -> Iterator[Entry]:
    """All that is kept in a pool's folder, in its order."""
    for path in _files(folder):
        try:
            record = RecordFile.read(path)
        except (UsageError, FileNotFoundError):  # cut off at its beginning, or gone by now
            continue
        yield from (entry for entry in record.entries() if entry.get("k") != "about")


def figures_near(folder: Path, at: float) -> Iterator[Entry]:
    """What is kept of the time before and after a moment (Unix time), from the last file on that begins before it."""
    begun: list[RecordFile] = []
    for path in reversed(_files(folder)):
        try:
            record = RecordFile.read(path)
        except (UsageError, FileNotFoundError):
            continue
        begun.insert(0, record)
        first = next((entry for entry in record.entries() if entry.get("k") != "about"), None)
        told = None if first is None else first.get("at")
        if isinstance(told, int | float) and told <= at:
            break
    for record in begun:
        yield from (entry for entry in record.entries() if entry.get("k") != "about")


def are_kept(folder: Path) -> bool:
    """Whether anything is kept in a pool's folder."""
    return bool(_files(folder))


def _files(folder: Path) -> list[Path]:
    found = [path for path in folder.glob(f"figures-*{ENDING}") if path.stem[8:].isdigit()]
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    return int(path.stem[8:])


def fill(run: RunView, folder: Path) -> None:
    """Have a run that has failed know what the machine of its root cause was at, as far as that was kept.

    Raises:
        OSError: it cannot be read.
    """
    if run.root_cause is None or run.figures:
        return
    task = next((task for task in run.tasks.values() if task.rank == run.root_cause.rank and task.outcome), None)
    if task is not None and (found := _before(folder, run, task.node, _failed_at(run, task.index))) is not None:
        run.figures = {task.node: found}


def _failed_at(run: RunView, index: int) -> float:
    """About when a task failed: functions begin together, and the one that went on for longest ended with the run."""
    seconds = [outcome.seconds for outcome in run.outcomes()]
    own = run.tasks[index].outcome
    ended = run.opened_at if run.ended_at is None else run.ended_at
    return ended - (max(seconds) - own.seconds if own is not None and run.kind == "broadcast" else 0.0)


def _before(folder: Path, run: RunView, node: int, failed_at: float) -> LastFigures | None:
    view = PoolView(run.pool)
    view.machines = book = MachineBook()
    found: LastFigures | None = None
    for entry in figures_near(folder, failed_at):
        at = time_of(entry)
        if at is None or entry.get("k") != "figures" or entry.get("node") != node:
            continue
        if found is None and at > failed_at:
            found = last_figures(node, book.nodes.get(node), failed_at)
        if at > failed_at + LATER:
            break
        feed(view, entry)
    return found or last_figures(node, book.nodes.get(node), failed_at)


NAME = "dismissed.json"
MOST = 10_000  # ids; the oldest go
_RUN = re.compile(r"[0-9A-Za-z_-]{1,64}")


def dismissed() -> list[str]:
    """The ids, in the order in which they were dismissed; none where there is no such file, or it says nothing."""
    try:
        told = json_of(read_text(_dismissed_alerts_file()))
    except (OSError, ValueError):
        return []
    return [run for run in told if isinstance(run, str) and _RUN.fullmatch(run)] if isinstance(told, list) else []


def dismiss(runs: Iterable[str]) -> None:
    """Add some.

    Raises:
        OSError: it cannot be written.
    """
    known = dict.fromkeys([*dismissed(), *runs])
    write_whole(_dismissed_alerts_file(), json.dumps(list(known)[-MOST:]).encode())


def _dismissed_alerts_file() -> Path:
    return home() / NAME
