"""How many items of a map travel together."""

from __future__ import annotations

import pytest

from skyward_core.front.api.maps import Sizes


def of(seconds: float, size: int = 8, *, left: int | None = None, single: bool = False) -> int:
    """The size that comes of calls whose items take so long, and are so large."""
    sizes = Sizes(4, single=single, left=left)
    for _ in range(12):
        items = sizes.next()
        sizes.sent(items, size * items)
        sizes.took(items, seconds * items)
    return sizes.next()


@pytest.mark.parametrize(
    ("seconds", "size", "expected"),
    [(0, 8, 256), (1e-6, 8, 256), (0.01, 8, 5), (0.2, 8, 1), (0, 16 << 10, 2), (0, 1 << 20, 1)],
)
def test_quick_and_small_ones_travel_together(seconds: float, size: int, expected: int) -> None:
    assert of(seconds, size) == pytest.approx(expected, abs=1)


def test_the_last_ones_are_spread_and_with_a_time_limit_each_travels_alone() -> None:
    assert of(0, left=20) == 1
    assert of(0, single=True) == 1
    sizes = Sizes(4, single=False, left=None)
    assert sizes.next() == 1
    sizes.took(1, 0)
    assert [sizes.next() for _ in range(3)] == [4, 16, 64]
