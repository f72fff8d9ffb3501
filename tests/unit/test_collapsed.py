"""Equal lines of many ranks become one row, with who said it; each rank's lines stay, in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.client.run_history import OutputChunk
from skyward_core.views import log_collapsing
from skyward_core.views.log_buffer import LineInfo, LogBuffers
from skyward_core.views.log_collapsing import (
    HOLD_SECONDS,
    JOIN_SECONDS,
    CollapsedRing,
    FoldedLine,
    HeldLines,
    LineFolder,
    format_ranks,
    list_ranks,
)
from skyward_tui.cli.commands.ls_logs_results_files import CollapsedPrinter
from skyward_tui.cli.console import Console
from skyward_tui.panels.log_pane import LogViewport, Matcher


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
def test_the_rows_of_a_rank_are_its_lines_in_its_order(
    said: list[tuple[int, str, str, float | None]],
) -> None:
    fold = LineFolder()
    for rank, text, stream, at in said:
        fold.add(rank, text, LineInfo(stream, at))
    rows = list(fold.read(0, fold.end))
    for rank in range(5):
        printed = [(text, stream) for who, text, stream, _ in said if who == rank]
        assert [(row.text, row.about.stream) for row in rows if row.ranks >> rank & 1] == printed


@given(SAID, st.integers(1, 8))
def test_what_is_held_and_what_was_let_go_are_bounded_and_whole(
    said: list[tuple[int, str, str, float | None]], capacity: int
) -> None:
    fold, let_go = LineFolder(capacity), list[FoldedLine]()
    for rank, text, stream, at in said:
        fold.add(rank, text, LineInfo(stream, at))
        assert fold.end - fold.first <= capacity
        assert len(fold._rows) == sum(map(len, fold._equal.values())) <= capacity
        if at is not None:
            let_go += fold.release_settled(at)
    held = list(fold.release_all())
    assert not fold._rows and not fold._equal
    assert [row.number for row in held] == list(range(fold.end - len(held), fold.end))


def test_what_all_say_is_one_row_and_what_is_said_twice_is_two() -> None:
    book = LogBuffers()
    ring = CollapsedRing(book.merged)
    for rank in range(4):
        book.feed(rank, "out", b"epoch done\nloss is fine\nepoch done\n", at=100.0)
    ring.update(4)
    assert rows_of(ring) == ["x4| epoch done", "x4| loss is fine", "x4| epoch done"]


def test_who_deviates_is_named_and_a_label_grows() -> None:
    book = LogBuffers()
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


def test_a_search_finds_who_said_a_row_as_that_grows() -> None:
    book = LogBuffers()
    ring = CollapsedRing(book.merged)
    window = LogViewport(ring)
    now, found = 0.0, list[list[int]]()
    window.set_search(Matcher.parse("x[23]|r1"))
    for rank in range(4):
        book.feed(rank, "out", b"ready\n", at=100.0)
        book.feed(0, "out", f"own {rank}\n".encode(), at=100.0)
        for _ in range(2):
            ring.update(4, now)
            window.update()
            now += HOLD_SECONDS
        assert window.search is not None
        found.append(list(window.search.numbers))
    assert rows_of(ring) == ["x4| ready", *(f"r0| own {rank}" for rank in range(4))]
    assert found == [[], [0], [0], []], "it was r0 r1, then x3, then x4"
    assert (ring.changed_since(ring.version), ring.changed_since(-100)) == (ring.end, ring.first)


def test_the_same_at_another_time_or_on_the_other_stream_is_another_row() -> None:
    fold = LineFolder()
    fold.add(0, "alive", LineInfo("out", 100.0))
    fold.add(1, "alive", LineInfo("out", 100.0 + JOIN_SECONDS))
    fold.add(2, "alive", LineInfo("out", 101.0 + JOIN_SECONDS))
    fold.add(3, "alive", LineInfo("err", 100.0))
    assert [list_ranks(row.ranks) for row in fold.read(0, 9)] == [[0, 1], [2], [3]]


def test_lines_that_had_gone_before_they_were_looked_at_are_told() -> None:
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
    "ranks, world, said",
    [
        (range(32), 32, "x32"),
        ([0], 1, "r0"),
        ([5], 32, "r5"),
        ([5, 17], 32, "r5 r17"),
        (range(8), 32, "r0-r7"),
        (range(8), 16, "r0-r7"),
        (set(range(32)) - {5, 17}, 32, "x30, not r5 r17"),
        (set(range(32)) - {8, 9, 10}, 32, "x29, not r8-r10"),
        (range(0, 32, 2), 32, "x16: r0 r2 r4 r6 …"),
        ({0, 1, 2, 3, 4, 6, 7}, 32, "r0-r4 r6 r7"),
        ([40], 32, "r40"),
    ],
)
def test_who_said_it(ranks: list[int], world: int, said: str) -> None:
    assert format_ranks(mask(*ranks), world) == said


# ``logs --collapse``: rows go out as soon as no rank can join them.


def piece(rank: int, data: bytes, at: float, stream: str = "out") -> OutputChunk:
    return OutputChunk(rank, f"r{rank:03d}.{stream}", stream, data, at)


def test_rows_go_out_once_they_are_settled(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
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


def test_ranks_whose_clocks_differ_fold_though_they_say_something_of_their_own(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    out = CollapsedPrinter(Console(), 2)
    for step in range(3):
        for rank in range(2):
            out.feed(piece(rank, b"own %d.%d\nstep %d\n" % (rank, step, step), 100.0 + step + 4 * rank))
    out.finish("r1")
    rows = capfdbinary.readouterr().out.splitlines()
    assert [row for row in rows if b"step" in row] == [b"x2| step 0", b"x2| step 1", b"x2| step 2"]
    assert len(rows) == 9


# Lines of many ranks side by side: none lost, each rank's order kept, what they have in common at one time.

HELD = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abcd"), st.floats(0, 3)), max_size=80)


@given(HELD)
def test_no_line_is_lost_and_each_rank_keeps_its_order(said: list[tuple[int, str, float]]) -> None:
    held, out, at = HeldLines(), list[tuple[int, str]](), 0.0
    for rank, text, pause in said:
        at += pause
        held.put(rank, text, LineInfo("out"), at)
        out += [(line.rank, line.text) for line in held.release_until(at - HOLD_SECONDS)]
        assert all(queue[0].at > at - HOLD_SECONDS for queue in held._queues.values() if queue)
    out += [(line.rank, line.text) for line in held.release_all()]
    assert len(held) == 0 and not held._places and not held._first
    for rank in range(5):
        assert [text for who, text in out if who == rank] == [text for who, text, _ in said if who == rank]


@given(st.lists(st.lists(st.sampled_from("xyz"), max_size=3), min_size=2, max_size=5), st.integers(1, 6))
def test_common_lines_fold_whatever_ranks_say_between_them(own: list[list[str]], common: int) -> None:
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


def test_64_ranks_that_alternate_are_as_many_rows_as_they_say_different_things() -> None:
    book = LogBuffers(20_000)
    ring = CollapsedRing(book.merged)
    ring.update(64, 0.0)
    for rank in range(64):
        text = "".join(f"own {rank}.{number}\nstep {number}\n" for number in range(100))
        book.feed(rank, "out", text.encode(), at=100.0)
        ring.update(64, rank / 100)
    assert ring.end == 0
    ring.update(64, 1 + HOLD_SECONDS)
    assert ring.end == 64 * 100 + 100
    assert sum(line.startswith("x64| step") for line in ring.lines(0, ring.end)) == 100


def test_what_ranks_say_crosswise_waits_for_ever_for_nothing() -> None:
    held = HeldLines()
    for rank, texts in enumerate(["ab", "ba"]):
        for text in texts:
            held.put(rank, text, LineInfo("out"), 1.0)
    assert list(held.release_until(0.9)) == []
    assert len(list(held.release_until(1.0))) == 4


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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
