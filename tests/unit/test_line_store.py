"""The last lines of a stream by absolute number, whatever pieces they came in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.store import run_logs
from skyward_core.store.run_logs import LogRange, StoredLines, ring_tail
from skyward_core.views import stdout_stderr_order
from skyward_core.views.log_buffer import LAZY_LINES, MIN_STORE_BYTES, TOTAL_BYTES, LineStore, LogRing, MemoryBudget
from tests.support.examples import examples


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


# Lines of a log by number, out of its files.


def stored(folder: Path, out: bytes, err: bytes = b"", *, start: int = 0, whole: bool = True) -> StoredLines:
    (folder / "r000.out").write_bytes(out)
    (folder / "r000.err").write_bytes(err)
    part = LogRange("r000", (start, 0), (len(out), len(err)))
    return StoredLines(folder, [part], whole=whole)


def test_any_line_of_a_long_log_is_read_from_near_it(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(50_000)]
    log = stored(tmp_path, b"an earlier run\n" + "\n".join(lines).encode() + b"\n", start=15)
    assert log.count == 50_000
    for start in (0, 1, 511, 512, 30_000, 49_990):
        assert [(line.number, line.text) for line in log.read(start, start + 7)] == [
            (number, f"line {number}") for number in range(start, start + 7)
        ]
    assert [line.text for line in log.read(49_998, 60_000)] == lines[-2:]
    assert log.read(50_000, 50_010) == [] == log.read(10, 10)


@settings(max_examples=examples(60))
@given(
    pieces=st.lists(st.sampled_from([b"a", b"\n", b"bar\r", b"xx\nyy", b"\xff\n", b"\n\n", b"long" * 50]), max_size=60),
    begin=st.integers(0, 50),
    whole=st.booleans(),
)
def test_reading_from_any_place_gives_what_reading_it_all_does(
    pieces: list[bytes], begin: int, whole: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    data = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_logs, "SEEK_STRIDE_LINES", 1)
        patch.setattr(stdout_stderr_order, "PIECE_BYTES", 3)
        log = stored(folder, data, data[::-1], whole=whole)
        ring = LogRing()
        ring.feed(data)
        ring.feed(data[::-1], "err")
        everything = log.read(0, log.count)
        assert [line.number for line in everything] == list(range(log.count))
        assert log.read(begin, begin + 5) == everything[begin : begin + 5]
        texts = [line.text for line in everything]
        ended = ring.lines(0, ring.end)
        assert sorted(texts) == sorted([*ended, *(text for text in ring.pending() if whole)])


def test_a_ring_finds_its_place_in_the_files(tmp_path: Path) -> None:
    lines = [f"step {number}" for number in range(3_000)]
    log = stored(tmp_path, ("\n".join(lines) + "\n").encode())
    ring = LogRing(100)
    ring.extend(lines[1_000:2_900])  # it began late, and more has come since
    assert log.find_ring_offset(*ring_tail(ring)) == 1_000
    assert log.find_ring_offset(*ring_tail(LogRing())) == 3_000
    under_way = stored(tmp_path, b"first\n", whole=False)
    assert under_way.find_ring_offset(*ring_tail(LogRing())) == 0
    whole = LogRing()
    whole.extend(lines)
    log = stored(tmp_path, ("\n".join(lines) + "\n").encode())
    assert log.find_ring_offset(*ring_tail(whole)) == 0


def test_a_rank_of_several_workers_has_their_lines_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "r000.out").write_bytes(b"one\nunfinished")
    (tmp_path / "r000.1.out").write_bytes(b"two\nthree")
    parts = [LogRange("r000", (0, 0), (14, 0)), LogRange("r000.1", (0, 0), (9, 0))]
    for whole, last in ((True, ["three"]), (False, [])):
        log = StoredLines(tmp_path, parts, whole=whole)
        assert [line.text for line in log.read(0, 9)] == ["one", "unfinished", "two", *last]
