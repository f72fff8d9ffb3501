"""One run alone: values of generators, large results, and what becomes of them where its client leaves."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from skyward_core.model.errors import Cancelled, PoolError, PoolGone, RunError
from skyward_core.pool.pool_context import PoolEnd
from skyward_core.pool.runs.run import Run, RunCompletion
from skyward_core.views import events
from tests.support.runs import broadcast, gather, home_for_runs
from tests.support.staged_pool import Stage, staged, task
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with home_for_runs(tmp_path_factory):
        yield


GRACE = 3.5


def stream(stage: Stage, *, consumed: bool) -> Run:
    run = stage.add("single", task(stream=True), consumed=consumed)
    run.dispatch()
    return run


def credits(stage: Stage) -> list[int]:
    return [header["next"] for header in stage.nodes[0].of("credit")]


async def test_without_a_reader_a_generator_may_go_on_after_every_value() -> None:
    async with staged(1) as stage:
        (node,) = stage.nodes
        run = stream(stage, consumed=False)
        assert node.of("call")[0]["stream"] is True
        for number in (0, 1, 0, 1, 2):
            node.yields(run, 0, number)
        assert credits(stage) == [1, 2, 2, 2, 3], "what came twice is taken once"
        assert [event.seq for event in stage.told(events.ItemYielded)] == [0, 1, 2]
        node.ends(run, 0, items=3)
        assert run.state == "done"


async def test_a_reader_pays_for_each_value_and_gets_each_once() -> None:
    async with staged(1) as stage:
        (node,) = stage.nodes
        run = stream(stage, consumed=True)
        for number in (0, 1, 0, 1):
            node.yields(run, 0, number)
        assert credits(stage) == []
        items = run.items(0)
        assert (next(items), next(items)) == (0, 3)
        await until(lambda: credits(stage) == [1])
        node.drop()
        await until(lambda: stage.links[0].up)
        (again,) = node.of("call")
        assert (again["next"], again["taken"]) == (2, 1), "from where we are"
        node.yields(run, 0, 1)
        node.yields(run, 0, 2)
        node.ends(run, 0, items=3)
        assert stage.acknowledged() == [], "a node keeps what is not read yet"
        assert await asyncio.to_thread(list, items) == [6]
        await until(lambda: credits(stage)[-1] == 3)
        assert stage.acknowledged()[-1] == (0, {run.id: None})


async def test_a_reader_that_goes_away_needs_no_values_any_more() -> None:
    async with staged(1) as stage:
        (node,) = stage.nodes
        run = stream(stage, consumed=True)
        node.yields(run, 0, 0)
        node.ends(run, 0, items=1)
        assert stage.acknowledged() == []
        run.cancel("its caller went away")
        assert stage.acknowledged() == [(0, {run.id: None})]
        assert run.state == "done"


@pytest.mark.parametrize(
    ("came", "more", "why"),
    [
        ([0, 3], {}, "values 1 to 2 of f() on rank 0 was lost on node 0"),
        ([0, 2], {}, "value 1 of f() on rank 0 was lost on node 0"),
        ([0], {"items": 2}, "value 1 of f() on rank 0 was lost on node 0"),
    ],
)
async def test_values_that_are_missing_end_the_call(came: list[int], more: Any, why: str) -> None:
    async with staged(1, grace=GRACE) as stage:
        (node,) = stage.nodes
        run = stream(stage, consumed=True)
        for number in came:
            node.yields(run, 0, number)
        if more:
            node.ends(run, 0, **more)
        (stop,) = node.of("stop")
        assert (stop["i"], stop["grace"]) == (0, GRACE)
        assert stop["why"].startswith(why)
        items = run.items(0)
        assert next(items) == 0, "those before it are here"
        with pytest.raises(RunError, match="lost on node 0; those before it are here"):
            next(items)


# -- large results ---------------------------------------------------------------------------------------------------


async def test_a_run_with_a_large_result_has_ended_when_that_is_here() -> None:
    async with staged(1, concurrency=2) as stage:
        (node,) = stage.nodes
        run = gather(stage, 2)
        node.ends(run, 1, value="small")
        body = pickle.dumps("large")
        node.ends(run, 0, file="x.result", size=len(body))
        await until(lambda: node.of("fetch"))
        (asked,) = node.of("fetch")
        assert (asked["f"], asked["at"], run.state) == ("x.result", 0, "running")
        node.say({"t": "data", "id": asked["id"], "last": False}, body[:4])
        assert stage.acknowledged() == [(0, {run.id: [1]})], "the node keeps what is on its way"
        node.drop()
        await until(lambda: stage.links[0].up and node.of("fetch"))
        (asked,) = node.of("fetch")
        assert asked["at"] == 4, "what has come is kept"
        assert node.calls == [], "its outcome is known"
        node.say({"t": "data", "id": asked["id"], "last": True}, body[4:])
        await until(lambda: run.state != "running")
        assert run.results() == ["large", "small"]
        assert list(stage.context.archive.results.iterdir()) == []


async def test_a_large_result_of_a_run_that_somebody_waits_for_is_loaded_as_it_lands() -> None:
    async with staged(1) as stage:
        (node,) = stage.nodes
        ending = RunCompletion()
        run = stage.registry.add("waited", "gather", [task(), task(1)], 2, ending)
        run.dispatch()
        body = pickle.dumps("large")
        waiting = asyncio.create_task(asyncio.to_thread(ending.wait))
        node.ends(run, 0, file="x.result", size=len(body))
        await until(lambda: node.of("fetch"))
        node.say({"t": "data", "id": node.of("fetch")[0]["id"], "last": True}, body)
        await until(lambda: 0 in run._loaded and run._loaded[0].done())
        assert run.state == "running", "while the other still runs"
        node.ends(run, 1, value=1)
        assert (await waiting).results() == ["large", 1]


@pytest.mark.parametrize(
    ("trouble", "why"),
    [("error", r"could not be fetched to .*: No such file"), ("gone", r"connection to node 0 was lost")],
)
async def test_a_large_result_that_cannot_be_had_is_lost(trouble: str, why: str) -> None:
    async with staged(1) as stage:
        (node,) = stage.nodes
        run = gather(stage, 1)
        node.ends(run, 0, file="x.result", size=100_000)
        await until(lambda: node.of("fetch"))
        if trouble == "error":
            node.say({"t": "data", "id": node.of("fetch")[0]["id"], "last": True, "error": "No such file"})
        else:
            node.drop()
            stage.registry.drop_link(stage.links[0])
        await until(lambda: run.state == "failed")
        with pytest.raises(RunError, match=rf"^f failed: task 0 was lost: [^\[]*{why}[^\[]*$"):
            run.results()
        stage.background.run_deferred()
        assert len(stage.told(events.RankEnded)) == 1


async def test_a_large_result_that_is_told_of_again_while_it_comes_is_fetched_once() -> None:
    """An agent tells of all that is claimed, once more after each reconnection."""
    async with staged(1) as stage:
        (node,) = stage.nodes
        run = gather(stage, 1)
        body = pickle.dumps("large")
        for _ in range(3):
            node.ends(run, 0, file="x.result", size=len(body))
        await until(lambda: node.of("fetch"))
        node.say({"t": "data", "id": node.of("fetch")[0]["id"], "last": True}, body)
        await until(lambda: run.state != "running")
        assert (len(node.of("fetch")), run.results()) == (1, ["large"])


# -- leaving ---------------------------------------------------------------------------------------------------------


async def test_who_leaves_takes_what_no_node_has_got_along() -> None:
    async with staged(2) as stage:
        unsent, part, whole = stage.add("gather", task()), gather(stage, 6), broadcast(stage)
        for run in (unsent, part, whole):
            run.detach()
        assert [run.state for run in (unsent, part, whole)] == ["cancelled", "left", "left"]
        assert all(run.future.done() for run in (unsent, part, whole))
        with pytest.raises(Cancelled, match="it was sent to no node"):
            unsent.results()
        with pytest.raises(PoolError, match="2 of its 6 tasks had been sent to no node, and are not run"):
            part.results()
        with pytest.raises(PoolError, match=rf"sky.attach\('p'\)\.wait\('{whole.id}'\) gives its results"):
            whole.results()
        assert not any(node.of("stop") for node in stage.nodes), "it goes on there"
        assert stage.acknowledged() == [], "whoever claims it gets what came of it"


async def test_who_left_with_some_of_the_results_is_not_told_that_they_are_still_there() -> None:
    async with staged(2) as stage:
        some, unsent, ranks = gather(stage, 3), gather(stage, 6), broadcast(stage)
        for run in (some, unsent, ranks):
            stage.nodes[0].ends(run, 0)
            run.detach()
        for run, total in (some, 3), (unsent, 6):
            with pytest.raises(PoolError) as caught:
                run.results()
            words = str(caught.value)
            assert f"1 of its {total} results had come here, and no node keeps those" in words
            assert "attach" not in words
            assert ("1 of its 6 tasks had been sent to no node" in words) is (run is unsent)
        with pytest.raises(PoolError, match="gives its results"):
            ranks.results()  # of a broadcast nodes keep all until the last is here


@pytest.mark.parametrize("end", ["left", "lost"])
@pytest.mark.parametrize("kind", ["gather", "broadcast", "stream"])
async def test_what_ends_after_a_run_was_left_is_kept_for_whoever_comes(end: str, kind: str) -> None:
    """Links are closed a moment after that, and what was on its way over them comes all the same."""
    async with staged(2) as stage:
        match kind:
            case "gather":
                run = gather(stage, 6)
            case "broadcast":
                run = broadcast(stage)
            case _:
                run = stream(stage, consumed=True)
                stage.nodes[0].yields(run, 0, 0)
        sent = len(stage.placed)
        if end == "left":
            run.detach()
        else:
            run.pool_ended(PoolEnd("p", "somebody else", "", 0.0))
        for node, index in [(each, call) for each in stage.nodes for call in each.calls]:
            node.ends(run, index, "returned", items=1 if kind == "stream" else 0)
        if kind == "stream":
            run.on_consumed(stage.links[0], 0, 1)
            run.cancel("its reader went away")
        assert (run.state, len(stage.placed)) == (end, sent), "its client is not there for what comes of more"
        assert stage.acknowledged() == []


async def test_a_pool_that_has_ended_ends_its_runs_and_has_nothing_removed() -> None:
    async with staged(1) as stage:
        run, read = gather(stage, 3), stream(stage, consumed=True)
        stage.nodes[0].yields(read, 0, 0)
        read.pool_ended(PoolEnd("p", "somebody else", "", 0.0))
        read.cancel("its reader went away")
        run.pool_ended(PoolEnd("p", "somebody else", "", 0.0))
        run.pool_ended(PoolEnd("p", "another", "", 0.0))
        run.cancel("too late")
        with pytest.raises(PoolGone, match="by somebody else"):
            run.results()
        assert (run.state, stage.nodes[0].of("stop"), stage.acknowledged()) == ("lost", [], [])
        assert [event.state for event in stage.told(events.RunEnded)] == ["lost", "lost"]


async def test_of_another_clients_run_every_node_is_told_that_it_is_not_needed() -> None:
    async with staged(2) as stage:
        run = stage.add("gather", task(), task(1))
        run.claim_from(stage.links)
        assert all(run.is_sent_to(link, index) for link in stage.links for index in (0, 1))
        stage.nodes[1].ends(run, 0, value="a")
        stage.nodes[1].ends(run, 1, value="b")
        assert run.results() == ["a", "b"]
        assert [node for node, calls in stage.acknowledged() if calls == {run.id: None}] == [0, 1]
