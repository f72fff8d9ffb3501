"""The last lines of a stream by absolute number, whatever pieces they came in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skyward_core.views.line_store import LARGE, LineStore


@given(
    st.integers(1, 3 * LARGE),
    st.lists(st.tuples(st.integers(0, 2 * LARGE), st.sampled_from(["", "r003| "])), max_size=12),
    st.data(),
)
def test_it_holds_the_last_lines_by_number(
    capacity: int, pieces: list[tuple[int, str]], data: st.DataObject
) -> None:
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
        store.add(["large"] * LARGE)
    assert len(store._pieces) == len(store._starts) <= 3


def test_a_small_piece_that_somebody_else_holds_is_not_changed() -> None:
    store, lines = LineStore(10), ["one"]
    store.add(lines)
    store.add(["two"])
    assert lines == ["one"]
    assert store.read(0, 9) == ["one", "two"]
