"""What a client makes of a notice, and to which nodes it hands it on."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.pool.node_roster import PreemptionNotices
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, apply


class Stage:
    """A pool of four nodes, of which node 3 is down."""

    def __init__(self, *, observer: bool = False, alone: bool = False) -> None:
        self.view = PoolView("p")
        apply(self.view, events.PoolOpened(pool="p", spec={"nodes": 4}, created_at=0.0))
        self.warned: list[tuple[int, int, int]] = []
        self.said: list[str] = []
        self.links = [self.link(node) for node in range(4)]
        self.links[3].up = False
        news = SimpleNamespace(emit=lambda event: apply(self.view, event), emit_warning=self.said.append)
        context: Any = SimpleNamespace(
            name="p", view=self.view, links=self.links, observer=observer, is_standalone=alone, news=news
        )
        self.notices = PreemptionNotices(context)

    def link(self, node: int) -> Any:
        def warn(about: int, left: float) -> None:
            self.warned.append((node, about, round(left)))

        return SimpleNamespace(node=node, up=True, welcome={}, warn_preemption=warn)

    def hear(self, node: int, kind: Any = "terminate", left: float | None = 60.0) -> None:
        self.notices.on_notice(self.links[node], {"kind": kind, "left": left})


def test_a_notice_is_shown_once_and_told_to_the_other_nodes_that_are_there() -> None:
    stage = Stage()
    stage.hear(1)
    assert stage.warned == [(0, 1, 60), (2, 1, 60)] and len(stage.said) == 1
    stage.hear(1, left=59.0)
    assert len(stage.warned) == 2 and len(stage.said) == 1
    stage.hear(2, left=None)
    assert stage.warned[2:] == [(0, 2, 0), (1, 2, 0)] and "taken back by its provider now" in stage.said[1]
    # Who was not there hears of both when it comes; who comes back says again what is known.
    stage.warned.clear()
    stage.notices.on_connect(stage.links[3])
    assert stage.warned == [(3, 1, 60), (3, 2, 0)]
    stage.warned.clear()
    stage.links[1].welcome = {"notices": [{"kind": "terminate", "left": 58.0}]}
    stage.notices.on_connect(stage.links[1])
    assert stage.warned == [(1, 2, 0)] and len(stage.said) == 2


@pytest.mark.parametrize("of", [{"observer": True}, {"alone": True}])
def test_who_only_looks_tells_nobody_and_nodes_that_stand_alone_need_not_know(of: dict[str, bool]) -> None:
    stage = Stage(**of)
    stage.hear(1)
    stage.notices.on_connect(stage.links[0])
    assert stage.view.nodes[1].is_preempted and stage.warned == []


def test_that_it_has_become_likelier_is_shown_and_no_more() -> None:
    stage = Stage()
    stage.hear(1, "rebalance", None)
    stage.notices.on_connect(stage.links[0])
    assert stage.view.nodes[1].notice == "rebalance" and stage.warned == []
    assert stage.said == ["the provider says that node 1's machine may soon be taken back; nothing is done about it"]
    stage.hear(1)
    ends_at = stage.view.nodes[1].notice_ends_at
    assert ends_at is not None and 59 < ends_at - time.time() <= 60 and len(stage.warned) == 2


@pytest.mark.parametrize("left", [-9e15, 9e15])
def test_an_end_beyond_belief_holds_nothing_for_long(left: float) -> None:
    stage = Stage()
    stage.hear(1, left=left)
    ends_at = stage.view.nodes[1].notice_ends_at
    assert ends_at is not None and -60 < ends_at - time.time() <= 24 * 3600
