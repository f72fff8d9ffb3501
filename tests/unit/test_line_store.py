"""The last lines of a stream by absolute number, whatever pieces they came in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.views.log_buffer import LAZY_LINES, MIN_STORE_BYTES, TOTAL_BYTES, LineStore, MemoryBudget


@given(
    st.integers(1, 3 * LAZY_LINES),
    st.lists(st.tuples(st.integers(0, 2 * LAZY_LINES), st.sampled_from(["", "r003| "])), max_size=12),
    st.data(),
)
def test_it_holds_the_last_lines_by_number(capacity: int, pieces: list[tuple[int, str]], data: st.DataObject) -> None:
    store, printed = LineStore(capacity), list[str]()
    for count, prefix in pieces:
        lines = [f"line {len(printed) + i}" for i in range(count)]
        store.add(lines, prefix)
        printed += [prefix + line for line in lines]
        assert (store.first, store.end) == (max(0, len(printed) - capacity), len(printed))
        start = data.draw(st.integers(-3, len(printed) + 3))
        stop = data.draw(st.integers(-3, len(printed) + 3))
        assert store.read(start, stop) == printed[max(start, store.first) : max(stop, 0)]


def test_pieces_are_let_go_when_none_of_their_lines_is_held() -> None:
    store = LineStore(10)
    for _ in range(100):
        store.add(["small"])
        store.add(["large"] * LAZY_LINES)
    assert len(store._pieces) == len(store._starts) <= 3


def test_a_small_piece_that_somebody_else_holds_is_not_changed() -> None:
    store, lines = LineStore(10), ["one"]
    store.add(lines)
    store.add(["two"])
    assert lines == ["one"]
    assert store.read(0, 9) == ["one", "two"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 2 * LAZY_LINES), st.integers(0, 3000)), max_size=40))
def test_stores_of_one_room_keep_to_their_part_and_the_newest_lines(fed: list[tuple[int, int, int]]) -> None:
    """However long the lines are; a piece that came last stays, whatever it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryBudget, "total_bytes", 6 * 50_000)
        room = MemoryBudget()
        stores = [LineStore(10_000, room) for _ in range(6)]
        printed: list[list[str]] = [[] for _ in stores]
        for place, count, length in fed:
            lines = [f"{number}{'x' * length}" for number in range(count)]
            stores[place].add(lines)
            printed[place] += lines
    for store, lines in zip(stores, printed, strict=True):
        assert store.end == len(lines)
        assert store.read(0, store.end) == lines[store.first :]
        assert store._size == sum(store._sizes) and len(store._sizes) == len(store._pieces)
        assert store._size <= 50_000 or len(store._pieces) == 1


def test_many_stores_hold_less_each_and_none_less_than_a_screen() -> None:
    room, line = MemoryBudget(), "x" * 936
    stores = [LineStore(10_000, room) for _ in range(256)]
    for store in stores:
        for _ in range(600):
            store.add([line])
    held = [store.end - store.first for store in stores]
    assert 0.5 * TOTAL_BYTES < sum(held) * 1000 < 1.2 * TOTAL_BYTES and min(held) >= 100
    room.remove_stores(255)
    stores[0].add([line] * 5000)
    assert stores[0].end - stores[0].first > 5000, "who is alone has all of it"
    crowded = MemoryBudget()
    for _ in range(100_000):
        crowded.add_store()
    assert crowded.store_bytes == MIN_STORE_BYTES
