"""How many items of a map travel together."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from skyward_core.api.map_and_stream import MAX_WAITING_CALLS, ChunkSizer, MapOperation
from skyward_core.model.function import PendingFunction
from tests.support.waiting import wait_until


def of(seconds: float, size: int = 8, *, left: int | None = None, single: bool = False) -> int:
    """The size that comes of calls whose items take so long, and are so large."""
    sizes = ChunkSizer(4, single=single, left=left)
    for _ in range(12):
        items = sizes.next_size()
        sizes.record_sent(items, size * items)
        sizes.record_duration(items, seconds * items)
    return sizes.next_size()


@pytest.mark.parametrize(
    ("seconds", "size", "expected"),
    [(0, 8, 256), (1e-6, 8, 256), (0.01, 8, 5), (0.2, 8, 1), (0, 16 << 10, 2), (0, 1 << 20, 1)],
)
def test_quick_and_small_ones_travel_together(seconds: float, size: int, expected: int) -> None:
    assert of(seconds, size) == pytest.approx(expected, abs=1)


def test_the_last_ones_are_spread_and_with_a_time_limit_each_travels_alone() -> None:
    assert of(0, left=20) == 1
    assert of(0, single=True) == 1
    sizes = ChunkSizer(4, single=False, left=None)
    assert sizes.next_size() == 1
    sizes.record_duration(1, 0)
    assert [sizes.next_size() for _ in range(3)] == [4, 16, 64]


class Answering:
    """Ranks that answer at once, but for the first call."""

    places = 1

    def __init__(self) -> None:
        self.arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.given: list[Sequence[Any]] = []
        self.closed = False

    def start(self) -> None: ...

    def submit_chunk(self, first: int, items: Sequence[Any]) -> int:
        self.given.append(items)
        if len(self.given) > 1:
            self.answer(len(self.given) - 1)
        return 8

    def answer(self, number: int) -> None:
        items = self.given[number]
        self.arrivals.put(("values", number, lambda: list(items), len(items), 1.0, 8))

    def finish(self) -> None: ...

    def failure(self) -> Exception | None:
        return None

    def close(self) -> None:
        self.closed = True


def test_what_waits_for_a_slow_first_call_is_bounded() -> None:
    ranks: Any = Answering()
    got = queue.SimpleQueue[int]()
    values = MapOperation(ranks, PendingFunction(abs), itertools.count(), ordered=True, single=False).values()

    def read() -> None:
        for value in itertools.islice(values, 20):
            got.put(value)

    threading.Thread(target=read, daemon=True).start()
    wait_until(lambda: len(ranks.given) >= MAX_WAITING_CALLS, what="all that may wait")
    assert got.empty() and len(ranks.given) == MAX_WAITING_CALLS
    ranks.answer(0)
    assert [got.get(timeout=30) for _ in range(20)] == list(range(20))
