"""Views of a pool after each event, aggregates of results, and agreement of state lists with protocol and styles."""

from __future__ import annotations

import random
import statistics
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args

import pytest

from skyward_core.model import outcomes_states_and_alerts as outcomes
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, NoticeKind, Outcome, RootCause, Summary
from skyward_core.node.agent.worker_slot_queue_and_process import PHASES
from skyward_core.protocol import frame_schemas_and_size_limits as frame_schemas
from skyward_core.views import events as ev
from skyward_core.views import pool_view
from skyward_core.views.pool_view import MAX_NODE_DETAILS, PoolView, aggregate, apply
from skyward_tui.text.number_time_and_run_state_format import number as shown
from skyward_tui.text.state_styles import node_style, state_style
from tests.support.hostile_text import is_harmful

SPEC = {"name": "p", "provider": "local", "nodes": 2, "worker": {"ranks_per_node": 2}}


def summary(value: Any) -> Summary:
    return Summary(type(value).__name__, repr(value), value, True, 10)


def returned(index: int, value: Any = 1.0) -> Outcome:
    return Outcome(index, index, index // 2, "returned", 0.5, summary(value))


def view_of(*events: ev.Event) -> PoolView:
    view = PoolView("p")
    for event in events:
        apply(view, event)
    return view


OPENED = ev.PoolOpened(pool="p", at=10.0, spec=SPEC, created_at=9.0)
RUN = ev.RunOpened(pool="p", at=20.0, run="r1", function="train", kind="broadcast", total=4)
KILLED = Outcome(1, 1, 0, "exited", 2.0, error=ErrorInfo("RankExit", "ended by SIGKILL"), signal=9)
CAUSE = RootCause.from_outcome(KILLED)
WAITING = ev.QueuedRun(run="r2", name="next", nodes=2, only=[], since=20.5)
STORY: list[ev.Event] = [
    OPENED,
    ev.NodePhase(pool="p", at=11.0, node=1, phase="running", detail="starting", address="10.0.0.2"),
    ev.NodePhase(pool="p", at=12.0, node=1, phase="running", detail="no answer", retry_at=17.0),
    ev.NodePhase(pool="p", at=13.0, node=1, phase="ready"),
    ev.NodePhase(pool="p", at=13.0, node=0, phase="ready", address="10.0.0.1"),
    ev.PoolState(pool="p", at=14.0, state="up"),
    ev.NodeLink(pool="p", at=15.0, node=0, up=True),
    ev.NodeLink(pool="p", at=16.0, node=1, up=True),
    ev.NodeLink(pool="p", at=30.0, node=1, up=False, detail="timed out"),
    ev.NodeLink(pool="p", at=31.0, node=1, up=False, detail="timed out; next try in 2 s"),
    RUN,
    ev.RankBegan(pool="p", at=21.0, run="r1", index=0, rank=0, node=0),
    ev.RankBegan(pool="p", at=21.5, run="r1", index=1, rank=1, node=0),
    ev.ItemYielded(pool="p", at=22.0, run="r1", index=0, rank=0, seq=0, summary=summary(5)),
    ev.ItemYielded(pool="p", at=23.0, run="r1", index=0, rank=0, seq=1, summary=summary(6)),
    ev.RankEnded(pool="p", at=24.0, run="r1", outcome=returned(0, {"loss": 2.5, "name": "é"})),
    ev.RankEnded(pool="p", at=25.0, run="r1", outcome=KILLED),
    ev.RunEnded(pool="p", at=26.0, run="r1", state="failed", root_cause=CAUSE),
    ev.LeaseNews(pool="p", at=27.0, ends_at=590.0),
    ev.RankPhase(pool="p", at=28.0, rank=0, phase="importing"),
    ev.PriceNews(pool="p", at=28.0, hourly=7.9),
    ev.BudgetNews(pool="p", at=28.5, budget=25.0, state="near"),
    ev.UnfetchedNews(pool="p", at=28.0, runs={"r1": 12}),
    ev.NodeNotice(pool="p", at=29.0, node=1, kind="terminate", ends_at=149.0),
    ev.NodeSilence(pool="p", at=29.0, node=1, state="suspected", silences={"client": 2.5, "node 0": 2.1}),
    ev.OutputFetched(pool="p", at=29.0, run="r1", node=0, path="o\udcff", size=3, target="/o/o\x1b[2J", error="full"),
    ev.CheckpointSaved(pool="p", at=29.0, run="r1", name="step-3", size=3, saved_at=27.0, place="this client"),
    ev.RunPlaced(pool="p", at=29.5, run="r1", nodes=[0, 1]),
    ev.QueueNews(pool="p", at=29.6, waiting=[WAITING]),
    ev.AttemptEnded(pool="p", at=29.7, run="r1", number=1, cause="loss", message="SIGKILL", restarts=False),
    ev.PoolState(pool="p", at=40.0, state="stopping", detail="asked to"),
    ev.PoolEnded(pool="p", at=41.0, receipt={"created": 2, "gone": [0], "unaccounted": ["i-1"]}),
]


def test_event_story_covers_every_event_kind() -> None:
    assert {type(event) for event in STORY} == set(ev.Event.kinds.values())


def test_next_attempt_begins_without_outcomes_and_keeps_the_ended_ones() -> None:
    again = ev.AttemptEnded(
        pool="p", run="r1", number=2, cause="loss", message="killed\x1b[2J", restarts=True, reason="restart 1 of 3"
    )  # fmt: skip
    run = view_of(*STORY, again, again).runs["r1"]
    assert (run.state, run.attempt, run.tasks, run.counts, run.root_cause) == ("running", 3, {}, {}, None)
    assert [each.message for each in run.ended_attempts] == ["SIGKILL", "killed"]


def test_paths_of_fetched_outputs_are_sanitized() -> None:
    assert view_of(*STORY).runs["r1"].outputs == {"/o/o": "full"}


def test_preemption_notice_lasts_until_the_node_is_gone() -> None:
    def notice(kind: NoticeKind, ends_at: float | None = None) -> ev.Event:
        return ev.NodeNotice(pool="p", at=11.0, node=1, kind=kind, ends_at=ends_at)

    view = view_of(OPENED, notice("rebalance"))
    node = view.nodes[1]
    assert (node.notice, node.is_preempted, view.nodes[0].notice) == ("rebalance", False, "")
    apply(view, notice("terminate", 131.0))
    apply(view, notice("rebalance"))  # is no news beside that
    assert (node.notice, node.notice_ends_at, node.is_preempted) == ("terminate", 131.0, True)
    apply(view, ev.NodePhase(pool="p", at=13.0, node=1, phase="ready", detail="a new agent took over"))
    assert node.is_preempted
    apply(view, ev.NodePhase(pool="p", at=131.0, node=1, phase="gone"))
    assert (node.notice, node.notice_ends_at) == ("", None)


def test_opened_pool_view_has_requested_nodes() -> None:
    view = view_of(OPENED)
    assert (view.provider, view.created_at, view.state) == ("local", 9.0, "starting")
    assert [(n.index, n.phase, n.since) for n in view.nodes] == [(0, "requested", 10.0), (1, "requested", 10.0)]
    assert (view.world_size, view.ranks_per_node, view.nodes_ready, view.is_live) == (4, 2, 0, True)


def test_reopened_pool_view_keeps_its_nodes() -> None:
    view = view_of(*STORY[:9], OPENED)
    assert [n.phase for n in view.nodes] == ["ready", "ready"]


def test_node_view_follows_phase_events() -> None:
    view = view_of(*STORY[:2])
    node = view.nodes[1]
    assert (node.phase, node.since, node.detail, node.address) == ("running", 11.0, "starting", "10.0.0.2")
    apply(view, STORY[2])  # more of the same phase: since when it lasts is unchanged, the address known
    assert (node.since, node.detail, node.retry_at, node.address) == (11.0, "no answer", 17.0, "10.0.0.2")
    apply(view, STORY[3])
    assert (node.phase, node.since, node.detail, node.retry_at) == ("ready", 13.0, "", None)
    assert view.nodes_ready == 1


def test_phase_details_of_a_node_view_are_bounded() -> None:
    view = view_of(OPENED)
    for line in ["resolving", "resolving", *map(str, range(MAX_NODE_DETAILS - 1))]:
        apply(view, ev.NodePhase(pool="p", at=1.0, node=0, phase="installed", detail=line))
    apply(view, ev.NodePhase(pool="p", at=2.0, node=0, phase="ready"))
    assert [text for _, _, text in view.nodes[0].details] == ["resolving", *map(str, range(MAX_NODE_DETAILS - 1))]
    apply(view, ev.NodePhase(pool="p", at=3.0, node=0, phase="running", detail="again\x1b[31m"))
    assert len(view.nodes[0].details) == MAX_NODE_DETAILS and view.nodes[0].details[-1][2].isprintable()


def test_details_of_a_node_name_the_witnesses_of_its_silence() -> None:
    view = view_of(OPENED)
    for at, state, silences in (
        (9.0, "suspected", {"client": 2.5, "node 0\x1b[2J": 2.14}),
        (11.0, "lost", {"client": 4.5}),
    ):
        apply(view, ev.NodeSilence(pool="p", at=at, node=1, state=state, silences=silences))  # type: ignore[arg-type]
    assert [(at, text) for at, _, text in view.nodes[1].details] == [
        (9.0, "suspected, last sign of life: client 2.5 s ago, node 0 2.1 s ago"),
        (11.0, "lost, last sign of life: client 4.5 s ago"),
    ]


def test_run_view_follows_events_to_the_end() -> None:
    view = view_of(*STORY[:13])
    run = view.runs["r1"]
    assert (run.function, run.kind, run.total, run.opened_at, run.state) == ("train", "broadcast", 4, 20.0, "running")
    assert [(t.state, t.began_at) for t in run.tasks.values()] == [("running", 21.0), ("running", 21.5)]
    for event in STORY[13:17]:
        apply(view, event)
    first, second = run.tasks[0], run.tasks[1]
    assert (first.items, first.last_item, first.state) == (2, summary(6), "returned")
    assert (second.state, second.outcome) == ("exited", KILLED)
    assert run.counts == {"returned": 1, "exited": 1}
    assert run.ended == 2
    assert [o.index for o in run.outcomes()] == [0, 1]
    apply(view, STORY[17])
    assert (run.state, run.ended_at, run.root_cause) == ("failed", 26.0, CAUSE)


def test_repeated_outcome_event_counts_once() -> None:
    view = view_of(OPENED, RUN)
    for outcome in (returned(1), KILLED, KILLED):
        apply(view, ev.RankEnded(pool="p", run="r1", outcome=outcome))
    run = view.runs["r1"]
    assert run.ended == 1
    assert {kind: n for kind, n in run.counts.items() if n} == {"exited": 1}


def test_late_event_does_not_undo_an_outcome() -> None:
    view = view_of(OPENED, RUN, ev.RankEnded(pool="p", run="r1", outcome=returned(0)))
    apply(view, STORY[11])
    assert view.runs["r1"].tasks[0].state == "returned"
    items = [ev.ItemYielded(pool="p", run="r1", index=0, rank=0, seq=seq, summary=summary(seq)) for seq in (3, 1)]
    for item in items:
        apply(view, item)
    assert view.runs["r1"].tasks[0].items == 4
    opened = view.runs["r1"]
    apply(view, RUN)
    assert view.runs["r1"] is opened


@pytest.mark.parametrize("event", [e for e in STORY if hasattr(e, "run") and not isinstance(e, ev.RunOpened)])
def test_event_of_a_forgotten_run_changes_nothing(event: ev.Event) -> None:
    assert view_of(OPENED, event).runs == {}


def test_pool_view_with_verified_teardown_is_gone() -> None:
    view = view_of(*STORY[:19])
    assert view.ends_at == 590.0
    whole = {"created": 2, "gone": [0, 1], "unaccounted": []}
    apply(view, ev.PoolEnded(pool="p", at=50.0, receipt=whole))
    assert (view.state, view.receipt, view.is_live) == ("gone", whole, False)
    assert [(n.phase, n.since) for n in view.nodes] == [("gone", 50.0)] * 2


def test_pool_view_with_unverified_teardown_is_failed() -> None:
    view = view_of(*STORY)
    assert view.state == "failed"
    assert [n.phase for n in view.nodes] == ["gone", "ready"]


def test_every_event_raises_the_pool_view_version() -> None:
    view = PoolView("p")
    for count, event in enumerate(STORY, start=1):
        apply(view, event)
        assert view.version == count


def test_run_events_raise_the_run_view_version() -> None:
    view = view_of(*STORY[:11])
    run = view.runs["r1"]
    for event in STORY[11:18]:
        before = run.version
        apply(view, event)
        assert run.version > before


def test_runs_in_a_view_are_bounded_except_running_ones() -> None:
    view = view_of(OPENED, RUN)
    for number in range(2 * pool_view.MAX_RUNS):
        opened = replace(RUN, run=f"x{number}")
        apply(view, opened)
        apply(view, ev.RunEnded(pool="p", run=opened.run, state="done"))
    assert len(view.runs) == pool_view.MAX_RUNS
    assert "r1" in view.runs
    assert f"x{2 * pool_view.MAX_RUNS - 1}" in view.runs
    assert "x0" not in view.runs


@pytest.mark.parametrize("at_once", [False, True])
def test_newest_runs_are_kept_in_any_order_of_events(at_once: bool) -> None:
    view = view_of(OPENED)
    half = pool_view.MAX_RUNS
    opened = [replace(RUN, run=f"x{number}", at=RUN.at + number) for number in range(2 * half)]
    ended = [ev.RunEnded(pool="p", run=each.run, state="done") for each in opened]
    in_order = [pair for number in (*range(half, 2 * half), *range(half)) for pair in (opened[number], ended[number])]
    for event in sorted(in_order, key=lambda event: event in ended) if at_once else in_order:
        apply(view, event)
    held = [opened[half - 1], *opened[half + 1 :]]
    assert list(view.runs) == [each.run for each in held], "the run of the last event takes the oldest's place"


def test_outcomes_in_a_view_are_bounded_except_failures() -> None:
    total = pool_view.MAX_TASKS + 3000
    view = view_of(OPENED, replace(RUN, kind="gather", total=total))
    run = view.runs["r1"]
    failed = {5, pool_view.MAX_TASKS + 100, total - 1}
    for index in range(total):
        outcome = replace(KILLED, index=index) if index in failed else returned(index)
        apply(view, ev.RankBegan(pool="p", run="r1", index=index, rank=0, node=0))
        apply(view, ev.RankEnded(pool="p", run="r1", outcome=outcome))
    assert run.counts == {"returned": total - 3, "exited": 3}
    assert run.ended == total
    assert pool_view.MAX_TASKS <= len(run.tasks) <= pool_view.MAX_TASKS + 3
    assert {o.index for o in run.outcomes() if o.kind == "exited"} == failed


# -- aggregate ---------------------------------------------------------------------------------------------------


def table(*values: Any) -> dict[str, dict[str, float]] | None:
    return aggregate([summary(value) for value in values])


def test_aggregate_equals_the_standard_library_in_any_order() -> None:
    chance = random.Random(3)
    values = [chance.uniform(-1e6, 1e6) for _ in range(500)]
    row = table(*values)["value"]  # type: ignore[index]
    assert row["mean"] == pytest.approx(statistics.fmean(values))
    assert row["std"] == pytest.approx(statistics.pstdev(values))
    chance.shuffle(values)
    assert table(*values) == {"value": pytest.approx(row)}


def test_aggregate_of_huge_numbers_does_not_overflow() -> None:
    row = table(1e308, 1.5e308, 1e308)["value"]  # type: ignore[index]
    assert row["mean"] == pytest.approx(3.5 / 3 * 1e308)
    assert row["std"] == pytest.approx(2.357e307, rel=1e-3)


def test_aggregate_has_a_row_per_common_numeric_key() -> None:
    got = table(
        {"loss": 1.0, "steps": 10, "ok": True, "name": "a", "only": 1, "mixed": 1},
        {"loss": 3.0, "steps": 10, "ok": True, "name": "b", "mixed": None},
    )
    assert got is not None
    assert set(got) == {"loss", "steps"}
    assert got["loss"]["mean"] == 2.0
    assert got["steps"]["std"] == 0.0


def test_aggregate_leaves_out_what_only_identifies_the_rank() -> None:
    got = table(*({"rank": rank, "Local_Rank": rank, "world_size": 2, "loss": 1.0} for rank in range(2)))
    assert got is not None and list(got) == ["loss"]
    assert table({"rank": 0}, {"rank": 1}) is None


@pytest.mark.parametrize(
    "values",
    [
        (), (True, False), (1, True), (1, "2"), (1, None), (1, {"a": 1}), ([1], [2]), ({}, {}),
        ({"a": True}, {"a": False}), ({"a": 1}, {"b": 1}), ({"a": 1}, 2),
    ],
)  # fmt: skip
def test_values_without_numbers_have_no_aggregate(values: tuple[Any, ...]) -> None:
    assert table(*values) is None


def test_results_without_json_have_no_aggregate() -> None:
    array = Summary("ndarray", "ndarray float32 3", size=100)
    assert aggregate([summary(1), array]) is None
    assert aggregate([summary(1), None]) is None


def test_spent_money_grows_with_time_and_is_never_negative() -> None:
    view = view_of(OPENED)
    view.price_hourly = 36.0
    assert view.spent(9.0 + 100) == pytest.approx(1.0)
    assert view.spent(0.0) == 0.0


def test_price_change_keeps_the_money_spent_before() -> None:
    view = view_of(OPENED)
    for at, hourly in ((9.0, 36.0), (9.0 + 100, 72.0), (9.0 + 200, 0.0)):
        apply(view, ev.PriceNews(pool="p", at=at, hourly=hourly))
    apply(view, OPENED)  # told again when more is known of it
    assert view.spent(9.0 + 50) <= view.spent(9.0 + 300) == pytest.approx(3.0)


EVIL = "E\x1b]52;c;aGk=\x07\x1b[\x002J\x9b2J\u202e\tV\nnext"


def texts(thing: Any) -> list[str]:
    """Return every text inside a value."""
    if isinstance(thing, str):
        return [thing]
    if isinstance(thing, dict):
        return [text for pair in thing.items() for part in pair for text in texts(part)]
    if isinstance(thing, list | tuple):
        return [text for part in thing for text in texts(part)]
    if is_dataclass(thing):
        names = [each.name for each in fields(thing) if each.name not in ("raw_outcome", "raw_last_item")]
        return [text for name in names for text in texts(getattr(thing, name))]
    return []


def test_no_text_in_a_view_can_harm_a_terminal() -> None:
    error = ErrorInfo(EVIL, EVIL, EVIL)
    summary = Summary(EVIL, EVIL, {EVIL: [EVIL, 1.0], "deep": {EVIL: EVIL}}, True, 9)
    receipt = {"gone": [0], "unaccounted": [EVIL], "notes": [EVIL]}
    story: list[ev.Event] = [
        ev.PoolOpened(pool="p", spec=SPEC | {"image": {"setup": [EVIL]}, EVIL: EVIL}, created_at=9.0),
        ev.PoolState(pool="p", state="degraded", detail=EVIL),
        ev.NodePhase(pool="p", node=0, phase="running", detail=EVIL, address=EVIL),
        ev.NodeLink(pool="p", node=0, up=False, detail=EVIL),
        replace(RUN, function=EVIL),
        ev.ItemYielded(pool="p", run="r1", index=0, rank=0, seq=0, summary=summary),
        ev.RankEnded(pool="p", run="r1", outcome=Outcome(0, 0, 0, "returned", summary=summary)),
        ev.RankEnded(pool="p", run="r1", outcome=Outcome(1, 1, 0, "raised", error=error)),
        ev.RunEnded(pool="p", run="r1", state="failed", root_cause=RootCause(1, "raised", EVIL, EVIL)),
        ev.PoolEnded(pool="p", receipt=receipt),
    ]
    view = view_of(*story)
    shown = [PoolView(EVIL, EVIL, "gone", EVIL, spec=SPEC | {EVIL: EVIL}, receipt=receipt), view]
    found = [text for each in shown for text in texts(each)] + list(view.metrics.latest("r1", 0))
    assert found and not [text for text in found if any(is_harmful(c) or c in "\x1b\t" for c in text)]
    assert view.runs["r1"].function == "E�⇥V↵next"  # a line of its own stays one
    assert view.runs["r1"].root_cause == RootCause(1, "raised", "E�⇥V↵next", "E�      V\nnext")
    assert list(view.runs["r1"].aggregate() or {}) == []
    task = view.runs["r1"].tasks[0]
    assert (
        task.raw_outcome is not None and task.raw_outcome.summary == task.raw_last_item == summary
    )  # a program gets it as it was


def test_lease_left_counts_down_only_while_idle() -> None:
    view = view_of(OPENED, ev.PoolState(pool="p", at=14.0, state="up"))
    assert view.lease_left(100.0) is None, "nobody said when it ends"
    view.ends_at = 160.0
    assert view.lease_left(100.0) == 60.0
    assert view.lease_left(170.0) == 0.0
    apply(view, RUN)
    assert view.lease_left(100.0) is None, "a busy pool is never ended by it"
    apply(view, ev.RunEnded(pool="p", at=26.0, run="r1", state="done"))
    assert view.lease_left(100.0) == 60.0
    apply(view, ev.PoolState(pool="p", at=30.0, state="gone"))
    assert view.lease_left(100.0) is None


def test_aggregate_skips_integers_too_large_for_a_float() -> None:
    def of(value: Any) -> Summary:
        return Summary("x", "", value, True, 1)

    assert aggregate([of(10**400), of(1)]) is None
    of_b = aggregate([of(1), of(3)])
    assert of_b is not None
    assert aggregate([of({"a": 10**400, "b": 1}), of({"a": 1, "b": 3})]) == {"b": of_b["value"]}
    (row,) = (aggregate([of(1.7e308), of(1.7e308)]) or {}).values()
    assert [shown(row[name]) for name in ("mean", "sum")] == ["1.7e308", "inf"]
    assert shown(float("nan")) == "nan"


def test_lost_rank_shows_the_time_until_its_loss() -> None:
    lost = Outcome(0, 0, 0, "lost", error=ErrorInfo("PoolError", "its machine is gone"))
    early = Outcome(1, 1, 0, "lost", error=ErrorInfo("PoolError", "its machine is gone"))
    view = view_of(
        OPENED,
        RUN,
        ev.RankBegan(pool="p", at=21.0, run="r1", index=0, rank=0, node=0),
        ev.RankEnded(pool="p", at=128.0, run="r1", outcome=lost),
        ev.RankEnded(pool="p", at=128.0, run="r1", outcome=early),
    )
    tasks = view.runs["r1"].tasks
    assert tasks[0].outcome is not None and tasks[0].outcome.seconds == 107.0
    assert tasks[1].outcome is not None and tasks[1].outcome.seconds == 0.0, "it had not begun"


# The lists of states agree with what the protocol, the agent and the screens know of them.


def test_agent_rank_phases_equal_those_of_the_model() -> None:
    assert get_args(outcomes.RankPhase) == PHASES


@pytest.mark.parametrize(("frame", "kinds"), [("run", outcomes.RunKind), ("outcome", outcomes.OutcomeKind)])
def test_protocol_accepts_each_kind_of_run_and_outcome(frame: str, kinds: Any) -> None:
    assert all(frame_schemas.FROM_AGENT[frame].checks["kind"](kind) for kind in get_args(kinds))


def test_task_states_are_the_outcome_kinds() -> None:
    assert get_args(outcomes.TaskStatus) == ("waiting", "running", *get_args(outcomes.OutcomeKind))


SHOWN = {
    *get_args(outcomes.PoolStatus),
    *get_args(outcomes.RunStatus),
    *get_args(outcomes.TaskStatus),
    *get_args(outcomes.RankPhase),
} - {"left", ""}  # who has left a run shows it no more, and who is idle is said to be


@pytest.mark.parametrize("state", sorted(SHOWN))
def test_each_run_and_pool_state_has_a_style(state: str) -> None:
    assert state_style(state).glyph != "?"


@pytest.mark.parametrize("phase", get_args(outcomes.NodePhase))
def test_each_node_phase_has_a_style(phase: str) -> None:
    assert node_style(phase).glyph != "?"
