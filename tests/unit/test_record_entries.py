"""What goes into a record comes out as it was; what a stranger wrote into one harms no view."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.model.errors import Hint
from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause, Summary, signal_name, to_json_types
from skyward_core.views import events, recorded_events
from skyward_core.views import events as ev
from skyward_core.views.pool_view import PoolView, TrialSheet, apply
from skyward_core.views.recorded_events import parse_event
from tests.support.examples import examples

POOL: dict[str, Any] = {"provider": "local", "nodes": 2, "worker": {"ranks_per_node": 2}}
TIMES = st.floats(0, 2**35)
KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "at": TIMES,
    "run": st.from_regex(r"\A[a-z0-9]{1,8}\Z"),
    "total": st.integers(0, 9),
    "spec": st.just(POOL),
    "receipt": st.just({"gone": [0], "unaccounted": []}),
    "json": st.none() | st.integers(-9, 9) | st.dictionaries(st.text(), st.floats(allow_nan=False)),
    **{name: st.integers(0, 3) for name in ("rank", "index", "seq")},
    "node": st.integers(0, 1),
}


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint."""
    parts = get_args(hint)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        made: Any = hint
        return st.builds(made, **{each.name: KNOWN.get(each.name, of(hints[each.name])) for each in fields(hint)})
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(of, parts))
    if get_origin(hint) is Literal:
        return st.sampled_from(parts)
    if get_origin(hint) is Sequence:
        return st.lists(of(parts[0]), max_size=3)
    if get_origin(hint) in (dict, Mapping):
        return st.dictionaries(of(parts[0]), of(parts[1]), max_size=3)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(), int: st.integers(-(2**52), 2**52), float: st.floats(-1e9, 1e9), bool: st.booleans(),
        NoneType: st.none(), Any: st.none(),
    }  # fmt: skip
    return plain[hint]


EVENTS = st.one_of(*(of(kind) for kind in ev.Event.kinds.values()))


@settings(max_examples=examples(300), deadline=None)
@given(event=EVENTS)
def test_every_event_comes_back_as_it_was(event: ev.Event) -> None:
    entry = json.loads(json.dumps(recorded_events.event_entry(event)))
    assert parse_event(entry["event"]) == event


@settings(max_examples=examples(100), deadline=None)
@given(events=st.lists(EVENTS, max_size=12))
def test_a_replay_makes_the_view_that_the_events_made(events: list[ev.Event]) -> None:
    live, replayed = PoolView("p"), PoolView("p")
    for event in (ev.PoolOpened(pool="p", at=1.0, spec=POOL, created_at=1.0), *events):
        apply(live, event)
        assert recorded_events.apply_entry(replayed, recorded_events.event_entry(event))
    assert replayed.runs == live.runs and replayed.nodes == live.nodes and replayed.version == live.version


@given(data=st.binary())
def test_bytes_of_a_log_come_back_as_they_were(data: bytes) -> None:
    live, replayed = PoolView("p"), PoolView("p")
    for piece in (data, b"\n", data + b"\n"):
        live.logs.feed(3, "err", piece, 5.0, "r1", "r003")
        assert recorded_events.apply_entry(
            replayed, json.loads(json.dumps(recorded_events.log_entry(5.0, "r003", "err", "r1", piece)))
        )
    ring, again = live.logs.rank(3), replayed.logs.for_run("r1").rank(3)
    assert again.read(0, again.end) == ring.read(0, ring.end)


def test_numbers_figures_and_work_reach_their_books() -> None:
    view = PoolView("p")
    apply(view, ev.PoolOpened(pool="p", at=1.0, spec=POOL, created_at=1.0))
    numbers = b'{"run":"r1","at":9,"values":{"loss":0.5}}\n'
    figures = b'{"at":9,"node":{"cpu":50},"gpus":[{"util":97}],"devices":[{"id":"GPU-1","model":"H100"}]}\n'
    for entry in (
        recorded_events.metrics_entry(9.0, "r001.metrics", numbers),
        recorded_events.machine_entry(9.0, 1, figures, 0.5),
        recorded_events.silence_entry(9.0, 0, "no\x1b[2J driver"),
        recorded_events.cpu_time_entry(9.0, {0: 0.0}),
        recorded_events.cpu_time_entry(19.0, {0: 9.0}),
    ):
        assert recorded_events.apply_entry(view, json.loads(json.dumps(entry)))
    assert view.metrics.latest("r1", 1) == {"loss": 0.5}
    assert view.machines is not None
    assert view.machines.latest("util") == {(1, 0): 97.0} and view.machines.nodes[1].host.latest_at == 9.5
    assert "\x1b" not in view.machines.nodes[0].why
    assert (
        view.activity.unusual_silence("r1", 0, 0.0, 20.0) is None
        and view.activity.unusual_silence("r1", 1, 0.0, 400.0) is not None
    )


def test_what_is_swept_is_told_before_it_begins_and_found_by_any_run() -> None:
    sheet = TrialSheet.from_texts([("lr=1",), ("lr=2",)], gang=True, nodes=2).with_client(7, ["a1", "b2"])
    view = PoolView("p")
    assert recorded_events.apply_entry(view, json.loads(json.dumps(recorded_events.sheet_entry(1.0, "a1", sheet))))
    assert view.sheets == {"a1": sheet}
    for bent in ({"rows": [["1"], [2, 3]]}, {"runs": [[5, "x"]]}, {"before": 3}, {"names": None}):
        bad = recorded_events.sheet_entry(1.0, "a1", sheet)
        assert not recorded_events.apply_entry(view, bad | {"sheet": bad["sheet"] | bent})


def _bent() -> Iterator[dict[str, Any]]:
    """Entries with one thing amiss each."""
    spec: list[Any] = [
        {"nodes": 10**9}, {"nodes": "4"}, {"nodes": -1}, {"nodes": 1, "worker": []}, {"worker": {"ranks_per_node": 0}},
        {"worker": {"ranks_per_node": 10**9}}, {"options": {"ttl": "x"}}, {"options": 3}, {"provider": 3}, [], None,
    ]  # fmt: skip
    for each in spec:
        yield {"event": "PoolOpened", "pool": "p", "at": 1.0, "spec": each, "created_at": 1.0}
    yield {"event": "PoolState", "pool": "p", "at": 1.0, "state": "splendid"}
    yield {"event": "PoolState", "pool": "p", "at": float("nan"), "state": "up"}
    yield {"event": "PoolState", "pool": "p", "at": 1e300, "state": "up"}
    yield {"event": "PoolState", "pool": 5, "at": 1.0, "state": "up"}
    yield {"event": "PoolState", "pool": "p", "at": 1.0, "state": "up", "hint": {"action": "rm"}}
    yield {"event": "PoolState", "pool": "p", "at": 1.0}
    yield {"event": ["PoolState"], "pool": "p", "at": 1.0}
    yield {"event": "NodePhase", "pool": "p", "at": 1.0, "node": 99, "phase": "ready"}
    yield {
        "event": "NodePhase",
        "pool": "p",
        "at": 1.0,
        "node": 0,
        "phase": "ready",
        "retry_at": float("inf"),
    }
    yield {
        "event": "RunOpened",
        "pool": "p",
        "at": 1.0,
        "run": "\x1b[2J",
        "function": "f",
        "kind": "gather",
        "total": 1,
    }
    yield {
        "event": "RunOpened",
        "pool": "p",
        "at": 1.0,
        "run": "r",
        "function": "f",
        "kind": "gather",
        "total": -1,
    }
    yield {"event": "PoolGone", "pool": "p", "at": 1.0, "receipt": {"gone": 7}}
    outcome = Outcome(0, 0, 0, "returned").to_json()
    for name in ("rank", "node", "index"):
        yield {"event": "RankEnded", "pool": "p", "at": 1.0, "run": "r", "outcome": outcome | {name: 10**9}}
        yield {"event": "RankEnded", "pool": "p", "at": 1.0, "run": "r", "outcome": outcome | {name: True}}
    yield {"event": "RankEnded", "pool": "p", "at": 1.0, "run": "r", "outcome": outcome | {"kind": "won"}}
    yield {"event": "RankEnded", "pool": "p", "at": 1.0, "run": "r", "outcome": outcome | {"summary": 5}}


@pytest.mark.parametrize("event", list(_bent()), ids=str)
def test_an_event_that_cannot_be_is_passed_over(event: dict[str, Any]) -> None:
    view = PoolView("p")
    apply(view, ev.PoolOpened(pool="p", at=1.0, spec=POOL, created_at=1.0))
    before = view.version, view.state, view.world_size
    assert not recorded_events.apply_entry(view, {"at": 1.0, "k": "event", "event": event})
    assert (view.version, view.state, view.world_size) == before


def test_what_a_newer_release_tells_beside_it_is_left_out() -> None:
    summary = ev.to_json(
        ev.ItemYielded(pool="p", at=1.0, run="r", index=0, rank=0, seq=0, summary=Summary("int", "5", 5, True))
    )
    summary["summary"]["mood"] = summary["mood"] = "sunny"
    assert parse_event(summary) is not None
    assert parse_event({"event": "SomethingNew", "pool": "p", "at": 1.0}) is None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("at", "event", "of", "stream", "run", "text", "node", "ahead", "why", "spent", "sheet")


@settings(max_examples=examples(300), deadline=None)
@given(
    kind=st.sampled_from(["event", "log", "numbers", "figures", "silence", "work", "sheet", "nonsense"]) | JUNK,
    entry=st.dictionaries(st.sampled_from(FIELDS), JUNK),
    good=st.sampled_from([{}, {"at": 1.0}, {"at": 1.0, "of": "r001", "stream": "out", "run": "", "node": 0}]),
)
def test_junk_is_passed_over(kind: Any, entry: dict[str, Any], good: dict[str, Any]) -> None:
    recorded_events.apply_entry(PoolView("p"), entry | good | {"k": kind})


# Events as JSON, from this version and from others.


def test_nested_values_come_back_as_they_were() -> None:
    outcome = Outcome(
        2,
        2,
        1,
        "raised",
        1.5,
        Summary("int", "5", 5, True, 4),
        ErrorInfo("ValueError", "né\ud800", "Traceback …"),
    )
    for event in (
        events.RankEnded(pool="p", at=1.0, run="r", outcome=outcome),
        events.RunEnded(pool="p", at=1.0, run="r", state="failed", root_cause=RootCause.from_outcome(outcome)),
        events.RunEnded(pool="p", at=1.0, run="r", state="done"),
        events.PoolState(pool="p", at=1.0, state="failed", detail="no", hint=Hint("trust-host-key", "gpu1", "/k")),
        events.ItemYielded(
            pool="p", at=1.0, run="r", index=0, rank=0, seq=9, summary=Summary("list", "[…]", [1], True)
        ),
    ):
        assert parse_event(json.loads(json.dumps(events.to_json(event)))) == event


def test_what_another_version_wrote_can_be_read() -> None:
    assert parse_event({"event": "SomethingNew", "pool": "p"}) is None
    assert parse_event({"pool": "p"}) is None
    data = events.to_json(events.PoolState(pool="p", at=1.0, state="up")) | {"mood": "sunny"}
    assert parse_event(data) == events.PoolState(pool="p", at=1.0, state="up")
    del data["detail"]
    assert parse_event(data) == events.PoolState(pool="p", at=1.0, state="up")


def test_journals_of_older_releases_call_events_so() -> None:
    assert set(events.Event.kinds) == {
        "BudgetNews", "ItemYielded", "LeaseNews", "NodeLink", "NodeNotice", "NodePhase", "OutputFetched", "PoolGone",
        "PoolOpened", "PoolState", "PriceNews", "QueueNews", "RankBegan", "RankEnded", "RankPhase", "RunEnded",
        "RunOpened", "RunPlaced", "UnfetchedNews",
    }  # fmt: skip
    ended = events.PoolEnded(pool="p", at=1.0, receipt={})
    assert events.to_json(ended)["event"] == "PoolGone" and parse_event(events.to_json(ended)) == ended


def test_an_event_knows_its_time_and_is_not_to_be_changed() -> None:
    first = events.PoolState(pool="p", state="up")
    assert first.at <= events.PoolState(pool="p", state="up").at
    if TYPE_CHECKING:  # an ignored error that is none is one: so this line is checked, by mypy
        first.state = "gone"  # type: ignore[misc]


# How a rank ended, as plain data.

WHOLE = Outcome(
    3, 1, 0, "raised", 1.5, Summary("dict", "{…}", {"a": [1, None]}, True, 40), ErrorInfo("E", "m", "t"), 2, 9
)


@pytest.mark.parametrize("outcome", [WHOLE, Outcome(0, 0, 0, "returned")])
def test_an_outcome_passes_through_json(outcome: Outcome) -> None:
    assert outcome.to_json() == asdict(outcome)
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome


def test_plain_copies_no_leaves() -> None:
    assert WHOLE.summary is not None
    assert to_json_types(WHOLE)["summary"]["json"] is WHOLE.summary.json


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(0, 0, 0, "exited", exit_code=7), 7),
        (Outcome(0, 0, 0, "exited", exit_code=0), 0),
        (Outcome(0, 0, 0, "exited", signal=15), 143),
        (Outcome(0, 0, 0, "raised", error=ErrorInfo("E", "m")), None),
        (Outcome(0, 0, 0, "lost"), None),
    ],
)
def test_a_root_cause_knows_the_status_to_exit_with(outcome: Outcome, code: int | None) -> None:
    cause = RootCause.from_outcome(outcome)
    assert (cause.rank, cause.outcome, cause.exit_code) == (0, outcome.kind, code)
    assert RootCause(**json.loads(json.dumps(cause.to_json()))) == cause


def test_without_an_error_the_kind_is_the_type() -> None:
    assert RootCause.from_outcome(Outcome(0, 0, 0, "lost")).type == "lost"


def test_what_is_not_there_stays_not_there() -> None:
    assert Summary.from_wire(None) is None
    assert ErrorInfo.from_wire(None) is None
    assert Summary.from_wire({"type": "int", "text": "1"}) == Summary("int", "1")


def test_signals_have_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(200) == "signal 200"
