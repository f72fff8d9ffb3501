"""Output of ranks and their children: complete and ordered, live and stored."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from skyward_core.transport.background_loop import submit
from skyward_core.views.events import NodeLink
from skyward_core.views.log_buffers_and_rank_activity import Line
from tests.support.faults import on_loop
from tests.support.pool_logs import last_run, log_of, settled, stored
from tests.support.processes import read_log
from tests.support.sessions import new_session
from tests.support.waiting import wait_until


def test_runs_have_separate_log_lines(pool: sky.Compute) -> None:
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


def test_binary_output_and_unfinished_lines_are_kept_unchanged(pool: sky.Compute) -> None:
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


def test_line_of_50_megabytes_is_stored_whole_and_shown_cut(pool: sky.Compute) -> None:
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


def test_output_of_native_code_and_child_processes_is_captured(pool: sky.Compute) -> None:
    def children() -> None:
        import subprocess

        subprocess.run(["sh", "-c", "echo from a child; echo to stderr >&2"], check=True)

    sky.function(children)() @ pool
    run = last_run(pool)
    settled(pool)
    assert log_of(pool, run, 3) == b"from a child\n"
    assert log_of(pool, run, 3, "err") == b"to stderr\n"


def test_crashed_rank_leaves_its_last_lines_and_a_stack(pool: sky.Compute) -> None:
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


@pytest.mark.proof("1 s of a processor")
def test_teardown_right_after_a_flood_loses_no_lines(home: Path) -> None:
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
def test_script_prints_lines_of_ranks_with_rank_prefixes(
    home: Path, caught: str, request: pytest.FixtureRequest
) -> None:
    def say() -> None:
        print("hello")
        print("oh", file=sys.stderr)

    catches: pytest.CaptureFixture[str] = request.getfixturevalue(caught)
    with sky.Compute(nodes=2) as compute:
        sky.function(say)() @ compute
        output = catches.readouterr()
    assert sorted(output.out.splitlines()) == ["r000| hello", "r001| hello"]
    assert sorted(output.err.splitlines()) == ["r000| oh", "r001| oh"]


# A run that prints without end fills no disk: its log ends with a word about that, and the next run's is whole.


LIMIT = 200_000


def test_output_beyond_the_log_limit_is_dropped_with_a_notice(home: Path) -> None:
    def prints(lines: int, word: str) -> None:
        for number in range(lines):
            print(f"{word} {number:010d}", flush=number % 100 == 0)

    def logs() -> None:
        for step in range(LIMIT // 50):
            sky.log(step=step)

    messages: list[str] = []
    options = sky.Options(console=False, log_limit=LIMIT)
    with sky.Compute(nodes=1, options=options) as compute:
        pool = compute.pool
        pool.news.subscribe(lambda event: messages.append(event.detail) if isinstance(event, NodeLink) else None, None)
        for lines, word in ((10, "before"), (60_000, "flood"), (10, "after"), (60_000, "again")):
            sky.function(prints)(lines, word) >> compute
        sky.function(logs)() >> compute
        on_loop(pool.context.background.run_deferred)
        runs = list(pool.view.runs)
        for run in runs:
            submit(pool.news.wait_logs_complete(run)).result(60)
        on_loop(pool.news.records.flush)
        wait_until(lambda: len(messages) >= 2, what="the news that something is dropped")
        ledger = pool.ledger
        before, flood, after, again, _ = (read_log(ledger, run, 0).decode() for run in runs)
        metrics = [line.text for line in stored(compute, runs[4])]
    assert before == "".join(f"before {number:010d}\n" for number in range(10))
    assert after == "".join(f"after {number:010d}\n" for number in range(10))
    for word, text in (("flood", flood), ("again", again)):
        saved, message = text[:LIMIT], text[LIMIT:]
        whole = "".join(f"{word} {number:010d}\n" for number in range(LIMIT // 10))
        assert saved == whole[:LIMIT]
        assert message.startswith("\nskyward: this run reached its limit of 200,000 bytes")
        assert message.count("\n") == 2
    assert f"during {runs[1]}: further output in r000.out is dropped" in messages[0]
    (notice,) = metrics
    assert notice.startswith(f"sky.log: run {runs[4]} reached its limit of 200,000 bytes")


@pytest.fixture(scope="module")
def one_rank_pool(module_home: Path) -> Iterator[sky.Compute]:
    """Pool of one node, without output of other tests."""
    with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False)) as compute:
        yield compute


def texts_and_streams(lines: list[Line]) -> list[tuple[str, str]]:
    return [(line.text, line.about.stream) for line in lines]


def seen_by_another(one_rank: sky.Compute, last: str) -> list[Line]:
    """Return the output that a new process sees, through its own connection and from the files."""
    with new_session() as session:
        view = session.attach(one_rank.name).result(60)
        ring = view.logs.rank(0)
        wait_until(lambda: last in ring.lines(0, ring.end), what=f"{last} in the other's view")
        return ring.read(0, ring.end)


def test_stdout_and_stderr_keep_their_order_live_and_stored(one_rank_pool: sky.Compute) -> None:
    def talk(seed: int) -> list[tuple[str, str]]:
        chance, text = random.Random(seed), []
        for number in range(3000):
            stream = chance.choice(("out", "err"))
            text.append((f"line {number}", stream))
            print(f"line {number}", file=sys.stderr if stream == "err" else sys.stdout)
            if chance.random() < 0.003:
                time.sleep(0.012)
        return text

    (text,) = sky.function(talk)(7) @ one_rank_pool
    run = last_run(one_rank_pool)
    settled(one_rank_pool)
    ring = one_rank_pool.pool.view.logs.for_run(run).rank(0)
    wait_until(lambda: ring.end == 3000, what="all lines")
    assert texts_and_streams(ring.read(0, 3000)) == text
    assert texts_and_streams(stored(one_rank_pool, run)) == text
    assert (
        texts_and_streams([line for line in seen_by_another(one_rank_pool, "line 2999") if line.about.run == run])
        == text
    )


def test_child_output_follows_earlier_lines_with_its_own_time(one_rank_pool: sky.Compute) -> None:
    def parents() -> None:
        print("before", file=sys.stderr)
        time.sleep(0.5)
        subprocess.run(["sh", "-c", "echo from a child; sleep 0.5"], check=True)
        print("after", file=sys.stderr)

    began = time.time()
    sky.function(parents)() @ one_rank_pool
    run, took = last_run(one_rank_pool), time.time()
    settled(one_rank_pool)
    lines = stored(one_rank_pool, run)
    assert [line.text for line in lines] == ["before", "from a child", "after"]
    times = [line.about.at or 0.0 for line in lines]
    assert began - 0.01 <= times[0] < times[0] + 0.4 < times[1] < times[1] + 0.2 < times[2] <= took


def test_unfinished_line_stays_in_its_own_run(one_rank_pool: sky.Compute) -> None:
    def leave(word: str, end: str) -> None:
        print(word, end=end)

    leave_it = sky.function(leave)
    leave_it("half", "") @ one_rank_pool
    first = last_run(one_rank_pool)
    leave_it("whole", "\n") @ one_rank_pool
    second = last_run(one_rank_pool)
    settled(one_rank_pool)
    ring = one_rank_pool.pool.view.logs.rank(0)
    wait_until(lambda: ring.lines(ring.end - 1, ring.end) == ["whole"], what="the last line")
    assert [(line.text, line.about.run) for line in ring.read(ring.end - 2, ring.end)] == [
        ("half", first),
        ("whole", second),
    ]
    assert one_rank_pool.pool.view.logs.for_run(first).rank(0).lines(0, 9) == ["half"]
    assert one_rank_pool.pool.view.logs.for_run(second).rank(0).lines(0, 9) == ["whole"]
    assert [line.text for line in stored(one_rank_pool, first)] == ["half"]


WAYS = (
    "echo {line} > /dev/stderr",
    "echo {line} >> /dev/stderr",
    "echo {line} > /dev/stdout",
    "echo {line} | tee /dev/stderr > /dev/null",
    "echo {line} >&2",
    "echo {line}",
    "exec 2>/dev/stderr; echo {line} >&2",
    "echo {line} > /proc/self/fd/2",
)
TO_STDOUT = (2, 5)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("seed", [1, 2])
def test_mixed_output_of_rank_and_children_loses_no_line(pool: sky.Compute, seed: int) -> None:
    def job(seed: int) -> tuple[list[str], list[str]]:
        chance = random.Random(seed)
        data: dict[str, list[str]] = {"out": [], "err": []}
        for number in range(25):
            line = f"python-{number}"
            stream = chance.choice(("out", "err"))
            print(line, file=sys.stderr if stream == "err" else sys.stdout)
            data[stream].append(line)
            script = []
            for part in range(chance.randrange(4)):
                way = chance.randrange(len(WAYS))
                line = f"child-{number}-{part}"
                script.append(WAYS[way].format(line=line))
                data["out" if way in TO_STDOUT else "err"].append(line)
            if chance.random() < 0.5:
                subprocess.run(["bash", "-c", "\n".join(script)], check=True)
            else:
                assert os.system("\n".join(script) or "true") == 0
        return data["out"], data["err"]

    ((out, err), *_) = sky.function(job)(seed) @ pool
    run = last_run(pool)
    settled(pool)
    assert log_of(pool, run, 0).decode().splitlines() == out
    assert log_of(pool, run, 0, "err").decode().splitlines() == err


def test_exit_status_and_redirection_of_child_processes_work(pool: sky.Compute) -> None:
    def job() -> tuple[int, int, bytes]:
        done = subprocess.run(["sh", "-c", "echo both; echo of them >&2"], stdout=-1, stderr=-2, check=True)
        return os.system("exit 3"), os.system("kill -9 $$"), done.stdout

    assert sky.function(job)() @ pool == [(3 << 8, 9, b"both\nof them\n")] * 4


def test_large_output_of_a_child_of_a_silent_rank_is_complete(pool: sky.Compute) -> None:
    def job() -> None:
        subprocess.run(["sh", "-c", "seq 1 200000; seq 1 1000 >&2"], check=True)

    sky.function(job)() @ pool
    run = last_run(pool)
    settled(pool)
    assert log_of(pool, run, 2).split() == [b"%d" % n for n in range(1, 200_001)]
    assert log_of(pool, run, 2, "err").split() == [b"%d" % n for n in range(1, 1001)]


def all_end_with(pool: sky.Compute, text: bytes) -> bool:
    runs = pool.pool.view.runs
    return bool(runs) and all(log_of(pool, last_run(pool), rank, "err").endswith(text) for rank in range(4))


def test_rank_that_truncates_its_log_is_reported_and_followed(pool: sky.Compute, tmp_path: Path) -> None:
    fetched, heard = tmp_path / "fetched", tmp_path / "heard"

    def job(fetched: str, heard: str) -> None:
        for number in range(200):
            print(f"before {number}", file=sys.stderr)
        while not Path(fetched).exists():
            time.sleep(0.01)
        with open("/dev/stderr", "w") as anew:
            anew.write("in its place\n")
        while not Path(heard).exists():
            time.sleep(0.01)
        print("after", file=sys.stderr)

    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: sky.function(job)(str(fetched), str(heard)) @ pool)
        try:
            wait_until(lambda: all_end_with(pool, b"before 199\n"))
            fetched.touch()
            wait_until(lambda: all_end_with(pool, b"in its place\n"))
        finally:
            fetched.touch()
            heard.touch()
        running.result()
    run = last_run(pool)
    settled(pool)
    before, output, place, after = log_of(pool, run, 3, "err").decode().rsplit("\n", 4)[0:4]
    assert before.rstrip().splitlines() == [f"before {number}" for number in range(200)]
    assert output.startswith("skyward: rank 3 reopened this stream and truncated it")
    assert (place, after) == ("in its place", "after")
