"""Breakpoints in ranks: nobody has to be there, and no rank ends by one."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from tests.support.cli import begun
from tests.support.pool_logs import last_run, log_of, settled
from tests.support.waiting import wait_until


def errors_of(pool: sky.Compute, rank: int = 0) -> list[str]:
    settled(pool)
    return log_of(pool, last_run(pool), rank, "err").decode().splitlines()


def test_a_rank_goes_on_at_a_breakpoint_and_says_so_once_for_each_place(pool: sky.Compute) -> None:
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
            assert "test_breakpoints.py:" in lines[0] and " in job()" in lines[0]
            assert all("sky.Options(debug_wait=" in line for line in lines)


def test_a_breakpoint_in_a_thread_ends_nothing(pool: sky.Compute) -> None:
    def job() -> str:
        said = []

        def work() -> None:
            breakpoint()
            said.append("after it")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return said[0]

    assert sky.function(job)() @ pool == ["after it"] * 4
    assert " in work()" in errors_of(pool)[0]


@pytest.mark.proof("1 s of a processor")
def test_where_an_exception_was_raised_is_said(pool: sky.Compute) -> None:
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


def test_the_variable_of_python_decides_as_ever(pool: sky.Compute) -> None:
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


def test_code_that_reads_another_input_has_the_debugger_there(pool: sky.Compute) -> None:
    def job() -> str:
        value = "secret word"
        before = sys.stdin, sys.stdout
        sys.stdin, sys.stdout = io.StringIO("p value\nc\n"), io.StringIO()
        try:
            breakpoint()
            said = sys.stdout.getvalue()
        finally:
            sys.stdin, sys.stdout = before
        return said if value else ""

    assert all("'secret word'" in said for said in sky.function(job)() @ pool)


def test_a_program_that_a_rank_starts_is_none_of_ours(pool: sky.Compute) -> None:
    def job() -> str:
        program = "breakpoint()\nprint('on')"
        return subprocess.run(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True
        ).stderr

    assert all("BdbQuit" in said for said in sky.function(job)() @ pool)


def test_a_child_that_a_rank_forks_goes_on_too(pool: sky.Compute) -> None:
    def job() -> int:
        import os

        if child := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        breakpoint()
        os._exit(5)

    assert sky.function(job)() @ pool == [5] * 4


def test_a_child_of_multiprocessing_goes_on_too(pool: sky.Compute) -> None:
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


def test_who_cannot_say_it_goes_on_too(pool: sky.Compute) -> None:
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
def waiting(world: Path) -> Iterator[sky.Compute]:
    """Two ranks that wait at breakpoints."""
    options = sky.Options(console=False, grace=2.0, debug_wait=60)
    with sky.Compute(name="waits", nodes=2, options=options) as compute:
        yield compute


def debugged(word: str, typed: str) -> subprocess.CompletedProcess[str]:
    with begun("debug", word) as client:
        out, err = client.communicate(typed)
    return subprocess.CompletedProcess(word, client.returncode, out, err)


class Running:
    """A broadcast under way."""

    def __init__(self, pool: sky.Compute, call: sky.PendingFunction[Any]) -> None:
        before = len(pool.pool.view.runs)
        self.done: Future[list[Any]] = Future()
        threading.Thread(target=lambda: self.done.set_result(call @ pool), daemon=True).start()
        wait_until(lambda: len(pool.pool.view.runs) > before, what="the run")
        self.id = last_run(pool)

    def result(self) -> list[Any]:
        return self.done.result(30)


def says(pool: sky.Compute, text: str, rank: int = 0) -> None:
    wait_until(lambda: any(text in line for line in errors_of(pool, rank)), what=f"the line {text!r}")


def stops(rank: int) -> int:
    value = 1
    if sky.instance_info().rank == rank:
        breakpoint()
    return value


def test_a_person_looks_changes_a_value_and_leaves(waiting: sky.Compute) -> None:
    run = Running(waiting, sky.function(stops)(1))
    says(waiting, f"debug {run.id}:1", 1)
    wait_until(lambda: waiting.pool.view.rank_phases.get(1, ("",))[0] == "paused", what="that it stands still")
    sockets = list(Path(waiting.pool.context.machines[1].extra["folder"]).glob("debug.*"))
    assert [each.stat().st_mode & 0o777 for each in sockets] == [0o600]
    assert sockets[0].parent.stat().st_mode & 0o77 == 0
    done = debugged(run.id, "p value + 41\n!value = 5\n")  # the rank that waits is found
    assert (done.returncode, "42\n" in done.stdout) == (0, True), done
    assert "debugging rank 1" in done.stderr
    assert run.result() == [1, 5]
    wait_until(lambda: waiting.pool.view.rank_phases[1][0] == "running", what="that it goes on")
    assert not sockets[0].exists()


def test_quit_ends_no_rank_and_no_rank_that_waits_is_said(waiting: sky.Compute) -> None:
    run = Running(waiting, sky.function(stops)(0))
    says(waiting, f"debug {run.id}:0")
    refused = debugged(f"{run.id}:1", "")
    assert refused.returncode != 0
    assert "rank 1 is not at a breakpoint" in refused.stderr
    assert debugged(f"{run.id}:0", "q\n").returncode == 0
    assert run.result() == [1, 1]
    refused = debugged(run.id, "")
    assert refused.returncode != 0
    assert "no rank waits at a breakpoint" in refused.stderr


def test_who_quits_is_waited_for_no_more_and_who_leaves_is(waiting: sky.Compute) -> None:
    def job() -> int:
        if sky.instance_info().rank:
            return 0
        number = 0
        while number < 50:
            breakpoint()
            number += 1
        return number

    run = Running(waiting, sky.function(job)())
    says(waiting, f"debug {run.id}:0")
    assert "0\n" in debugged(f"{run.id}:0", "p number\n").stdout  # and leaves: it is the end of what is typed
    wait_until(lambda: sum("and waits up to" in line for line in errors_of(waiting)) == 2, what="that it waits again")
    assert "1\n" in debugged(f"{run.id}:0", "p number\nq\n").stdout
    assert run.result() == [50, 0]
    assert sum("and waits up to" in line for line in errors_of(waiting)) == 2


def test_where_an_exception_was_raised_can_be_looked_at(waiting: sky.Compute) -> None:
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

    run = Running(waiting, sky.function(job)())
    says(waiting, "stopped at an exception in ")
    assert "'gonegone'" in debugged(run.id, "p word\n").stdout
    assert run.result() == ["on", "other"]


def test_one_visit_sees_all_breakpoints_of_a_call_and_steps_not_beyond(waiting: sky.Compute) -> None:
    def job() -> int:
        if sky.instance_info().rank:
            return 0
        number = 0
        while number < 3:
            breakpoint()
            number += 1
        return number

    run = Running(waiting, sky.function(job)())
    says(waiting, f"debug {run.id}:0")
    done = debugged(run.id, "p 'at', number\nc\np 'at', number\nc\np 'at', number\n" + "n\n" * 9)
    assert [f"('at', {number})" in done.stdout for number in range(3)] == [True] * 3
    assert "bdb.py" not in done.stdout and "skyward_core" not in done.stdout
    assert run.result() == [3, 0]
    assert sky.function(stops)(7) @ waiting == [1, 1]


def test_at_a_breakpoint_that_a_person_sets_it_stands_still_again(waiting: sky.Compute) -> None:
    def job() -> int:
        value = 1
        if sky.instance_info().rank == 0:
            breakpoint()
            value = 2
            value = 3
        return value

    STOP = job.__code__.co_firstlineno + 5
    run = Running(waiting, sky.function(job)())
    says(waiting, f"debug {run.id}:0")
    with begun("debug", run.id) as client:
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(f"b {__file__}:{STOP}\nc\np 'here', value\n")
        client.stdin.flush()
        line = ""
        while "'here'" not in line:
            line = client.stdout.readline()
            assert line
        wait_until(lambda: waiting.pool.view.rank_phases[0][0] == "paused", what="that it stands still again")
        client.stdin.write("q\n")
        client.stdin.flush()
        client.stdin.close()
        client.stdout.read()
    assert run.result() == [3, 1]


def test_children_that_outlive_a_visit_keep_nobody(waiting: sky.Compute, tmp_path: Path) -> None:
    def job(end: Path) -> int:
        import os

        if sky.instance_info().rank == 0:
            breakpoint()
            if not os.fork():  # as a DataLoader's workers that persist
                while not end.exists():
                    time.sleep(0.02)
                os._exit(0)
        return 1

    run = Running(waiting, sky.function(job)(tmp_path / "end"))
    says(waiting, f"debug {run.id}:0")
    with begun("debug", run.id) as client:
        assert client.stdin is not None
        client.stdin.write("c\n")
        client.stdin.flush()
        try:
            assert run.result() == [1, 1]
            assert client.wait(20) == 0, "the rank has come to the end of the call"
        finally:
            (tmp_path / "end").touch()


def test_a_child_that_is_forked_as_a_person_steps_takes_no_line_of_theirs(waiting: sky.Compute) -> None:
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

    run = Running(waiting, sky.function(job)())
    says(waiting, f"debug {run.id}:0")
    done = debugged(run.id, "n\nn\nn\np 'the parent', child > 0\n" + "c\n")
    assert "('the parent', True)" in done.stdout, done.stdout
    assert "for _ in range" not in done.stdout
    assert run.result() == [5, 0]


def test_a_rank_that_waits_is_stopped_as_ever(waiting: sky.Compute) -> None:
    def job() -> None:
        breakpoint()

    future = sky.function(job)() > waiting
    said = f"debug {future.run}:"
    wait_until(lambda: any(said in line for rank in (0, 1) for line in errors_of(waiting, rank)), what=said)
    assert future.cancel()
    assert sky.function(stops)(7) @ waiting == [1, 1]


def test_code_with_a_debugger_of_its_own_has_this_one(waiting: sky.Compute) -> None:
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

    run = Running(waiting, sky.function(job)())
    says(waiting, f"debug {run.id}:0")
    assert "41\n" in debugged(run.id, "p value + 40\nc\n").stdout
    assert run.result() == [1, 1]


def test_time_limits_stand_still_meanwhile(waiting: sky.Compute, tmp_path: Path) -> None:
    def job(after: Path) -> str:
        if sky.instance_info().rank == 0:
            breakpoint()
            after.touch()
        while not after.exists():  # as in a collective
            time.sleep(0.01)
        return "done"

    began = time.monotonic()
    run = Running(waiting, sky.function(timeout=0.5)(job)(tmp_path / "after"))
    says(waiting, f"debug {run.id}:0")
    wait_until(lambda: time.monotonic() - began > 1.5, what="that three times as long has gone by")
    assert debugged(run.id, "c\n").returncode == 0
    assert run.result() == ["done", "done"]

    def forever() -> None:
        time.sleep(60)

    with pytest.raises(sky.RunError, match=r"ran longer than its timeout of 0\.5 s"):
        sky.function(timeout=0.5)(forever)() @ waiting


def test_a_client_that_dies_leaves_a_rank_that_goes_on(waiting: sky.Compute) -> None:
    run = Running(waiting, sky.function(stops)(0))
    says(waiting, f"debug {run.id}:0")
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


def test_the_first_who_needs_pdb_may_be_a_child_or_read_another_input(world: Path) -> None:
    def job() -> object:
        import os

        if sky.instance_info().rank == 0:
            if child := os.fork():
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            breakpoint()  # nobody can come to it here: it does not wait
            os._exit(5)
        before = sys.stdin, sys.stdout
        sys.stdin, sys.stdout = io.StringIO("p 6 * 7\nc\n"), io.StringIO()
        try:
            breakpoint()
            return "42" in sys.stdout.getvalue()
        finally:
            sys.stdin, sys.stdout = before

    with sky.Compute(nodes=2, options=sky.Options(console=False, debug_wait=60)) as compute:
        assert sky.function(job)() @ compute == [5, True]


def waits_long() -> int:
    from skyward_core.node.worker import breakpoints

    breakpoints.NO_DEBUGGER_AFTER = 0.2
    breakpoint()
    return 1


def test_that_nobody_has_come_is_said_once_more_and_for_how_long_it_waits(waiting: sky.Compute) -> None:
    run = Running(waiting, sky.function(waits_long)())
    for rank in range(2):
        says(waiting, "and continues in 59.8 s", rank)
        assert debugged(f"{run.id}:{rank}", "c\n").returncode == 0
    assert run.result() == [1, 1]
    assert sum("has waited 0.2 s for a debugger at" in line for line in errors_of(waiting)) == 1


def test_after_its_time_a_rank_goes_on(world: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, debug_wait=0.2)) as compute:
        assert sky.function(stops)(0) @ compute == [1]
        waits, goes_on = errors_of(compute)
        assert "waits up to 0.2 s" in waits
        assert "no debugger attached to rank" in goes_on
