"""What a rank is doing, of the tasks that it has had."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from skyward_core.model.outcomes import Outcome
from skyward_core.views import events
from skyward_tui.text.number_and_time_format import clip_parts
from skyward_tui.widgets.rank_state import no_output_reason, rank_states
from tests.support.fake_session import FakeSession, value


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_task_that_began_last_says_it(session: FakeSession, order: Sequence[int]) -> None:
    """Whatever order the views have them in: that of their indices, or as news of them came."""
    view = session.pool("sweep", 1)
    run = session.open_run(view, kind="gather", total=3)
    for index in order:
        at = session.now - 30 + 10 * index
        session.emit(view, events.RankBegan(pool="sweep", run=run.id, index=index, rank=0, node=0, at=at))
    (state,) = rank_states(view, run, session.now)
    assert (state.state, state.seconds) == ("running", 10.0)
    session.emit(
        view,
        events.RankEnded(
            pool="sweep",
            run=run.id,
            outcome=Outcome(2, 0, 0, "returned", 7.5, summary=value(1)),
            at=session.now,
        ),
    )
    (state,) = rank_states(view, run, session.now)
    assert (state.state, state.seconds) == ("returned", 7.5)


def test_a_run_that_is_over_is_not_said_to_print_yet(session: FakeSession) -> None:
    view = session.pool("quiet", 1)
    run = session.open_run(view)
    assert no_output_reason(rank_states(view, run, session.now), run) == "nothing printed yet"
    session.emit(view, events.RunEnded(pool="quiet", run=run.id, state="failed", at=session.now))
    assert no_output_reason(rank_states(view, run, session.now), run) == "nothing was printed in this run"


def test_a_rank_whose_node_is_not_reached_yet_says_when_that_is_tried_again(session: FakeSession) -> None:
    view = session.pool("far", 1, state="starting", phase="running")
    refused = events.NodePhase(
        pool="far", node=0, phase="running", detail="gpu1: connection refused", retry_at=session.now + 4
    )
    session.emit(view, refused)
    (state,) = rank_states(view, None, session.now)
    assert state.note == "node 0: running gpu1: connection refused; tried again in 0:04"
    (state,) = rank_states(view, None, session.now + 5)
    assert state.note == "node 0: running gpu1: connection refused"


def test_a_rank_whose_machine_is_taken_back_says_how_long_it_has(session: FakeSession) -> None:
    view = session.pool("spot", 2)
    run = session.open_run(view, total=2)
    for kind, ends_at, note in (
        ("rebalance", None, "may soon be taken back"),
        ("terminate", session.now + 102, "taken back in 1:42 (terminate)"),
    ):
        session.emit(view, events.NodeNotice(pool="spot", node=1, kind=kind, ends_at=ends_at))  # type: ignore[arg-type]
        first, second = rank_states(view, run, session.now)
        assert (first.note, second.note) == ("", note)
    (_, later) = rank_states(view, run, session.now + 101)
    assert later.note == "taken back in 0:01 (terminate)"
    (_, later) = rank_states(view, run, session.now + 102)
    assert later.note == "taken back now (terminate)"


def test_of_numbers_that_have_no_room_those_that_have_are_whole() -> None:
    said = "step 75  loss 2.229  tokens/s 41,021"
    assert clip_parts(said, 36) == said
    assert clip_parts(said, 22) == clip_parts(said, 35) == "step 75  loss 2.229"
    assert clip_parts(said, 5) == "step…"
    assert clip_parts("12:00:59 step=59", 8) == "12:00:5…"
