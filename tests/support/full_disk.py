"""Full disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def fill(path: Path) -> Callable[[], None]:
    """Create a file that takes all free space. Return a function that removes it."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return path.unlink
