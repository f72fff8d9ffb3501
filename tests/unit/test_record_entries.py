"""What goes into a record comes out as it was; what a stranger wrote into one harms no view."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.model.outcomes import Outcome, Summary
from skyward_core.views import events as ev
from skyward_core.views import recorded_events
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
