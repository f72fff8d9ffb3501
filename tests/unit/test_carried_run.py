"""A run whose work an engine does: its calls stand in the ranks, and no longer than somebody is there to end them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skyward_core.plugins import dask_cluster
from skyward_core.pool.runs.map_run import CarriedRun
from tests.support.runs import home_for_runs
from tests.support.staged_pool import Stage, staged, task


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with home_for_runs(tmp_path_factory):
        yield


def carried(stage: Stage) -> CarriedRun:
    run = stage.book.add("carried", "map", [task()], len(stage.nodes), carried=True)
    assert isinstance(run, CarriedRun)
    return run


async def test_until_the_pool_can_take_it_all_of_its_calls_are_waited_for() -> None:
    async with staged(2) as stage:
        run = carried(stage)
        assert run.standing() == 2
        run.feed()
        assert run.standing() == 2 and len(stage.placed) == 2
        stage.nodes[1].ends(run, 1)
        assert run.standing() == 1


@pytest.mark.parametrize("end", [CarriedRun.finish, lambda run: run.give_up("its caller went away"),
                                 lambda run: run.cancel("ctrl-c")])  # fmt: skip
async def test_one_that_is_over_before_the_pool_can_take_it_stands_nowhere(end: object) -> None:
    async with staged(2) as stage:
        run = carried(stage)
        assert callable(end)
        end(run)
        assert run.state != "running"
        run.feed()
        assert stage.placed == [], "nobody would end its calls, and all that comes later would wait for them"


def test_a_call_that_begins_after_its_end_was_told_ends() -> None:
    dask_cluster.release("late")
    dask_cluster.carry("late", "client")
    assert not dask_cluster.begun("late"), "it is forgotten"
    dask_cluster.release("late")
