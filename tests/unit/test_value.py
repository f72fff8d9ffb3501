"""Small frozen values: equal, hashed and shown by their fields, and by nothing else."""

from __future__ import annotations

import skyward_core as sky
from skyward_core.views import events as ev


def test_an_event_is_shown_and_hashed_by_its_fields_alone() -> None:
    event = ev.NodeLink(pool="p", at=1.0, node=3, up=True)
    assert repr(event) == "NodeLink(pool='p', at=1.0, node=3, up=True, detail='')"
    assert len({event, ev.NodeLink(pool="p", at=1.0, node=3, up=True)}) == 1
    assert event != ev.NodeLink(pool="p", at=1.0, node=4, up=True)
    assert event != ev.PoolState(pool="p", at=1.0, state="up")


def test_what_may_be_secret_is_not_shown() -> None:
    assert "hunter2" not in repr(sky.Image(env={"TOKEN": "hunter2hunter2"}))
    assert "hunter2" not in repr(sky.Options(secrets=("hunter2hunter2",)))


def test_specs_are_equal_where_all_their_fields_are() -> None:
    assert sky.Worker(ranks_per_node=2) == sky.Worker(ranks_per_node=2) != sky.Worker()
