"""Scheduling of runs and of sweeps of gangs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import Cancelled, PoolError, PoolGone, RunError, UsageError
from skyward_core.model.outcomes_states_and_alerts import RunKind
from skyward_core.pool import agent_link
from skyward_core.pool.pool_context import PoolEnd
from skyward_core.pool.runs.gang_sweep import GangSweep
from skyward_core.pool.runs.run import Run
from skyward_core.tasks.pickled_calls_and_blobs import EMPTY_BLOB, Task
from skyward_core.views import events
from tests.support.staged_pool import Stage, failure_reason, large_task, staged, task
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(agent_link, "BACKOFF", (0.001, 0.01))
        yield


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged(2) as stage:
        yield stage


async def wait_for_end(run: Run) -> None:
    await until(lambda: run.state != "running")


async def run_pending_callbacks() -> None:
    """Run all background work until it waits for something external."""
    for _ in range(10):
        await asyncio.sleep(0)


# -- to a pool that is whole -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "tasks", "placed"),
    [
        ("broadcast", 1, [(0, 0), (0, 1), (1, 2), (1, 3)]),
        ("single", 1, [(0, 0)]),
        ("gather", 4, [(0, 0), (0, 2), (1, 1), (1, 3)]),  # what one node gets is written in one go
    ],
)
async def test_calls_are_sent_before_the_run_is_recorded(
    kind: RunKind, tasks: int, placed: list[tuple[int, int]]
) -> None:
    async with staged(2, ranks=2) as stage:
        run = stage.scheduler.open(kind, [task(number) for number in range(tasks)])
        assert stage.placed == placed
        (opened,) = stage.events_of(events.RunOpened)
        assert stage.log[-1] is opened, "the nodes work while it is written down"
        assert (opened.run, opened.function, opened.kind, opened.total) == (run.id, "f", kind, len(placed))
        for node, index in placed:
            stage.nodes[node].ends(run, index, value=index)
        assert run.results() == list(range(len(placed)))


async def test_broadcast_waits_until_its_gang_is_formed(stage: Stage) -> None:
    stage.keeper.is_complete = False
    stage.keeper.opened.clear()
    run = stage.scheduler.open("broadcast", [task()])
    await until(lambda: stage.keeper.asked == ["start"])
    assert stage.placed == []
    stage.keeper.opened.set()
    await until(lambda: len(stage.placed) == 2)
    assert [node.of("call")[0]["epoch"] for node in stage.nodes] == [2, 2]
    assert run.state == "running"


@pytest.mark.parametrize("kind", ["broadcast", "gather"])
async def test_run_cancelled_while_waiting_for_a_gang_reaches_no_node(stage: Stage, kind: RunKind) -> None:
    stage.keeper.is_complete = False
    stage.keeper.opened.clear()
    run = stage.scheduler.open(kind, [task()])
    await until(lambda: stage.keeper.asked)
    run.cancel("asked for")
    assert run.state == "cancelled"
    stage.keeper.opened.set()
    await until(lambda: stage.keeper.is_complete)
    await run_pending_callbacks()
    assert (stage.placed, [node.of("stop") for node in stage.nodes]) == ([], [[], []])


@pytest.mark.parametrize("kind", ["broadcast", "gather"])
async def test_gang_that_cannot_be_formed_fails_the_run(stage: Stage, kind: RunKind) -> None:
    stage.keeper.is_complete = False
    stage.keeper.failures = [ConnectionError("nobody knows the plugins")]
    run = stage.scheduler.open(kind, [task(), task(1)][: 1 if kind == "broadcast" else 2])
    await wait_for_end(run)
    assert (run.state, stage.placed, len(run.outcomes)) == ("failed", [], 2)
    with pytest.raises(RunError, match="cannot form the gang: nobody knows the plugins"):
        run.results()


@pytest.mark.parametrize("kind", ["broadcast", "gather"])
async def test_gang_is_formed_when_a_dropped_link_is_up_again(stage: Stage, kind: RunKind) -> None:
    stage.nodes[1].away = OSError("no route")
    stage.nodes[1].drop()
    stage.keeper.is_complete = False
    stage.keeper.failures = [ConnectionError("the link is down")] * 2
    run = stage.scheduler.open(kind, [task(), task(1)][: 1 if kind == "broadcast" else 2])
    await until(lambda: len(stage.keeper.failures) == 1)
    await run_pending_callbacks()
    assert (run.state, len(stage.keeper.asked)) == ("running", 1), "not again before the link is up"
    stage.nodes[1].away = None
    await until(lambda: stage.links[1].up)
    # It fails once more, with all links up, and the same as at that try: so it is no link's fault.
    await wait_for_end(run)
    assert (run.state, len(stage.keeper.asked)) == ("failed", 2)


async def test_ended_pool_rejects_runs_and_deletes_argument_files(tmp_path: Path) -> None:
    async with staged(1) as stage:
        stage.context.external_end = PoolEnd("p", "somebody else", "", 0.0)
        with pytest.raises(PoolGone, match="somebody else"):
            stage.scheduler.open("single", [large_task(tmp_path / "args")])
        assert (list(tmp_path.iterdir()), stage.registry.runs, stage.events_of(events.RunOpened)) == ([], {}, [])


# -- to one that lacks nodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "gone", "replacing", "waits"),
    [
        ("broadcast", [1], [1], True),
        ("broadcast", [0, 1], [1], False),  # for node 0 there is no hope
        ("gather", [1], [1], False),  # node 0 can do it
        ("gather", [0, 1], [0, 1], True),
        ("single", [0, 1], [0, 1], True),
    ],
)
async def test_run_waits_for_a_node_replacement_only_if_needed(
    stage: Stage, kind: RunKind, gone: list[int], replacing: list[int], waits: bool
) -> None:
    for node in gone:
        stage.links[node].mark_lost()
    over = [stage.replacing(node) for node in replacing]
    run = stage.scheduler.open(kind, [task()])
    await run_pending_callbacks()
    assert (run.state == "running" and stage.placed == []) == waits
    if not waits:
        assert stage.placed == ([(0, 0)] if kind == "gather" else [])
        return
    for link in stage.links:
        link.gone = False  # another machine has come
    for event in over:
        event.set()
    expected = [(0, 0), (1, 1)] if kind == "broadcast" else [(0, 0)]
    await until(lambda: stage.placed == expected)
    for node, index in expected:
        stage.nodes[node].ends(run, index, value=index)
    assert run.results() == [index for _, index in expected]


async def test_run_cancelled_while_waiting_for_a_node_reaches_no_node(stage: Stage) -> None:
    stage.links[1].mark_lost()
    over = stage.replacing(1)
    run = stage.scheduler.open("broadcast", [task()])
    run.cancel("asked for")
    assert run.state == "cancelled"
    over.set()
    await until(lambda: not stage.roster.replacement_tasks)
    await run_pending_callbacks()
    assert (stage.placed, stage.keeper.asked) == ([], [])
    with pytest.raises(Cancelled, match="asked for"):
        run.results()


@pytest.mark.parametrize(
    ("cluster", "fail_fast", "refused"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
async def test_broadcast_with_a_lost_node_runs_only_without_cluster_and_fail_fast(
    cluster: bool, fail_fast: bool, refused: bool
) -> None:
    async with staged(2, cluster=cluster, fail_fast=fail_fast) as stage:
        stage.links[1].mark_lost()
        stage.roster.failures[1] = "no machine is to be had"
        run = stage.scheduler.open("broadcast", [task()])
        if not refused:
            assert stage.placed == [(0, 0)]
            stage.nodes[0].ends(run, 0)
            assert (run.outcomes[0].kind, run.outcomes[1].kind) == ("returned", "lost")
            return
        assert (run.state, stage.placed) == ("failed", [])
        assert (run.outcomes[0].kind, run.outcomes[1].kind) == ("collateral", "lost")
        with pytest.raises(RunError, match="node 1 of the pool is lost: no machine is to be had"):
            run.results()


async def test_tasks_wait_for_a_gang_only_if_plugins_enter_contexts(stage: Stage) -> None:
    stage.links[1].mark_lost()
    stage.keeper.is_complete = False
    plain = stage.scheduler.open("single", [task()])
    await until(lambda: plain.sent)
    assert stage.keeper.asked == []
    stage.keeper.plugins = b"plugins"
    over = stage.replacing(1)
    hooked = stage.scheduler.open("single", [task()])
    await run_pending_callbacks()
    assert (hooked.sent, stage.keeper.asked) == (False, []), "a gang lacks that node"
    over.set()
    await until(lambda: hooked.sent)
    assert stage.keeper.asked == ["ensure"]


# -- large arguments -------------------------------------------------------------------------------------------------


async def test_argument_files_are_on_all_nodes_before_calls_and_then_deleted(tmp_path: Path) -> None:
    async with staged(3) as stage:
        stage.links[2].mark_lost()
        run = stage.scheduler.open("gather", [large_task(tmp_path / "args"), task(1)])
        assert stage.placed == [], "a file takes its time"
        await until(lambda: run.sent)
        kinds = [(each[0], each[1]["t"]) for each in stage.log if isinstance(each, tuple)]
        sent = [each for each in kinds if each[1] in ("put", "call")]
        assert sorted(sent[:2]) == [(0, "put"), (1, "put")]
        assert sorted(sent[2:]) == [(0, "call"), (1, "call")]
        assert list(tmp_path.iterdir()) == []
        assert run.stocked == frozenset(stage.links[:2])


async def test_argument_files_that_a_node_cannot_store_fail_the_run(stage: Stage, tmp_path: Path) -> None:
    stage.nodes[1].full = OSError("no space left on node 1")
    run = stage.scheduler.open("broadcast", [large_task(tmp_path / "args")])
    await wait_for_end(run)
    with pytest.raises(RunError, match="cannot send the arguments to the nodes: no space left on node 1"):
        run.results()
    assert (stage.placed, list(tmp_path.iterdir())) == ([], [])


async def test_run_cancelled_during_file_upload_is_not_started(stage: Stage, tmp_path: Path) -> None:
    run = stage.scheduler.open("broadcast", [large_task(tmp_path / "args")])
    run.cancel("asked for")
    await until(lambda: not list(tmp_path.iterdir()))
    await run_pending_callbacks()
    assert (run.state, stage.placed) == ("cancelled", [])


@pytest.mark.parametrize("why", ["cancelled", "left", "refused"])
async def test_argument_files_of_a_run_never_sent_are_deleted(stage: Stage, tmp_path: Path, why: str) -> None:
    stage.links[1].mark_lost()
    over = stage.replacing(1)
    if why == "refused":
        del stage.roster.replacement_tasks[1]
    run = stage.scheduler.open("broadcast", [large_task(tmp_path / "args")])
    await run_pending_callbacks()
    if why == "cancelled":
        run.cancel("asked for")
        over.set()
    elif why == "left":
        run.detach()
        await stage.background.stop()
    await until(lambda: not list(tmp_path.iterdir()))
    assert (run.state, stage.nodes[0].files) == ("failed" if why == "refused" else "cancelled", [])


# -- when the gang breaks under it -----------------------------------------------------------------------------------


def broken(stage: Stage, node: int) -> None:
    """Report that a worker of a node died."""
    stage.keeper.is_complete = False
    stage.nodes[node].say({"t": "gang", "epoch": 1, "broken": "rank 0 ended"})


@pytest.mark.parametrize(
    ("kind", "formed"), [("gather", ["ensure"]), ("single", ["ensure"]), ("broadcast", []), ("", [])]
)
async def test_broken_gang_is_formed_again_for_tasks_that_need_it(
    stage: Stage, kind: RunKind, formed: list[str]
) -> None:
    if kind:
        stage.scheduler.open(kind, [task()])
    stage.nodes[0].say({"t": "gang", "epoch": 1, "broken": ""})
    await run_pending_callbacks()
    assert stage.keeper.asked == [], "it is whole"
    broken(stage, 1)
    await run_pending_callbacks()
    assert stage.keeper.asked == formed


async def test_broken_gang_is_not_formed_during_a_node_replacement(stage: Stage) -> None:
    stage.scheduler.open("gather", [task()])
    over = stage.replacing(1)
    broken(stage, 1)
    await run_pending_callbacks()
    over.set()
    await until(lambda: not stage.roster.replacement_tasks)
    await run_pending_callbacks()
    assert stage.keeper.asked == [], "a new gang is the end of that"


async def test_tasks_of_an_agent_whose_gang_cannot_be_formed_are_lost() -> None:
    async with staged(2, fail_fast=False) as stage:
        run = stage.scheduler.open("gather", [task(), task(1)])
        stage.nodes[1].epoch = 0  # its agent is another one
        stage.keeper.is_complete = False
        stage.keeper.failures = [ConnectionError("nobody knows the plugins")]
        stage.nodes[1].drop()
        await until(lambda: run.outcomes)
        assert stage.nodes[1].calls == [1], "it was asked again"
        assert {index: outcome.kind for index, outcome in run.outcomes.items()} == {1: "lost"}
        assert "cannot be formed again: nobody knows the plugins" in failure_reason(run, 1)
        assert "nobody knows the plugins" in stage.events_of(events.PoolState)[-1].detail
        stage.nodes[0].ends(run, 0)
        assert run.state == "failed"


@pytest.mark.parametrize("cluster", [True, False])
async def test_ranks_of_a_new_agent_are_set_up(cluster: bool) -> None:
    async with staged(2, cluster=cluster) as stage:
        run: Any = stage.scheduler.open("gather", [task(), task(1)]) if cluster else None
        stage.nodes[1].epoch = 0
        stage.nodes[1].drop()
        await until(lambda: stage.keeper.asked)
        assert stage.keeper.asked == ["ensure"]
        assert run is None or run.state == "running"


# Sweeps of gangs, on a launcher that only opens runs.


class OneRun:
    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.state = "running"
        self.future: Future[OneRun] = Future()

    def end(self, state: str = "done") -> None:
        self.state = state
        if not self.future.done():
            self.future.set_result(self)

    def cancel(self, why: str, *how: Any) -> None:
        if self.state == "running":
            self.end("cancelled")

    def error(self) -> Exception:
        return PoolGone("the pool has ended")


class End:
    def error(self) -> Exception:
        return PoolGone("the pool has ended")


class SweepStage:
    """Pool whose runs end when a test requests it, which also launches them."""

    def __init__(self, nodes: int) -> None:
        self.links = [object()] * nodes
        self.scheduler = self
        self.leaving = False
        self.name = "p"
        self.external_end: End | None = None
        self.runs: list[OneRun] = []
        self.most = 0
        self.node_counts: set[Any] = set()
        self.refuses: Exception | None = None
        self.ended: list[tuple[int, str]] = []
        self.overs = 0

    def open(self, kind: str, tasks: list[Task], *, run_id: str) -> OneRun:
        if self.refuses is not None:
            raise self.refuses
        assert kind == "broadcast" and not self.leaving
        run = OneRun(run_id)
        self.runs.append(run)
        self.node_counts.add(tasks[0].nodes)
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


async def settle_threads() -> None:
    """Let all tasks and threads continue until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, int)


@pytest.mark.parametrize(
    ("has", "nodes", "most", "node_counts"), [(5, 2, 2, 2), (4, 2, 2, 2), (4, 0, 1, None), (3, 3, 1, 3), (6, 1, 6, 1)]
)
async def test_gang_sweep_runs_as_many_trials_as_fit(has: int, nodes: int, most: int, node_counts: int | None) -> None:
    stage = SweepStage(has)
    sweep = stage.sweep(9, nodes)
    while len(stage.ended) < 9:
        await settle_threads()
        random.Random(len(stage.ended)).choice(stage.running).end()
        await settle_threads()
    await sweep.wait()
    assert stage.most == most and stage.node_counts == {node_counts} and stage.overs == 1
    assert [run.id for run in stage.runs] == sweep.begun_ids == [f"{place:02x}" for place in range(9)]


async def test_failed_trial_stops_no_other_and_cancelled_trial_stops_all() -> None:
    stage = SweepStage(4)
    sweep = stage.sweep(6, 2)
    await settle_threads()
    stage.runs[0].end("failed")
    await settle_threads()
    assert [run.id for run in stage.running] == ["01", "02"]
    stage.runs[2].end("cancelled")
    await sweep.wait()
    assert sweep.cancelled and stage.runs[1].state == "cancelled" and len(stage.runs) == 3


async def test_pool_end_ends_a_gang_sweep_without_further_trials() -> None:
    stage = SweepStage(4)
    sweep = stage.sweep(6, 2)
    await settle_threads()
    stage.external_end = End()
    for run in stage.running:
        run.end("lost")
    with pytest.raises(PoolGone):
        await sweep.wait()
    assert len(stage.runs) == 2


async def test_trial_that_cannot_be_prepared_ends_the_gang_sweep() -> None:
    def prepared(place: int) -> Task:
        if place == 2:
            raise PoolError("no room on the disk")
        return Task("t", EMPTY_BLOB, EMPTY_BLOB)

    stage = SweepStage(2)
    sweep = stage.sweep(6, 1, prepared)
    await settle_threads()
    stage.runs[0].end()
    await settle_threads()
    assert stage.runs[1].state == "running" and len(stage.runs) == 2
    stage.runs[1].end()
    with pytest.raises(PoolError, match="no room"):
        await sweep.wait()
    assert stage.ended == [(0, "done"), (1, "done")]
    refused = SweepStage(2)
    refused.refuses = UsageError("it wants what is not there")
    with pytest.raises(UsageError):
        await refused.sweep(3, 1).first_run


@pytest.mark.parametrize("seed", range(40))
async def test_gang_sweep_leaves_no_run_open_under_random_events(seed: int) -> None:
    """Ends, failures, cancellations, detaching clients and the pool end occur between any two steps."""
    chance = random.Random(seed)
    has, nodes, rows = chance.randint(1, 6), chance.randint(0, 3), chance.randint(1, 12)
    stage = SweepStage(max(has, nodes))
    sweep = stage.sweep(rows, nodes)
    work = asyncio.ensure_future(sweep.wait())
    while not work.done():
        for _ in range(chance.randint(0, 6)):
            await asyncio.sleep(0)
        if chance.random() < 0.3:
            await settle_threads()
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
