"""What a pool's machines were measured at, kept beside its logs: a row of short records, of which the first and the
latest stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..model.errors import UsageError
from .record_file import ENDING, Entry, RecordFile, RecordWriter

FILE = 2 << 20  # bytes after which another file is begun
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
        """Keep an entry; see :mod:`..views.record_entries`."""
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
            if writer.size >= FILE:
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
            if sum(sizes.values()) <= ALL - FILE:
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
