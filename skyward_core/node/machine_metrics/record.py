"""The samples on disk: lines of JSON, in two files at most (:mod:`...wire.sample_files`)."""

# The process that uses it imports little: it runs beside what trains.
# ruff: noqa: PTH103, PTH108, PTH118

from __future__ import annotations

import json
import os
from typing import Any

from ...wire.sample_files import sample_file, sample_files

SIZE = 2 << 20  # bytes after which another file is begun; the one before it stays
LONGEST = 1 << 18  # bytes of a line


class Samples:
    """One node's. One process writes; whoever reads follows by their names.

    Args:
        folder: that has nothing else in it.
        size: bytes of a file.
    """

    def __init__(self, folder: str, size: int = SIZE) -> None:
        self._folder, self._size = folder, size
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = sample_files(folder)
        start, name = found[-1] if found else (0, "")
        self._file = -1
        self._length = 0
        if name:  # written by a process before this one, which may have died in the middle of a line
            self._open(start)
            self._length = os.fstat(self._file).st_size
            if self._length and os.pread(self._file, 1, self._length - 1) != b"\n":
                self._write(b"\n")
        self._start = start

    @property
    def is_new(self) -> bool:
        """Whether what is put next begins a file: it can rely on nothing that was put before."""
        return self._file < 0 or self._length >= self._size

    def put(self, sample: dict[str, Any]) -> None:
        """Write a sample down.

        Raises:
            OSError: the disk does not take it.
        """
        line = json.dumps(sample, separators=(",", ":")).encode() + b"\n"
        if len(line) > LONGEST:
            return
        if self.is_new:
            self._begin_file()
        self._write(line)

    def _begin_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._start += self._length
        self._length = 0
        self._open(self._start)
        for _, name in sample_files(self._folder)[:-2]:
            os.unlink(os.path.join(self._folder, name))

    def _open(self, start: int) -> None:
        path = os.path.join(self._folder, sample_file(start))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def _write(self, data: bytes) -> None:
        # A disk that is full takes a part: the reader passes over a line that is none.
        self._length += os.write(self._file, data)
