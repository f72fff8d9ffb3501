"""A disk that has no room left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def fill(path: Path) -> Callable[[], None]:
    """Have a file take all that there is; gives what takes it away."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return path.unlink
