"""How much one run may print: what a rank prints beyond it is dropped, and a line in its log says so.

Ranks write to their log files directly, so that nobody can hold them up; a file that has grown too long is cut back to
its limit whenever the agent looks, until the run has ended. No byte beyond it is ever sent (``LogLimit.most``), so
that clients never have what is not there.
"""

from __future__ import annotations

import os

NEVER = 1 << 62  # bytes; where there is no limit


class LogLimit:
    """That of one log file.

    Args:
        path: of the file.
        limit: bytes that one run may print; 0 for no limit.

    Attributes:
        most: how far the file may be sent.
    """

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._limit = limit
        self.begin(0)

    def begin(self, start: int) -> None:
        """What is printed from here on is another run's."""
        self.most = start + self._limit if self._limit else NEVER
        self._is_cut = False  # it ends there, with our line, since the limit was reached

    def look(self, size: int) -> bool:
        """Cut the file back where it is too long; says whether the limit was reached just now."""
        if size <= self.most:
            return False
        if self._is_cut:
            os.truncate(self._path, self.most)
            return False
        at = self.most
        said = (
            f"\nskyward: this run has printed {self._limit:,} bytes here, which is its limit "
            "(Options(log_limit=...)); what it prints from here on is dropped\n"
        ).encode()
        with open(
            self._path, "r+b", buffering=0
        ) as file:  # a descriptor that appends would put it at the end
            os.pwrite(file.fileno(), said, at)
            os.ftruncate(file.fileno(), at + len(said))
        self.most, self._is_cut = at + len(said), True
        return True
