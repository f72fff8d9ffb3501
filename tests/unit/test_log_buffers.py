"""Log lines from bytes: buffers, lines of stored logs, and collapsed lines of many ranks."""

from __future__ import annotations

import copy
import inspect
import os
import random
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.client.run_history import OutputChunk
from skyward_core.protocol.node_paths import MARKS
from skyward_core.protocol.stdout_stderr_order_marks import encode_mark
from skyward_core.store import run_log_reader
from skyward_core.store.run_log_reader import LogRange, MergedLines, StoredLines
from skyward_core.util.terminal_safe_text import sanitize_colored
from skyward_core.views import log_collapsing
from skyward_core.views.log_buffers_and_rank_activity import (
    LAZY_LINES,
    LINE_LIMIT,
    MIN_STORE_BYTES,
    RUNS_KEPT,
    TOTAL_BYTES,
    Line,
    LineInfo,
    LineSplitter,
    LineStore,
    LogBuffers,
    LogRing,
    MemoryBudget,
    rank_prefix,
)
from skyward_core.views.log_collapsing import (
    HOLD_SECONDS,
    JOIN_SECONDS,
    CollapsedRing,
    FoldedLine,
    HeldLines,
    LineFolder,
    LiveLines,
    format_ranks,
    line_template,
    list_ranks,
)
from skyward_tui.cli.commands.ls_logs_results_lock import CollapsedPrinter
from skyward_tui.cli.console_and_log_printer import Console
from tests.support.examples import examples


@pytest.fixture
def book() -> LogBuffers:
    return LogBuffers()


def terminal_text(line: bytes) -> str:
    """Return the text that a terminal shows of a finished line: the reference for all ways of feeding."""
    drawn = line.rstrip(b"\r").split(b"\r")[-1]
    if len(drawn) <= LINE_LIMIT:
        return sanitize_colored(drawn.decode("utf-8", "replace"))
    whole = drawn[:LINE_LIMIT].decode("utf-8", "ignore")  # a character cut in two is not shown
    return f"{whole} … [{len(drawn) - LINE_LIMIT:,} more bytes in the log file]"


def model(data: bytes) -> list[str]:
    return [terminal_text(line) for line in data.split(b"\n")[:-1]]


def pieces(data: bytes, chance: random.Random, sizes: tuple[int, ...]) -> list[bytes]:
    cut, out = 0, []
    while cut < len(data):
        size = chance.choice(sizes)
        out.append(data[cut : cut + size])
        cut += size
    return out


ALPHABET = [b"\n", b"\r", b"\r\n", b"a", b"bc d", "é".encode(), "🚀".encode(), "\u2028".encode(), b"\xff", b"\x0b\x0c"]


@pytest.mark.parametrize("seed", range(15))
def test_split_lines_do_not_depend_on_chunk_boundaries(seed: int) -> None:
    chance = random.Random(seed)
    data = b"".join(chance.choices(ALPHABET, k=400))
    lines = LineSplitter()
    got = [line for piece in pieces(data, chance, (1, 2, 3, 5, 50)) for line in lines.split(piece)]
    assert got == model(data)
    # What is left shows like a line would, but for a character whose end is still to come.
    rest = data.rpartition(b"\n")[2]
    assert terminal_text(rest).startswith(lines.preview())
    assert lines.split(b"\n") == [terminal_text(rest)]


@pytest.mark.parametrize("seed", range(6))
def test_overlong_lines_do_not_depend_on_chunk_boundaries(seed: int) -> None:
    chance = random.Random(seed)
    near = (LINE_LIMIT - 1, LINE_LIMIT, LINE_LIMIT + 1, 3 * LINE_LIMIT, 10)
    data = b"".join(b"x" * chance.choice(near) + chance.choice((b"\n", b"\r", b"\r\n", b"ab\n")) for _ in range(12))
    for sizes in ((1 << 20,), (1000, 40_000), (LINE_LIMIT, 1, 7)):
        lines = LineSplitter()
        got = [line for piece in pieces(data + b"\n", chance, sizes) for line in lines.split(piece)]
        assert got == model(data + b"\n")


def nested(inner: int, outer: int, depth: int = 1) -> bytes:
    """Return tqdm's output for an inner bar and then the outer bar at each update."""
    down, up = b"\n" * depth, b"\x1b[A" * depth
    return b"\router: %d/3" % outer + b"".join(down + b"\rinner: %d/9" % at + up for at in range(inner + 1))


GONE = b"\n\r           \r\x1b[A"  # an inner bar that does not stay


def test_nested_progress_bars_are_one_line() -> None:
    lines = LineSplitter()
    assert lines.split(nested(4, 0)) == []
    assert lines.preview() == "outer: 0/3  inner: 4/9"
    assert lines.split(GONE + b"\router: 1/3") == [] and lines.preview() == "outer: 1/3"
    assert lines.split(nested(2, 1) + nested(0, 2, depth=2)) == []
    assert lines.preview() == "outer: 2/3  inner: 2/9  inner: 0/9"
    held = copy.copy(lines)  # as who remembers a place in a file does
    assert lines.split(b"\n\n\r     \r\x1b[A\x1b[A" + GONE + b"\router: 3/3\n") == ["outer: 3/3"]
    assert lines.preview() == "" and held.preview() == "outer: 2/3  inner: 2/9  inner: 0/9"
    assert held.end() == ["outer: 2/3  inner: 2/9  inner: 0/9"] and held.end() == []


def test_inner_progress_bar_that_stays_replaces_the_outer_one() -> None:
    lines = LineSplitter()
    found = lines.split(nested(9, 0) + b"\rinner: 9/9\n" + nested(9, 1) + b"\rinner: 9/9\n\router: 2/2\nafter\n")
    assert found == ["inner: 9/9", "inner: 9/9", "outer: 2/2", "after"]


def test_text_resembling_nested_progress_bars_keeps_its_lines() -> None:
    assert LineSplitter().split(b"a\n\n\rb\x1b[A\nc\n") == ["a", "", "c"], "one newline more than it goes up again"
    assert LineSplitter().split(b"a\nb\x1b[A\nc\n") == ["a", "b", "c"], "no carriage return"
    assert LineSplitter().split(b"a\n\rb\nc\n") == ["a", "b", "c"]
    assert len(LineSplitter().split(b"\n" * 300_000 + b"\x1b[A\n")) == 300_001, "nor does it take ages"
    deep = LineSplitter()
    deep.split(b"".join(nested(1, 1, depth) for depth in range(1, 200)))
    assert deep.preview().count("inner") == 8


@pytest.mark.parametrize("form", ["\rstep {}%", "step {}%\r"])
def test_endless_progress_bar_takes_constant_memory(form: str) -> None:
    lines, held = LineSplitter(), 0
    of_lines = [tracemalloc.Filter(True, inspect.getfile(LineSplitter))]  # other threads of this process have theirs
    tracemalloc.start()
    try:
        for step in range(20_000):
            lines.split(form.format(step).encode())
            if step % 2_000 == 1_999:
                found = tracemalloc.take_snapshot().filter_traces(of_lines).statistics("filename")
                held = max(held, sum(each.size for each in found))
    finally:
        tracemalloc.stop()
    assert lines.preview() == "step 19999%"
    assert held < 100_000


def test_progress_bar_may_redraw_an_overlong_line() -> None:
    lines = LineSplitter()
    lines.split(b"x" * 3 * LINE_LIMIT)
    lines.split(b"\r")
    assert lines.preview() == "x" * LINE_LIMIT
    lines.split(b"50%")
    assert lines.preview() == "50%"
    assert lines.split(b"\n") == ["50%"]


def test_line_of_50_megabytes_takes_little_memory() -> None:
    ring, piece = LogRing(), b"y" * (1 << 18)
    tracemalloc.start()
    try:
        for _ in range(200):
            assert ring.feed(piece) == []
        (line,) = ring.feed(b"\nnext\n")[:1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert line == "y" * LINE_LIMIT + f" … [{200 * len(piece) - LINE_LIMIT:,} more bytes in the log file]"
    assert ring.lines(0, 5)[1:] == ["next"]


@pytest.mark.parametrize("seed", range(8))
def test_log_ring_counts_lines_of_a_flood_exactly(seed: int) -> None:
    chance = random.Random(seed)
    data = b"".join(chance.choices([*ALPHABET, b"\x1b]0;title\x07", b"\x1b[31mred"], k=4_000))
    ring, book, count = LogRing(capacity=200), LogBuffers(capacity=200), 0
    for piece in pieces(data, chance, (1, 50, 2_000, 9_000)):
        assert len(ring.feed(piece)) == ring.end - count
        book.feed(7, "out", piece)
        count = ring.end
    lines = model(data)
    assert ring.end == book.merged.end == len(lines)
    assert ring.lines(0, ring.end) == lines[-200:]
    assert book.rank(7).lines(0, ring.end) == lines[-200:]
    assert book.merged.lines(0, ring.end) == [rank_prefix(7) + line for line in lines[-200:]]


def test_merged_log_has_lines_of_all_ranks_in_arrival_order(book: LogBuffers) -> None:
    assert book.feed(3, "out", b"a\nb\nhal") == ["a", "b"]
    book.feed(0, "out", b"c\n")
    book.feed(3, "err", b"d\n")
    book.feed(3, "out", b"f\n")
    assert book.merged.lines(0, 9) == ["r003| a", "r003| b", "r000| c", "r003| d", "r003| half"]
    assert book.rank(3).lines(0, 9) == ["a", "b", "d", "half"]
    assert rank_prefix(1234) == "r1234| "


def test_log_buffer_can_be_read_while_it_is_fed() -> None:
    book, done = LogBuffers(capacity=100), threading.Event()
    wrong: list[Any] = []
    total = 20_000

    def look() -> None:
        ring = book.rank(1)
        while not done.is_set():
            first, end = ring.first, ring.end
            if not 0 <= first <= end:
                wrong.append((first, end))
            lines = ring.lines(first, end)
            # Eviction may have taken lines off the front meanwhile; what is there is in order, without gaps.
            numbers = [int(line) for line in lines]
            if numbers != list(range(end - len(lines), end)):
                wrong.append((first, end, numbers[:3]))
            ring.pending()

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(0, total, 5):
            book.feed(1, "out", "".join(f"{n}\n" for n in range(number, number + 5)).encode())
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert book.rank(1).end == book.merged.end == total


def test_log_ring_requested_by_several_threads_is_created_once() -> None:
    for _ in range(50):
        book, start = LogBuffers(), threading.Barrier(4)
        found: list[Any] = []

        def ask(book: LogBuffers = book, start: threading.Barrier = start, found: list[LogRing] = found) -> None:
            start.wait()
            found.append(book.rank(0))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(ring) for ring in found}) == 1


def test_log_ring_knows_stream_time_and_run_of_each_line() -> None:
    ring = LogRing(capacity=300)
    for number in range(1000):
        ring.extend([f"line {number}"], LineInfo("out" if number % 3 else "err", number // 2, "r"))
    assert (ring.first, ring.end) == (700, 1000)
    for number, line in enumerate(ring.read(0, 2000), 700):
        assert line == Line(number, f"line {number}", LineInfo("out" if number % 3 else "err", number // 2, "r"))
    assert [line.number for line in ring.read(710, 713)] == [710, 711, 712]
    assert ring.read(5, 10) == ring.read(1000, 1010) == ring.read(800, 800) == []
    assert len(ring._starts) < 700, "what is known of lines that are gone is forgotten"


def test_partial_lines_of_two_workers_of_a_rank_are_kept_apart(book: LogBuffers) -> None:
    book.feed(0, "out", b"from the fir", 1.0, "a", "r000")
    book.feed(0, "out", b"second\n", 1.0, "a", "r000.1")
    book.feed(0, "out", b"st\n", 1.0, "a", "r000")
    assert book.rank(0).lines(0, 9) == ["second", "from the first"]


def test_separate_lines_are_kept_only_for_recent_runs(book: LogBuffers) -> None:
    for number in range(50):
        book.feed(0, "out", b"x\n", 1.0, f"run{number}")
    assert not book.has("run1")
    assert book.has("run49")
    assert sum(book.has(f"run{number}") for number in range(50)) == RUNS_KEPT


# The last lines of a stream by absolute number, whatever pieces they came in.


@given(
    st.integers(1, 3 * LAZY_LINES),
    st.lists(st.tuples(st.integers(0, 2 * LAZY_LINES), st.sampled_from(["", "r003| "])), max_size=12),
    st.data(),
)
def test_line_store_holds_the_last_lines_by_number(
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


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 2 * LAZY_LINES), st.integers(0, 3000)), max_size=40))
def test_line_stores_share_a_memory_budget_and_keep_newest_lines(fed: list[tuple[int, int, int]]) -> None:
    """This holds for lines of any length, and the latest piece is kept whatever its size."""
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


def test_many_line_stores_shrink_but_keep_a_minimum() -> None:
    room, line = MemoryBudget(), "x" * 936
    stores = [LineStore(10_000, room) for _ in range(256)]
    for store in stores:
        for _ in range(600):
            store.add([line])
    held = [store.end - store.first for store in stores]
    assert 0.5 * TOTAL_BYTES < sum(held) * 1000 < 1.2 * TOTAL_BYTES and min(held) >= 100
    room.stores -= 255
    stores[0].add([line] * 5000)
    assert stores[0].end - stores[0].first > 5000, "who is alone has all of it"
    crowded = MemoryBudget()
    for _ in range(100_000):
        crowded.stores += 1
    assert crowded.store_bytes == MIN_STORE_BYTES


# Lines of a log by number, out of its files.


def stored(folder: Path, out: bytes, err: bytes = b"", *, start: int = 0, whole: bool = True) -> StoredLines:
    (folder / "r000.out").write_bytes(out)
    (folder / "r000.err").write_bytes(err)
    part = LogRange("r000", (start, 0), (len(out), len(err)))
    return StoredLines(folder, [part], whole=whole)


@settings(max_examples=examples(60))
@given(
    pieces=st.lists(st.sampled_from([b"a", b"\n", b"bar\r", b"xx\nyy", b"\xff\n", b"\n\n", b"long" * 50]), max_size=60),
    begin=st.integers(0, 50),
    whole=st.booleans(),
)
def test_reading_a_stored_log_from_any_line_equals_a_full_read(
    pieces: list[bytes], begin: int, whole: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    data = b"".join(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_log_reader, "SEEK_STRIDE_LINES", 1)
        patch.setattr(run_log_reader, "SMALL_PIECE_BYTES", 3)
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


def test_stored_logs_of_several_workers_are_concatenated(tmp_path: Path) -> None:
    (tmp_path / "r000.out").write_bytes(b"one\nunfinished")
    (tmp_path / "r000.1.out").write_bytes(b"two\nthree")
    parts = [LogRange("r000", (0, 0), (14, 0)), LogRange("r000.1", (0, 0), (9, 0))]
    for whole, last in ((True, ["three"]), (False, [])):
        log = StoredLines(tmp_path, parts, whole=whole)
        assert [line.text for line in log.read(0, 9)] == ["one", "unfinished", "two", *last]


@settings(max_examples=examples(60))
@given(
    chunks=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(-3, 3)), max_size=40),
    capacity=st.integers(1, 60),
    after=st.integers(0, 3),
    begin=st.integers(0, 50),
)
def test_merged_files_have_each_line_before_the_ring_once_and_by_time(
    chunks: list[tuple[int, int, int]], capacity: int, after: int, begin: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, book = tmp_path_factory.mktemp("logs"), LogBuffers(capacity)
    written = {rank: b"" for rank in range(3)}
    marks = dict(written)
    times: dict[str, float] = {}
    for at, (rank, count, late) in enumerate([*chunks, *[(0, 1, 0)] * after]):
        texts = [f"{at}.{number}" for number in range(count)]
        data = "".join(f"{text}\n" for text in texts).encode()
        if at < len(chunks):  # the ring is read before the files
            book.feed(rank, "out", data, 1e9 + at + late, "p-1")
        written[rank] += data
        marks[rank] += encode_mark("-", 1e9 + at + late, len(written[rank]), 0, "p-1")
        times |= dict.fromkeys([f"r{rank:03d}| {text}" for text in texts], 1e9 + at + late)
    for rank, data in written.items():
        (folder / f"r{rank:03d}.out").write_bytes(data)
        (folder / f"r{rank:03d}{MARKS}").write_bytes(marks[rank])
    parts = {rank: [LogRange(f"r{rank:03d}", (0, 0), (len(data), 0))] for rank, data in written.items()}
    logs: Any = SimpleNamespace(folder=folder, ranges=parts)
    ring = book.for_run("p-1").merged
    buffered = ring.lines(ring.first, ring.end)
    log = MergedLines(ring, lambda: logs, whole=True)
    lines = log.read(0, log.count)
    assert [line.number for line in lines] == list(range(log.count))
    assert log.read(begin, begin + 5) == lines[begin : begin + 5]
    own = [line for line in lines if line.text.startswith("r001| ")]
    assert log.read(0, log.count, lambda text: "\nr001| " in f"\n{text}") == own
    assert log.find_ring_offset(0, []) + ring.first == log.count
    texts = [line.text for line in lines]
    for rank in range(3):
        shown = [text for text in [*texts, *buffered] if text.startswith(rank_prefix(rank))]
        everything = [f"{rank_prefix(rank)}{text}" for text in written[rank].decode().splitlines()]
        # Lines that were printed after the ring was read are still to come into it.
        is_in_ring = any(text.startswith(rank_prefix(rank)) for text in buffered)
        assert shown == everything[: len(everything) - after * (rank == 0 and is_in_ring)]
    latest: dict[str, float] = {}
    for text in texts:
        latest[text[:6]] = max(latest.get(text[:6], 0.0), times[text])
        assert latest[text[:6]] == max(latest.values())


# Collapsed lines: equal lines of several ranks become one row.


def rows_of(ring: CollapsedRing) -> list[str]:
    return ring.lines(0, ring.end)


def mask(*ranks: int) -> int:
    return sum(1 << rank for rank in ranks)


SAID = st.lists(
    st.tuples(
        st.integers(0, 4), st.sampled_from("abc"), st.sampled_from(["out", "err"]),
        st.none() | st.floats(0, 3 * JOIN_SECONDS),
    ),
    max_size=60,
)  # fmt: skip


@given(SAID)
def test_collapsed_rows_keep_order_of_lines_of_each_rank(lines: list[tuple[int, str, str, float | None]]) -> None:
    fold = LineFolder()
    for rank, text, stream, at in lines:
        fold.add(rank, text, LineInfo(stream, at))
    rows = list(fold.read(0, fold.end))
    for rank in range(5):
        printed = [(text, stream) for who, text, stream, _ in lines if who == rank]
        assert [(row.text, row.about.stream) for row in rows if row.ranks >> rank & 1] == printed


@given(SAID, st.integers(1, 8))
def test_collapsed_rows_held_and_released_are_bounded(
    lines: list[tuple[int, str, str, float | None]], capacity: int
) -> None:
    fold, let_go = LineFolder(capacity), list[FoldedLine]()
    for rank, text, stream, at in lines:
        fold.add(rank, text, LineInfo(stream, at))
        assert fold.end - fold.first <= capacity
        assert len(fold._rows) == sum(map(len, fold._equal.values())) <= capacity
        if at is not None:
            let_go += fold.release_settled(at)
    held = list(fold.release_all())
    assert not fold._rows and not fold._equal
    assert [row.number for row in held] == list(range(fold.end - len(held), fold.end))


def test_equal_lines_of_all_ranks_collapse_and_repeats_do_not(book: LogBuffers) -> None:
    ring = CollapsedRing(book.merged)
    for rank in range(4):
        book.feed(rank, "out", b"epoch done\nloss is fine\nepoch done\n", at=100.0)
    ring.update(4)
    assert rows_of(ring) == ["x4| epoch done", "x4| loss is fine", "x4| epoch done"]


def test_collapsed_row_names_missing_ranks_and_is_updated(book: LogBuffers) -> None:
    ring = CollapsedRing(book.merged)
    for rank in (0, 1, 2, 4, 5):
        book.feed(rank, "out", b"ready\n", at=100.0)
    book.feed(3, "out", b"out of memory\n", at=101.0)
    ring.update(6, 0.0)
    assert rows_of(ring) == ["x5, not r3| ready", "r3| out of memory"]
    before = ring.version
    ring.update(6, 1.0)
    assert ring.version == before
    book.feed(3, "out", b"ready\n", at=102.0)
    ring.update(6, 1.1)
    assert ring.end == 2, "it waits for others"
    ring.update(6, 1.1 + HOLD_SECONDS)
    assert rows_of(ring) == ["x5, not r3| ready", "r3| out of memory", "r3| ready"]
    ring.update(5)
    assert ring.version > before


def test_equal_lines_at_distant_times_or_streams_do_not_collapse() -> None:
    fold = LineFolder()
    fold.add(0, "alive", LineInfo("out", 100.0))
    fold.add(1, "alive", LineInfo("out", 100.0 + JOIN_SECONDS))
    fold.add(2, "alive", LineInfo("out", 101.0 + JOIN_SECONDS))
    fold.add(3, "alive", LineInfo("err", 100.0))
    assert [list_ranks(row.ranks) for row in fold.read(0, 9)] == [[0, 1], [2], [3]]


def test_collapsed_log_reports_lines_dropped_before_reading() -> None:
    book = LogBuffers(capacity=4)
    ring = CollapsedRing(book.merged)
    book.feed(0, "out", b"1\n2\n")
    ring.update(2, 0.0)
    book.feed(0, "out", b"3\n4\n5\n6\n7\n8\n")
    book.feed(1, "out", b"6\n")
    ring.update(2, 1.0)
    ring.update(2, 1.0 + HOLD_SECONDS)
    assert ring.end == 6
    assert rows_of(ring) == ["⋯ 3 earlier lines are not in memory", "x2| 6", "r0| 7", "r0| 8"]


@pytest.mark.parametrize(
    "ranks, world, expected",
    [
        (range(32), 32, "x32"),
        ([0], 1, "r0"),
        ([5, 17], 32, "r5 r17"),
        (range(8), 16, "r0-r7"),
        (set(range(32)) - {5, 17}, 32, "x30, not r5 r17"),
        (range(0, 32, 2), 32, "x16: r0 r2 r4 r6 …"),
        ({0, 1, 2, 3, 4, 6, 7}, 32, "r0-r4 r6 r7"),
    ],
)
def test_rank_set_of_a_collapsed_row_is_formatted(ranks: list[int], world: int, expected: str) -> None:
    assert format_ranks(mask(*ranks), world) == expected


# ``logs --collapse``: rows go out as soon as no rank can join them.


def piece(rank: int, data: bytes, at: float, stream: str = "out") -> OutputChunk:
    return OutputChunk(rank, f"r{rank:03d}.{stream}", stream, data, at)


def test_collapsed_printer_prints_rows_once_they_are_settled(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    out = CollapsedPrinter(Console(), 3)
    for rank in range(3):
        out.feed(piece(rank, b"epoch done\nsav", 100.0))
    assert capfdbinary.readouterr() == (b"", b"")
    out.feed(piece(0, b"ed\n", 101.0 + 2 * JOIN_SECONDS))
    assert capfdbinary.readouterr() == (b"x3| epoch done\n", b"")
    out.feed(piece(1, b"ed", 101.0 + 2 * JOIN_SECONDS))
    out.feed(piece(2, b"oh\n", 101.0 + 2 * JOIN_SECONDS, "err"))
    out.finish("r1")
    assert capfdbinary.readouterr() == (b"x2, not r2| saved\nr2| sav\n", b"r2| oh\n")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a 9", "a 10"], "a 9…10"),
        (["a 10", "a -9.5", "a 1e2"], "a -9.5…1e2"),
        (["at 0x9 and 12:00:09", "at 0x10 and 11:59:59"], "at 0x9…0x10 and 11:59:59…12:00:09"),
        (["lr 1e-05", "lr 0.00001"], "lr 1e-05"),
        (["3/8 done", "4/8 done"], "3…4/8 done"),
        (["no numbers", "no numbers"], "no numbers"),
    ],
)
def test_row_of_similar_lines_shows_the_span_of_each_value(texts: list[str], expected: str) -> None:
    fold = LineFolder(similar=True)
    for rank, text in enumerate(texts):
        row = fold.add(rank, text, LineInfo("out", 1.0))
    assert fold.end == 1 and row.span_text == expected and row.ranks.bit_count() == len(texts)


def test_stamped_lines_of_8_ranks_collapse_to_one_row_per_step() -> None:
    fold = LineFolder(similar=True)
    for step in range(21):
        for rank in range(8):
            stamp = f"2026-12-01 14:0{step % 6}:{step:02}.{rank}{step:02} [pid {15700 + rank}] [rank {rank}]"
            text = f"{stamp} INFO step {step} loss {1 / (1 + rank + step):.4f}"
            if (rank, step) == (5, 11):
                text = f"{stamp} WARNING gradient overflow, step skipped"
            fold.add(rank, text, LineInfo("out", 100.0 + step))
    rows = [(row.ranks.bit_count(), row.span_text) for row in fold.release_all()]
    assert sum(ranks for ranks, _ in rows) == 168 and len(rows) == 22
    assert [ranks for ranks, text in rows if "WARNING" in text] == [1] and sorted(rows)[1][0] == 7
    first = (
        "2026-12-01 14:00:00.000…2026-12-01 14:00:00.700 [pid 15700…15707] [rank 0…7] INFO step 0 loss 0.1250…1.0000"
    )
    assert rows[0] == (8, first)


@given(st.lists(st.text(st.sampled_from("a1.:-eE0x \x1b[m;"), max_size=12), min_size=1, max_size=6))
def test_collapsing_similar_lines_loses_no_rank(texts: list[str]) -> None:
    fold = LineFolder(similar=True)
    for rank, text in enumerate(texts):
        fold.add(rank, text, LineInfo("out", 1.0))
    rows = list(fold.release_all())
    assert sorted(rank for row in rows for rank in list_ranks(row.ranks)) == list(range(len(texts)))
    assert all(line_template(texts[rank]) == line_template(row.text) for row in rows for rank in list_ranks(row.ranks))
    assert all(row.span_text == row.text for row in rows if row.ranks.bit_count() == 1)


def test_live_lines_take_half_of_a_terminal_and_are_drawn_only_if_changed() -> None:
    live = LiveLines(lambda: os.terminal_size((12, 6)))
    lines = ["a line too long for it", "b", "c", "d"]
    assert live.render(lines).splitlines()[:3] == ["a line too…", "b", "… and 2 mo…"]
    assert live.render(lines) == "" and live.render_erase() and live.render_erase() == ""


# Lines of many ranks side by side: none lost, each rank's order kept, what they have in common at one time.

HELD = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abcd"), st.floats(0, 3)), max_size=80)


@given(HELD)
def test_held_lines_lose_nothing_and_keep_order_per_rank(lines: list[tuple[int, str, float]]) -> None:
    held, out, at = HeldLines(), list[tuple[int, str]](), 0.0
    for rank, text, pause in lines:
        at += pause
        held.put(rank, text, LineInfo("out"), at)
        out += [(line.rank, line.text) for line in held.release_until(at - HOLD_SECONDS)]
        assert all(queue[0].at > at - HOLD_SECONDS for queue in held._queues.values() if queue)
    out += [(line.rank, line.text) for line in held.release_all()]
    assert len(held) == 0 and not held._places and not held._first
    for rank in range(5):
        assert [text for who, text in out if who == rank] == [text for who, text, _ in lines if who == rank]


@given(st.lists(st.lists(st.sampled_from("xyz"), max_size=3), min_size=2, max_size=5), st.integers(1, 6))
def test_common_lines_collapse_across_other_lines_of_ranks(own: list[list[str]], common: int) -> None:
    held, fold = HeldLines(), LineFolder()
    for rank, words in enumerate(own):
        for number in range(common):
            for word in words:
                held.put(rank, f"{word} of {rank}", LineInfo("out", 100.0), 0.0)
            held.put(rank, f"step {number}", LineInfo("out", 100.0), 0.0)
    for line in held.release_all():
        fold.add(line.rank, line.text, line.about)
    rows = [row for row in fold.read(0, fold.end) if row.text.startswith("step")]
    assert [(row.text, row.ranks.bit_count()) for row in rows] == [
        (f"step {number}", len(own)) for number in range(common)
    ]


def test_held_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_collapsing, "MAX_HELD_LINES", 10)
    held = HeldLines()
    for number in range(100):
        held.put(0, str(number), LineInfo("out"), 1.0)
        list(held.release_until(0.0))
        assert len(held) <= 10
    monkeypatch.setattr(log_collapsing, "MAX_HELD_CHARS", 5)
    held.put(0, "12", LineInfo("out"), 1.0)
    list(held.release_until(0.0))
    assert sum(len(line.text) for queue in held._queues.values() for line in queue) <= 5
