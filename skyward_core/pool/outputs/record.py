"""What this client has fetched of a pool, so that nothing comes twice, and nothing of a person's is overwritten."""

from __future__ import annotations

import errno
import json
import os
import threading
from dataclasses import asdict
from pathlib import Path

from ...model.value import Value, value
from ...model.written_file import WrittenFile


@value
class FetchedRow(Value):
    """One file that has come.

    Attributes:
        target: where it was put, an absolute path.
        node, path, version: which file of which node it was.
        left: size and time of change that it had here when it was put there.
    """

    target: str
    node: int
    path: str
    version: str
    left: tuple[int, int]

    @property
    def is_there(self) -> bool:
        """Whether it lies there as it was left."""
        return left_as(Path(self.target)) == tuple(self.left)


def left_as(path: Path) -> tuple[int, int] | None:
    """Size and time of change of a file; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class OutputRecord:
    """One pool's, a line for each file; several processes may add to it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._lock = threading.Lock()  # files of different nodes are fetched in threads
        self._by_target: dict[str, FetchedRow] = {}
        # Whichever node named it: of a disk that nodes share, another one may, the next time.
        self._by_file: dict[tuple[str, str], list[FetchedRow]] = {}

    def at(self, target: Path) -> FetchedRow | None:
        """What was put there last."""
        self._read()
        return self._by_target.get(str(target))

    def of(self, file: WrittenFile) -> list[FetchedRow]:
        """Where the file is, as it is on its node now, and as it was left."""
        self._read()
        rows = self._by_file.get((file.path, file.version), ())
        return [row for row in rows if self._by_target.get(row.target) is row and row.is_there]

    def add(self, file: WrittenFile, target: Path) -> None:
        """The file has been put there.

        Raises:
            OSError: it cannot be written down.
        """
        left = left_as(target)
        if left is None:
            return  # removed since
        row = FetchedRow(str(target), file.node, file.path, file.version, left)
        # What an earlier line lacks, that a crash or a full disk cut short, is not made up of this one.
        line = b"\n" + json.dumps(asdict(row)).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)

    def _read(self) -> None:
        """Read the lines that any process or thread has added."""
        with self._lock:
            self._read_new_lines()

    def _read_new_lines(self) -> None:
        try:
            with open(self._path, "rb") as source:
                source.seek(self._size)
                data = source.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._size += len(whole)
        for line in whole.splitlines():
            try:
                told = json.loads(line)
                row = FetchedRow(**(told | {"left": tuple(told["left"])}))
            except (ValueError, TypeError, KeyError):
                continue  # a crash, or a full disk, cut it short
            self._by_target[row.target] = row
            self._by_file.setdefault((row.path, row.version), []).append(row)
