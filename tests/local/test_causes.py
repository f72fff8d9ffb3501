"""What a run's failure says: which rank, how, and why, of this run and of no other."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from tests.support.faults import agent_pids, worker_pids
from tests.support.pool_logs import last_run, settled, stored
from tests.support.waiting import wait_until


def die(words: str = "") -> None:
    if words:
        print(words, file=sys.stderr)
    os._exit(9)


def pool_of(nodes: int) -> sky.Compute:
    return sky.Compute(provider=sky.Local(), nodes=nodes, options=sky.Options(console=False, grace=1.0))


def test_a_worker_that_cannot_be_started_is_said_at_once(
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
            with pytest.raises(sky.RunError, match=r"could not be started.*No such file or directory") as told:
                sky.function(lambda: 1)() @ pool
            assert "earlier" not in str(told.value)
        finally:
            cwd.with_name("away").rename(cwd)
        assert sky.function(lambda: 1)() @ pool == [1], "what was wrong is mended"


def worker_of(pool: sky.Compute) -> int:
    return next(iter(worker_pids(pool)), 0)


def test_a_result_that_does_not_load_here_names_its_rank_and_spares_the_others(home: Path) -> None:
    def work() -> Any:
        return Unloadable() if sky.instance_info().rank == 1 else f"of rank {sky.instance_info().rank}"

    with pool_of(3) as pool:
        with pytest.raises(sky.RunError, match=r"rank 1.*result.*cannot be loaded here.*only on nodes") as told:
            sky.function(work)() @ pool
        assert told.value.results == {0: "of rank 0", 2: "of rank 2"}
        assert isinstance(told.value.__cause__, ImportError)
        with pytest.raises(sky.RunError, match="cannot be loaded here"):
            sky.function(Unloadable)() >> pool


class Unloadable:
    def __reduce__(self) -> Any:
        return eval, ("(_ for _ in ()).throw(ImportError('only on nodes'))",)


def test_who_was_stopped_for_another_runs_sake_is_not_called_cancelled(home: Path, tmp_path: Path) -> None:
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


def test_after_an_agents_death_a_run_has_its_own_lines_only(home: Path) -> None:
    with pool_of(1) as pool:
        sky.function(lambda: print("of an earlier run"))() @ pool
        wait_until(lambda: not pool.pool.context.registry.runs, what="the end of the first run")
        (agent,) = agent_pids(pool)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: agent not in agent_pids(pool), what="another agent")
        sky.function(lambda: print("of this run"))() @ pool
        settled(pool)
        assert [line.text for line in stored(pool, last_run(pool))] == ["of this run"]


def test_a_run_during_which_its_agent_dies_has_its_own_lines_only(home: Path) -> None:
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


def test_a_disk_that_fills_while_a_rank_prints_is_named(home: Path) -> None:
    def fill() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        for _ in range(1000):
            print("x" * 100)

    with pool_of(1) as pool:
        with pytest.raises(sky.RunError, match=r"OSError.*File too large") as told:
            sky.function(fill)() @ pool
        assert told.value.root_cause.outcome == "raised"  # and its worker has not died of it
        assert isinstance(told.value.__cause__, OSError)
