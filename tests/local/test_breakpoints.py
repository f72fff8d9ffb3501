"""Breakpoints in ranks: nobody has to be there, and no rank ends by one."""

from __future__ import annotations

import io
import subprocess
import sys
import threading

import pytest

import skyward_core as sky
from tests.support.pool_logs import last_run, log_of, settled


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
            assert f"rank {rank} comes to a breakpoint at " in lines[0]
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
    assert "rank 0 looks at an exception at " in line and " in inner()" in line


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
