"""What the client keeps of a pool on its own disk: the ranks' logs byte for byte, large results, the events.

Log files mirror the nodes' spools: same names, same offsets. A file's size is the cursor, so that whoever comes
next goes on where the last one stopped; two clients writing the same bytes to the same place do no harm.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from ..views import events as ev
from ..views.checked_events import event_of
from ..wire.content_name import BLOB
from ..wire.frames import encoder
from ..wire.value_checks import is_log
from .home import pool_dir

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
            name: of the log file, as :func:`..wire.messages.is_log` has it.

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

    def note(self, event: ev.Event) -> None:
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
        self._pending: list[ev.Event] = []
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.ours = True
        except BlockingIOError:
            self.ours = False
            return
        if _last_byte(path) not in (b"", b"\n"):
            self._file.write(b"\n")  # a crash cut the last line short: let the next one begin its own

    def add(self, event: ev.Event) -> None:
        if self.ours:
            self._pending.append(event)

    def flush(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            self._file.write("".join([_json(ev.to_json(event)) + "\n" for event in pending]).encode())
            self._file.flush()

    def close(self) -> None:
        """Write what is queued; what comes after the end of a pool's time with us is nobody's news."""
        self.flush()
        self.ours = False
        self._file.close()


def replay(folder: Path) -> Iterator[ev.Event]:
    """The events of a pool from its folder; lines that a crash cut short, or that are none of ours, are left out."""
    return _events(_journal_lines(folder))


def _events(lines: Iterable[bytes]) -> Iterator[ev.Event]:
    return filter(None, map(_event, lines))


def _event(line: bytes) -> ev.Event | None:
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


def said_of_nodes(folder: Path, before: float) -> Iterator[ev.NodePhase]:
    """What was said of a pool's nodes before a time, out of the same; other lines are not parsed."""
    kind = f'"{ev.NodePhase.__name__}"'.encode()
    for event in _events(line for line in _journal_lines(folder) if kind in line):
        if isinstance(event, ev.NodePhase) and event.at < before:
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
