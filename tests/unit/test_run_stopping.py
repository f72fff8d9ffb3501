"""One run alone: how it is stopped, and what becomes of it where its gang breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from skyward_core.api.map_and_stream import split_streams
from skyward_core.model.errors import Cancelled
from skyward_core.pool.runs import run as module
from skyward_core.views import events
from tests.support.runs import broadcast, gather, home_for_runs, kinds
from tests.support.staged_pool import said, staged, task
from tests.support.waiting import until


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with home_for_runs(tmp_path_factory):
        yield


GRACE = 3.5
GANG = {"type": "torch.distributed.DistBackendError", "message": "a peer went away", "traceback": ""}


async def test_a_run_cancelled_before_it_was_sent_reaches_no_node() -> None:
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


@pytest.mark.parametrize("kind", ["gather", "broadcast"])
async def test_a_run_cancelled_after_it_was_sent_is_stopped_on_every_node_once(kind: str) -> None:
    async with staged(2, grace=GRACE) as stage:
        for link in stage.links:
            link.epoch = 6
        run = gather(stage, 6) if kind == "gather" else broadcast(stage)
        stage.nodes[0].ends(run, 0, value="kept")
        run.cancel("asked for")
        run.cancel("again")
        expected: dict[str, Any] = {"t": "stop", "run": run.id, "why": "cancel", "grace": GRACE}
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


async def test_one_that_returned_all_the_same_is_done() -> None:
    async with staged(2) as stage:
        run = broadcast(stage)
        run.cancel("too late")
        for rank in (0, 1):
            stage.nodes[rank].ends(run, rank, value=rank)
        assert run.results() == [0, 1]


async def test_a_stop_breaks_the_gang_on_nodes_that_have_something_to_stop() -> None:
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
async def test_the_first_failure_stops_the_others(
    monkeypatch: pytest.MonkeyPatch, fail_fast: bool, outcome: Any, stopped: str
) -> None:
    monkeypatch.setattr(module, "ECHO_WAIT", 0.0)
    async with staged(2, fail_fast=fail_fast, grace=GRACE) as stage:
        run = gather(stage, 6)
        stage.nodes[0].ends(run, 0, **outcome)
        expected = {"t": "stop", "run": run.id, "why": "fail-fast", "grace": GRACE}
        at_once = [node.of("stop") for node in stage.nodes]
        assert at_once == ([[expected]] * 2 if stopped == "at once" else [[], []])
        passed: list[int] = []
        asyncio.get_running_loop().call_later(0.0, passed.append, 1)  # behind what waits for the doubt to settle
        await until(lambda: passed)
        assert [node.of("stop") for node in stage.nodes] == [[expected] if stopped != "never" else []] * 2
        assert (5 in run.outcomes) == (stopped != "never")
        if stopped != "never":
            assert said(run, 5) == "not started: another task failed"


async def test_what_a_rank_says_of_its_lost_peer_is_not_the_cause() -> None:
    async with staged(3) as stage:
        run = broadcast(stage)
        stage.nodes[0].ends(run, 0, "raised", RuntimeError(), error=GANG)
        stage.nodes[2].ends(run, 2, "exited", exit_code=9)
        stage.nodes[1].ends(run, 1, "collateral")
        assert run.root_cause is not None
        assert (run.state, run.root_cause.rank, run.root_cause.exit_code) == ("failed", 2, 9)


# -- a gang that broke -----------------------------------------------------------------------------------------------


async def test_a_broadcast_of_which_no_rank_began_is_begun_anew() -> None:
    async with staged(3) as stage:
        run = broadcast(stage)
        stage.nodes[1].stale(run, 1, "rank 9 ended")
        stop = {
            "t": "stop",
            "run": run.id,
            "why": "its gang broke before all ranks began",
            "grace": 5.0,
            "break": 1,
        }
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
        assert [event.state for event in stage.told(events.RunEnded)] == ["done"]


async def test_a_generator_that_is_begun_anew_is_read_to_its_end() -> None:
    """Its reader hears of the first attempt's outcomes when those are no more."""
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
async def test_one_of_which_a_rank_began_is_not(begun: Any) -> None:
    async with staged(2, fail_fast=False) as stage:
        run = broadcast(stage)
        stage.nodes[1].stale(run, 1, "rank 9 ended")
        stage.nodes[0].ends(run, 0, **begun)
        assert (run.state, len(stage.placed), stage.keeper.asked) == ("failed", 2, [])
        assert run.outcomes[1].kind == "lost"
        assert said(run, 1) == "its gang broke before it began: rank 9 ended"


async def test_what_broke_an_earlier_gang_is_not_told_of_a_later_one() -> None:
    async with staged(2, fail_fast=False) as stage:
        run = broadcast(stage)
        for rank in (0, 1):
            stage.nodes[rank].stale(run, rank, "rank 9 ended")
        await until(lambda: len(stage.placed) == 4)
        stage.nodes[1].stale(run, 1, "rank 7 ended")
        stage.nodes[0].ends(run, 0)
        assert said(run, 1) == "its gang broke before it began: rank 7 ended"


async def test_one_whose_node_is_lost_is_not_begun_anew() -> None:
    async with staged(2) as stage:
        run = broadcast(stage)
        stage.nodes[0].stale(run, 0)
        stage.registry.drop_link(stage.links[1])
        assert (run.state, kinds(run), stage.keeper.asked) == ("failed", ["lost", "lost"], [])


async def test_one_that_waits_for_its_new_gang_has_no_call_that_a_lost_node_could_lose() -> None:
    """What is stopped before it is sent is not stopped afterwards."""
    async with staged(2) as stage:
        stage.keeper.opened.clear()
        run = broadcast(stage)
        for rank in (0, 1):
            stage.nodes[rank].stale(run, rank)
        await until(lambda: stage.keeper.asked)
        stage.registry.drop_link(stage.links[1])
        stage.keeper.opened.set()
        await until(lambda: 1 in run.outcomes)
        told = [header["t"] for header, _ in stage.nodes[0].pipes[-1].sent]
        assert told[-2:] == ["call", "stop"]


async def test_one_that_was_cancelled_meanwhile_is_not_begun_anew() -> None:
    async with staged(2) as stage:
        run = broadcast(stage)
        stage.nodes[0].stale(run, 0)
        run.cancel("asked for")
        stage.nodes[1].stale(run, 1)
        assert (run.state, stage.keeper.asked) == ("cancelled", [])
        assert [len(node.of("stop")) for node in stage.nodes] == [1, 1]


async def test_one_that_waits_for_its_new_gang_can_be_cancelled() -> None:
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
