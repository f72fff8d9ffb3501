"""Runs of other clients, provider checks, session shutdown, and the background event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.client.session import RETRY_PAUSES, BackOff, ReadOnlySession, Session, run_provider_check
from skyward_core.model.errors import LedgerError, PoolError, SpecError, UsageError
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.model.outcomes_states_and_alerts import RootCause
from skyward_core.model.specs import Options
from skyward_core.pool import agent_link
from skyward_core.pool.pool_context import PoolEnd
from skyward_core.pool.runs import other_clients_runs, run_registry_claims_and_frames
from skyward_core.protocol.frame_codec import Header
from skyward_core.providers.local.provider import Local
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, RunRow, process_mark
from skyward_core.transport.background_loop import background_loop, short_switch_interval, submit
from skyward_core.views import events
from skyward_tui.ui.session_futures import wait_shielded
from tests.support.ledger_runs import record_runs
from tests.support.pool_parts import TOKEN, Client, Pipe, World, attached, intended
from tests.support.waiting import until, wait_until

RUN = "ab12"
BOOM = {"type": "ValueError", "message": "boom"}


class Watcher:
    """Client that attached to a pool of two nodes, and the run's events since then."""

    def __init__(self, world: World, client: Client) -> None:
        self.world, self.client = world, client
        self.events: list[events.Event] = []
        client.news.subscribe(self.events.append, None)

    def say(self, node: int, header: Header, body: bytes = b"") -> None:
        self.world.pipes[f"m{node}"].say(header, body)

    async def reconnect(self, node: int) -> None:
        before = self.world.pipes[f"m{node}"]
        before.on_lost(OSError("the cable was pulled"))
        heard = self.client.greeted.count(node)
        await until(lambda: self.client.greeted.count(node) > heard)
        assert self.world.pipes[f"m{node}"] is not before

    def events_of(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.events if type(event) is kind]

    @property
    def run(self) -> Any:
        return self.client.context.view.runs[RUN]

    def written(self) -> Any:
        self.client.news.records.flush()
        return self.client.ledger.run(RUN)


Come = Callable[[], Awaitable[Watcher]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(agent_link, "BACKOFF", (0.001, 0.01))
    return World()


@pytest.fixture
async def attach(world: World) -> AsyncIterator[Come]:
    rows: list[PoolRow] = []
    clients: list[Client] = []

    async def attach() -> Watcher:
        if not rows:
            rows.append(replace(intended(world)[1], state="up"))
        clients.append(await attached(world, rows[0]))
        return Watcher(world, clients[-1])

    yield attach
    for client in clients:
        await client.close()


def opened(kind: str = "broadcast", total: int = 2) -> Header:
    return {"run": RUN, "function": "train", "kind": kind, "total": total, "opened_at": 1000.0}


def record(header: Header, *outcomes: Header, began: Any = (), items: Any = (), returned: int = 0) -> Header:
    """Return an agent's record of a run."""
    data = {"outcomes": list(outcomes), "began": list(began), "items": list(items), "active": 0}
    return header | data | {"returned": returned}


def outcome(index: int, node: int, kind: str = "returned", **more: Any) -> Header:
    where = {"t": "outcome", "run": RUN, "i": index, "rank": node, "node": node}
    return where | {"kind": kind, "at": 1010.0 + index} | more


def began_frame(index: int, node: int) -> Header:
    return {"t": "began", "run": RUN, "i": index, "rank": node, "node": node, "at": 1001.0}


async def test_running_run_of_another_client_is_shown_with_its_past(world: World, attach: Come) -> None:
    item = {"t": "item", "run": RUN, "i": 1, "rank": 1, "seq": 4, "summary": {"type": "int", "text": "7"}}
    world.remembers["m0"] = [record(opened(), outcome(0, 0, log={"r000.out": [3, 9]}))]
    world.remembers["m1"] = [record(opened(), began=[began_frame(1, 1)], items=[item])]
    watcher = await attach()
    run = watcher.run
    assert (run.function, run.kind, run.total, run.state, run.opened_at) == (
        "train", "broadcast", 2, "running", 1000.0,
    )  # fmt: skip
    assert [run.tasks[index].state for index in (0, 1)] == ["returned", "running"]
    assert (run.tasks[1].began_at, run.tasks[1].items, run.tasks[1].last_item.text) == (1001.0, 5, "7")
    watcher.say(1, outcome(1, 1, log={"r001.out": [0, 2]}))
    assert (run.state, run.ended_at, run.counts) == ("done", 1011.0, {"returned": 2})
    row = watcher.written()
    assert (row.token, row.state, row.opened_at, row.ended_at) == (TOKEN, "done", 1000.0, 1011.0)
    logs = [log for _, log in watcher.client.ledger.outcomes(RUN)]
    assert logs == [{"r000.out": [3, 9]}, {"r001.out": [0, 2]}]


@pytest.mark.parametrize("who", ["gone", "new"])
async def test_run_ends_although_a_node_that_knew_it_is_gone_or_new(world: World, attach: Come, who: str) -> None:
    world.remembers["m0"] = [record(opened(), outcome(0, 0))]
    before = await attach()
    knew = world.pipes["m1"]
    knew.say({"t": "run"} | opened(), b"")
    before.written()
    before.client.ledger.record_runs({RUN: {"pid": os.getpid()}})  # its client is there
    if who == "gone":
        world.states["m1"] = "gone"
    still = await attach()
    assert still.run.state == "running", "nobody has seen its end"
    knew.say(outcome(1, 1), b"")
    assert before.written().state == "done"
    late = await attach()
    assert (late.run.state, late.run.ended_at) == ("done", 1011.0)


@pytest.mark.parametrize(
    ("kind", "more", "state", "cause"),
    [
        ("raised", {"error": BOOM}, "failed", "boom"),
        ("collateral", {"error": {"type": "Stopped", "message": "the run was cancelled"}}, "cancelled", None),
    ],
)
async def test_watched_run_ends_when_its_last_rank_ends(
    world: World, attach: Come, kind: str, more: Header, state: str, cause: str | None
) -> None:
    watcher = await attach()
    for node in (0, 1):
        watcher.say(node, {"t": "run"} | opened())
    assert watcher.run.state == "running"
    watcher.say(1, outcome(1, 1, kind, **more))
    assert watcher.events_of(events.RunEnded) == [], "one rank is not the run"
    watcher.say(0, outcome(0, 0))
    (ended,) = watcher.events_of(events.RunEnded)
    assert (ended.state, ended.at) == (state, 1011.0), "when the last outcome was, not when it was heard of"
    assert (ended.root_cause and ended.root_cause.message) == cause
    assert watcher.written().state == state


async def test_repeated_run_frames_emit_each_event_once(world: World, attach: Come) -> None:
    watcher = await attach()
    for node in (0, 1, 0):
        watcher.say(node, {"t": "run"} | opened())
    for _ in range(2):
        watcher.say(0, outcome(0, 0, "raised", error=BOOM))
    watcher.say(0, outcome(0, 0))  # of the same call; the first word stands
    watcher.say(0, outcome(2, 0))  # there is no such call
    assert watcher.events_of(events.RunEnded) == []
    watcher.say(1, outcome(1, 1))
    world.remembers["m0"] = [record(opened(), outcome(0, 0, "raised", error=BOOM))]
    await watcher.reconnect(0)
    assert [len(watcher.events_of(kind)) for kind in (events.RunOpened, events.RankEnded, events.RunEnded)] == [1, 2, 1]
    assert [event.outcome.kind for event in watcher.events_of(events.RankEnded)] == ["raised", "returned"]


async def test_claimed_run_emits_its_own_outcomes_once(world: World, attach: Come) -> None:
    world.remembers["m0"] = [record(opened(), began=[began_frame(0, 0)])]
    world.remembers["m1"] = [record(opened(), began=[began_frame(1, 1)])]
    watcher = await attach()
    run = await watcher.client.context.registry.claim(RUN)
    world.remembers["m0"] = [record(opened(), outcome(0, 0))]
    await watcher.reconnect(0)
    watcher.client.context.background.run_deferred()
    assert watcher.events_of(events.RankEnded) == [], "its value is still to come"
    watcher.say(0, outcome(0, 0), b"value")
    watcher.say(0, outcome(0, 0), b"value")  # asked for once more, as the claim is
    watcher.say(1, outcome(1, 1), b"value")
    await until(lambda: watcher.events_of(events.RunEnded))
    watcher.client.context.background.run_deferred()
    assert run.state == watcher.run.state == "done"
    assert len(watcher.events_of(events.RunEnded)) == 1
    assert sorted(event.outcome.index for event in watcher.events_of(events.RankEnded)) == [0, 1]
    assert ("m1", "claim") in world.questions


async def test_ended_claimed_run_ignores_repeated_outcomes(world: World, attach: Come) -> None:
    """An agent that missed the acknowledgement repeats the outcomes."""
    world.remembers["m0"] = [record(opened())]
    watcher = await attach()
    run = await watcher.client.context.registry.claim(RUN)
    watcher.say(0, outcome(0, 0, "lost", error=BOOM))
    watcher.say(1, outcome(1, 1), b"value")
    await until(lambda: watcher.events_of(events.RunEnded))
    before = watcher.written(), watcher.client.ledger.outcomes(RUN)
    watcher.say(0, outcome(0, 0), b"value")
    world.remembers["m1"] = [record(opened(), outcome(0, 0), outcome(1, 1), began=[began_frame(1, 1)])]
    await watcher.reconnect(1)
    assert (run.state, watcher.run.state, watcher.run.counts) == ("failed", "failed", {"lost": 1, "returned": 1})
    kinds = [events.RunOpened, events.RankBegan, events.RankEnded, events.RunEnded]
    assert [len(watcher.events_of(kind)) for kind in kinds] == [0, 0, 2, 1]
    assert (watcher.written(), watcher.client.ledger.outcomes(RUN)) == before


async def test_outcome_after_the_pool_end_is_still_emitted(world: World, attach: Come) -> None:
    world.remembers["m0"] = [record(opened())]
    watcher = await attach()
    run = await watcher.client.context.registry.claim(RUN)
    run.pool_ended(PoolEnd("p", "somebody else", "", 0.0))
    await until(lambda: watcher.events_of(events.RunEnded))
    watcher.say(1, outcome(1, 1, "collateral", error={"type": "Stopped", "message": "the pool is torn down"}))
    assert [event.outcome.kind for event in watcher.events_of(events.RankEnded)] == ["collateral"]


async def test_run_with_missing_results_cannot_be_claimed(world: World, attach: Come) -> None:
    world.remembers["m0"] = [record(opened("gather", 3), returned=2)]
    watcher = await attach()
    with pytest.raises(PoolError) as caught:
        await watcher.client.context.registry.claim(RUN)
    message = (
        f"Cannot claim run {RUN}: the nodes have 2 of 3 results. The others were already fetched, or their tasks were "
        "never sent."
    )
    assert (caught.value.what, RUN in watcher.client.context.registry.runs) == (message, False)


async def test_client_refused_a_claim_reconnects_to_release_ownership(
    world: World, attach: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.remembers["m0"] = [record(opened("gather", 3), returned=2)]
    watcher = await attach()
    closed: list[str] = []
    monkeypatch.setattr(Pipe, "close", lambda pipe: closed.append(pipe._way.machine.id))
    with pytest.raises(PoolError):
        await watcher.client.context.registry.claim(RUN)
    assert sorted(closed) == ["m0", "m1"], "an agent takes us for the owner for as long as the connection lasts"
    asked = world.questions.count(("m0", "claim"))
    await watcher.reconnect(0)
    assert world.questions.count(("m0", "claim")) == asked, "and is not asked again over the next one"


async def test_returned_tasks_are_not_counted_again_after_reconnection(
    world: World, attach: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunRow, "has_client", True)  # else what the other agent does not know of is lost
    gather = opened("gather", 6)
    world.remembers["m0"] = [record(gather, returned=1)]
    watcher = await attach()
    watcher.say(0, outcome(1, 0))
    watcher.say(0, outcome(2, 0))
    world.remembers["m0"] = [record(gather, returned=4)]  # one more returned while we were away
    await watcher.reconnect(0)
    watcher.say(0, outcome(4, 0))
    assert watcher.events_of(events.RunEnded) == [], "one is still at work"
    assert watcher.written() is not None, "whether the ledger has the run is no matter of time"
    world.remembers["m0"] = [record(gather, returned=0)]  # another agent, that has never heard of those
    await watcher.reconnect(0)
    watcher.say(0, outcome(5, 0))
    assert [event.state for event in watcher.events_of(events.RunEnded)] == ["done"]


async def test_recorded_end_of_a_run_is_not_overwritten(world: World, attach: Come) -> None:
    """The dispatching client recorded the end; a later client cannot know which rank failed first."""
    first = await attach()
    cause = RootCause(1, "raised", "ValueError", "the first")
    head = opened(total=3)
    start = [(TOKEN, RUN, "train", "broadcast", 3, 1000.0)]
    record_runs(first.client.ledger, opened=start, ends=[(RUN, "failed", 1005.0, cause)])
    failed = [outcome(i, i, "raised", error=BOOM) for i in range(2)]
    world.remembers["m0"] = [record(head, failed[0], outcome(2, 0))]
    world.remembers["m1"] = [record(head, failed[1])]
    watcher = await attach()
    row, run = watcher.written(), watcher.run
    assert (row.state, row.ended_at, row.root_cause) == ("failed", 1005.0, cause)
    assert (run.state, run.ended_at, run.root_cause) == ("failed", 1005.0, cause)


async def test_watching_an_ended_run_keeps_its_end_time(world: World, attach: Come) -> None:
    gather = opened("gather", 2)
    world.remembers["m0"] = world.remembers["m1"] = [record(gather, returned=1)]
    first = await attach()
    before = first.written()
    second = await attach()
    assert before.state == "done"
    assert (second.written(), second.run.ended_at) == (before, before.ended_at)


@pytest.mark.parametrize("who", ["gone", "new", "taken back"])
async def test_rank_lost_without_a_client_is_reported_and_peers_are_stopped(
    world: World, attach: Come, who: str
) -> None:
    """The client and one node of the run are gone, and the other node waits for the lost rank."""
    world.remembers["m0"] = [record(opened(), began=[began_frame(0, 0)]) | {"active": 1}]
    if who != "new":
        world.states["m1"] = "gone"
    if who == "taken back":
        world.ended_as["m1"] = {"preempted": "Server.SpotInstanceTermination"}
    watcher = await attach()
    watcher.written()
    watcher.client.context.registry.sync_from_agent(watcher.client.context.links[0])
    lost = watcher.run.tasks[1]
    assert (lost.state, watcher.run.state) == ("lost", "running"), "the other one is still at it"
    assert ("m0", "stop") in world.questions
    watcher.say(0, outcome(0, 0, "collateral", error={"type": "Stopped", "message": "another rank failed"}))
    row = watcher.written()
    data = {
        "gone": ("NodeLost", "node 1 is gone: its machine was already gone"),
        "new": ("NodeLost", "node 1 does not know the run: its machine or agent was replaced after the run began"),
        "taken back": ("Preempted", "preempted: the machine of node 1 was preempted by its provider: Server.Spot"),
    }[who]
    assert (watcher.run.state, row.state, row.root_cause.outcome, row.root_cause.rank) == (
        "failed", "failed", "lost", 1,
    )  # fmt: skip
    assert row.root_cause.type == data[0] and row.root_cause.message.startswith(data[1])
    assert [each.kind for each, _ in watcher.client.ledger.outcomes(RUN)] == ["collateral", "lost"]


async def test_client_claiming_a_run_with_a_lost_node_stops_its_ranks(world: World, attach: Come) -> None:
    world.remembers["m0"] = [record(opened(), began=[began_frame(0, 0)]) | {"active": 1}]
    world.states["m1"] = "gone"
    watcher = await attach()
    run = await watcher.client.context.registry.claim(RUN)
    assert ("m0", "stop") in world.questions and run.outcomes[1].kind == "lost"
    watcher.say(0, outcome(0, 0, "collateral", error={"type": "Stopped", "message": "another rank failed"}))
    await until(lambda: run.state == "failed")
    assert run.root_cause is not None and run.root_cause.message.startswith("node 1 is gone")


async def test_observer_stops_peers_of_lost_ranks_once_it_uses_the_pool(world: World, attach: Come) -> None:
    world.remembers["m0"] = [record(opened(), began=[began_frame(0, 0)]) | {"active": 1}]
    world.states["m1"] = "gone"
    watcher = await attach()
    watcher.written()
    context = watcher.client.context
    context.observer = True
    watcher.client.context.registry.sync_from_agent(context.links[0])
    assert watcher.run.tasks[1].state == "lost" and ("m0", "stop") not in world.questions
    context.observer = False
    watcher.client.context.registry.others.check_ledger()
    assert ("m0", "stop") in world.questions


async def watcher_of_two_ranks(world: World, attach: Come) -> Watcher:
    """Attach to a pool in which both ranks of a run have begun."""
    world.remembers["m0"] = [record(opened(), began=[began_frame(0, 0)]) | {"active": 1}]
    world.remembers["m1"] = [record(opened(), began=[began_frame(1, 1)]) | {"active": 1}]
    watcher = await attach()
    watcher.written()
    return watcher


async def test_call_unknown_to_a_new_agent_is_lost(world: World, attach: Come) -> None:
    watcher = await watcher_of_two_ranks(world, attach)
    world.remembers["m1"] = []
    watcher.client.context.observer = True  # and though it only looks: it was there
    await watcher.reconnect(1)
    assert watcher.run.tasks[1].state == "lost" and ("m0", "stop") in world.questions


async def test_new_attempt_replaces_the_records_of_the_failed_one(world: World, attach: Come) -> None:
    watcher = await watcher_of_two_ranks(world, attach)
    for node, kind in enumerate(("returned", "lost")):
        watcher.say(node, outcome(node, node, kind))
    assert watcher.written().state == "failed"
    watcher.say(0, {"t": "run", "attempt": 2} | opened())
    watcher.say(1, outcome(1, 1))  # the agent repeats an outcome of the first attempt
    row = watcher.written()
    assert (row.state, row.ended_at, row.attempts, watcher.client.ledger.outcomes(RUN)) == ("running", None, 2, [])
    watcher.say(1, {"t": "run", "attempt": 2} | opened())
    for node in (0, 1):
        watcher.say(node, outcome(node, node, attempt=2))
    assert (watcher.written().state, watcher.run.state) == ("done", "done")


@pytest.mark.parametrize("behind", ["m0", "m1"])
async def test_run_whose_client_exited_between_attempts_is_not_complete(
    world: World, attach: Come, behind: str
) -> None:
    """One node got the call of the second attempt, and the other one still remembers the first attempt."""
    for node, name in enumerate(("m0", "m1")):
        attempt: Header = {"attempt": 1 if name == behind else 2}
        world.remembers[name] = [record(opened(), outcome(node, node, **attempt)) | attempt]
    (await attach()).written()
    row = (watcher := await attach()).written()
    assert (row.state, watcher.run.state, watcher.run.counts) == ("failed", "failed", {"returned": 1, "lost": 1})


@pytest.mark.parametrize("how", ["watches", "reads only", "has a client"])
async def test_observer_that_saw_a_node_loss_stops_the_peers(
    world: World, attach: Come, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other client may ever use the pool. A run whose client is alive is checked again later."""
    watcher = await watcher_of_two_ranks(world, attach)
    context, book = watcher.client.context, watcher.client.context.registry
    context.observer, book.is_read_only = True, how == "reads only"
    if how == "has a client":
        monkeypatch.setattr(run_registry_claims_and_frames, "CHECK_INTERVAL", 0.01)
        monkeypatch.setattr(RunRow, "has_client", True)
    context.links[1].mark_lost("its machine is gone")
    book.on_node_lost()
    book.drop_link(context.links[1])
    if how == "has a client":
        assert watcher.run.tasks[1].state == "running", "it tells of that"
        monkeypatch.setattr(RunRow, "has_client", False)
        await until(lambda: ("m0", "stop") in world.questions)
    assert watcher.run.tasks[1].state == "lost"
    assert (("m0", "stop") in world.questions) == (how != "reads only")


async def test_read_only_session_never_stops_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(self: Session, row: Any, *, observer: bool) -> Any:
        return SimpleNamespace(context=SimpleNamespace(registry=SimpleNamespace(is_read_only=False)))

    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(Session, "_watch", watch)
    for kind, only_looks in ((Session, False), (ReadOnlySession, True)):
        session = kind()
        found: Any = await session._watch(Any, observer=True)  # type: ignore[arg-type]
        assert found.context.registry.is_read_only is only_looks
        session.detach()


@pytest.mark.parametrize("kind", ["single", "gather"])
async def test_tasks_on_a_lost_node_are_found_in_the_ledger(world: World, attach: Come, kind: str) -> None:
    first = await attach()
    total = 1 if kind == "single" else 3
    start = [(TOKEN, RUN, "train", kind, total, 1000.0)]
    record_runs(first.client.ledger, opened=start)
    if kind == "gather":
        world.remembers["m0"] = [record(opened("gather", 3), returned=2)]
    world.states["m1"] = "gone"
    late = await attach()
    if kind == "gather":
        late.written()
        late.client.context.registry.sync_from_agent(late.client.context.links[0])
    row = late.written()
    assert (late.run.state, row.state, row.root_cause.message) == (
        "failed", "failed", "node 1 is gone: its machine was already gone",
    )  # fmt: skip
    assert late.run.counts.get("lost", 0) == (kind == "single"), "of which tasks returned only a number is told"


@pytest.mark.parametrize("why", ["client", "young", "active", "unfetched"])
async def test_run_that_may_still_be_running_is_not_marked_lost(world: World, attach: Come, why: str) -> None:
    first = await attach()
    at = time.time() if why == "young" else 1000.0
    start = [(TOKEN, RUN, "train", "single", 1, at)]
    record_runs(first.client.ledger, opened=start)
    if why == "client":
        first.client.ledger.record_runs({RUN: {"pid": os.getpid()}})
    if why == "active":
        world.remembers["m0"] = [record(opened("single", 1), began=[began_frame(0, 0)]) | {"active": 1}]
    world.states["m1"] = "gone"
    if why == "unfetched":
        world.unfetched["m0"] = {RUN: 12}
    late = await attach()
    late.client.context.registry.sync_from_agent(late.client.context.links[0])
    assert late.written().state == "running"


# Whether a provider can do what will be asked of it: its own words, a time-out, and what it raises.


async def test_provider_check_uses_the_given_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = await run_provider_check("local", {})
    assert [line.subject for line in lines] == ["local", "local disk"]
    assert (await run_provider_check("local", {"color": "red"}))[0].state == "fail"
    assert "cupboard" in (await run_provider_check("cupboard", {}))[0].detail


async def test_provider_check_without_an_answer_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(self: Any) -> list[Check]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(Local, "check", silent)
    assert await run_provider_check("local", {}, 0.05) == [Check("local", "fail", "no answer within 0.05 s")]


async def test_provider_check_that_blocks_its_thread_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    async def stuck(self: Any) -> list[Check]:
        free.wait(30)
        return []

    monkeypatch.setattr(Local, "check", stuck)
    began = time.monotonic()
    try:
        assert (await run_provider_check("local", {}, 0.05))[0].state == "fail"
        assert time.monotonic() - began < 30
    finally:
        free.set()


async def test_exception_of_a_provider_check_is_a_failed_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Any) -> list[Check]:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Local, "check", broken)
    assert await run_provider_check("local", {}) == [Check("local", "fail", "ZeroDivisionError: oh")]


def test_session_checks_providers_unless_it_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    session, looking = Session(), ReadOnlySession()
    try:
        assert [line.subject for line in session.check_provider("local", {}).result(20)] == ["local", "local disk"]
        with pytest.raises(UsageError, match="session is read-only"):
            looking.check_provider("local", {}).result(20)
    finally:
        session.detach()
        looking.detach()


# What does not answer is asked ever less often.


def test_back_off_doubles_the_pause_up_to_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waits = BackOff()
    pauses = []
    for _ in range(8):
        assert waits.is_due("a")
        waits.record_failure("a")
        began = now
        while not waits.is_due("a"):
            now += 0.5
        pauses.append(now - began)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60] and (pauses[0], pauses[-1]) == RETRY_PAUSES
    waits.record_failure("a")
    waits.record_failure("b")
    waits.retain_only({"b"})
    assert waits.is_due("a") and not waits.is_due("b")
    waits.reset("b")
    assert waits.is_due("b")


# What goes on while a session, or the app, leaves ends with it, and no error of it is left for nobody.


def test_closing_a_session_cancels_its_scan_before_the_ledger_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ledger = Ledger()
    ledger.record_intent("t", "p", {"provider": "local"}, {"provider": "local", "nodes": 1})
    ledger.close()
    went: list[str] = []

    async def come(self: Session, row: Any, *, observer: bool) -> None:
        went.append("there")
        try:
            await asyncio.Event().wait()
        finally:
            went.append("ledger open" if self.ledger.find_pool("p") is not None else "")

    monkeypatch.setattr(Session, "_watch", come)
    session = Session()
    looking = session.refresh()
    wait_until(lambda: went == ["there"])
    session.detach()
    with pytest.raises(CancelledError):
        looking.result(60)
    assert went == ["there", "ledger open"]


@pytest.mark.parametrize("grace", [float("inf"), float("nan"), 3601.0])
def test_cancel_rejects_a_grace_period_that_agents_do_not_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    session = Session()
    try:
        with pytest.raises(SpecError, match="0 to 3600"):
            session.cancel("p", "r", grace).result(20)
    finally:
        session.detach()


async def test_cancelled_shielded_wait_leaves_no_unhandled_error() -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: complaints.append(about["message"]))
    verb: Future[None] = Future()
    waiting = asyncio.create_task(wait_shielded(verb))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert not verb.cancelled(), "it goes on"
    verb.set_exception(LedgerError("Cannot operate on a closed database."))
    for _ in range(3):
        await asyncio.sleep(0)
    del verb, waiting
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


# The one thread on which all pools of a process live.


async def current_thread_and_loop() -> tuple[str, asyncio.AbstractEventLoop]:
    return threading.current_thread().name, asyncio.get_running_loop()


def test_coroutines_of_all_threads_run_on_one_background_loop() -> None:
    found, threads = [], []
    for _ in range(8):
        threads.append(threading.Thread(target=lambda: found.append(submit(current_thread_and_loop()).result(20))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert set(found) == {("skyward", background_loop())}


def test_background_loop_does_not_keep_the_interpreter_alive() -> None:
    code = (
        "import asyncio\nfrom skyward_core.transport.background_loop import submit\n"
        "submit(asyncio.sleep(600))\nsubmit(asyncio.sleep(0)).result()\nprint('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@pytest.fixture
def usual_switch_interval() -> Iterator[float]:
    found = sys.getswitchinterval()  # an app that ran in this process has its own
    sys.setswitchinterval(0.004)
    yield sys.getswitchinterval()
    sys.setswitchinterval(found)


def test_switch_interval_is_restored_after_the_last_user(usual_switch_interval: float) -> None:
    first, second = short_switch_interval(), short_switch_interval()
    first.__enter__()
    assert sys.getswitchinterval() < usual_switch_interval
    second.__enter__()
    first.__exit__(None, None, None)  # as threads do, in any order
    assert sys.getswitchinterval() < usual_switch_interval
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual_switch_interval
    with pytest.raises(KeyError), short_switch_interval():
        raise KeyError
    assert sys.getswitchinterval() == usual_switch_interval


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_coroutine_that_exits_does_not_end_the_background_loop(kind: type[BaseException]) -> None:
    async def leave() -> None:
        raise kind(3)

    async def stay() -> int:
        return 7

    assert type(submit(leave()).exception(20)) is kind
    assert submit(stay()).result(20) == 7


async def test_waiting_run_ends_with_its_reason_if_no_node_has_its_function(
    world: World, attach: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An observer shows the run as running. It tries to continue the run when it is no longer an observer."""
    monkeypatch.setattr(other_clients_runs, "DECISION_GRACE", 0.0)
    monkeypatch.setattr(other_clients_runs, "DECISION_INTERVAL", 0.01)
    watcher = await attach()
    context = watcher.client.context
    monkeypatch.setattr(context, "options", Options(on_loss="restart"))
    monkeypatch.setattr(context, "observer", True)
    columns = {"token": TOKEN, "function": "train", "kind": "broadcast", "total": 2, "opened_at": 1000.0}
    watcher.client.ledger.record_runs({RUN: columns})
    end = {"number": 1, "cause": "loss", "message": "rank 1 lost", "signature": "", "progress": None, "lost": [1]}
    last_end = end | {"reason": "only a client can replace lost nodes", "at": 1010.0}
    for _ in range(2):
        watcher.say(0, {"t": "run"} | opened() | {"last_end": last_end})
    watcher.say(0, outcome(0, 0, "collateral", error=BOOM))
    watcher.say(1, outcome(1, 1, "lost", error=BOOM))
    assert [(each.restarts, each.reason) for each in watcher.run.ended_attempts] == [(False, last_end["reason"])]
    others, looked = context.registry.others, list[str]()
    read = others.ledger_row

    def look(run: str) -> RunRow | None:
        looked.append(run)
        return read(run)

    monkeypatch.setattr(others, "ledger_row", look)
    await until(lambda: len(looked) > 3)
    assert watcher.run.state == "running"
    monkeypatch.setattr(context, "observer", False)
    others.adopt_waiting()
    await until(lambda: watcher.run.state == "failed")
    assert watcher.written().state == "failed" and not watcher.written().has_client
    assert [each.reason for each in watcher.run.ended_attempts] == [last_end["reason"]]


LAST_END = {
    "number": 1, "cause": "loss", "message": "rank 1 lost", "signature": "", "progress": None, "lost": [1],
    "reason": "only a client can replace lost nodes", "at": 1010.0,
}  # fmt: skip


@pytest.fixture
async def waiting_run(world: World, attach: Come, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    """Return the client of a pool with a failed run that waits for a client. The agents report it later."""
    monkeypatch.setattr(other_clients_runs, "DECISION_GRACE", 0.0)
    monkeypatch.setattr(other_clients_runs, "DECISION_INTERVAL", 0.01)
    watcher = await attach()
    monkeypatch.setattr(watcher.client.context, "options", Options(on_loss="restart"))
    columns = {"token": TOKEN, "function": "train", "kind": "broadcast", "total": 2, "opened_at": 1000.0}
    watcher.client.ledger.record_runs({RUN: columns})
    return watcher


def report_waiting_run(watcher: Watcher, *, is_complete: bool = True) -> None:
    watcher.say(0, {"t": "run"} | opened() | {"last_end": LAST_END})
    watcher.say(0, outcome(0, 0, "collateral", error=BOOM))
    if is_complete:
        watcher.say(1, outcome(1, 1, "lost", error=BOOM))


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("who", ["locks the ledger", "waits for it first"])
async def test_client_continues_a_waiting_run_as_soon_as_no_other_process(
    waiting_run: Watcher, monkeypatch: pytest.MonkeyPatch, who: str, is_complete: bool
) -> None:
    """Another process locks the ledger, or is killed after it has taken over the run.

    Meanwhile, a rank may still wait for those that have failed.
    """
    client, adopted = waiting_run.client, list[str]()
    registry = client.context.registry

    async def adopt(run: str) -> None:
        adopted.append(run)

    monkeypatch.setattr(registry, "_adopt", adopt)
    with sqlite3.connect(client.ledger.path, isolation_level=None) as beside:
        if who == "locks the ledger":
            beside.execute("BEGIN IMMEDIATE")
        else:
            beside.execute("UPDATE runs SET pid=?", (process_mark(os.getppid()),))
        report_waiting_run(waiting_run, is_complete=is_complete)
        assert (waiting_run.run.state, adopted) == ("running", [])
        if who == "locks the ledger":
            beside.execute("ROLLBACK")
        else:
            beside.execute("UPDATE runs SET pid=NULL")
    await until(lambda: adopted == [RUN])


async def test_client_whose_link_is_cut_while_it_takes_over_a_run_asks_again(
    world: World, waiting_run: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, cuts = Pipe._answer, list[Pipe]()

    def cut_once(pipe: Pipe, header: Header) -> Header | None:
        if header["t"] == "claim" and pipe is world.pipes["m1"] and not cuts:
            cuts.append(pipe)
            asyncio.get_running_loop().call_soon(pipe.on_lost, OSError("the cable was pulled"))
            return None
        return answer(pipe, header)

    monkeypatch.setattr(Pipe, "_answer", cut_once)
    report_waiting_run(waiting_run)
    world.remembers["m1"] = [record(opened(), outcome(1, 1, "lost", error=BOOM))]
    registry = waiting_run.client.context.registry
    await until(lambda: RUN not in registry._adoptions)
    assert cuts and world.questions.count(("m0", "claim")) == 2
    assert "its nodes do not have its function" in waiting_run.events_of(events.PoolState)[-1].detail


@pytest.mark.parametrize("has_begun", [True, False])
async def test_client_that_detaches_while_it_takes_over_a_run_leaves_it_to_others(
    world: World, waiting_run: Watcher, has_begun: bool
) -> None:
    """The client also leaves the run if its task was cancelled before the task began."""
    world.refuses["m1"] = OSError("no route to host")
    world.pipes["m1"].on_lost(OSError("the cable was pulled"))
    waiting_run.say(0, {"t": "run"} | opened() | {"last_end": LAST_END})
    context = waiting_run.client.context
    assert waiting_run.written().has_client
    if has_begun:
        await asyncio.sleep(0)
    context.detached = context.leaving = True
    await waiting_run.client.close()
    row = Ledger().run(RUN)
    assert row is not None and not row.has_client
    assert not context.registry._adoptions
