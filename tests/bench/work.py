"""Work that both sides run, and functions that time it.

Functions return the inner functions, so that cloudpickle sends them by value: the nodes of neither side need this
repository.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

MB = 1_000_000


def p50_ms(call: Callable[[], Any], rounds: int = 300, warm: int = 20) -> float:
    """Return the median time of ``call`` in milliseconds."""
    for _ in range(warm):
        call()
    times = []
    for _ in range(rounds):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return median(times) * 1000


def best_s(call: Callable[[], Any], rounds: int = 3) -> float:
    """Return the shortest time of ``call`` in seconds."""
    times = []
    for _ in range(rounds):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return min(times)


def noop() -> Callable[..., None]:
    def noop(*_: Any) -> None:
        return None

    return noop


def identity() -> Callable[[int], int]:
    def identity(i: int) -> int:
        return i

    return identity


def size() -> Callable[[bytes], int]:
    def size(data: bytes) -> int:
        return len(data)

    return size


def produce() -> Callable[[int], bytes]:
    def produce(count: int) -> bytes:
        # Not random per byte: making it must cost nothing beside moving it.
        return bytes(bytearray(range(256)) * (count // 256))

    return produce


def resident_mb(parent: bool) -> Callable[[], float]:
    """Return the resident memory in MB (10^6 bytes) of this process, or of its parent."""

    def resident_mb() -> float:
        import os
        from pathlib import Path

        pid = os.getppid() if parent else os.getpid()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    return resident_mb
