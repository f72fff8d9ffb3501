"""Lines of many ranks side by side: none lost, each rank's order kept, what they have in common at one time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.views import log_collapsing
from skyward_core.views.log_buffer import LineInfo, LogBuffers
from skyward_core.views.log_collapsing import HOLD_SECONDS, CollapsedRing, HeldLines, LineFolder

SAID = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abcd"), st.floats(0, 3)), max_size=80)


@given(SAID)
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
