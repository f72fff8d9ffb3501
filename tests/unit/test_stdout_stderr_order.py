"""Merging of stdout and stderr by order marks."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome
from skyward_core.protocol.stdout_stderr_order_marks import (
    AFTER,
    BEFORE,
    MARK_BYTES,
    decode_marks,
    encode_mark,
    shift_marks,
)
from skyward_core.store.ledger import Ledger
from skyward_core.store.run_log_reader import RunLogs
from skyward_core.store.state_folder import ensure_pool_folder
from skyward_core.views.stdout_stderr_order import STREAMS, Piece, StreamMerger, find_tail_start, merge_streams
from tests.support.examples import examples
from tests.support.ledger_runs import record_runs
from tests.support.ledgers import LOCAL, SPEC

WRITES = st.lists(st.tuples(st.sampled_from(STREAMS), st.binary(min_size=1, max_size=9)), max_size=40)


class Spool:
    """Output files of a worker and marks at every change of the stream, as worker and agent write them."""

    def __init__(self, writes: list[tuple[str, bytes]], seen: list[bool]) -> None:
        self.files = {"out": b"", "err": b""}
        self.marks = b""
        self.order: list[tuple[str, int]] = []
        last = ""
        for number, (stream, data) in enumerate(writes):
            if stream != last:
                self._mark(BEFORE, number)
            last = stream
            start = len(self.files[stream])
            self.files[stream] += data
            self.order += [(stream, start + i) for i in range(len(data))]
            if number < len(seen) and seen[number]:
                self._mark(AFTER, number)
        self._mark(AFTER, len(writes))

    @property
    def end(self) -> tuple[int, int]:
        return len(self.files["out"]), len(self.files["err"])

    def _mark(self, kind: str, number: int) -> None:
        self.marks += encode_mark(kind, 1000 + number / 100, *self.end, f"run{number}")

    def store(self, folder: Path) -> None:
        for name, data in (*self.files.items(), ("marks", self.marks)):
            (folder / f"r000.{name}").write_bytes(data)

    def check(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            at = piece.offset
            assert piece.data == self.files[piece.stream][at : at + len(piece.data)]


def bytes_of(pieces: list[Piece]) -> list[tuple[str, int]]:
    return [(p.stream, p.offset + i) for p in pieces for i in range(len(p.data))]


@given(WRITES, st.lists(st.booleans(), max_size=40), st.lists(st.integers(1, 30), min_size=1, max_size=60))
@settings(max_examples=examples(150))
def test_merged_streams_have_the_order_of_writing(
    writes: list[tuple[str, bytes]], seen: list[bool], sizes: list[int]
) -> None:
    spool, weaver, got = Spool(writes, seen), StreamMerger(), []
    at = {"out": 0, "err": 0, "marks": 0}
    for number in range(3 * (len(spool.marks) + sum(spool.end))):
        name = (*STREAMS, "marks")[number % 3]
        size = sizes[number % len(sizes)] * (MARK_BYTES if name == "marks" else 1)
        data = (spool.marks if name == "marks" else spool.files[name])[at[name] : at[name] + size]
        if name == "marks":
            weaver.add_marks(data)
        else:
            weaver.add_bytes(name, at[name], data)
        at[name] += len(data)
        got += list(weaver.pop_ready())
    spool.check(got)
    assert bytes_of(got) == spool.order
    assert not weaver.has_held_bytes
    assert weaver.place == spool.end


@given(WRITES, st.lists(st.booleans(), max_size=40), st.data())
@settings(max_examples=examples(100))
def test_merged_streams_can_be_read_between_any_positions(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, bytes]], seen: list[bool], data: st.DataObject
) -> None:
    spool, folder = Spool(writes, seen), tmp_path_factory.mktemp("logs")
    spool.store(folder)
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(spool.order))] * 2)))

    def place(n: int) -> tuple[int, int]:
        out, err = (sum(s == stream for s, _ in spool.order[:n]) for stream in STREAMS)
        return out, err

    pieces = list(merge_streams(folder, "r000", place(low), place(high)))
    spool.check(pieces)
    assert bytes_of(pieces) == spool.order[low:high]
    start = find_tail_start(folder, "r000", spool.end, 20)
    assert sum(spool.end) - sum(start) <= 40
    tail = list(merge_streams(folder, "r000", start, spool.end))
    assert sorted(bytes_of(tail)) == sorted(
        (stream, at) for stream, at in spool.order if at >= start[STREAMS.index(stream)]
    )


@given(WRITES, st.lists(st.one_of(st.binary(max_size=80), st.tuples(*[st.integers(0, 10**14)] * 3)), max_size=12))
@settings(max_examples=examples(100))
def test_merged_streams_contain_every_byte_once_for_any_marks(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, bytes]], noise: list[bytes | tuple[int, int, int]]
) -> None:
    spool, folder = Spool(writes, []), tmp_path_factory.mktemp("logs")
    for each in noise:
        line = each if isinstance(each, bytes) else encode_mark(BEFORE, each[0] / 1000, each[1], each[2], "x")
        spool.marks = line + spool.marks if len(line) % 2 else spool.marks + line
    spool.store(folder)
    pieces = list(merge_streams(folder, "r000", (0, 0), spool.end))
    spool.check(pieces)
    assert sorted(bytes_of(pieces)) == sorted(spool.order)


def test_truncated_mark_spoils_no_other(tmp_path: Path) -> None:
    lines = (
        encode_mark(BEFORE, 1, 0, 0, "a")
        + encode_mark(BEFORE, 2, 3, 0, "a")[:20]
        + b"\n"
        + encode_mark(AFTER, 3, 3, 4, "b")
    )
    assert [mark.at for mark in decode_marks(lines)] == [1, 3]
    (tmp_path / "r000.marks").write_bytes(lines)
    (tmp_path / "r000.out").write_bytes(b"abc")
    (tmp_path / "r000.err").write_bytes(b"defg")
    assert find_tail_start(tmp_path, "r000", (3, 4), 0) == (3, 4)
    assert [p[:3] for p in merge_streams(tmp_path, "r000", (0, 0), (3, 4))] == [("out", 0, b"abc"), ("err", 0, b"defg")]


def test_merged_pieces_have_time_and_run_of_their_marks() -> None:
    weaver = StreamMerger()
    for mark in (
        (BEFORE, 10.0, 0, 0, "one"),  # the worker prints "ab"
        (AFTER, 10.5, 2, 0, "one"),
        (AFTER, 12.0, 4, 0, "one"),  # a child has printed "cd"
        (BEFORE, 13.0, 4, 0, "two"),
    ):
        weaver.add_marks(encode_mark(*mark))
    weaver.add_bytes("out", 0, b"abcdef")
    reported = [(p.data, p.at, p.run) for p in [*weaver.pop_ready(), *weaver.pop_all()]]
    assert reported == [(b"ab", 10.0, "one"), (b"cd", 12.0, "one"), (b"ef", 13.0, "two")]


def test_marks_have_fixed_width_and_can_be_shifted() -> None:
    values = (AFTER, 1763784000.123, 10**14, 7, "0123456789")
    line = encode_mark(*values)
    assert len(line) == MARK_BYTES
    assert [(mark.kind, mark.at, mark.out, mark.err, mark.run) for mark in decode_marks(line)] == [values]
    two = line + encode_mark(BEFORE, 0.5, 1, 2, "")
    moved = shift_marks(two, 100, 1000)
    assert len(moved) == len(two)
    assert [(m.out, m.err) for m in decode_marks(moved)] == [(10**14 + 100, 1007), (101, 1002)]
    assert shift_marks(b"no mark\n" + two[:9], 1, 1) == b"no mark\n" + two[:9]


def test_bytes_without_marks_come_last_with_stdout_first() -> None:
    weaver = StreamMerger()
    weaver.add_bytes("err", 0, b"e")
    weaver.add_bytes("out", 0, b"o")
    assert list(weaver.pop_ready()) == []
    assert weaver.has_held_bytes
    assert [k for k, _ in groupby(weaver.pop_all(), lambda piece: (piece.stream, piece.at))] == [
        ("out", None),
        ("err", None),
    ]


def test_marks_of_truncated_output_do_not_apply_to_later_output() -> None:
    weaver = StreamMerger()
    for mark in (
        (BEFORE, 1.0, 0, 0, "one"),
        (BEFORE, 1.1, 5000, 0, "one"),  # beyond what one run may print
        (AFTER, 1.2, 100, 0, "one"),
        (BEFORE, 1.3, 100, 0, "two"),
        (AFTER, 1.2, 90, 0, "one"),  # overtaken
    ):
        weaver.add_marks(encode_mark(*mark))
    weaver.add_bytes("out", 0, b"x" * 200)
    reported = [(len(p.data), p.run) for p in [*weaver.pop_ready(), *weaver.pop_all()]]
    assert reported == [(100, "one"), (100, "two")]


def test_merge_keeps_no_file_open_between_reads(tmp_path: Path) -> None:
    spool = Spool([("out", b"one\n"), ("err", b"two\n")] * 5, [])
    spool.store(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    many = [merge_streams(tmp_path, "r000", (0, 0), spool.end, 7) for _ in range(50)]
    firsts = [next(pieces) for pieces in many]
    assert len(list(Path("/proc/self/fd").iterdir())) == before, "256 ranks have three files each"
    for first, pieces in zip(firsts, many, strict=True):
        spool.check([first, *pieces])


# What of a lost rank's log is a run's, where only marks tell.

RUN, OTHER = "1661b65609", "2661b65609"
LOG = b"setup\nmine\nmine too\nothers\n"
AT = {name: LOG.index(name.encode()) for name in ("mine", "others")}


@pytest.mark.parametrize(
    ("marks", "found"),
    [
        ([(BEFORE, 0, ""), (BEFORE, AT["mine"], RUN)], b"mine\nmine too\nothers\n"),  # and then its node was lost
        ([(BEFORE, AT["mine"], RUN), (BEFORE, AT["others"], OTHER)], b"mine\nmine too\n"),
        ([(AFTER, AT["mine"], ""), (AFTER, AT["others"], RUN), (AFTER, len(LOG), OTHER)], b"mine\nmine too\n"),
        ([(AFTER, AT["mine"], ""), (AFTER, AT["others"], RUN)], b"mine\nmine too\nothers\n"),
        ([(BEFORE, AT["mine"], OTHER)], b""),
        ([], b""),
    ],
)  # fmt: skip
def test_marks_delimit_the_log_of_a_run_without_recorded_ranges(
    marks: list[tuple[str, int, str]], found: bytes, ledger: Ledger
) -> None:
    row = ledger.record_intent("t", "pool", LOCAL, SPEC)
    lost = Outcome(0, 0, 0, "lost", error=ErrorInfo("NodeLost", "gone"))
    record_runs(
        ledger,
        opened=[("t", RUN, "f", "broadcast", 1, 1.0)],
        outcomes=[(RUN, lost, {})],
        ends=[(RUN, "failed", 2.0, None)],
    )
    folder = ensure_pool_folder(row.key) / "logs"
    folder.mkdir(parents=True)
    (folder / "r000.out").write_bytes(LOG)
    (folder / "r000.marks").write_bytes(b"".join(encode_mark(kind, 1.0, at, 0, run) for kind, at, run in marks))
    assert b"".join(piece.data for piece in RunLogs(ledger, RUN).pieces(0)) == found
