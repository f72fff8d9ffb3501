"""One file that ranks wrote, open to be given out: as it was when it was listed, or not at all."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator

from ...wire.output_names import CHANGED
from ...wire.value_checks import is_below

PIECE = 1 << 19  # bytes at a time


def version_of(found: os.stat_result) -> str:
    """What tells a file from what it was before and after."""
    return f"{found.st_size:x}.{found.st_mtime_ns:x}.{found.st_ino:x}"


class OutputFile:
    """See the module. Nobody is led out of the working folder: no link is followed, be it the file or a folder on the
    way to it.

    Args:
        folder: the ranks' working folder.
        path: of the file, below it.
        version: that it is to be of.

    Raises:
        OSError: it is not there, or no file, or has changed.
    """

    def __init__(self, folder: str, path: str, version: str) -> None:
        if not folder or not is_below(path):
            raise OSError(f"{path!r:.80} names no file of the working folder")
        self._file = _open_below(folder, path)
        try:
            self._found = os.fstat(self._file)
            if not stat.S_ISREG(self._found.st_mode):
                raise OSError("it is no file")
            if version_of(self._found) != version:
                raise OSError(CHANGED)
        except BaseException:
            self.close()
            raise
        self.size = self._found.st_size

    def pieces(self, at: int) -> Iterator[bytes]:
        """Its bytes from an offset on: as many as it had when it was opened, whatever becomes of it meanwhile. Reading
        and not mapping it, as whoever shortens a mapped file ends who reads it.

        When all are had, ``sha256`` is that of the whole file.

        Raises:
            OSError: it cannot be read.
        """
        digest, place = hashlib.sha256(), 0
        while place < self.size:
            data = os.pread(self._file, min(PIECE, self.size - place), place)
            data = data or bytes(min(PIECE, self.size - place))  # it was shortened, which check() tells
            digest.update(data)
            if place + len(data) > at:
                yield data[max(0, at - place) :]
            place += len(data)
        self.sha256 = digest.hexdigest()

    def check(self) -> None:
        """See that nobody wrote to it while it was read.

        Raises:
            OSError: somebody did.
        """
        now = os.fstat(self._file)
        if (version_of(now), now.st_ctime_ns) != (version_of(self._found), self._found.st_ctime_ns):
            raise OSError(CHANGED)

    def close(self) -> None:
        os.close(self._file)


def _open_below(folder: str, path: str) -> int:
    *way, name = path.split("/")
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in way:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
        # A pipe in its place would have us wait for somebody who writes.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
