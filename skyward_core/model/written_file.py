"""Files that ranks wrote on their nodes, and what became of them here, as values."""

from __future__ import annotations

import time
from pathlib import Path

from .value import Value, value


@value
class WrittenFile(Value):
    """A file that a rank wrote in its working folder, as its node tells.

    Attributes:
        path: below the working folder.
        size: in bytes.
        changed_at: when it last was, Unix time.
        node: that it lies on.
        version: what tells it from what it was before.
    """

    path: str
    size: int
    changed_at: float
    node: int
    version: str

    @property
    def age(self) -> float:
        """Seconds since it was last changed."""
        return max(0.0, time.time() - self.changed_at)


@value
class FetchedFile(Value):
    """What became of one that was to be fetched.

    Attributes:
        file: what it was.
        target: where it is now, or should be.
        error: why it is not there, in words, or "".
        is_new: whether it has come just now; False where it was there already.
    """

    file: WrittenFile
    target: Path
    error: str = ""
    is_new: bool = False
