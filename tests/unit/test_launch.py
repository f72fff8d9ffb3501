"""How runs get to the nodes: at once, when the nodes and the gang that they need are there, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import Cancelled, PoolGone, RunError
from skyward_core.model.outcomes import RunKind
from skyward_core.pool import agent_link
from skyward_core.pool.pool_context import PoolEnd
from skyward_core.pool.runs.run import Run
from skyward_core.views import events
from tests.support.staged_pool import Stage, large_task, said, staged, task
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(agent_link, "BACKOFF", (0.001, 0.01))
        yield


async def ended(run: Run) -> None:
    await until(lambda: run.state != "running")


async def settle() -> None:
    """Let what was begun beside come as far as it can without anything from outside."""
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
async def test_calls_leave_before_anything_else_is_done(
    kind: RunKind, tasks: int, placed: list[tuple[int, int]]
) -> None:
    async with staged(2, ranks=2) as stage:
        run = stage.scheduler.open(kind, [task(number) for number in range(tasks)])
        assert stage.placed == placed
        (opened,) = stage.told(events.RunOpened)
        assert stage.log[-1] is opened, "the nodes work while it is written down"
        assert (opened.run, opened.function, opened.kind, opened.total) == (run.id, "f", kind, len(placed))
        for node, index in placed:
            stage.nodes[node].ends(run, index, value=index)
        assert run.results() == list(range(len(placed)))


async def test_a_broadcast_waits_for_its_gang() -> None:
    async with staged(2) as stage:
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
async def test_one_that_is_cancelled_while_it_waits_for_a_gang_is_sent_to_no_node(kind: RunKind) -> None:
    async with staged(2) as stage:
        stage.keeper.is_complete = False
        stage.keeper.opened.clear()
        run = stage.scheduler.open(kind, [task()])
        await until(lambda: stage.keeper.asked)
        run.cancel("asked for")
        assert run.state == "cancelled"
        stage.keeper.opened.set()
        await until(lambda: stage.keeper.is_complete)
        await settle()
        assert (stage.placed, [node.of("stop") for node in stage.nodes]) == ([], [[], []])


@pytest.mark.parametrize("kind", ["broadcast", "gather"])
async def test_a_gang_that_cannot_be_formed_fails_the_run(kind: RunKind) -> None:
    async with staged(2) as stage:
        stage.keeper.is_complete = False
        stage.keeper.failures = [ConnectionError("nobody knows the plugins")]
        run = stage.scheduler.open(kind, [task(), task(1)][: 1 if kind == "broadcast" else 2])
        await ended(run)
        assert (run.state, stage.placed, len(run.outcomes)) == ("failed", [], 2)
        with pytest.raises(RunError, match="cannot form the gang: nobody knows the plugins"):
            run.results()


@pytest.mark.parametrize("kind", ["broadcast", "gather"])
async def test_a_gang_that_could_not_be_formed_for_a_dropped_link_is_formed_when_that_is_up(
    kind: RunKind,
) -> None:
    async with staged(2) as stage:
        stage.nodes[1].away = OSError("no route")
        stage.nodes[1].drop()
        stage.keeper.is_complete = False
        stage.keeper.failures = [ConnectionError("the link is down")] * 2
        run = stage.scheduler.open(kind, [task(), task(1)][: 1 if kind == "broadcast" else 2])
        await until(lambda: len(stage.keeper.failures) == 1)
        await settle()
        assert (run.state, len(stage.keeper.asked)) == ("running", 1), "not again before the link is up"
        stage.nodes[1].away = None
        await until(lambda: stage.links[1].up)
        # It fails once more, with all links up, and the same as at that try: so it is no link's fault.
        await ended(run)
        assert (run.state, len(stage.keeper.asked)) == ("failed", 2)


async def test_a_pool_that_has_ended_takes_no_run_and_keeps_no_file(tmp_path: Path) -> None:
    async with staged(1) as stage:
        stage.context.external_end = PoolEnd("p", "somebody else", "", 0.0)
        with pytest.raises(PoolGone, match="somebody else"):
            stage.scheduler.open("single", [large_task(tmp_path / "args")])
        assert (list(tmp_path.iterdir()), stage.registry.runs, stage.told(events.RunOpened)) == (
            [],
            {},
            [],
        )


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
async def test_what_needs_a_node_that_comes_back_waits_for_it(
    kind: RunKind, gone: list[int], replacing: list[int], waits: bool
) -> None:
    async with staged(2) as stage:
        for node in gone:
            stage.links[node].mark_lost()
        over = [stage.replacing(node) for node in replacing]
        run = stage.scheduler.open(kind, [task()])
        await settle()
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


async def test_one_that_is_cancelled_while_it_waits_for_a_node_is_sent_to_none() -> None:
    async with staged(2) as stage:
        stage.links[1].mark_lost()
        over = stage.replacing(1)
        run = stage.scheduler.open("broadcast", [task()])
        run.cancel("asked for")
        assert run.state == "cancelled"
        over.set()
        await until(lambda: not stage.roster.replacement_tasks)
        await settle()
        assert (stage.placed, stage.keeper.asked) == ([], [])
        with pytest.raises(Cancelled, match="asked for"):
            run.results()


async def test_who_leaves_while_a_run_waits_for_a_node_takes_it_along() -> None:
    async with staged(2) as stage:
        stage.links[1].mark_lost()
        over = stage.replacing(1)
        run = stage.scheduler.open("broadcast", [task()])
        run.detach()
        over.set()
        await until(lambda: not stage.roster.replacement_tasks)
        await settle()
        assert (run.state, stage.placed) == ("cancelled", [])


@pytest.mark.parametrize(
    ("cluster", "fail_fast", "refused"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
async def test_a_broadcast_goes_without_a_node_only_where_ranks_stand_alone(
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


async def test_tasks_wait_for_a_gang_only_where_plugins_enter_contexts() -> None:
    async with staged(2) as stage:
        stage.links[1].mark_lost()
        stage.keeper.is_complete = False
        plain = stage.scheduler.open("single", [task()])
        await until(lambda: plain.sent)
        assert stage.keeper.asked == []
        stage.keeper.plugins = b"plugins"
        over = stage.replacing(1)
        hooked = stage.scheduler.open("single", [task()])
        await settle()
        assert (hooked.sent, stage.keeper.asked) == (False, []), "a gang lacks that node"
        over.set()
        await until(lambda: hooked.sent)
        assert stage.keeper.asked == ["ensure"]


# -- large arguments -------------------------------------------------------------------------------------------------


async def test_files_are_on_all_nodes_before_the_calls_and_then_gone_from_here(tmp_path: Path) -> None:
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


async def test_files_that_no_node_takes_fail_the_run(tmp_path: Path) -> None:
    async with staged(2) as stage:
        stage.nodes[1].full = OSError("no space left on node 1")
        run = stage.scheduler.open("broadcast", [large_task(tmp_path / "args")])
        await ended(run)
        with pytest.raises(RunError, match="could not be sent to the nodes: no space left on node 1"):
            run.results()
        assert (stage.placed, list(tmp_path.iterdir())) == ([], [])


async def test_one_that_is_cancelled_while_its_files_are_on_their_way_is_not_started(tmp_path: Path) -> None:
    async with staged(2) as stage:
        run = stage.scheduler.open("broadcast", [large_task(tmp_path / "args")])
        run.cancel("asked for")
        await until(lambda: not list(tmp_path.iterdir()))
        await settle()
        assert (run.state, stage.placed) == ("cancelled", [])


@pytest.mark.parametrize("why", ["cancelled", "left", "refused"])
async def test_files_of_a_run_that_is_never_sent_are_not_kept(tmp_path: Path, why: str) -> None:
    async with staged(2) as stage:
        stage.links[1].mark_lost()
        over = stage.replacing(1)
        if why == "refused":
            del stage.roster.replacement_tasks[1]
        run = stage.scheduler.open("broadcast", [large_task(tmp_path / "args")])
        await settle()
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
    """A worker of a node died, and the node says so."""
    stage.keeper.is_complete = False
    stage.nodes[node].say({"t": "gang", "epoch": 1, "broken": "rank 0 ended"})


@pytest.mark.parametrize(
    ("kind", "formed"), [("gather", ["ensure"]), ("single", ["ensure"]), ("broadcast", []), ("", [])]
)
async def test_a_gang_that_broke_is_formed_anew_for_tasks_that_need_it(kind: RunKind, formed: list[str]) -> None:
    async with staged(2) as stage:
        if kind:
            stage.scheduler.open(kind, [task()])
        stage.nodes[0].say({"t": "gang", "epoch": 1, "broken": ""})
        await settle()
        assert stage.keeper.asked == [], "it is whole"
        broken(stage, 1)
        await settle()
        assert stage.keeper.asked == formed


async def test_it_is_not_formed_while_a_node_gets_another_machine() -> None:
    async with staged(2) as stage:
        stage.scheduler.open("gather", [task()])
        over = stage.replacing(1)
        broken(stage, 1)
        await settle()
        over.set()
        await until(lambda: not stage.roster.replacement_tasks)
        await settle()
        assert stage.keeper.asked == [], "a new gang is the end of that"


async def test_tasks_of_an_agent_without_a_gang_end_where_none_can_be_formed() -> None:
    async with staged(2, fail_fast=False) as stage:
        run = stage.scheduler.open("gather", [task(), task(1)])
        stage.nodes[1].epoch = 0  # its agent is another one
        stage.keeper.is_complete = False
        stage.keeper.failures = [ConnectionError("nobody knows the plugins")]
        stage.nodes[1].drop()
        await until(lambda: run.outcomes)
        assert stage.nodes[1].calls == [1], "it was asked again"
        assert {index: outcome.kind for index, outcome in run.outcomes.items()} == {1: "lost"}
        assert "could not be formed anew: nobody knows the plugins" in said(run, 1)
        assert "nobody knows the plugins" in stage.told(events.PoolState)[-1].detail
        stage.nodes[0].ends(run, 0)
        assert run.state == "failed"


@pytest.mark.parametrize("cluster", [True, False])
async def test_a_new_agent_has_its_ranks_set_up(cluster: bool) -> None:
    async with staged(2, cluster=cluster) as stage:
        run: Any = stage.scheduler.open("gather", [task(), task(1)]) if cluster else None
        stage.nodes[1].epoch = 0
        stage.nodes[1].drop()
        await until(lambda: stage.keeper.asked)
        assert stage.keeper.asked == ["ensure"]
        assert run is None or run.state == "running"
