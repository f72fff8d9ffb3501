"""Tasks know which rank runs them, and give way as their pool asked for, also behind a new worker or agent."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import skyward_core as sky
from tests.support.faults import agent_pids, on_loop
from tests.support.processes import descendants
from tests.support.task_places import pool_rank
from tests.support.waiting import wait_until


@sky.function
def place() -> tuple[int, int, int, int]:
    info = sky.instance_info()
    return info.rank, info.node, info.world_size, os.getpid()


@sky.function
def task_place() -> tuple[int, tuple[int, int, int], int]:
    return pool_rank(), place.local()[:3], os.getpid()


@sky.function
def niceness() -> int:
    return os.nice(0)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("agents", [False, True], ids=["workers", "agents and workers"])
def test_a_task_after_a_death_knows_its_rank(home: Path, agents: bool) -> None:
    with sky.Compute(nodes=3, options=sky.Options(console=False, nice=3)) as compute:
        before = place() @ compute
        assert set(niceness() @ compute) == {3}
        old = agent_pids(compute)
        for agent in old[1:]:
            below = descendants(agent)
            for pid in (*[agent] * agents, *below):
                os.kill(pid, signal.SIGKILL)
        links = compute.pool.links
        wait_until(lambda: any(link.broken or not link.up for link in links), what="the news of it")
        found = sky.gather(*[task_place() for _ in range(60)]) >> compute
        on_loop(compute.pool.context.background.run_deferred)
        run = list(compute.pool.view.runs.values())[-1]
        told = [outcome.rank for outcome in run.outcomes()]
        assert [rank for rank, *_ in found] == told
        assert {own for _, own, _ in found} == {(0, 0, 1)}, "each task has a world of one rank"
        assert {pid for *_, pid in found} - {pid for *_, pid in before}, "new workers had a part in it"
        assert set(niceness() @ compute) == {3}


@pytest.mark.proof("1 s of a processor")
def test_a_task_after_a_run_on_some_nodes_knows_its_rank_in_the_pool(home: Path) -> None:
    with sky.Compute(nodes=3, options=sky.Options(console=False)) as compute:
        for nodes in ([2], [1, 2]):
            told = [p[:3] for p in place().with_nodes(nodes) @ compute]
            assert told == [(n, n, len(nodes)) for n in range(len(nodes))]
            found = sky.gather(*[task_place() for _ in range(9)]) >> compute
            assert {p[:2] for p in found} == {(n, (0, 0, 1)) for n in range(3)}
            # The gang is as it was.
            assert [p[:3] for p in place().with_nodes(nodes) @ compute] == told


# What follows a failed run on the same pool.


@sky.function
def leave(how: str) -> str:
    if sky.instance_info().is_head:
        if how == "sys.exit":
            sys.exit(3)
        os._exit(4)
    return "ok"


@sky.function
def fine() -> str:
    return "ok"


def test_starts_with_a_whole_gang_however_soon_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank, on another node, has returned: only the head's agent knows that the gang is broken."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    with sky.Compute(nodes=2, options=sky.Options(console=False)) as pool:
        for how, status in [("sys.exit", 3), ("os._exit", 4)] * 4:
            with pytest.raises(sky.RunError) as failed:
                leave(how) @ pool
            assert (failed.value.root_cause.rank, failed.value.root_cause.exit_code) == (0, status)
            assert fine() @ pool == ["ok", "ok"]
