"""The scheduler of sweeps by gangs, on a launcher that only opens runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from skyward_core.model.errors import PoolError, PoolGone, UsageError
from skyward_core.pool.runs.gang_sweep import GangSweep, check_node_count, gang_nodes
from skyward_core.tasks.task_and_blob_values import EMPTY_BLOB, Task


class OneRun:
    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.state = "running"
        self.future: Future[OneRun] = Future()

    def end(self, state: str = "done") -> None:
        self.state = state
        if not self.future.done():
            self.future.set_result(self)

    def cancel(self, why: str) -> None:
        if self.state == "running":
            self.end("cancelled")

    def error(self) -> Exception:
        return PoolGone("the pool has ended")


class End:
    def error(self) -> Exception:
        return PoolGone("the pool has ended")


class Stage:
    """A pool of so many nodes, on which runs end when a test says so; also what launches them."""

    def __init__(self, nodes: int) -> None:
        self.links = [object()] * nodes
        self.scheduler = self
        self.leaving = False
        self.name = "p"
        self.external_end: End | None = None
        self.runs: list[OneRun] = []
        self.most = 0
        self.wanted: set[Any] = set()
        self.refuses: Exception | None = None
        self.ended: list[tuple[int, str]] = []
        self.overs = 0

    def open(self, kind: str, tasks: list[Task], *, run_id: str) -> OneRun:
        if self.refuses is not None:
            raise self.refuses
        assert kind == "broadcast" and not self.leaving
        run = OneRun(run_id)
        self.runs.append(run)
        self.wanted.add(tasks[0].nodes)
        self.most = max(self.most, len(self.running))
        return run

    @property
    def running(self) -> list[OneRun]:
        return [run for run in self.runs if run.state == "running"]

    def sweep(self, rows: int, nodes: int, prepared: Callable[[int], Task] | None = None) -> GangSweep:
        made: Any = GangSweep(
            self, [f"{place:02x}" for place in range(rows)], nodes,  # type: ignore[arg-type]
            prepared or (lambda place: Task(f"t{place}", EMPTY_BLOB, EMPTY_BLOB)),
            lambda place, run: self.ended.append((place, run.state)),
        )  # fmt: skip
        made.start(self._over)
        return made

    def _over(self) -> None:
        self.overs += 1


async def settle() -> None:
    """Let what can go on go on, threads too."""
    for _ in range(20):
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, int)


@pytest.mark.parametrize(
    ("has", "nodes", "most", "wanted"),
    [(5, 2, 2, 2), (4, 2, 2, 2), (4, 0, 1, None), (3, 3, 1, 3), (6, 1, 6, 1)],
)
async def test_as_many_at_a_time_as_fit(has: int, nodes: int, most: int, wanted: int | None) -> None:
    stage = Stage(has)
    sweep = stage.sweep(9, nodes)
    while len(stage.ended) < 9:
        await settle()
        random.Random(len(stage.ended)).choice(stage.running).end()
        await settle()
    await sweep.wait()
    assert stage.most == most and stage.wanted == {wanted} and stage.overs == 1
    assert [run.id for run in stage.runs] == sweep.begun_ids == [f"{place:02x}" for place in range(9)]


async def test_one_that_fails_stops_no_other_and_one_that_is_cancelled_all() -> None:
    stage = Stage(4)
    sweep = stage.sweep(6, 2)
    await settle()
    stage.runs[0].end("failed")
    await settle()
    assert [run.id for run in stage.running] == ["01", "02"]
    stage.runs[2].end("cancelled")
    await sweep.wait()
    assert sweep.cancelled and stage.runs[1].state == "cancelled" and len(stage.runs) == 3


async def test_the_pools_end_is_told_and_begins_nothing_more() -> None:
    stage = Stage(4)
    sweep = stage.sweep(6, 2)
    await settle()
    stage.external_end = End()
    for run in stage.running:
        run.end("lost")
    with pytest.raises(PoolGone):
        await sweep.wait()
    assert len(stage.runs) == 2


async def test_what_cannot_be_prepared_or_opened_ends_it_once_the_others_have() -> None:
    def prepared(place: int) -> Task:
        if place == 2:
            raise PoolError("no room on the disk")
        return Task("t", EMPTY_BLOB, EMPTY_BLOB)

    stage = Stage(2)
    sweep = stage.sweep(6, 1, prepared)
    await settle()
    stage.runs[0].end()
    await settle()
    assert stage.runs[1].state == "running" and len(stage.runs) == 2
    stage.runs[1].end()
    with pytest.raises(PoolError, match="no room"):
        await sweep.wait()
    assert stage.ended == [(0, "done"), (1, "done")]
    refused = Stage(2)
    refused.refuses = UsageError("it wants what is not there")
    with pytest.raises(UsageError):
        await refused.sweep(3, 1).first_run


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_happens_meanwhile_it_ends_with_nothing_open(seed: int) -> None:
    """Ends, failures, cancellations, departures and the pool's end, between any two of its steps."""
    chance = random.Random(seed)
    has, nodes, rows = chance.randint(1, 6), chance.randint(0, 3), chance.randint(1, 12)
    stage = Stage(max(has, nodes))
    sweep = stage.sweep(rows, nodes)
    work = asyncio.ensure_future(sweep.wait())
    while not work.done():
        for _ in range(chance.randint(0, 6)):
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            await settle()
        what = chance.choices(("end", "fail", "cancel one", "cancel", "leave", "gone"), (50, 10, 1, 1, 1, 1))[0]
        if what == "cancel":
            sweep.cancel()
        elif what == "leave":
            stage.leaving = True
            for run in stage.running:
                run.end(chance.choice(("left", "cancelled")))
        elif what == "gone":
            stage.external_end = End()
            for run in stage.running:
                run.end("lost")
        elif stage.running:
            ends = {"end": "done", "fail": "failed", "cancel one": "cancelled"}
            chance.choice(stage.running).end(ends[what])
    failed = work.exception()
    assert not stage.running and stage.overs == 1
    assert stage.most <= max(1, len(stage.links) // nodes if nodes else 1)
    assert [place for place, _ in sorted(stage.ended)] == list(range(len(stage.runs)))
    whole = len(stage.runs) == rows
    assert whole or sweep.cancelled or failed is not None, "that some did not begin is told"


def test_a_pool_that_is_too_small_is_named() -> None:
    with pytest.raises(UsageError, match="each combination needs 2 nodes, but pool p has 1 node"):
        check_node_count(2, 1, "p")
    check_node_count(0, 1, "p")


@pytest.mark.parametrize(
    ("ranks", "each", "nodes"),
    [
        (1, 1, 1), (4, 4, 1), (8, 4, 2),
        (1, 4, "Take 4 ranks"), (2, 4, "Take 4 ranks"), (3, 4, "Take 4 ranks"), (6, 4, "Take 4 or 8 ranks"),
        (2, 0, "until the pool is up"),
    ],
)  # fmt: skip
def test_a_gang_has_all_ranks_of_its_nodes(ranks: int, each: int, nodes: int | str) -> None:
    if isinstance(nodes, int):
        assert gang_nodes(ranks, each, "p") == nodes
    else:
        with pytest.raises(UsageError, match=nodes):
            gang_nodes(ranks, each, "p")
