"""Restarts of failed runs on pools of this machine: killed ranks, lost nodes, errors, preemptions and cancels."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model.errors import Cancelled, RunError
from skyward_core.pool.checkpoint_copies import CheckpointCopies
from skyward_core.pool.runs.run import Run
from skyward_core.pool.runs.scheduler import RunScheduler
from skyward_core.store.ledger import Ledger
from skyward_core.views.events import AttemptEnded, RunEnded
from skyward_tui.text.number_time_and_run_state_format import run_status
from tests.support.cli import COMMAND, Cli
from tests.support.loss import Provider, lose
from tests.support.pool_logs import last_run, log_of
from tests.support.waiting import wait_until

RESTART = sky.Options(console=False, grace=0.5, on_loss="restart", error_restarts=5, start_timeout=60.0)


@sky.function
def describe_attempt() -> tuple[int, str, tuple[int, ...], str, str]:
    attempt = sky.attempt()
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return attempt.number, attempt.cause, attempt.lost_ranks, os.environ["SKYWARD_ATTEMPT"], count


@sky.function
def die_until(attempt: int, payload: bytes = b"") -> tuple[int, int, int]:
    """Kill the process of rank 1 in each attempt before ``attempt``."""
    number, rank = sky.attempt().number, sky.instance_info().rank
    print(f"attempt {number}", flush=True)
    if number < attempt and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number, rank, len(payload)


@sky.function
def fail_at(steps: list[int]) -> int:
    """Log the step of this attempt, and raise if another attempt is expected."""
    number = sky.attempt().number
    sky.log(step=steps[number - 1])
    if number < len(steps):
        raise ValueError("bad batch")
    return number


@sky.function
def wait_in_first_attempt(folder: str) -> int:
    """Wait without end in the first attempt."""
    number, rank = sky.attempt().number, sky.instance_info().rank
    Path(folder, f"{number}.{rank}").touch()
    while number == 1:
        time.sleep(0.02)
    return number


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sky.Compute]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path_factory.mktemp("home")))
        with sky.Compute(nodes=2, options=RESTART) as compute:
            yield compute


def test_first_attempt_has_number_one(pool: sky.Compute) -> None:
    assert describe_attempt() @ pool == [(1, "", (), "1", "0")] * 2
    assert sky.attempt().number == 1
    assert not sky.attempt().is_restart


def test_killed_rank_restarts_the_run_in_new_processes_with_the_same_arguments(pool: sky.Compute) -> None:
    assert die_until(3, b"x" * 300_000) @ pool == [(3, 0, 300_000), (3, 1, 300_000)]
    run = last_run(pool)
    wait_until(lambda: pool.pool.view.runs[run].state == "done")
    view = pool.pool.view.runs[run]
    assert view.attempt == 3
    assert [(end.number, end.cause, end.restarts) for end in view.ended_attempts] == [
        (1, "loss", True),
        (2, "loss", True),
    ]
    assert "SIGKILL" in view.ended_attempts[0].text
    assert view.counts == {"returned": 2}
    pool.pool.context.news.records.flush()
    row = Ledger().run(run)
    assert row is not None
    assert (row.state, row.attempts) == ("done", 3)
    assert [outcome.kind for outcome, _ in Ledger().outcomes(run)] == ["returned", "returned"]
    assert log_of(pool, run, 1) == b"attempt 1\nattempt 2\nattempt 3\n"


def test_next_run_after_a_restart_begins_with_attempt_one(pool: sky.Compute) -> None:
    assert die_until(2) @ pool == [(2, 0, 0), (2, 1, 0)]
    assert describe_attempt() @ pool == [(1, "", (), "1", "0")] * 2


def test_restarted_attempt_knows_the_cause_and_the_lost_ranks(pool: sky.Compute) -> None:
    @sky.function
    def describe_after_loss() -> tuple[int, str, tuple[int, ...], str]:
        attempt = sky.attempt()
        if not attempt.is_restart and sky.instance_info().rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return attempt.number, attempt.cause, attempt.lost_ranks, os.environ["TORCHELASTIC_RESTART_COUNT"]

    assert describe_after_loss() @ pool == [(2, "loss", (1,), "1")] * 2


def test_error_with_progress_is_tried_again_and_the_same_error_without_progress_is_not(pool: sky.Compute) -> None:
    assert fail_at([1, 2, 3]) @ pool == [3, 3]
    with pytest.raises(RunError, match=r"bad batch.*attempt 2: attempts 1 and 2 failed with the same error"):
        fail_at([1, 1, 2]) @ pool


def test_new_checkpoint_in_each_attempt_is_progress(pool: sky.Compute) -> None:
    @sky.function
    def save_and_fail(attempts: int, saves: bool) -> tuple[int, str]:
        number = sky.attempt().number
        if saves:
            Path(sky.checkpoint_dir(), f"step-{number}.txt").write_text("state")
        if number < attempts:
            raise ValueError(f"bad batch {number}")
        return number, sky.checkpoint_dir()

    (number, folder), _ = save_and_fail(4, True) @ pool
    shutil.rmtree(folder)
    assert number == 4
    with pytest.raises(RunError, match="attempts 1 and 2 failed with the same error"):
        save_and_fail(4, False) @ pool


def test_single_call_is_restarted(pool: sky.Compute) -> None:
    @sky.function
    def die_once() -> int:
        if not sky.attempt().is_restart:
            os.kill(os.getpid(), signal.SIGKILL)
        return sky.attempt().number

    assert die_once() >> pool == 2


@sky.function
def die_at(folder: str, item: int, until: int = 2) -> tuple[int, int]:
    """Kill the process of item 3 in each attempt before ``until``. Count the calls of each item in a file."""
    with open(f"{folder}/{item}", "a") as calls:
        calls.write("x")
    if item == 3 and sky.attempt().number < until:
        os.kill(os.getpid(), signal.SIGKILL)
    return item, sky.attempt().number


@pytest.mark.parametrize("form", ["gather", "sweep", "map"])
def test_task_of_a_lost_rank_runs_again_and_the_others_do_not(pool: sky.Compute, tmp_path: Path, form: str) -> None:
    def run(until: int) -> list[tuple[int, int]]:
        (folder := tmp_path / str(until)).mkdir()
        match form:
            case "gather":
                return list(sky.gather(*[die_at(str(folder), item, until) for item in range(8)]) >> pool)
            case "map":
                call = sky.function(lambda item: die_at(str(folder), item, until).local())
                return list(pool.map(call, range(8), timeout=60))
        trials = sky.sweep(die_at, folder=[str(folder)], item=[*range(8)], until=[until]) >> pool
        return [each.value for each in trials]

    with sky.attach(pool.pool.name) as other:
        assert run(3) == [(item, 3 if item == 3 else 1) for item in range(8)]
        assert {path.name: len(path.read_text()) for path in (tmp_path / "3").iterdir()} == {
            str(item): 3 if item == 3 else 1 for item in range(8)
        }
        last = last_run(pool)
        wait_until(lambda: last in other.pool.view.runs and other.pool.view.runs[last].state == "done")
        if form != "map":
            assert other.pool.view.runs[last].counts.get("exited", 0) == 0
    if form == "gather":
        with pytest.raises(RunError, match="SIGKILL"):
            run(9)
        assert len((tmp_path / "9" / "3").read_text()) == 4


def test_generators_and_iterators_are_rejected(pool: sky.Compute) -> None:
    @sky.function
    def count() -> Iterator[int]:
        yield 1

    with pytest.raises(sky.UsageError, match="it yields values, which on_loss="):
        list(count() >> pool)
    with pytest.raises(sky.UsageError, match="it reads an iterator, which on_loss="):
        sky.function(sorted)(item for item in [1]) >> pool


def test_cancel_during_a_restart_ends_the_run(pool: sky.Compute, tmp_path: Path) -> None:
    cancelled: list[str] = []

    def cancel(event: object) -> None:
        if isinstance(event, AttemptEnded) and event.restarts:
            cancelled.append(event.run)
            pool.pool.context.registry.cancel(event.run)

    unsubscribe = pool.pool.context.news.subscribe(cancel, None)
    try:
        with pytest.raises(Cancelled):
            die_until(9) @ pool
    finally:
        if callable(unsubscribe):
            unsubscribe()
    assert len(cancelled) == 1
    assert describe_attempt() @ pool == [(1, "", (), "1", "0")] * 2


def test_lost_node_is_replaced_and_the_run_starts_again(home: Path, tmp_path: Path) -> None:
    with sky.Compute(nodes=2, options=RESTART) as compute, ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: wait_in_first_attempt(str(tmp_path)) @ compute)
        wait_until(lambda: len(list(tmp_path.glob("1.*"))) == 2)
        lose(compute, 1)
        assert running.result(60) == [2, 2]
        view = compute.pool.view.runs[last_run(compute)]
        assert [end.cause for end in view.ended_attempts] == ["loss"]


def test_node_lost_while_checkpoints_are_listed_is_replaced_before_the_next_attempt(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists, is_lost = threading.Event(), threading.Event()

    async def list_later(copies: CheckpointCopies, run: str, since: float) -> bool:
        lists.set()
        while not is_lost.is_set():
            await asyncio.sleep(0.01)
        return await has_saved_since(copies, run, since)

    has_saved_since = CheckpointCopies.has_saved_since
    monkeypatch.setattr(CheckpointCopies, "has_saved_since", list_later)

    @sky.function
    def fail_twice() -> int:
        if (number := sky.attempt().number) < 3:
            raise (ValueError if number == 1 else KeyError)(number)
        return number

    with sky.Compute(nodes=2, options=RESTART) as compute, ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: fail_twice() @ compute)
        try:
            assert lists.wait(60)
            lose(compute, 1)
            wait_until(lambda: compute.pool.links[1].gone or compute.pool.context.roster.is_replacing)
        finally:
            is_lost.set()
        assert running.result(60) == [3, 3]


def test_run_ends_if_its_lost_node_cannot_be_replaced(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Provider(monkeypatch)  # refuses each replacement
    with sky.Compute(nodes=2, options=replace(RESTART, start_timeout=1.0)) as compute, ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: wait_in_first_attempt(str(tmp_path)) @ compute)
        wait_until(lambda: len(list(tmp_path.glob("1.*"))) == 2)
        lose(compute, 1)
        with pytest.raises(RunError, match="node 1 of the pool is lost: no replacement machine"):
            running.result(60)


def test_restarts_without_collectives_get_new_processes(home: Path) -> None:
    @sky.function
    def die_once() -> tuple[int, int]:
        if not sky.attempt().is_restart:
            os.kill(os.getpid(), signal.SIGKILL)
        return sky.attempt().number, os.getpid()

    options = replace(RESTART, cluster=False)
    with sky.Compute(nodes=2, options=options) as compute:
        assert [number for number, _ in die_once() @ compute] == [2, 2]


def test_other_clients_follow_the_attempts_of_a_run(pool: sky.Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    """They see the run go on, also during the pause, and its end, as the client that dispatched it does."""
    start, paused = RunScheduler._start_attempt, threading.Event()

    async def start_later(scheduler: RunScheduler, run: Run, pause: float) -> None:
        while pause and paused.is_set():
            await asyncio.sleep(0.02)
        await start(scheduler, run, 0.0)

    monkeypatch.setattr(RunScheduler, "_start_attempt", start_later)
    paused.set()
    with sky.attach(pool.pool.name) as other, ThreadPoolExecutor() as beside:
        ended: list[RunEnded] = []

        def watch(event: object) -> None:
            ended.extend([event] if isinstance(event, RunEnded) else [])

        other.pool.context.news.subscribe(watch, None)
        earlier = len(pool.pool.view.runs)
        running = beside.submit(lambda: die_until(3) @ pool)
        wait_until(lambda: len(pool.pool.view.runs) > earlier)
        own = pool.pool.view.runs[run := last_run(pool)]
        wait_until(lambda: own.attempt == 3)
        with sky.attach(pool.pool.name) as late:
            for each in (other, late):
                wait_until(lambda each=each: run in each.pool.view.runs and each.pool.view.runs[run].attempt == 3)  # type: ignore[misc]
                view = each.pool.view.runs[run]
                assert view.ended_attempts == own.ended_attempts
                assert [end.left for end in view.ended_attempts] == [2, 1]
                assert run_status(each.pool.view, view, own.ended_attempts[-1].at) == ("restarting", "attempt 3 in 1 s")
        listed = subprocess.run([*COMMAND, "ls"], capture_output=True, text=True, timeout=60, check=True)
        assert f"{run} die_until restarting (attempt 3" in " ".join(listed.stdout.split())
        paused.clear()
        assert running.result(60) == [(3, 0, 0), (3, 1, 0)]
        wait_until(lambda: bool(ended))
        assert [(each.run, each.state) for each in ended] == [(run, "done")]
        assert other.pool.view.runs[run].counts == {"returned": 2}


TORCHRUN_SCRIPT = """
import os
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("count", count, "of", os.environ["TORCHELASTIC_MAX_RESTARTS"], flush=True)
open(f"{count}.{os.environ['RANK']}", "w").close()
if count < 2 and os.environ["RANK"] == "1":
    while not os.path.exists(f"{count}.0"):
        pass
    raise ValueError(f"failure {count}")
"""


@pytest.mark.proof("1 s of a processor")
def test_torchrun_command_restarts_a_script_after_errors(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCHRUN_SCRIPT)
    done = cli("torchrun", "--nproc-per-node", "2", "--max-restarts", "3", str(script))
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f"count {count} of 3") for count in range(4)] == [2, 2, 2, 0]
    assert "attempt 1 failed: rank 1 raised: failure 0; restart 1 of 3 after an error of the code" in done.stderr


def test_run_command_names_the_exhausted_budget(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = cli("run", "--restarts", "1", str(script), "--", status=128 + signal.SIGKILL)
    assert "restart 1 of 1 after a lost rank" in done.stderr
    assert "not restarted: the run was restarted once after a lost rank, which is the limit (restarts=1)" in done.stderr
