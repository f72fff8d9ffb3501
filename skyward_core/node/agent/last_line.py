"""The last line of a log, which may be larger than this machine's memory."""

from __future__ import annotations

import os
from pathlib import Path

ENOUGH = 2000  # bytes at a log's end in which it is looked for


def last_line(path: Path, start: int = 0) -> str:
    """The last line with something in it from an offset on, cut to what is enough; "" where there is none.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as log:
        log.seek(max(start, os.fstat(log.fileno()).st_size - ENOUGH))
        lines = log.read(ENOUGH).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
