"""Inspection of running ranks: debuggers at breakpoints, stacks and profiles."""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.thread_stacks import Stacks
from skyward_core.node import stack_dumps_and_profiles
from skyward_core.node.stack_dumps_and_profiles import PathMapping, RankProcess, capture_stacks
from skyward_core.pool import rank_inspection_and_debugger
from skyward_core.views.stack_groups_and_profiles import group_stacks, hottest_lines, parse_profile
from tests.support.cli import begun, call
from tests.support.faults import agent_pids
from tests.support.pool_logs import last_run, log_of, settled
from tests.support.waiting import wait_until


def errors_of(pool: sky.Compute, rank: int = 0) -> list[str]:
    settled(pool)
    return log_of(pool, last_run(pool), rank, "err").decode().splitlines()


def test_breakpoint_without_a_debugger_continues_with_one_note_per_place(pool: sky.Compute) -> None:
    def job() -> int:
        for _ in range(3):
            breakpoint()
        import pdb

        pdb.set_trace()
        return 7

    for _ in range(2):  # each run's log has its lines
        assert sky.function(job)() @ pool == [7] * 4
        for rank in range(4):
            lines = errors_of(pool, rank)
            assert len(lines) == 2
            assert f"rank {rank} reached a breakpoint at " in lines[0]
            assert "test_rank_inspection.py:" in lines[0] and " in job()" in lines[0]
            assert all("sky.Options(debug_wait=" in line for line in lines)


def test_breakpoint_in_a_thread_continues(pool: sky.Compute) -> None:
    def job() -> str:
        received = []

        def work() -> None:
            breakpoint()
            received.append("after it")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return received[0]

    assert sky.function(job)() @ pool == ["after it"] * 4
    assert " in work()" in errors_of(pool)[0]


@pytest.mark.proof("1 s of a processor")
def test_post_mortem_without_a_debugger_prints_where_it_was_raised(pool: sky.Compute) -> None:
    def job() -> str:
        def inner() -> None:
            raise KeyError("gone")

        try:
            inner()
        except KeyError as error:
            sky.post_mortem()
            caught = error
        sky.post_mortem(caught)
        with pytest.raises(ValueError, match="no exception"):
            sky.post_mortem()
        return "went on"

    assert sky.function(job)() @ pool == ["went on"] * 4
    (line,) = errors_of(pool)
    assert "rank 0 stopped at an exception in " in line and " in inner()" in line


def test_pythonbreakpoint_variable_and_hook_take_precedence(pool: sky.Compute) -> None:
    def job() -> list[str]:
        import os

        seen: list[str] = []
        os.environ["PYTHONBREAKPOINT"] = "0"
        breakpoint()
        os.environ["PYTHONBREAKPOINT"] = "builtins.print"
        breakpoint("mine")
        del os.environ["PYTHONBREAKPOINT"]
        sys.breakpointhook = seen.append
        breakpoint("hook")
        sys.breakpointhook = sys.__breakpointhook__
        return seen

    assert sky.function(job)() @ pool == [["hook"]] * 4
    assert errors_of(pool) == []
    assert log_of(pool, last_run(pool), 0) == b"mine\n"


def test_breakpoint_with_replaced_stdin_uses_that_input(pool: sky.Compute) -> None:
    def job() -> str:
        value = "secret word"
        before = sys.stdin, sys.stdout
        sys.stdin, sys.stdout = io.StringIO("p value\nc\n"), io.StringIO()
        try:
            breakpoint()
            output = sys.stdout.getvalue()
        finally:
            sys.stdin, sys.stdout = before
        return output if value else ""

    assert all("'secret word'" in output for output in sky.function(job)() @ pool)


def test_breakpoint_in_a_started_program_behaves_as_in_python(pool: sky.Compute) -> None:
    def job() -> str:
        program = "breakpoint()\nprint('on')"
        return subprocess.run(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True
        ).stderr

    assert all("BdbQuit" in text for text in sky.function(job)() @ pool)


def test_breakpoint_in_a_multiprocessing_child_continues(pool: sky.Compute) -> None:
    def job() -> int | None:
        import multiprocessing

        def work() -> None:
            breakpoint()  # as in a DataLoader's workers
            sys.exit(5)

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        return child.exitcode

    assert sky.function(job)() @ pool == [5] * 4


def test_breakpoint_continues_although_its_note_cannot_be_written(pool: sky.Compute) -> None:
    def job() -> int:
        before = sys.stdin, sys.stderr
        sys.stdin, sys.stderr = open("/dev/null"), open("/dev/full", "w")  # noqa: SIM115  as on a disk that is full
        try:
            breakpoint()
            sys.stdin = None  # type: ignore[assignment]
            breakpoint()
        finally:
            sys.stdin, sys.stderr = before
        return 7

    assert sky.function(job)() @ pool == [7] * 4


# -- with somebody there -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool_at_breakpoints(module_home: Path) -> Iterator[sky.Compute]:
    """Pool with two ranks that wait at breakpoints."""
    options = sky.Options(console=False, grace=2.0, debug_wait=60)
    with sky.Compute(name="waits", nodes=2, options=options) as compute:
        yield compute


def debugged(word: str, typed: str) -> subprocess.CompletedProcess[str]:
    with begun("debug", word) as client:
        out, err = client.communicate(typed)
    return subprocess.CompletedProcess(word, client.returncode, out, err)


class Running:
    """Broadcast in progress."""

    def __init__(self, pool: sky.Compute, call: sky.PendingFunction[Any]) -> None:
        before = len(pool.pool.view.runs)
        self.done: Future[list[Any]] = Future()
        threading.Thread(target=lambda: self.done.set_result(call @ pool), daemon=True).start()
        wait_until(lambda: len(pool.pool.view.runs) > before, what="the run")
        self.id = last_run(pool)

    def result(self) -> list[Any]:
        return self.done.result(30)


def wait_for_stderr_line(pool: sky.Compute, text: str, rank: int = 0) -> None:
    wait_until(lambda: any(text in line for line in errors_of(pool, rank)), what=f"the line {text!r}")


def stops(rank: int) -> int:
    value = 1
    if sky.instance_info().rank == rank:
        breakpoint()
    return value


def test_debug_command_evaluates_and_changes_a_value_in_a_rank(pool_at_breakpoints: sky.Compute) -> None:
    run = Running(pool_at_breakpoints, sky.function(stops)(1))
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:1", 1)
    wait_until(
        lambda: pool_at_breakpoints.pool.view.rank_phases.get(1, ("",))[0] == "paused", what="that it stands still"
    )
    sockets = list(Path(pool_at_breakpoints.pool.context.machines[1].extra["folder"]).glob("debug.*"))
    assert [each.stat().st_mode & 0o777 for each in sockets] == [0o600]
    assert sockets[0].parent.stat().st_mode & 0o77 == 0
    done = debugged(run.id, "p value + 41\n!value = 5\n")  # the rank that waits is found
    assert (done.returncode, "42\n" in done.stdout) == (0, True), done
    assert "debugging rank 1" in done.stderr
    assert run.result() == [1, 5]
    wait_until(lambda: pool_at_breakpoints.pool.view.rank_phases[1][0] == "running", what="that it goes on")
    assert not sockets[0].exists()


def test_quitting_the_debugger_ends_no_rank_and_absence_is_reported(pool_at_breakpoints: sky.Compute) -> None:
    run = Running(pool_at_breakpoints, sky.function(stops)(0))
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:0")
    refused = debugged(f"{run.id}:1", "")
    assert refused.returncode != 0
    assert "rank 1 is not at a breakpoint" in refused.stderr
    assert debugged(f"{run.id}:0", "q\n").returncode == 0
    assert run.result() == [1, 1]
    refused = debugged(run.id, "")
    assert refused.returncode != 0
    assert "no rank waits at a breakpoint" in refused.stderr


def stops_at_each_step(steps: int) -> int:
    if sky.instance_info().rank:
        return 0
    number = 0
    while number < steps:
        breakpoint()
        number += 1
    return number


def test_quit_disables_later_breakpoints_but_disconnecting_does_not(pool_at_breakpoints: sky.Compute) -> None:
    run = Running(pool_at_breakpoints, sky.function(stops_at_each_step)(50))
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:0")
    assert "0\n" in debugged(f"{run.id}:0", "p number\n").stdout  # and leaves: it is the end of what is typed
    wait_until(
        lambda: sum("and waits up to" in line for line in errors_of(pool_at_breakpoints)) == 2,
        what="that it waits again",
    )
    assert "1\n" in debugged(f"{run.id}:0", "p number\nq\n").stdout
    assert run.result() == [50, 0]
    assert sum("and waits up to" in line for line in errors_of(pool_at_breakpoints)) == 2


def test_post_mortem_frames_can_be_inspected_by_the_debug_command(pool_at_breakpoints: sky.Compute) -> None:
    def job() -> str:
        def inner(word: str) -> None:
            raise KeyError(word)

        if sky.instance_info().rank:
            return "other"
        try:
            inner("gone" * 2)
        except KeyError:
            sky.post_mortem()
        return "on"

    run = Running(pool_at_breakpoints, sky.function(job)())
    wait_for_stderr_line(pool_at_breakpoints, "stopped at an exception in ")
    assert "'gonegone'" in debugged(run.id, "p word\n").stdout
    assert run.result() == ["on", "other"]


def test_one_debug_session_covers_all_breakpoints_of_a_call(pool_at_breakpoints: sky.Compute) -> None:
    run = Running(pool_at_breakpoints, sky.function(stops_at_each_step)(3))
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:0")
    done = debugged(run.id, "p 'at', number\nc\np 'at', number\nc\np 'at', number\n" + "n\n" * 9)
    assert [f"('at', {number})" in done.stdout for number in range(3)] == [True] * 3
    assert "bdb.py" not in done.stdout and "skyward_core" not in done.stdout
    assert run.result() == [3, 0]
    assert sky.function(stops)(7) @ pool_at_breakpoints == [1, 1]


def test_breakpoint_set_in_the_debugger_pauses_the_rank_again(pool_at_breakpoints: sky.Compute) -> None:
    def job() -> int:
        value = 1
        if sky.instance_info().rank == 0:
            breakpoint()
            value = 2
            value = 3
        return value

    STOP = job.__code__.co_firstlineno + 5
    run = Running(pool_at_breakpoints, sky.function(job)())
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:0")
    with begun("debug", run.id) as client:
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(f"b {__file__}:{STOP}\nc\np 'here', value\n")
        client.stdin.flush()
        line = ""
        while "'here'" not in line:
            line = client.stdout.readline()
            assert line
        wait_until(
            lambda: pool_at_breakpoints.pool.view.rank_phases[0][0] == "paused", what="that it stands still again"
        )
        client.stdin.write("q\n")
        client.stdin.flush()
        client.stdin.close()
        client.stdout.read()
    assert run.result() == [3, 1]


def test_child_processes_outliving_a_debug_session_do_not_block_it(
    pool_at_breakpoints: sky.Compute, tmp_path: Path
) -> None:
    def job(end: Path) -> int:
        import os

        if sky.instance_info().rank == 0:
            breakpoint()
            if not os.fork():  # as a DataLoader's workers that persist
                while not end.exists():
                    time.sleep(0.02)
                os._exit(0)
        return 1

    run = Running(pool_at_breakpoints, sky.function(job)(tmp_path / "end"))
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:0")
    with begun("debug", run.id) as client:
        assert client.stdin is not None
        client.stdin.write("c\n")
        client.stdin.flush()
        try:
            assert run.result() == [1, 1]
            assert client.wait(20) == 0, "the rank has come to the end of the call"
        finally:
            (tmp_path / "end").touch()


def test_child_forked_while_stepping_takes_no_debugger_input(pool_at_breakpoints: sky.Compute) -> None:
    def job() -> int:
        import os

        if sky.instance_info().rank:
            return 0
        breakpoint()
        child = os.fork()
        if not child:
            for _ in range(100):
                child += 0
            os._exit(5)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code

    run = Running(pool_at_breakpoints, sky.function(job)())
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:0")
    done = debugged(run.id, "n\nn\nn\np 'the parent', child > 0\n" + "c\n")
    assert "('the parent', True)" in done.stdout, done.stdout
    assert "for _ in range" not in done.stdout
    assert run.result() == [5, 0]


@pytest.mark.proof("0.5 s of a processor")
def test_rank_paused_at_a_breakpoint_can_be_cancelled(pool_at_breakpoints: sky.Compute) -> None:
    def job() -> None:
        breakpoint()

    future = sky.function(job)() > pool_at_breakpoints
    message = f"debug {future.run}:"
    wait_until(
        lambda: any(message in line for rank in (0, 1) for line in errors_of(pool_at_breakpoints, rank)), what=message
    )
    assert future.cancel()
    assert sky.function(stops)(7) @ pool_at_breakpoints == [1, 1]


def test_custom_pdb_subclass_works_with_the_debug_command(pool_at_breakpoints: sky.Compute) -> None:
    def job() -> int:
        import pdb

        class Own(pdb.Pdb):  # as torch.distributed.breakpoint() does
            def interaction(self, *args: Any, **kwargs: Any) -> None:
                with open("/dev/stdin") as sys.stdin:
                    super().interaction(*args, **kwargs)

        value = 1
        if sky.instance_info().rank == 0:
            own = Own()
            own.message("ATTENTION")
            own.set_trace()
        return value

    run = Running(pool_at_breakpoints, sky.function(job)())
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:0")
    assert "41\n" in debugged(run.id, "p value + 40\nc\n").stdout
    assert run.result() == [1, 1]


def test_timeouts_are_suspended_while_a_rank_is_debugged(pool_at_breakpoints: sky.Compute, tmp_path: Path) -> None:
    def job(after: Path) -> str:
        if sky.instance_info().rank == 0:
            breakpoint()
            after.touch()
        while not after.exists():  # as in a collective
            time.sleep(0.01)
        return "done"

    began = time.monotonic()
    run = Running(pool_at_breakpoints, sky.function(timeout=0.5)(job)(tmp_path / "after"))
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:0")
    wait_until(lambda: time.monotonic() - began > 1.5, what="that three times as long has gone by")
    assert debugged(run.id, "c\n").returncode == 0
    assert run.result() == ["done", "done"]

    def forever() -> None:
        time.sleep(60)

    with pytest.raises(sky.RunError, match=r"ran longer than its timeout of 0\.5 s"):
        sky.function(timeout=0.5)(forever)() @ pool_at_breakpoints


def test_killed_debug_client_lets_the_rank_continue(pool_at_breakpoints: sky.Compute) -> None:
    run = Running(pool_at_breakpoints, sky.function(stops)(0))
    wait_for_stderr_line(pool_at_breakpoints, f"debug {run.id}:0")
    client = begun("debug", run.id)
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write("p 6 * 7\n")
    client.stdin.flush()
    while "42" not in client.stdout.readline():
        pass
    refused = debugged(f"{run.id}:0", "")
    assert "another client is already debugging rank 0" in refused.stderr
    client.kill()
    client.communicate()
    assert run.result() == [1, 1]


def waits_long() -> int:
    from skyward_core.node.worker import breakpoints

    breakpoints.NO_DEBUGGER_AFTER = 0.2
    breakpoint()
    return 1


def test_waiting_breakpoint_repeats_its_note_with_the_remaining_time(pool_at_breakpoints: sky.Compute) -> None:
    run = Running(pool_at_breakpoints, sky.function(waits_long)())
    for rank in range(2):
        wait_for_stderr_line(pool_at_breakpoints, "and continues in 59.8 s", rank)
        assert debugged(f"{run.id}:{rank}", "c\n").returncode == 0
    assert run.result() == [1, 1]
    assert sum("has waited 0.2 s for a debugger at" in line for line in errors_of(pool_at_breakpoints)) == 1


def test_rank_continues_after_the_debug_wait_time(module_home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, debug_wait=0.2)) as compute:
        assert sky.function(stops)(0) @ compute == [1]
        waits, goes_on = errors_of(compute)
        assert "waits up to 0.2 s" in waits
        assert "no debugger attached to rank" in goes_on


SPIN = "spin"  # the file that has rank 3 work
PLACES = PathMapping("/nowhere", "", None)
PY_SPY = str(Path(sys.executable).parent / "py-spy")
needs_py_spy = pytest.mark.skipif(not os.access(PY_SPY, os.X_OK), reason="py-spy is not installed")


@pytest.fixture(scope="module")
def four_rank_pool(module_home: Path) -> Iterator[sky.Compute]:
    """Pool with four ranks on one node."""
    with sky.Compute(
        name="four", worker=sky.Worker(ranks_per_node=4), options=sky.Options(console=False, grace=2.0)
    ) as compute:
        yield compute


@pytest.fixture(scope="module")
def session(module_home: Path) -> Iterator[Session]:
    """Second client."""
    session = Session()
    yield session
    session.detach()


@sky.function
def waits(folder: str) -> str:
    """Block until stopped: rank 3 in C code with the GIL, rank 2 in another function, all other ranks here."""
    me = sky.instance_info().rank
    Path(folder, f"at.{me}").touch()
    if me == 3:
        holds_gil(f"{folder}/{SPIN}")
    if me == 2:
        return elsewhere()
    return until()


def until() -> str:
    time.sleep(1_000_000)
    return "done"


def elsewhere() -> str:
    try:
        raise LookupError("no data")
    finally:
        until()


def holds_gil(spin: str) -> NoReturn:
    """Hold the GIL while a test requests it, and sleep otherwise, because permanent work would occupy a core."""
    sleep = ctypes.PyDLL(None).usleep
    while True:
        sum(range(1_000_000)) if os.access(spin, os.F_OK) else sleep(20_000)


@pytest.fixture(scope="module")
def signal_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of files through which ranks and tests synchronize."""
    return tmp_path_factory.mktemp("hung")


@pytest.fixture(scope="module")
def hung_run(four_rank_pool: sky.Compute, session: Session, signal_folder: Path) -> Iterator[str]:
    """Hanging run of the pool, cancelled at the end of the test."""
    with ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: waits(str(signal_folder)) @ four_rank_pool)
        wait_until(lambda: len(list(signal_folder.glob("at.*"))) == 4)
        (run,) = four_rank_pool.pool.view.runs
        yield run
        session.cancel("four", run).result(30)
        assert running.exception(30) is not None


@pytest.fixture
def hung_run_with_working_rank(hung_run: str, signal_folder: Path) -> Iterator[str]:
    """Hanging run whose rank 3 works."""
    (signal_folder / SPIN).touch()
    yield hung_run
    (signal_folder / SPIN).unlink()


def take_stacks(session: Session, **how: Any) -> Stacks:
    return session.stacks("four", **how).result(30)


def functions(stacks: Stacks) -> dict[int, list[str]]:
    return {each.rank: [frame.function for frame in each.threads[0].frames] for each in stacks.ranks}


def processes(ranks: sky.Compute, stacks: Stacks) -> dict[int, RankProcess]:
    folder = ranks.pool.context.machines[0].extra["folder"]
    return {each.rank: RankProcess(each.pid, f"{folder}/stacks.{each.rank}.0", PLACES) for each in stacks.ranks}


@needs_py_spy
def test_stacks_show_another_client_where_each_rank_is(session: Session, hung_run: str) -> None:
    stacks = take_stacks(session, run=hung_run)
    while any(names[0] not in ("until", "holds_gil") for names in functions(stacks).values()):
        stacks = take_stacks(session, run=hung_run)  # one that had not come so far
    assert [(each.rank, each.at, each.how, each.runs) for each in stacks.ranks] == [
        (rank, "running", "py-spy", (hung_run,)) for rank in range(4)
    ]
    assert [(group.ranks, group.frames[0].function) for group in group_stacks(stacks)] == [
        ("0-1", "until"), ("2", "until"), ("3", "holds_gil"),
    ]  # fmt: skip
    assert functions(stacks)[2][:3] == ["until", "elsewhere", "waits"]
    handled = {each.rank: each.exception for each in stacks.ranks if each.exception}
    assert list(handled) == [2] and handled[2].startswith(f"LookupError: no data ({Path(__file__).name}:")


@needs_py_spy
def test_stacks_of_the_api_equal_those_of_a_session(
    four_rank_pool: sky.Compute, session: Session, hung_run: str
) -> None:
    mine, theirs = four_rank_pool.stacks(), take_stacks(session, run=hung_run)
    assert mine.run == hung_run
    assert (
        [group.ranks for group in group_stacks(mine)]
        == [group.ranks for group in group_stacks(theirs)]
        == ["0-1", "2", "3"]
    )
    with sky.attach("four") as attached:
        assert functions(attached.stacks(run=hung_run)) == functions(theirs)


@needs_py_spy
def test_ranks_dump_stacks_on_a_signal_and_continue(
    four_rank_pool: sky.Compute, session: Session, hung_run: str
) -> None:
    stacks = take_stacks(session, run=hung_run)
    for rank, process in processes(four_rank_pool, stacks).items():
        found = capture_stacks(process, "", signal=True)  # as the agent does where it has no py-spy
        assert found["how"] == "signal", found
        names = [frame[0].rpartition(".")[2] for frame in found["threads"][0]["frames"]]
        assert names == [name.rpartition(".")[2] for name in functions(stacks)[rank]]
        assert capture_stacks(process, "", signal=False) == {
            "why": "py-spy is not installed on the node. Install it there: pip install py-spy",
            "answers": True,
        }
    assert functions(take_stacks(session, run=hung_run)) == functions(stacks)


@needs_py_spy
def test_profile_shows_the_hottest_line_of_a_rank(
    four_rank_pool: sky.Compute, session: Session, hung_run_with_working_rank: str
) -> None:
    seen = parse_profile(session.profile("four", 3, 1).result(60))
    assert hottest_lines(seen)[0].frame.function == "holds_gil"
    with pytest.raises(UsageError, match="has no rank 4: its ranks are 0 to 3"):
        session.profile("four", 4, 1).result(60)
    folder = Path(four_rank_pool.pool.context.machines[0].extra["folder"])
    assert list(folder.glob("profile.*")) == []


@pytest.mark.proof("0.5 s of a processor")
@needs_py_spy
def test_stacks_command_prints_grouped_stacks(session: Session, hung_run: str) -> None:
    while sorted(names[0] for names in functions(take_stacks(session, run=hung_run)).values()) != [
        "holds_gil",
        *["until"] * 3,
    ]:
        pass  # one has not come so far
    lines = command("stacks", hung_run).splitlines()
    heads = [line for line in lines if line.startswith("rank")]
    file = Path(__file__).name
    assert [head.partition(f", {file}:")[0] for head in heads] == [
        "ranks 0-1 (2): until", "rank 2: until", "rank 3: holds_gil",
    ]  # fmt: skip
    assert any(line.startswith("    elsewhere  ") for line in lines)
    report = json.loads(command("stacks", "four", "--json"))
    assert (report["run"], report["collectives"]) == (hung_run, [])
    assert [(group["ranks"], group["frames"][0][0]) for group in report["groups"]] == [
        ([0, 1], "until"), ([2], "until"), ([3], "holds_gil"),
    ]  # fmt: skip
    assert "thread MainThread" in command("stacks", hung_run, "--threads")


@pytest.mark.proof("1 s of a processor")
@needs_py_spy
def test_profile_command_prints_lines_and_saves_a_speedscope_file(
    hung_run_with_working_rank: str, tmp_path: Path
) -> None:
    output = command("profile", f"{hung_run_with_working_rank}:3", "--seconds", "1", "--to", str(tmp_path / "made"))
    head, hot = output.splitlines()[:2]
    assert head.split() == ["itself", "with", "calls", "line"] and "holds_gil" in hot
    (scope,) = (tmp_path / "made").iterdir()
    assert scope.name == f"profile-four-{hung_run_with_working_rank}-r3.speedscope.json"
    frames = json.loads(scope.read_text("utf-8"))["shared"]["frames"]
    assert "holds_gil" in {frame["name"] for frame in frames}
    assert "names no rank. Write RUN:RANK" in command("profile", hung_run_with_working_rank, status=2)


def command(*words: str, status: int = 0) -> str:
    """Return the output of a command, or its error."""
    done = call(words, os.environ | {"COLUMNS": "200"})
    assert done.returncode == status, done.stderr
    return done.stdout or done.stderr


def test_node_reports_only_working_ranks_as_active(
    four_rank_pool: sky.Compute, session: Session, hung_run_with_working_rank: str
) -> None:
    rhythms = session.observe("four").result(60).activity
    wait_until(lambda: 3 in rhythms._worked_at, what="word of the node that rank 3 works")
    assert set(rhythms._worked_at) == {3}


def test_agent_of_an_older_release_without_stacks_is_named(
    four_rank_pool: sky.Compute, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.observe("four").result(60)
    (link,) = session._pools[four_rank_pool.pool.row.token].context.links  # the second client's
    monkeypatch.delitem(link.welcome, "knows")
    stacks = take_stacks(session)
    assert {each.at for each in stacks.ranks} == {"silent"}
    assert stacks.ranks[0].why.startswith("the agent of its node is from an older release without stacks")
    with pytest.raises(PoolError, match="of an older release without profiles"):
        session.profile("four", 0, 1).result(60)


def test_frozen_agent_does_not_block_stacks_of_other_nodes(
    four_rank_pool: sky.Compute, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_inspection_and_debugger, "ANSWER_TIMEOUT", 10_000.0)
    session.observe("four").result(60)
    (agent,) = agent_pids(four_rank_pool)
    os.kill(agent, signal.SIGSTOP)
    try:
        stacks = take_stacks(session)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert {each.at for each in stacks.ranks} == {"silent"}
    assert stacks.ranks[0].why.startswith("node 0 has not answered for ")
    assert {each.at for each in take_stacks(session).ranks} != {"silent"}


def test_process_without_stack_signal_handler_is_not_signalled(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            for signal_too in (True, False):
                found = capture_stacks(RankProcess(other.pid, str(tmp_path / "x"), PLACES), "", signal=signal_too)
                assert found == {"why": stack_dumps_and_profiles.NO_HANDLER, "answers": False}
            assert other.poll() is None
        finally:
            other.kill()
