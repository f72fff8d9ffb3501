"""One run alone: to which nodes its calls go, and what it makes of what they tell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.model.errors import RunError
from skyward_core.pool.runs import run as module
from skyward_core.views import events
from tests.support.examples import examples
from tests.support.runs import broadcast, gather, home_for_runs, kinds
from tests.support.staged_pool import said, staged, task
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with home_for_runs(tmp_path_factory):
        yield


# -- to which nodes calls go -----------------------------------------------------------------------------------------


async def test_each_rank_of_a_broadcast_is_called_on_its_node_in_order() -> None:
    async with staged(2, ranks=2) as stage:
        run = stage.add("broadcast", task(7, timeout=9.0))
        run.send_broadcast(5)
        assert stage.placed == [(0, 0), (0, 1), (1, 2), (1, 3)]
        sent = [each for node in stage.nodes for each in node.pipes[-1].sent if each[0]["t"] == "call"]
        for rank, (header, body) in enumerate(sent):
            expected = {
                "gang": True,
                "rank": rank,
                "epoch": 5,
                "total": 4,
                "kind": "broadcast",
                "timeout": 9.0,
            }
            assert header == header | expected
            assert body == run.tasks[0].fn.read() + run.tasks[0].args.read()
        for rank in (3, 1, 0, 2):
            stage.nodes[rank // 2].ends(run, rank, value=rank)
        assert run.results() == [0, 1, 2, 3]


async def test_single_tasks_go_to_the_node_with_the_least_to_do_in_turns() -> None:
    async with staged(3) as stage:
        runs = [stage.add("single", task(number)) for number in range(5)]
        for run in runs[:4]:
            run.dispatch()
        assert [node for node, _ in stage.placed] == [0, 1, 2, 0]
        stage.nodes[2].ends(runs[2], 0)
        runs[4].dispatch()
        assert stage.placed[-1] == (2, 0), "nodes 0 and 1 have something to do"


async def test_a_trial_goes_to_a_node_that_other_runs_leave_free() -> None:
    async with staged(3) as stage:
        stage.add("sweep", task(0)).dispatch()
        stage.add("sweep", task(1), task(2)).dispatch()
        assert [node for node, _ in stage.placed] == [0, 1, 2]


async def test_a_node_that_is_down_is_the_last_that_a_single_task_goes_to() -> None:
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


async def test_tasks_are_dealt_in_turns_and_the_next_goes_to_whoever_is_free() -> None:
    async with staged(2) as stage:
        run = gather(stage, 6)
        assert [node.calls for node in stage.nodes] == [[0, 2], [1, 3]], "one to do, one to be at hand"
        stage.nodes[1].ends(run, 1)
        stage.nodes[1].ends(run, 3)
        assert [node.calls for node in stage.nodes] == [[0, 2], [1, 3, 4, 5]]


async def test_quick_tasks_are_sent_far_ahead_and_slow_ones_are_not() -> None:
    async with staged(1, concurrency=2) as stage:
        quick, slow = gather(stage, 100), gather(stage, 100)
        stage.nodes[0].ends(quick, 0, seconds=0.001)
        stage.nodes[0].ends(slow, 0, seconds=0.1)
        asked = [[h["i"] for h in stage.nodes[0].of("call") if h["run"] == run.id] for run in (quick, slow)]
        assert asked == [list(range(1 + 2 + module.MAX_QUEUED_TASKS)), list(range(1 + 2 + 1))]


@pytest.mark.parametrize(
    ("cluster", "head_gone", "said"),
    [(True, False, {}), (True, True, {"headless": True}), (False, True, {"alone": True})],
)
async def test_a_node_is_told_that_there_can_be_no_gang(cluster: bool, head_gone: bool, said: Any) -> None:
    async with staged(2, cluster=cluster) as stage:
        if head_gone:
            stage.links[0].mark_lost()
        gather(stage, 2)
        header = stage.nodes[1].of("call")[0]
        assert {key: header[key] for key in ("headless", "alone") if key in header} == said


# -- nodes that are not there ----------------------------------------------------------------------------------------


async def test_without_a_node_no_task_is_started() -> None:
    async with staged(2) as stage:
        for link in stage.links:
            link.mark_lost("its host burnt down")
        run = gather(stage, 2)
        assert (run.state, kinds(run), stage.placed) == ("failed", ["lost", "lost"], [])
        with pytest.raises(RunError, match="every node of the pool is gone"):
            run.results()


async def test_tasks_do_not_go_to_a_node_that_came_after_their_arguments() -> None:
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
        unsent = [said(run, index) for index, outcome in run.outcomes.items() if outcome.rank == -1]
        assert unsent == ["every node that had its arguments is gone"] * 2


@pytest.mark.parametrize(
    ("options", "ended", "called"),
    [
        ({}, ["collateral", "lost", "collateral"], []),
        ({"cluster": False}, ["collateral", "lost", "collateral"], []),
        ({"cluster": False, "fail_fast": False}, ["lost"], [0, 2]),
    ],
)
async def test_a_broadcast_is_not_sent_to_a_node_that_came_after_its_arguments(
    options: dict[str, Any], ended: list[str], called: list[int]
) -> None:
    async with staged(3, **options) as stage:
        run = stage.add("broadcast", task(7))
        run.stocked = frozenset([stage.links[0], stage.links[2]])
        run.send_broadcast(1)
        assert (kinds(run), [node for node, _ in stage.placed]) == (ended, called)
        why = "node 1 got another machine after the arguments had been sent; run it again"
        assert said(run, 1) == why
        assert run.state == ("running" if called else "failed")


async def test_a_node_that_was_gone_before_the_arguments_came_is_told_as_gone() -> None:
    async with staged(2, cluster=False, fail_fast=False) as stage:
        stage.links[1].mark_lost("pulled out")
        run = stage.add("broadcast", task(7))
        run.stocked = frozenset(stage.links[:1])
        run.send_broadcast(1)
        assert (stage.placed, said(run, 1)) == ([(0, 0)], "node 1 is gone: pulled out")


async def test_what_a_lost_node_had_is_lost_and_the_others_do_the_rest() -> None:
    async with staged(2, fail_fast=False) as stage:
        run = gather(stage, 6)
        stage.registry.drop_link(stage.links[0])
        assert sorted(index for node, index in stage.placed if node == 0) == [0, 2]
        for index in (1, 3, 4, 5):
            stage.nodes[1].ends(run, index)
        assert (run.state, kinds(run)) == ("failed", ["lost", "returned", "lost", *["returned"] * 3])


async def test_a_lost_task_is_of_the_rank_that_had_begun_it() -> None:
    async with staged(2, ranks=2, fail_fast=False) as stage:
        run = gather(stage, 4)
        at = max(index for node, index in stage.placed if node == 1)
        stage.nodes[1].say({"t": "began", "run": run.id, "i": at, "rank": 3, "node": 1})
        stage.registry.drop_link(stage.links[1])
        assert run.outcomes[at].rank == 3
        assert {each.rank for each in run.outcomes.values()} == {2, 3}, "of the others nothing is known"


async def test_a_rank_on_a_node_that_is_gone_is_lost_at_once() -> None:
    async with staged(2, cluster=False, fail_fast=False) as stage:
        stage.links[0].mark_lost("pulled out")
        run = broadcast(stage)
        assert (kinds(run), said(run, 0)) == (["lost"], "node 0 is gone: pulled out")
        stage.nodes[1].ends(run, 1)
        assert run.state == "failed"


@pytest.mark.parametrize("how", ["cancelled", "no node", "stale"])
async def test_what_no_node_tells_of_is_shown_and_written_down_too(how: str) -> None:
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
        shown = {event.outcome.index: event.outcome for event in stage.told(events.RankEnded)}
        stage.news.records.flush()
        assert shown == run.outcomes
        assert {outcome.index: outcome for _, outcome in stage.ledger.outcomes} == run.outcomes
        assert isinstance(stage.log[-1], events.RunEnded), "of a run that is over nothing more is told"


async def test_tasks_that_fail_together_are_written_down_in_one_go() -> None:
    async with staged(1) as stage:
        writes: list[int] = []
        record = stage.ledger.record_runs

        def counted(runs: Any, outcomes: Any = (), patience: float | None = None) -> None:
            writes.append(len(outcomes))
            record(runs, outcomes, patience)

        stage.ledger.record_runs = counted  # type: ignore[method-assign]
        stage.links[0].mark_lost()
        gather(stage, 50)
        await until(lambda: sum(writes) == 50)
        assert writes == [50], "each write takes as long as a small call"


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
def test_any_order_and_repetition_gives_the_same_results(
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
                    stage.nodes[home[index]].drop()
                    await until(lambda: all(link.up for link in stage.links))
                    again = {each for each in home if home[each] == home[index]} - ended
                    assert set(stage.nodes[home[index]].calls) == again, "asked again, and nothing else"
                elif run.state == "running":
                    tell(what, index)
                assert set(run.outcomes) == ended
                assert (run.state == "running") == (len(ended) < total)
            stage.background.run_deferred()
            assert sorted(event.outcome.index for event in stage.told(events.RankEnded)) == list(range(total))
            assert [event.state for event in stage.told(events.RunEnded)] == [run.state]
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


async def test_after_a_reconnection_only_what_has_no_outcome_is_asked_again() -> None:
    async with staged(1, concurrency=4) as stage:
        (node,) = stage.nodes
        run = gather(stage, 4)
        node.ends(run, 2, value=2)
        first = {header["i"]: header for header in node.of("call")}
        node.drop()
        await until(lambda: stage.links[0].up)
        assert node.calls == [0, 1, 3]
        assert [first[header["i"]] for header in node.of("call")] == node.of("call"), "as they were"
        for index in (0, 1, 3, 2):
            node.ends(run, index, value=index)
        assert run.results() == [0, 1, 2, 3]
        node.drop()
        await until(lambda: stage.links[0].up)
        assert node.calls == []


async def test_nodes_hear_what_is_here_call_by_call_and_then_of_the_whole_run() -> None:
    async with staged(3) as stage:
        run = gather(stage, 2)
        stage.nodes[0].ends(run, 0)
        assert stage.acknowledged() == [(0, {run.id: [0]})]
        stage.nodes[1].ends(run, 1)
        assert stage.acknowledged() == [(0, {run.id: [0]}), (0, {run.id: None}), (1, {run.id: None})]


async def test_results_of_a_run_that_stays_are_for_whoever_comes_later() -> None:
    async with staged(2) as stage:
        run = gather(stage, 2)
        run.stays = True
        for node in (0, 1):
            stage.nodes[node].ends(run, node)
        assert run.state == "done" and stage.acknowledged() == []


# -- sweeps ----------------------------------------------------------------------------------------------------------


async def test_of_a_sweep_each_node_has_what_it_can_run_now_and_a_failure_stops_no_other() -> None:
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


async def test_who_leaves_a_sweep_hands_all_of_it_to_the_nodes() -> None:
    async with staged(2) as stage:
        run = stage.add("sweep", *(task(number) for number in range(6)))
        run.dispatch()
        run.detach()
        assert sorted(call for node in stage.nodes for call in node.calls) == list(range(6))
        stays = stage.add("sweep", *(task(number) for number in range(6)))
        stays.stays = True
        stays.dispatch()
        assert len(stays.calls_on(stage.links[0])) == len(stays.calls_on(stage.links[1])) == 3
