"""A run whose work an engine does: its calls stand in the ranks, and no longer than somebody is there to end them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skyward_core.plugins import dask_cluster
from skyward_core.pool.runs.map_run import EngineRun
from tests.support.runs import home_for_runs
from tests.support.staged_pool import Stage, staged, task


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with home_for_runs(tmp_path_factory):
        yield


def carried(stage: Stage) -> EngineRun:
    run = stage.run_registry.add("carried", "map", [task()], len(stage.nodes), carried=True)
    assert isinstance(run, EngineRun)
    return run


async def test_until_the_pool_can_take_it_all_of_its_calls_are_waited_for() -> None:
    async with staged(2) as stage:
        run = carried(stage)
        assert run.pending_count() == 2
        run.dispatch()
        assert run.pending_count() == 2 and len(stage.placed) == 2
        stage.nodes[1].ends(run, 1)
        assert run.pending_count() == 1


@pytest.mark.parametrize("end", [EngineRun.finish, lambda run: run.abandon("its caller went away"),
                                 lambda run: run.cancel("ctrl-c")])  # fmt: skip
async def test_one_that_is_over_before_the_pool_can_take_it_stands_nowhere(end: object) -> None:
    async with staged(2) as stage:
        run = carried(stage)
        assert callable(end)
        end(run)
        assert run.state != "running"
        run.dispatch()
        assert stage.placed == [], "nobody would end its calls, and all that comes later would wait for them"


def test_a_call_that_begins_after_its_end_was_told_ends() -> None:
    dask_cluster.release_placeholder("late")
    dask_cluster.hold_placeholder("late", "client")
    assert not dask_cluster.is_placeholder_running("late"), "it is forgotten"
    dask_cluster.release_placeholder("late")
