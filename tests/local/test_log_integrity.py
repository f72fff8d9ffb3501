"""Invariant 10 on one machine: every byte, once, in order; proven by hashes."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from skyward_core.transport.background_loop import submit
from skyward_core.views.events import NodeLink
from tests.support.faults import on_loop
from tests.support.pool_logs import last_run, log_of, settled
from tests.support.processes import read_log
from tests.support.waiting import wait_until


@pytest.mark.proof("1 s of a processor")
def test_a_flood_of_all_ranks_arrives_complete(pool: sky.Compute) -> None:
    def flood(lines: int) -> str:
        rank = sky.instance_info().rank
        digest = hashlib.sha256()
        for i in range(lines):
            line = f"{rank} {i} {'x' * (i % 97)}"
            digest.update(line.encode() + b"\n")
            print(line)
        return digest.hexdigest()

    digests = sky.function(flood)(20_000) @ pool
    settled(pool)
    run = last_run(pool)
    for rank, digest in enumerate(digests):
        assert hashlib.sha256(log_of(pool, run, rank)).hexdigest() == digest
    assert pool.pool.view.logs.rank(0).end >= 20_000


def test_runs_do_not_see_each_others_lines(pool: sky.Compute) -> None:
    def say(word: str) -> None:
        print(word, sky.instance_info().rank)
        print("error", word, file=sys.stderr)

    say_it = sky.function(say)
    say_it("one") @ pool
    first = last_run(pool)
    say_it("two") @ pool
    second = last_run(pool)
    settled(pool)
    assert log_of(pool, first, 2) == b"one 2\n"
    assert log_of(pool, second, 2) == b"two 2\n"
    assert log_of(pool, second, 2, "err") == b"error two\n"


def test_binary_output_and_unfinished_lines_are_kept_as_they_are(pool: sky.Compute) -> None:
    def spew() -> None:
        os.write(1, bytes(range(256)) * 10)
        print("no newline at the end", end="")

    sky.function(spew)() >> pool
    run = last_run(pool)
    settled(pool)
    (rank,) = pool.pool.view.runs[run].tasks
    outcome = pool.pool.view.runs[run].tasks[rank].outcome
    assert outcome is not None
    assert log_of(pool, run, outcome.rank) == bytes(range(256)) * 10 + b"no newline at the end"


def test_a_line_of_50_megabytes_is_kept_whole_and_shown_short(pool: sky.Compute) -> None:
    def long_line() -> None:
        print("y" * 50_000_000)

    sky.function(long_line)() >> pool
    run = last_run(pool)
    settled(pool)
    outcome = pool.pool.view.runs[run].tasks[0].outcome
    assert outcome is not None
    assert len(log_of(pool, run, outcome.rank)) == 50_000_001
    ring = pool.pool.view.logs.rank(outcome.rank)
    shown = ring.lines(ring.end - 1, ring.end)[0]
    assert len(shown) < 70_000
    assert "more bytes in the log file" in shown


def test_output_of_native_code_and_of_children_is_kept(pool: sky.Compute) -> None:
    def children() -> None:
        import subprocess

        subprocess.run(["sh", "-c", "echo from a child; echo to stderr >&2"], check=True)

    sky.function(children)() @ pool
    run = last_run(pool)
    settled(pool)
    assert log_of(pool, run, 3) == b"from a child\n"
    assert log_of(pool, run, 3, "err") == b"to stderr\n"


def test_a_crash_leaves_its_last_lines_and_a_stack(pool: sky.Compute) -> None:
    def crash() -> None:
        import ctypes

        print("last words")
        ctypes.string_at(0)

    with pytest.raises(sky.RunError):
        sky.function(crash)() >> pool
    run = last_run(pool)
    settled(pool)
    outcome = pool.pool.view.runs[run].tasks[0].outcome
    assert outcome is not None
    assert log_of(pool, run, outcome.rank) == b"last words\n"
    assert b"Segmentation fault" in log_of(pool, run, outcome.rank, "err")


def test_nothing_is_lost_when_the_pool_goes_down_behind_a_flood(home: Path) -> None:
    def flood() -> str:
        digest = hashlib.sha256()
        for i in range(100_000):
            line = f"{i} {'z' * 60}"
            digest.update(line.encode() + b"\n")
            print(line)
        return digest.hexdigest()

    with sky.Compute(nodes=2, options=sky.Options(console=False)) as compute:
        digests = sky.function(flood)() @ compute
        run = last_run(compute)
    assert compute.receipt is not None
    assert compute.receipt.notes == ()
    for rank, digest in enumerate(digests):
        assert hashlib.sha256(read_log(Ledger(), run, rank)).hexdigest() == digest


@pytest.mark.parametrize("caught", ["capsys", "capfd"])
def test_a_script_sees_its_ranks_lines_with_their_rank(home: Path, caught: str, request: pytest.FixtureRequest) -> None:
    def say() -> None:
        print("hello")
        print("oh", file=sys.stderr)

    catches: pytest.CaptureFixture[str] = request.getfixturevalue(caught)
    with sky.Compute(nodes=2) as compute:
        sky.function(say)() @ compute
        said = catches.readouterr()
    assert sorted(said.out.splitlines()) == ["r000| hello", "r001| hello"]
    assert sorted(said.err.splitlines()) == ["r000| oh", "r001| oh"]


# A run that prints without end fills no disk: its log ends with a word about that, and the next run's is whole.


LIMIT = 200_000


def test_what_is_printed_beyond_the_limit_is_dropped_with_a_word_and_no_other_run_sees_it(home: Path) -> None:
    def prints(lines: int, word: str) -> None:
        for number in range(lines):
            print(f"{word} {number:010d}", flush=number % 100 == 0)

    told: list[str] = []
    options = sky.Options(console=False, log_limit=LIMIT)
    with sky.Compute(nodes=1, options=options) as compute:
        pool = compute.pool
        pool.news.subscribe(lambda event: told.append(event.detail) if isinstance(event, NodeLink) else None, None)
        for lines, word in ((10, "before"), (60_000, "flood"), (10, "after"), (60_000, "again")):
            sky.function(prints)(lines, word) >> compute
        on_loop(pool.context.background.run_deferred)
        runs = list(pool.view.runs)
        for run in runs:
            submit(pool.news.wait_logs_complete(run)).result(60)
        on_loop(pool.news.records.flush)
        wait_until(lambda: len(told) >= 2, what="the news that something is dropped")
        ledger = pool.ledger
        before, flood, after, again = (read_log(ledger, run, 0).decode() for run in runs)
    assert before == "".join(f"before {number:010d}\n" for number in range(10))
    assert after == "".join(f"after {number:010d}\n" for number in range(10))
    for word, text in (("flood", flood), ("again", again)):
        kept, said = text[:LIMIT], text[LIMIT:]
        whole = "".join(f"{word} {number:010d}\n" for number in range(LIMIT // 10))
        assert kept == whole[:LIMIT]
        assert said.startswith("\nskyward: this run reached its limit of 200,000 bytes")
        assert said.count("\n") == 2
    assert f"during {runs[1]}: further output in r000.out is dropped" in told[0]
