"""A rank's process ends as Python processes do: exit handlers, threads and files get their turn, up to the grace."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from tests.support.pool_logs import last_run, log_of, settled
from tests.support.waiting import wait_until

SCRIPT = """
import atexit, logging, logging.handlers, sys, threading, time
from pathlib import Path
import skyward_core as sky

kept = None

@sky.function
def work(folder: str, how: str = "return") -> int:
    global kept
    folder = Path(folder)
    kept = open(folder / "buffered", "w")
    kept.write("of a global file")
    atexit.register(lambda: (folder / "atexit").write_text("by atexit"))
    atexit.register(print, "printed at exit")
    handler = logging.handlers.MemoryHandler(1000, target=logging.FileHandler(folder / "logged"))
    logging.getLogger("x").addHandler(handler)
    logging.getLogger("x").warning("by a MemoryHandler")

    def late() -> None:
        time.sleep(0.3)
        (folder / "thread").write_text("by a thread")

    threading.Thread(target=late).start()
    if how == "exit":
        sys.exit(3)
    if how == "sleep":
        (folder / "sleeps").touch()
        time.sleep(600)
    return 1
"""

WRITTEN = {
    "buffered": "of a global file",
    "atexit": "by atexit",
    "logged": "by a MemoryHandler\n",
    "thread": "by a thread",
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., sky.PendingFunction]:
    """The script's function, as user code that nodes import by itself."""
    namespace = {"__name__": "__main__"}
    exec(compile(SCRIPT, "job.py", "exec"), namespace)
    return namespace["work"]  # type: ignore[return-value]


def written(folder: Path) -> dict[str, str]:
    return {name: path.read_text() if (path := folder / name).exists() else "-" for name in WRITTEN}


def pool_for(home: Path, **options: Any) -> sky.Compute:
    return sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False, **options))


def test_when_the_pool_has_returned(home: Path, tmp_path: Path, work: Callable[..., sky.PendingFunction]) -> None:
    with pool_for(home) as pool:
        assert work(str(tmp_path)) @ pool == [1]
    assert written(tmp_path) == WRITTEN


def test_after_exit_and_cancel_and_what_it_prints_is_the_runs(
    home: Path, tmp_path: Path, work: Callable[..., sky.PendingFunction]
) -> None:
    with pool_for(home) as pool:
        with pytest.raises(sky.RunError, match="called sys"):
            work(str(tmp_path), "exit") @ pool
        assert written(tmp_path) == WRITTEN, "it is there when the run's end is told"
        settled(pool)
        assert log_of(pool, last_run(pool), 0) == b"printed at exit\n"
        other = tmp_path / "cancelled"
        other.mkdir()
        running = work(str(other), "sleep") > pool
        wait_until((other / "sleeps").exists, what="the function's sleep")
        running.cancel()
        wait_until(lambda: written(other) == WRITTEN, what="all that the cancelled run wrote")


def test_when_its_gang_is_made_anew(home: Path, tmp_path: Path, work: Callable[..., sky.PendingFunction]) -> None:
    def die() -> None:
        import os

        if sky.instance_info().rank:
            os._exit(7)

    with sky.Compute(provider=sky.Local(), nodes=2, options=sky.Options(console=False)) as pool:
        for rank in range(2):
            (tmp_path / str(rank)).mkdir()
        sky.function(lambda: work.__wrapped__(str(tmp_path / str(sky.instance_info().rank))))() @ pool  # type: ignore[attr-defined]
        with pytest.raises(sky.RunError):
            sky.function(die)() @ pool
        assert sky.function(lambda: 1)() @ pool == [1, 1]
    assert written(tmp_path / "0") == WRITTEN


def test_what_takes_too_long_is_cut_off_and_said(home: Path, tmp_path: Path) -> None:
    def never_ends() -> None:
        import threading

        threading.Thread(target=time.sleep, args=(600,)).start()

    with pool_for(home, grace=3.0) as pool:
        sky.function(never_ends)() @ pool
        shown = pool.pool.view.logs.rank(0)
        logs = pool.pool.archive.logs
    assert pool.receipt is not None
    assert pool.receipt.ok
    said = (logs / "r000.err").read_text()
    assert "Timeout (0:00:02.7" in said, "where it hung"
    assert "is killed (the pool is torn down): exit handlers" in said
    assert any("are interrupted" in line for line in shown.lines(0, shown.end))


def test_memory_that_takes_long_to_be_freed_is_not_shown_as_code_that_hangs(home: Path) -> None:
    def holds_much() -> None:
        import sys

        class Much:
            def __init__(self) -> None:
                self.sleep = time.sleep

            def __del__(self) -> None:
                self.sleep(600)

        sys.much = Much()  # type: ignore[attr-defined]

    with pool_for(home, grace=1.0) as pool:
        sky.function(holds_much)() @ pool
        logs = pool.pool.archive.logs
    said = (logs / "r000.err").read_text()
    assert "is killed (the pool is torn down)" in said
    assert "Timeout" not in said
