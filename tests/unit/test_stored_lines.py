"""Lines of a log by number, out of its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.store import run_logs
from skyward_core.store.run_logs import LogRange, StoredLines, ring_tail
from skyward_core.views import stdout_stderr_order
from skyward_core.views.log_buffer import LogRing
from tests.support.examples import examples


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
