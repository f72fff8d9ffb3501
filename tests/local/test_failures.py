"""Invariants 5 to 9: real faults, named with rank and cause, after which the pool works."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import Cancelled
from tests.support.faults import agent_pids, worker_pids
from tests.support.pool_logs import last_run, settled, stored
from tests.support.processes import exists
from tests.support.waiting import wait_until


@sky.function
def fine() -> int:
    return sky.instance_info().rank


def act_on_one_rank(rank: int, act, others=lambda: time.sleep(600)):  # type: ignore[no-untyped-def]
    """Return a function that calls ``act`` on one rank while the other ranks hang."""

    def body():  # type: ignore[no-untyped-def]
        return act() if sky.instance_info().rank == rank else others()

    return sky.function(body)


def fails(pool: sky.Compute, function) -> sky.RunError:  # type: ignore[no-untyped-def]
    with pytest.raises(sky.RunError) as caught:
        function() @ pool
    assert fine() @ pool == [0, 1, 2, 3], "the next run starts with a fresh gang"
    return caught.value


def test_exception_keeps_type_message_attributes_and_remote_traceback(pool: sky.Compute) -> None:
    class Custom(Exception):
        def __init__(self, code: int, words: str) -> None:
            super().__init__(words)
            self.code = code

    def act() -> None:
        raise Custom(42, "no luck")

    error = fails(pool, act_on_one_rank(2, act))
    assert isinstance(error, Custom) and error.code == 42, "what a script defines can be caught, too"
    assert error.root_cause.rank == 2
    assert error.root_cause.outcome == "raised"
    cause = error.__cause__
    assert type(cause).__name__ == "Custom"
    assert str(cause) == "no luck"
    assert cause.code == 42  # type: ignore[union-attr]
    assert 'raise Custom(42, "no luck")' in str(cause.__cause__)  # type: ignore[union-attr]
    assert [error.outcomes[r].kind for r in range(4)] == ["collateral", "collateral", "raised", "collateral"]
    assert "rank 2 (node 2) raised" in str(error)


def test_results_of_ranks_that_returned_are_in_the_run_error(pool: sky.Compute, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def fails_last() -> int:
        rank = sky.instance_info().rank
        if rank == 3:
            while not go.exists():
                time.sleep(0.01)
            raise ValueError("late")
        return rank * 10

    def three_returned() -> bool:
        runs = [run for run in list(pool.pool.view.runs.values()) if run.function == "fails_last"]
        return any(sum(outcome.kind == "returned" for outcome in run.outcomes()) == 3 for run in runs)

    def release() -> None:
        try:
            wait_until(three_returned)
        finally:
            go.touch()

    watcher = threading.Thread(target=release)
    watcher.start()
    with pytest.raises(sky.RunError) as caught:
        sky.function(fails_last)() @ pool
    watcher.join()
    assert caught.value.results == {0: 0, 1: 10, 2: 20}
    assert caught.value.root_cause.rank == 3


@pytest.mark.proof("1 s of a processor", after=2)
@pytest.mark.parametrize(
    ("how", "code", "number"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), None, signal.SIGKILL),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), None, signal.SIGTERM),
        (lambda: ctypes.string_at(0), None, signal.SIGSEGV),
        (lambda: os.abort(), None, signal.SIGABRT),
        (lambda: os._exit(7), 7, None),
        (lambda: sys.exit(3), 3, None),
        (lambda: sys.exit("went wrong"), 1, None),
    ],
    ids=["SIGKILL", "SIGTERM", "segfault", "abort", "_exit", "sys.exit", "sys.exit text"],
)
def test_dead_worker_is_reported_with_its_signal_or_exit_code(pool, how, code, number) -> None:  # type: ignore[no-untyped-def]
    error = fails(pool, act_on_one_rank(1, how))
    outcome = error.outcomes[1]
    assert outcome.kind == "exited"
    assert (outcome.exit_code, outcome.signal) == (code, number)
    assert error.root_cause.exit_code == (code if code is not None else 128 + number)
    assert isinstance(error.__cause__, sky.RankExit)
    if number is not None:
        assert signal.Signals(number).name in str(error)


def test_worker_killed_between_runs_is_replaced(pool: sky.Compute) -> None:
    def which() -> int:
        return os.getpid()

    killed = (sky.function(which)() @ pool)[0]
    os.kill(killed, signal.SIGKILL)

    def replaced() -> bool:
        pids = worker_pids(pool)  # with those that nobody has reaped: until then the agent does not know
        return killed not in pids and len(pids) == 4

    wait_until(replaced, what="another worker")
    assert fine() @ pool == [0, 1, 2, 3]


def test_rank_hanging_in_native_code_is_stopped_before_the_grace_ends(pool: sky.Compute) -> None:
    def hang_in_c() -> None:
        ctypes.CDLL(None).pause()  # returns only to run a signal handler, never back to Python's

    started = time.monotonic()
    error = fails(pool, act_on_one_rank(0, lambda: 1 / 0, hang_in_c))
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert time.monotonic() - started < 60  # and not for ever; speed is the benches' business


def test_stopped_rank_runs_its_finally_blocks(pool: sky.Compute, tmp_path: Path) -> None:
    def patient() -> None:
        try:
            (tmp_path / f"started-{sky.instance_info().rank}").touch()
            time.sleep(600)
        finally:
            (tmp_path / f"cleaned-{sky.instance_info().rank}").touch()

    def late() -> None:
        while len(list(tmp_path.glob("started-*"))) < 3:
            time.sleep(0.01)
        raise ValueError("now")

    fails(pool, act_on_one_rank(3, late, patient))
    assert sorted(p.name for p in tmp_path.glob("cleaned-*")) == ["cleaned-0", "cleaned-1", "cleaned-2"]


def test_rank_that_ignores_sigterm_is_killed_after_the_grace(pool: sky.Compute, tmp_path: Path) -> None:
    def stubborn() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / str(sky.instance_info().rank)).write_text(str(os.getpid()))
        time.sleep(600)

    def late() -> None:
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        raise ValueError("now")

    fails(pool, act_on_one_rank(3, late, stubborn))
    assert not any(exists(int(path.read_text())) for path in tmp_path.iterdir())


@pytest.mark.parametrize("lets_save", [True, False], ids=["default grace", "shortened grace"])
def test_rank_that_handles_sigterm_has_time_to_save(home: Path, tmp_path: Path, lets_save: bool) -> None:
    def trains() -> None:
        if sky.instance_info().rank:
            time.sleep(600)  # has no handler
        stops: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
        (tmp_path / "ready").touch()
        while not stops or not (tmp_path / "go").exists():
            time.sleep(0.01)
        (tmp_path / "saved").touch()
        sys.exit()

    with sky.Compute(nodes=2, options=sky.Options(console=False)) as compute:
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: sky.function(trains)() @ compute)
            wait_until((tmp_path / "ready").exists, what="the handler")
            session = Session()
            (run,) = compute.pool.context.registry.runs
            session.cancel(compute.pool.row.key, run).result(30)
            wait_until(lambda: list(compute.pool.context.view.saving) == [0], what="the phase of rank 0")
            assert 10 < compute.pool.context.view.saving[0] - time.time() < 31
            if lets_save:
                (tmp_path / "go").touch()
            else:
                session.cancel(compute.pool.row.key, run, 0.0).result(30)
            with pytest.raises(Cancelled):
                running.result(60)
            session.detach()
        assert (tmp_path / "saved").exists() == lets_save


def test_child_processes_of_an_exited_rank_are_killed(pool: sky.Compute, tmp_path: Path) -> None:
    def leave_a_child() -> int:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        os._exit(5)
        return pid

    def body() -> None:
        (tmp_path / "group").write_text(str(os.getpid()))
        leave_a_child()

    fails(pool, act_on_one_rank(0, body))
    group = int((tmp_path / "group").read_text())
    wait_until(lambda: not _group_members(group), what="the end of the rank's process group")


def _group_members(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found


def test_run_error_can_be_caught_by_the_exception_type_of_the_rank(pool: sky.Compute) -> None:
    def missing(path: str) -> None:
        Path(path).read_text()

    def number(text: str) -> Iterator[int]:
        yield int(text)

    with pytest.raises(FileNotFoundError, match=r"missing failed: rank .*No such file") as caught:
        sky.function(missing)("/nowhere/x") @ pool
    assert isinstance(caught.value, sky.RunError) and isinstance(caught.value.__cause__, FileNotFoundError)
    assert (caught.value.errno, caught.value.filename) == (2, "/nowhere/x")
    with pytest.raises(ValueError, match="number failed: task 0 raised ValueError: invalid literal"):
        list(sky.function(number)("x") >> pool)
    with pytest.raises(FileNotFoundError):
        (sky.function(missing)("/nowhere/x") > pool).result()


def test_timeout_stops_the_remote_code(pool: sky.Compute, tmp_path: Path) -> None:
    def slow() -> None:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(600)

    with pytest.raises(sky.RunError) as caught:
        sky.function(timeout=0.5)(slow)() @ pool
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert isinstance(caught.value, TimeoutError)
    assert "timeout of 0.5 s" in str(caught.value)
    wait_until(lambda: not any(exists(int(path.name)) for path in tmp_path.iterdir()))
    with pytest.raises(sky.RunError, match=r"timeout of 0\.3 s"):
        sky.function(slow)().with_timeout(0.3) >> pool
    assert fine() @ pool == [0, 1, 2, 3]


def test_interrupted_caller_stops_the_remote_code(pool: sky.Compute, tmp_path: Path) -> None:
    def slow() -> None:
        (tmp_path / str(sky.instance_info().rank)).write_text(str(os.getpid()))
        time.sleep(600)

    def interrupt() -> None:
        wait_until(lambda: len([p for p in tmp_path.iterdir() if p.read_text()]) == 4)
        os.kill(os.getpid(), signal.SIGINT)  # which Python handles in its main thread: this one

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        sky.function(slow)() @ pool
    thread.join()
    wait_until(lambda: not any(exists(int(path.read_text())) for path in tmp_path.iterdir()))
    assert fine() @ pool == [0, 1, 2, 3]


def test_unpicklable_argument_or_closure_is_named_at_once(pool: sky.Compute) -> None:
    def take(x: object) -> None: ...

    with pytest.raises(sky.NotPicklableError, match=r"argument 'x' of take\(\).*lock.*x\['deep'\]\[1\]"):
        sky.function(take)({"deep": [1, threading.Lock()]}) @ pool
    lock = threading.Lock()

    def captured() -> object:
        return lock

    with pytest.raises(sky.NotPicklableError, match="lock"):
        sky.function(captured)() >> pool


def test_failing_task_of_a_gather_stops_the_others(pool: sky.Compute) -> None:
    def work(i: int) -> int:
        if i == 0:
            raise ValueError("first")
        time.sleep(600)
        return i

    with pytest.raises(sky.RunError, match="task 0 raised ValueError: first") as caught:
        sky.gather(*[sky.function(work)(i) for i in range(20)]) >> pool
    assert {o.kind for i, o in caught.value.outcomes.items() if i} == {"collateral"}
    assert fine() @ pool == [0, 1, 2, 3]


def test_without_fail_fast_other_ranks_finish(home: Path) -> None:
    def body() -> int:
        rank = sky.instance_info().rank
        if rank == 0:
            raise ValueError("early")
        time.sleep(0.3)
        return rank

    with sky.Compute(nodes=2, options=sky.Options(console=False, fail_fast=False)) as pool:
        with pytest.raises(sky.RunError) as caught:
            sky.function(body)() @ pool
        assert caught.value.results == {1: 1}


def test_call_ended_by_a_shared_worker_process_is_not_cancelled(module_home: Path) -> None:
    def waits() -> None:
        threading.Event().wait()

    worker = sky.Worker(concurrency=2, executor="thread")
    with sky.Compute(nodes=1, worker=worker, options=sky.Options(console=False, grace=0.1)) as compute:
        bystander = sky.function(waits)() > compute
        late = sky.function(timeout=0.2)(waits)() > compute
        assert isinstance(late.exception(60), TimeoutError)
        error = bystander.exception(60)
        assert isinstance(error, sky.RunError), error
        assert f"its worker was stopped: timeout of run {late.run}" in str(error)
        bystander = sky.function(waits)() > compute
        unwanted = sky.function(waits)() > compute
        wait_until(lambda: len(compute.pool.view.runs[unwanted.run].tasks) == 1, what="its begin")
        unwanted.cancel()
        error = bystander.exception(60)
        assert isinstance(error, sky.RunError), error
        assert f"its worker was stopped: cancel of run {unwanted.run}" in str(error)


def die(words: str = "") -> None:
    if words:
        print(words, file=sys.stderr)
    os._exit(9)


def pool_of(nodes: int) -> sky.Compute:
    return sky.Compute(provider=sky.Local(), nodes=nodes, options=sky.Options(console=False, grace=1.0))


def test_worker_that_cannot_start_is_reported_at_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    with pool_of(1) as pool:
        cwd = Path(f"/proc/{worker_of(pool)}/cwd").readlink()
        with pytest.raises(sky.RunError, match="status 9"):
            sky.function(die)("an earlier run's words") @ pool
        wait_until(lambda: worker_of(pool), what="a fresh worker")
        cwd.rename(cwd.with_name("away"))
        try:
            with pytest.raises(sky.RunError, match="status 9"):
                sky.function(die)() @ pool
            with pytest.raises(sky.RunError, match=r"could not be started.*No such file or directory") as caught:
                sky.function(lambda: 1)() @ pool
            assert "earlier" not in str(caught.value)
        finally:
            cwd.with_name("away").rename(cwd)
        assert sky.function(lambda: 1)() @ pool == [1], "what was wrong is mended"


def worker_of(pool: sky.Compute) -> int:
    return next(iter(worker_pids(pool)), 0)


def test_broadcast_waiting_behind_tasks_runs_after_one_of_their_processes_died(
    pool: sky.Compute, tmp_path: Path
) -> None:
    def hold(file: Path) -> None:
        file.write_text(str(os.getpid()))
        while not file.with_suffix(".end").exists():
            time.sleep(0.01)

    files = [tmp_path / f"task{number}" for number in range(4)]
    with ThreadPoolExecutor() as threads:
        for file in files:
            threads.submit(lambda call: call >> pool, sky.function(hold)(file))
        try:
            wait_until(lambda: all(file.exists() and file.read_text() for file in files), what="one task on each node")
            waiting = threads.submit(lambda: fine() @ pool)
            runs = pool.pool.context.registry.runs
            wait_until(lambda: any(run.kind == "broadcast" and run.sent for run in list(runs.values())), what="calls")
            (broadcast,) = [run for run in list(runs.values()) if run.kind == "broadcast"]
            links = pool.pool.links
            epoch = max(link.epoch for link in links)
            os.kill(int(files[0].read_text()), signal.SIGKILL)
            # One node returns its call, because its gang broke, and the others end theirs before they begin.
            wait_until(
                lambda: not broadcast.sent or max(link.epoch for link in links) > epoch,
                what="the decision to send the calls to the next gang",
            )
        finally:
            for file in files:
                file.with_suffix(".end").touch()
        assert waiting.result(60) == [0, 1, 2, 3]


def test_rank_stopped_for_another_run_is_not_called_cancelled(home: Path, tmp_path: Path) -> None:
    def wait(path: str) -> None:
        import time

        Path(path).touch()
        time.sleep(60)

    with pool_of(2) as pool:
        running = sky.function(wait)(str(tmp_path / "there")) > pool
        wait_until((tmp_path / "there").exists, what="its beginning")
        link, why = pool.pool.links[0], "the gang broke: rank 5 ended"
        stop = {"t": "stop", "run": next(iter(pool.pool.context.registry.runs)), "why": why, "grace": 1}
        link.loop.call_soon_threadsafe(link.send, stop)
        with pytest.raises(sky.RunError, match="the gang broke: rank 5 ended"):
            running.result(30)


def test_run_after_an_agent_death_has_only_its_own_lines(home: Path) -> None:
    with pool_of(1) as pool:
        sky.function(lambda: print("of an earlier run"))() @ pool
        wait_until(lambda: not pool.pool.context.registry.runs, what="the end of the first run")
        (agent,) = agent_pids(pool)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: agent not in agent_pids(pool), what="another agent")
        sky.function(lambda: print("of this run"))() @ pool
        settled(pool)
        assert [line.text for line in stored(pool, last_run(pool))] == ["of this run"]


def test_run_during_an_agent_death_has_only_its_own_lines(home: Path) -> None:
    def slow(go: Path) -> None:
        print("begun", flush=True)
        while not go.exists():
            time.sleep(0.01)
        print("ended")

    with pool_of(1) as pool, ThreadPoolExecutor() as beside:
        sky.function(lambda: print("of an earlier run"))() @ pool
        wait_until(lambda: not pool.pool.context.registry.runs, what="the end of the first run")
        running = beside.submit(lambda: sky.function(slow)(home / "go") @ pool)
        wait_until(lambda: pool.pool.view.logs.rank(0).end == 2, what="the first line")
        (agent,) = agent_pids(pool)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: agent not in agent_pids(pool), what="another agent")
        (home / "go").touch()
        running.result(60)
        settled(pool)
        assert [line.text for line in stored(pool, last_run(pool))] == ["begun", "ended"]


def test_full_disk_while_a_rank_prints_is_raised_in_the_rank(home: Path) -> None:
    def fill() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        for _ in range(1000):
            print("x" * 100)

    with pool_of(1) as pool:
        with pytest.raises(sky.RunError, match=r"OSError.*File too large") as caught:
            sky.function(fill)() @ pool
        assert caught.value.root_cause.outcome == "raised"  # and its worker has not died of it
        assert isinstance(caught.value.__cause__, OSError)
