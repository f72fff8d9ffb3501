"""Events as JSON, from this version and from others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from skyward_core.model.errors import Hint
from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause, Summary
from skyward_core.views import events
from skyward_core.views.recorded_events import parse_event


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
