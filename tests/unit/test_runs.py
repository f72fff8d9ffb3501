"""Dispatch of one run's calls to nodes, its outcomes, its cancellation and its restart on a new gang."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.api.map_and_stream import split_streams
from skyward_core.model.errors import Cancelled, PoolError, PoolGone, RunError
from skyward_core.model.output_files import WrittenFile
from skyward_core.pool import output_files
from skyward_core.pool.agent_link import Link
from skyward_core.pool.output_files import OutputFetcher, OutputRecord, list_files
from skyward_core.pool.pool_context import PoolEnd
from skyward_core.pool.runs import run as module
from skyward_core.pool.runs.run import Run, RunCompletion
from skyward_core.protocol.frame_schemas_and_size_limits import RESULTS_FETCHED
from skyward_core.views import events
from tests.support.examples import examples
from tests.support.runs import broadcast, gather, home_for_runs, kinds
from tests.support.staged_pool import Node, Stage, failure_reason, large_task, staged, task
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with home_for_runs(tmp_path_factory):
        yield


# -- to which nodes calls go -----------------------------------------------------------------------------------------


async def test_broadcast_calls_each_rank_on_its_node_in_order() -> None:
    async with staged(2, ranks=2) as stage:
        run = stage.add("broadcast", task(7, timeout=9.0))
        run.send_broadcast(5)
        assert stage.placed == [(0, 0), (0, 1), (1, 2), (1, 3)]
        sent = [each for node in stage.nodes for each in node.pipes[-1].sent if each[0]["t"] == "call"]
        for rank, (header, body) in enumerate(sent):
            expected = {"gang": True, "rank": rank, "epoch": 5, "total": 4, "kind": "broadcast", "timeout": 9.0}
            assert header == header | expected
            assert body == run.tasks[0].fn.read() + run.tasks[0].args.read()
        for rank in (3, 1, 0, 2):
            stage.nodes[rank // 2].ends(run, rank, value=rank)
        assert run.results() == [0, 1, 2, 3]


async def test_ended_broadcast_is_acknowledged_on_all_nodes_without_another_call() -> None:
    async with staged(3) as stage:
        run = stage.add("broadcast", task())
        run.send_broadcast(1)
        for rank, node in enumerate(stage.nodes):
            node.ends(run, rank)
        await until(lambda: [node.of("ack") for node in stage.nodes] == [[{"t": "ack", "calls": {run.id: None}}]] * 3)


async def test_single_tasks_go_to_least_loaded_node_in_turns() -> None:
    async with staged(3) as stage:
        runs = [stage.add("single", task(number)) for number in range(5)]
        for run in runs[:4]:
            run.dispatch()
        assert [node for node, _ in stage.placed] == [0, 1, 2, 0]
        stage.nodes[2].ends(runs[2], 0)
        runs[4].dispatch()
        assert stage.placed[-1] == (2, 0), "nodes 0 and 1 have something to do"


async def test_sweep_trial_goes_to_node_without_other_runs() -> None:
    async with staged(3) as stage:
        stage.add("sweep", task(0)).dispatch()
        stage.add("sweep", task(1), task(2)).dispatch()
        assert [node for node, _ in stage.placed] == [0, 1, 2]


async def test_single_task_goes_to_unreachable_node_last() -> None:
    async with staged(2) as stage:
        stage.nodes[0].away = OSError("no route")
        stage.nodes[0].drop()
        for _ in range(3):
            stage.add("single", task()).dispatch()
        assert stage.placed == [(1, 0)] * 3
        stage.links[1].mark_lost()
        late = stage.add("single", task())
        late.dispatch()
        assert stage.links[0].load == 1, "it is asked when it is there again"
        assert late.calls_on(stage.links[0]) == [0]


async def test_gather_deals_tasks_in_turns_then_to_free_nodes() -> None:
    async with staged(2) as stage:
        run = gather(stage, 6)
        assert [node.calls for node in stage.nodes] == [[0, 2], [1, 3]], "one to do, one to be at hand"
        stage.nodes[1].ends(run, 1)
        stage.nodes[1].ends(run, 3)
        assert [node.calls for node in stage.nodes] == [[0, 2], [1, 3, 4, 5]]


async def test_only_quick_tasks_are_sent_far_ahead() -> None:
    async with staged(1, concurrency=2) as stage:
        quick, slow = gather(stage, 100), gather(stage, 100)
        stage.nodes[0].ends(quick, 0, seconds=0.001)
        stage.nodes[0].ends(slow, 0, seconds=0.1)
        asked = [[h["i"] for h in stage.nodes[0].of("call") if h["run"] == run.id] for run in (quick, slow)]
        assert asked == [list(range(1 + 2 + module.MAX_QUEUED_TASKS)), list(range(1 + 2 + 1))]


@pytest.mark.parametrize(
    ("cluster", "head_gone", "expected"),
    [(True, False, {}), (True, True, {"headless": True}), (False, True, {"alone": True})],
)
async def test_calls_state_why_no_gang_can_form(cluster: bool, head_gone: bool, expected: Any) -> None:
    async with staged(2, cluster=cluster) as stage:
        if head_gone:
            stage.links[0].mark_lost()
        gather(stage, 2)
        header = stage.nodes[1].of("call")[0]
        assert {key: header[key] for key in ("headless", "alone") if key in header} == expected


# -- nodes that are not there ----------------------------------------------------------------------------------------


async def test_gather_without_nodes_loses_all_tasks() -> None:
    async with staged(2) as stage:
        for link in stage.links:
            link.mark_lost("its host burnt down")
        run = gather(stage, 2)
        assert (run.state, kinds(run), stage.placed) == ("failed", ["lost", "lost"], [])
        with pytest.raises(RunError, match="every node of the pool is lost"):
            run.results()


async def test_tasks_skip_nodes_that_joined_after_their_arguments() -> None:
    async with staged(3, fail_fast=False) as stage:
        run = stage.add("gather", *map(task, range(5)))
        run.stocked = frozenset(stage.links[:1])
        run.dispatch()
        assert [node.calls for node in stage.nodes] == [[0, 1], [], []]
        stage.nodes[0].ends(run, 0, value="kept")
        stage.registry.drop_link(stage.links[0])
        assert (run.state, kinds(run)) == ("failed", ["returned", *["lost"] * 4])
        with pytest.raises(RunError) as caught:
            run.results()
        assert "node 0 is gone" in str(caught.value), "the first failure is the cause"
        assert caught.value.results == {0: "kept"}
        unsent = [failure_reason(run, index) for index, outcome in run.outcomes.items() if outcome.rank == -1]
        assert unsent == ["every node that had its arguments is lost"] * 2


@pytest.mark.parametrize(
    ("options", "ended", "called"),
    [
        ({}, ["collateral", "lost", "collateral"], []),
        ({"cluster": False}, ["collateral", "lost", "collateral"], []),
        ({"cluster": False, "fail_fast": False}, ["lost"], [0, 2]),
    ],
)
async def test_broadcast_skips_node_that_joined_after_its_arguments(
    options: dict[str, Any], ended: list[str], called: list[int]
) -> None:
    async with staged(3, **options) as stage:
        run = stage.add("broadcast", task(7))
        run.stocked = frozenset([stage.links[0], stage.links[2]])
        run.send_broadcast(1)
        assert (kinds(run), [node for node, _ in stage.placed]) == (ended, called)
        why = "node 1 was replaced after the arguments were sent. Run the function again."
        assert failure_reason(run, 1) == why
        assert run.state == ("running" if called else "failed")


async def test_node_lost_before_the_arguments_is_reported_as_gone() -> None:
    async with staged(2, cluster=False, fail_fast=False) as stage:
        stage.links[1].mark_lost("pulled out")
        run = stage.add("broadcast", task(7))
        run.stocked = frozenset(stage.links[:1])
        run.send_broadcast(1)
        assert (stage.placed, failure_reason(run, 1)) == ([(0, 0)], "node 1 is gone: pulled out")


async def test_lost_node_loses_its_tasks_and_others_run_the_rest() -> None:
    async with staged(2, fail_fast=False) as stage:
        run = gather(stage, 6)
        stage.registry.drop_link(stage.links[0])
        assert sorted(index for node, index in stage.placed if node == 0) == [0, 2]
        for index in (1, 3, 4, 5):
            stage.nodes[1].ends(run, index)
        assert (run.state, kinds(run)) == ("failed", ["lost", "returned", "lost", *["returned"] * 3])


async def test_lost_task_names_the_rank_that_began_it() -> None:
    async with staged(2, ranks=2, fail_fast=False) as stage:
        run = gather(stage, 4)
        at = max(index for node, index in stage.placed if node == 1)
        stage.nodes[1].say({"t": "began", "run": run.id, "i": at, "rank": 3, "node": 1})
        stage.registry.drop_link(stage.links[1])
        assert run.outcomes[at].rank == 3
        assert {each.rank for each in run.outcomes.values()} == {2, 3}, "of the others nothing is known"


@pytest.mark.parametrize("how", ["cancelled", "no node", "stale"])
async def test_outcomes_without_a_node_are_emitted_and_recorded(how: str) -> None:
    async with staged(2, fail_fast=False) as stage:
        match how:
            case "cancelled":
                run = stage.add("gather", task(), task(1))
                run.cancel("asked for")
            case "no node":
                for link in stage.links:
                    link.mark_lost()
                run = gather(stage, 2)
            case _:
                run = broadcast(stage)
                stage.nodes[1].stale(run, 1)
                stage.nodes[0].ends(run, 0)
        assert run.state != "running"
        stage.background.run_deferred()
        shown = {event.outcome.index: event.outcome for event in stage.events_of(events.RankEnded)}
        stage.news.records.flush()
        assert shown == run.outcomes
        assert {outcome.index: outcome for _, outcome in stage.ledger.outcomes} == run.outcomes
        assert isinstance(stage.log[-1], events.RunEnded), "of a run that is over nothing more is told"


# -- what comes twice, late, or in another order ---------------------------------------------------------------------

STEPS = ("end", "news", "end", "drop")


@settings(max_examples=examples(60))
@given(
    total=st.integers(1, 5),
    raised=st.sets(st.integers(0, 4)),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 4)), max_size=25),
    rest=st.permutations(range(5)),
    kind=st.sampled_from(("gather", "broadcast")),
)
def test_results_do_not_depend_on_frame_order_or_repetition(
    total: int, raised: set[int], steps: list[tuple[str, int]], rest: list[int], kind: str
) -> None:
    async def play() -> None:
        nodes = 2 if kind == "gather" else total
        async with staged(nodes, concurrency=5, fail_fast=False) as stage:
            run = gather(stage, total) if kind == "gather" else broadcast(stage)
            home = {index: node for node, index in stage.placed}
            ended: set[int] = set()

            def tell(what: str, index: int) -> None:
                node, returned = stage.nodes[home[index]], index not in raised
                if what == "news":  # as every client is told, without the value
                    node.say({"t": "outcome", "run": run.id, "i": index, "rank": home[index], "node": home[index],
                              "kind": "returned" if returned else "raised"})  # fmt: skip
                elif returned:
                    node.ends(run, index, value=f"value {index}")
                else:
                    node.ends(run, index, "raised", ValueError(index))
                if what == "end":
                    ended.add(index)

            for what, at in [*steps, *(("end", index) for index in rest)]:
                index = at % total
                if what == "drop":
                    before = {header["i"]: header for header in stage.nodes[home[index]].of("call")}
                    stage.nodes[home[index]].drop()
                    await until(lambda: all(link.up for link in stage.links))
                    again = {each for each in home if home[each] == home[index]} - ended
                    assert set(stage.nodes[home[index]].calls) == again, "asked again, and nothing else"
                    assert all(before[header["i"]] == header for header in stage.nodes[home[index]].of("call"))
                elif run.state == "running":
                    tell(what, index)
                assert set(run.outcomes) == ended
                assert (run.state == "running") == (len(ended) < total)
            stage.background.run_deferred()
            assert sorted(event.outcome.index for event in stage.events_of(events.RankEnded)) == list(range(total))
            assert [event.state for event in stage.events_of(events.RunEnded)] == [run.state]
            stage.news.records.flush()
            assert sorted(outcome.index for _, outcome in stage.ledger.outcomes) == list(range(total))
            assert stage.registry.runs == {}
            for index in range(total):
                tell("end", index)  # once more when it is over
            expected = {index: f"value {index}" for index in range(total) if index not in raised}
            if len(expected) == total:
                assert (run.state, run.results()) == ("done", list(expected.values()))
            else:
                assert run.state == "failed"
                with pytest.raises(RunError) as caught:
                    run.results()
                assert caught.value.results == expected
                assert isinstance(caught.value.__cause__, ValueError)

    asyncio.run(play())


async def test_nodes_are_acknowledged_per_call_and_then_for_the_run() -> None:
    async with staged(3) as stage:
        run = gather(stage, 2)
        stage.nodes[0].ends(run, 0)
        assert stage.acknowledged() == [(0, {run.id: [0]})]
        stage.nodes[1].ends(run, 1)
        assert stage.acknowledged() == [(0, {run.id: [0]}), (0, {run.id: None}), (1, {run.id: None})]


async def test_node_that_lost_a_call_to_another_node_is_acknowledged_too() -> None:
    """The node may have ended the call before the loss, and retains the outcome."""
    async with staged(3) as stage:
        run = stage.add("gather", task())
        for link in stage.links[:2]:
            run._send(link, 0, run.tasks[0], {})
        stage.nodes[1].ends(run, 0)
        assert stage.acknowledged() == [(0, {run.id: None}), (1, {run.id: None})]


async def test_run_kept_for_later_clients_is_not_acknowledged() -> None:
    async with staged(2) as stage:
        run = gather(stage, 2)
        run.is_retained = True
        for node in (0, 1):
            stage.nodes[node].ends(run, node)
        assert run.state == "done" and stage.acknowledged() == []


# -- sweeps ----------------------------------------------------------------------------------------------------------


async def test_sweep_sends_only_runnable_trials_and_survives_a_failure() -> None:
    async with staged(2) as stage:
        run = stage.add("sweep", *(task(number) for number in range(5)))
        run.dispatch()
        assert [node.calls for node in stage.nodes] == [[0], [1]], "none waits behind one that may take hours"
        stage.nodes[1].ends(run, 1, kind="raised", error={"type": "ValueError", "message": "no"})
        assert [node.calls for node in stage.nodes] == [[0], [1, 2]] and run.state == "running"
        for node, index in ((1, 2), (1, 3), (0, 0)):
            stage.nodes[node].ends(run, index, value=index)
        stage.nodes[stage.placed[-1][0]].ends(run, 4, value=4)
        assert kinds(run) == ["returned", "raised", "returned", "returned", "returned"]
        assert run.state == "failed"


async def test_detached_sweep_sends_all_trials_to_the_nodes() -> None:
    async with staged(2) as stage:
        run = stage.add("sweep", *(task(number) for number in range(6)))
        run.dispatch()
        run.detach()
        assert sorted(call for node in stage.nodes for call in node.calls) == list(range(6))
        retained_run = stage.add("sweep", *(task(number) for number in range(6)))
        retained_run.is_retained = True
        retained_run.dispatch()
        assert len(retained_run.calls_on(stage.links[0])) == len(retained_run.calls_on(stage.links[1])) == 3


# One run alone: values of generators, large results, and what becomes of them where its client leaves.

GRACE = 3.5


def stream(stage: Stage, *, consumed: bool) -> Run:
    run = stage.add("single", task(stream=True), consumed=consumed)
    run.dispatch()
    return run


def credits(stage: Stage) -> list[int]:
    return [header["next"] for header in stage.nodes[0].of("credit")]


async def test_generator_without_a_reader_is_credited_at_once() -> None:
    async with staged(1) as stage:
        (node,) = stage.nodes
        run = stream(stage, consumed=False)
        assert node.of("call")[0]["stream"] is True
        for number in (0, 1, 0, 1, 2):
            node.yields(run, 0, number)
        assert credits(stage) == [1, 2, 2, 2, 3], "what came twice is taken once"
        assert [event.seq for event in stage.events_of(events.ItemYielded)] == [0, 1, 2]
        node.ends(run, 0, items=3)
        assert run.state == "done"


async def test_reader_credits_each_value_and_gets_it_once() -> None:
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


async def test_cancelled_reader_acknowledges_unread_values() -> None:
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
    ("indices", "more", "why"),
    [
        ([0, 3], {}, "values 1 to 2 of f() on rank 0 was lost on node 0"),
        ([0, 2], {}, "value 1 of f() on rank 0 was lost on node 0"),
        ([0], {"items": 2}, "value 1 of f() on rank 0 was lost on node 0"),
    ],
)
async def test_missing_yielded_values_end_the_call(indices: list[int], more: Any, why: str) -> None:
    async with staged(1, grace=GRACE) as stage:
        (node,) = stage.nodes
        run = stream(stage, consumed=True)
        for number in indices:
            node.yields(run, 0, number)
        if more:
            node.ends(run, 0, **more)
        (stop,) = node.of("stop")
        assert stop["i"] == 0
        assert stop["why"].startswith(why)
        items = run.items(0)
        assert next(items) == 0, "earlier values have arrived"
        with pytest.raises(RunError, match="lost on node 0; earlier values have arrived"):
            next(items)


# -- large results ---------------------------------------------------------------------------------------------------


async def test_run_ends_when_its_large_result_is_downloaded() -> None:
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


@pytest.mark.parametrize(
    ("trouble", "why"),
    [("error", r"cannot download the result of .*: No such file"), ("gone", r"connection to node 0 was lost")],
)
async def test_large_result_that_cannot_be_downloaded_is_lost(trouble: str, why: str) -> None:
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
        assert len(stage.events_of(events.RankEnded)) == 1


async def test_large_result_reported_repeatedly_is_fetched_once() -> None:
    """An agent reports all claimed results again after each reconnection."""
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


async def test_detached_client_cancels_unsent_runs() -> None:
    async with staged(2) as stage:
        unsent, part, whole = stage.add("gather", task()), gather(stage, 6), broadcast(stage)
        for run in (unsent, part, whole):
            run.detach()
        assert [run.state for run in (unsent, part, whole)] == ["cancelled", "left", "left"]
        assert all(run.future.done() for run in (unsent, part, whole))
        with pytest.raises(Cancelled, match="before the run was sent to a node"):
            unsent.results()
        with pytest.raises(PoolError, match="2 of 6 tasks had not been sent and will not run"):
            part.results()
        with pytest.raises(PoolError, match=rf"Get its results with sky.attach\('p'\)\.wait\('{whole.id}'\)"):
            whole.results()
        assert not any(node.of("stop") for node in stage.nodes), "it goes on there"
        assert stage.acknowledged() == [], "whoever claims it gets what came of it"


async def test_detached_run_reports_results_already_downloaded_as_lost() -> None:
    async with staged(2) as stage:
        some, unsent, ranks = gather(stage, 3), gather(stage, 6), broadcast(stage)
        for run in (some, unsent, ranks):
            stage.nodes[0].ends(run, 0)
            run.detach()
        for run, total in (some, 3), (unsent, 6):
            with pytest.raises(PoolError) as caught:
                run.results()
            words = str(caught.value)
            assert f"1 of {total} results had already been downloaded and are lost" in words
            assert "attach" not in words
            assert ("1 of 6 tasks had not been sent" in words) is (run is unsent)
        with pytest.raises(PoolError, match="Get its results"):
            ranks.results()  # of a broadcast nodes keep all until the last is here


@pytest.mark.parametrize("end", ["left", "lost"])
@pytest.mark.parametrize("kind", ["gather", "broadcast", "stream"])
async def test_outcomes_after_detach_or_pool_end_are_not_acknowledged(end: str, kind: str) -> None:
    """Links close a moment later, so outcomes that were under way still arrive."""
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


async def test_pool_end_loses_runs_without_stops_or_acknowledgements() -> None:
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
        assert [event.state for event in stage.events_of(events.RunEnded)] == ["lost", "lost"]


async def test_claimed_run_is_acknowledged_to_every_node() -> None:
    async with staged(2) as stage:
        run = stage.add("gather", task(), task(1))
        run.claim_from(stage.links)
        assert all(run.is_sent_to(link, index) for link in stage.links for index in (0, 1))
        stage.nodes[1].ends(run, 0, value="a")
        stage.nodes[1].ends(run, 1, value="b")
        assert run.results() == ["a", "b"]
        assert [node for node, calls in stage.acknowledged() if calls == {run.id: None}] == [0, 1]


# One run alone: how it is stopped, and what becomes of it where its gang breaks.

GANG = {"type": "torch.distributed.DistBackendError", "message": "a peer went away", "traceback": ""}


async def test_run_cancelled_before_sending_reaches_no_node() -> None:
    async with staged(2) as stage:
        run = stage.add("broadcast", task())
        run.mark_waiting()
        run.cancel("asked for")
        assert not run.end_waiting(), "nobody is to start it"
        run.send_broadcast(1)
        assert (run.state, kinds(run)) == ("cancelled", ["collateral"] * 2)
        with pytest.raises(Cancelled, match=r"was cancelled \(asked for\)"):
            run.results()
        assert stage.acknowledged() == []
        assert not any(node.of("call") + node.of("stop") for node in stage.nodes)


async def test_rank_that_loses_its_peers_by_a_cancel_counts_as_stopped() -> None:
    lost = {"type": "RuntimeError", "message": "[gloo/transport/tcp/pair.cc:598] Connection closed by peer"}
    async with staged(2) as stage:
        run = broadcast(stage)
        run.cancel("asked for")
        stage.nodes[0].ends(run, 0, "raised", error=lost | {"traceback": "long"})
        stage.nodes[1].ends(run, 1, "collateral")
        assert (run.state, run.root_cause, kinds(run)) == ("cancelled", None, ["collateral"] * 2)
        crashed = broadcast(stage)
        crashed.cancel("asked for")
        stage.nodes[0].ends(crashed, 0, "raised")
        stage.nodes[1].ends(crashed, 1, "collateral")
        assert kinds(crashed) == ["raised", "collateral"], "an error of its own stays one"


@pytest.mark.parametrize("kind", ["gather", "broadcast"])
async def test_cancelled_run_is_stopped_once_on_every_node(kind: str) -> None:
    async with staged(2, grace=GRACE) as stage:
        for link in stage.links:
            link.epoch = 6
        run = gather(stage, 6) if kind == "gather" else broadcast(stage)
        stage.nodes[0].ends(run, 0, value="kept")
        run.cancel("asked for")
        run.cancel("again")
        expected: dict[str, Any] = {"t": "stop", "run": run.id, "why": "cancel"}
        expected |= {"break": 6} if kind == "broadcast" else {}
        assert [node.of("stop") for node in stage.nodes] == [[expected]] * 2
        unsent = [index for index, outcome in run.outcomes.items() if outcome.rank == -1]
        assert unsent == ([5] if kind == "gather" else [])
        assert run.state == "running", "it has ended when the nodes say so"
        for index in {1, 2, 3, 4} if kind == "gather" else {1}:
            node = next(at for at, each in stage.placed if each == index)
            stage.nodes[node].ends(run, index, "collateral", begun=False)
        assert run.state == "cancelled"
        with pytest.raises(Cancelled, match=r"\(asked for\)"):
            run.results()


async def test_cancelled_run_that_returned_anyway_is_done() -> None:
    async with staged(2) as stage:
        run = broadcast(stage)
        run.cancel("too late")
        for rank in (0, 1):
            stage.nodes[rank].ends(run, rank, value=rank)
        assert run.results() == [0, 1]


async def test_stop_breaks_the_gang_only_on_nodes_with_calls() -> None:
    async with staged(2) as stage:
        run = gather(stage, 2)
        stage.nodes[0].ends(run, 0)
        run.cancel("asked for")
        assert [link.broken for link in stage.links] == ["", "a run was stopped"]


@pytest.mark.parametrize(
    ("fail_fast", "outcome", "stopped"),
    [
        (True, {"kind": "raised"}, "at once"),
        (True, {"kind": "exited", "exit_code": 3}, "at once"),
        (True, {"kind": "exited", "signal": 6}, "later"),
        (True, {"kind": "raised", "error": GANG}, "later"),
        (True, {"kind": "collateral"}, "never"),
        (True, {"kind": "returned"}, "never"),
        (False, {"kind": "raised"}, "never"),
    ],
)
async def test_first_failure_stops_other_ranks_as_fail_fast_says(
    monkeypatch: pytest.MonkeyPatch, fail_fast: bool, outcome: Any, stopped: str
) -> None:
    monkeypatch.setattr(module, "ECHO_WAIT", 0.0)
    async with staged(2, fail_fast=fail_fast, grace=GRACE) as stage:
        run = gather(stage, 6)
        stage.nodes[0].ends(run, 0, **outcome)
        expected = {"t": "stop", "run": run.id, "why": "fail-fast"}
        at_once = [node.of("stop") for node in stage.nodes]
        assert at_once == ([[expected]] * 2 if stopped == "at once" else [[], []])
        passed: list[int] = []
        asyncio.get_running_loop().call_later(0.0, passed.append, 1)  # behind what waits for the doubt to settle
        await until(lambda: passed)
        assert [node.of("stop") for node in stage.nodes] == [[expected] if stopped != "never" else []] * 2
        assert (5 in run.outcomes) == (stopped != "never")
        if stopped != "never":
            assert failure_reason(run, 5) == "not started: another task failed"


async def test_failure_by_a_preemption_stops_other_ranks_with_that_reason() -> None:
    async with staged(2) as stage:
        run = gather(stage, 6)
        stage.nodes[0].ends(run, 0, kind="lost", error={"type": "Preempted", "message": "preempted"})
        assert [node.of("stop") for node in stage.nodes] == [[{"t": "stop", "run": run.id, "why": "preemption"}]] * 2


async def test_error_about_a_lost_peer_is_not_the_root_cause() -> None:
    async with staged(3) as stage:
        run = broadcast(stage)
        stage.nodes[0].ends(run, 0, "raised", RuntimeError(), error=GANG)
        stage.nodes[2].ends(run, 2, "exited", exit_code=9)
        stage.nodes[1].ends(run, 1, "collateral")
        assert run.root_cause is not None
        assert (run.state, run.root_cause.rank, run.root_cause.exit_code) == ("failed", 2, 9)


# -- a gang that broke -----------------------------------------------------------------------------------------------


async def test_broadcast_that_no_rank_began_is_restarted() -> None:
    async with staged(3) as stage:
        run = broadcast(stage)
        stage.nodes[1].stale(run, 1, "rank 9 ended")
        stop = {"t": "stop", "run": run.id, "why": "the gang broke before all ranks began", "break": 1}
        assert [node.of("stop") for node in stage.nodes] == [[stop]] * 3
        stage.nodes[1].stale(run, 1)
        stage.nodes[0].ends(run, 0, "collateral", begun=False)
        assert (run.state, len(stage.placed)) == ("running", 3), "rank 2 is yet to say"
        stage.nodes[2].stale(run, 2)
        await until(lambda: len(stage.placed) == 6)
        assert stage.keeper.asked == ["start"], "with a whole gang"
        for node in stage.nodes:
            frames = [(each["t"], each.get("epoch")) for each in (*node.of("call"), *node.of("ack")[-1:])]
            assert frames == [("call", 1), ("call", 2), ("ack", None)]
            order = [header["t"] for header, _ in node.pipes[-1].sent]
            assert order[-2:] == ["ack", "call"], "else it would answer from memory"
            assert node.of("ack")[-1]["calls"] == {run.id: None}
        for rank in (0, 1, 2):
            stage.nodes[rank].ends(run, rank, value=rank)
        assert run.results() == [0, 1, 2]
        stage.background.run_deferred()
        assert [event.state for event in stage.events_of(events.RunEnded)] == ["done"]


async def test_restarted_generator_is_read_to_its_end() -> None:
    """The outcomes of the first attempt reach the reader after that attempt ended."""
    async with staged(2) as stage:
        run = stage.add("broadcast", task(stream=True), consumed=True)
        run.send_broadcast(1)
        stage.nodes[0].ends(run, 0, "collateral", begun=False)
        stage.nodes[1].stale(run, 1)
        await until(lambda: len(stage.placed) == 4)
        read: dict[int, list[Any]] = {}
        for rank, values in enumerate(split_streams(run, lambda: None)):
            work = partial(lambda rank, values: read.update({rank: list(values)}), rank, values)
            threading.Thread(target=work, daemon=True).start()
        for rank, node in enumerate(stage.nodes):
            node.yields(run, rank, 0)
            node.ends(run, rank, items=1)
        await until(lambda: read == {0: [0], 1: [0]})


@pytest.mark.parametrize("begun", [{"kind": "returned"}, {"kind": "collateral", "begun": True}, {"kind": "lost"}])
async def test_broadcast_that_a_rank_began_is_not_restarted(begun: Any) -> None:
    async with staged(2, fail_fast=False) as stage:
        run = broadcast(stage)
        stage.nodes[1].stale(run, 1, "rank 9 ended")
        stage.nodes[0].ends(run, 0, **begun)
        assert (run.state, len(stage.placed), stage.keeper.asked) == ("failed", 2, [])
        assert run.outcomes[1].kind == "lost"
        assert failure_reason(run, 1) == "the gang broke before the call began: rank 9 ended"


async def test_broadcast_with_a_lost_node_is_not_restarted() -> None:
    async with staged(2) as stage:
        run = broadcast(stage)
        stage.nodes[0].stale(run, 0)
        stage.registry.drop_link(stage.links[1])
        assert (run.state, kinds(run), stage.keeper.asked) == ("failed", ["lost", "lost"], [])


async def test_node_lost_during_a_gang_wait_loses_no_earlier_call() -> None:
    """A call that was stopped before sending is not stopped again."""
    async with staged(2) as stage:
        stage.keeper.opened.clear()
        run = broadcast(stage)
        for rank in (0, 1):
            stage.nodes[rank].stale(run, rank)
        await until(lambda: stage.keeper.asked)
        stage.registry.drop_link(stage.links[1])
        stage.keeper.opened.set()
        await until(lambda: 1 in run.outcomes)
        sent = [header["t"] for header, _ in stage.nodes[0].pipes[-1].sent]
        assert sent[-2:] == ["call", "stop"]


async def test_cancelled_broadcast_is_not_restarted() -> None:
    async with staged(2) as stage:
        run = broadcast(stage)
        stage.nodes[0].stale(run, 0)
        run.cancel("asked for")
        stage.nodes[1].stale(run, 1)
        assert (run.state, stage.keeper.asked) == ("cancelled", [])
        assert [len(node.of("stop")) for node in stage.nodes] == [1, 1]


async def test_broadcast_waiting_for_its_gang_can_be_cancelled() -> None:
    async with staged(2) as stage:
        stage.keeper.opened.clear()
        run = broadcast(stage)
        for rank in (0, 1):
            stage.nodes[rank].stale(run, rank)
        await until(lambda: stage.keeper.asked)
        run.cancel("asked for")
        assert run.state == "cancelled"
        stage.keeper.opened.set()
        await until(lambda: stage.keeper.is_complete and stage.keeper.epoch == 2)
        assert len(stage.placed) == 2


# Files that nodes are asked for: also those whose link is down for a moment.


def answer_file_list(node: Node, name: str = "") -> None:
    (asked,) = node.of("written")
    written: dict[str, Any] = {
        "path": name or f"of-{node.number}",
        "size": 1,
        "at": 1.0,
        "version": name or f"v{node.number}",
    }
    node.say({"t": "known", "id": asked["id"], "files": [written], "more": 0, "folder": "/w"})


@pytest.mark.parametrize("when", ["before the request", "before the answer"])
async def test_reconnected_node_is_asked_for_files_again(when: str) -> None:
    async with staged(2) as stage:
        first, second = stage.nodes
        if when == "before the request":
            second.drop()
        asking = asyncio.create_task(list_files(stage.context, [], None))
        await until(lambda: first.of("written"))
        answer_file_list(first)
        if when == "before the answer":
            second.drop()
        await until(lambda: len(second.pipes) == 2 and second.of("written"))
        answer_file_list(second)
        found = await asking
        assert (found.failures, found.folders) == ({}, {0: "/w", 1: "/w"})
        assert [file.path for file in found.files] == ["of-0", "of-1"]


async def test_file_on_a_shared_disk_is_replaced_by_its_newest_version(tmp_path: Path) -> None:
    async with staged(2) as stage:
        asking = asyncio.create_task(list_files(stage.context, [], None))
        for node in stage.nodes:
            await until(lambda node=node: node.of("written"))  # type: ignore[misc]
            answer_file_list(node, "same")
        (file,) = (await asking).files
        assert (file.node, file.also) == (0, (1,))
        target, record = tmp_path / file.path, OutputRecord(tmp_path / "outputs.jsonl")
        target.write_text("as it was when the second node named it first")
        record.add(WrittenFile(file.path, 2, 0.0, 1, "earlier"), target)
        fetching = OutputFetcher(stage.context, record)
        assert fetching._may_replace(file, target)
        with pytest.raises(OSError, match="it is another file"):
            fetching._may_replace(replace(file, also=()), target)


async def test_node_that_stays_unreachable_is_listed_as_a_file_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "SILENCE_TIMEOUT", 1.0)
    async with staged(2) as stage:
        stage.links[1].mark_lost()
        asking = asyncio.create_task(list_files(stage.context, [], None))
        await until(lambda: stage.nodes[0].of("written"))
        answer_file_list(stage.nodes[0])
        found = await asking
        assert list(found.failures) == [1] and found.folders == {0: "/w"}


# -- attempts --------------------------------------------------------------------------------------------------------

RESTART: dict[str, Any] = {"on_loss": "restart", "error_restarts": 9}


async def test_restarted_task_leaves_room_for_one_task_only() -> None:
    async with staged(1, **RESTART) as stage:
        run = gather(stage, 6)
        stage.nodes[0].ends(run, 0, "raised", ValueError())
        assert stage.nodes[0].calls == [0, 1, 0]


async def test_echo_of_an_earlier_attempt_does_not_stop_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "SILENCE_TIMEOUT", 0.1)
    monkeypatch.setattr(module, "ECHO_WAIT", 0.05)
    async with staged(2, **RESTART) as stage:
        run = broadcast(stage)
        stage.nodes[0].ends(run, 0, "raised", RuntimeError(), error=GANG)
        stage.nodes[1].ends(run, 1, "exited", exit_code=9)
        await until(lambda: len(stage.placed) == 4)
        passed: list[int] = []
        asyncio.get_running_loop().call_later(0.1, passed.append, 1)
        await until(lambda: passed)
        assert [node.of("stop") for node in stage.nodes] == [[], []]


async def test_run_cancelled_at_the_news_of_its_failure_does_not_start_again() -> None:
    async with staged(2, **RESTART) as stage:
        run = broadcast(stage)

        def cancel(event: events.Event) -> None:
            if isinstance(event, events.AttemptEnded):
                run.cancel("asked for")

        stage.news.subscribe(cancel, None)
        stage.nodes[0].ends(run, 0)
        stage.nodes[1].ends(run, 1, "exited", exit_code=9)
        assert (run.state, len(stage.placed)) == ("cancelled", 2)


async def test_run_whose_results_another_client_fetched_does_not_start_again() -> None:
    error = {"type": RESULTS_FETCHED, "message": "another client fetched the result"}
    async with staged(2, **RESTART) as stage:
        run = broadcast(stage)
        stage.nodes[0].ends(run, 0, "collateral", error=error)
        stage.nodes[1].ends(run, 1, "collateral", error=error)
        assert (run.state, run.attempt) == ("failed", 1)


async def test_task_whose_result_another_client_fetched_does_not_start_again() -> None:
    async with staged(1, on_loss="restart", error_restarts=3) as stage:
        run = gather(stage, 1)
        error = {"type": RESULTS_FETCHED, "message": "another client fetched the result"}
        stage.nodes[0].ends(run, 0, "collateral", error=error)
        assert (run.state, kinds(run)) == ("failed", ["collateral"])


async def test_machines_that_return_during_a_failure_do_not_restart_the_run() -> None:
    async with staged(2, on_loss="restart") as stage:
        run = broadcast(stage)
        stage.nodes[0].ends(run, 0, "raised", ValueError("no"))
        run.grow()
        stage.nodes[1].ends(run, 1, "collateral")
        assert (run.state, run.attempt) == ("failed", 1)


async def test_restart_on_some_nodes_leaves_gangs_of_other_nodes() -> None:
    async with staged(3, **RESTART) as stage:
        run = stage.add("broadcast", task(nodes=(1,)))
        run.total = 1
        run.send_broadcast(1, (1,))
        stage.nodes[1].ends(run, 0, "exited", rank=1, exit_code=9)
        assert run.attempt == 2
        assert [bool(link.broken) for link in stage.links] == [False, True, False]


async def test_waiting_thread_skips_values_of_earlier_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "SILENCE_TIMEOUT", 0.1)
    async with staged(2, **RESTART) as stage:
        completion = RunCompletion()
        run = stage.scheduler.open("broadcast", [task()], future=completion)
        stage.nodes[0].ends(run, 0, value="first attempt")
        completion.queue_load(run, 0)
        stage.nodes[1].ends(run, 1, "exited", exit_code=9)
        await until(lambda: len(stage.placed) == 4)
        waiting = asyncio.create_task(asyncio.to_thread(completion.wait))
        await until(completion._landed.empty)
        for rank, node in enumerate(stage.nodes):
            node.ends(run, rank, value="second attempt", attempt=2)
        assert (await waiting).results() == ["second attempt"] * 2


@pytest.mark.parametrize("in_pause", [False, True])
async def test_step_of_a_job_is_not_restarted_on_a_new_machine(in_pause: bool) -> None:
    """The earlier steps of the job have not run there."""
    async with staged(2, **RESTART) as stage:
        run = broadcast(stage, job="j1")
        if in_pause:
            stage.nodes[1].ends(run, 1, "exited", exit_code=9)
        else:
            stage.registry.drop_link(stage.links[1])
        stage.nodes[0].ends(run, 0, "collateral")
        if in_pause:
            stage.registry.drop_link(stage.links[1])
        stage.links[1] = Link(1, stage.nodes[1], stage, pool="p")  # type: ignore[arg-type]
        await until(lambda: run.state == "failed")
        assert (run.attempt, len(stage.placed)) == (1 + in_pause, 2)
        assert run.root_cause is not None
        assert ("cannot set up another one" in run.root_cause.message) is in_pause


async def test_large_arguments_are_removed_when_the_client_detaches(tmp_path: Path) -> None:
    async with staged(1, **RESTART) as stage:
        run = stage.add("broadcast", large_task(tmp_path / "large"))
        run.stocked = frozenset(stage.links)
        run.send_broadcast(1)
        run.detach()
        await until(lambda: run.state == "left" and not list(tmp_path.iterdir()))
