"""Which ranks are quiet for longer than they usually are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.views import events as ev
from skyward_core.views.silence import FLOOR, RUNS, UNKNOWN, Rhythms
from skyward_tui.widgets.rank_state import rank_states
from tests.support.fake_session import FakeSession

BEGAN = 1000.0


@pytest.mark.parametrize(
    ("pauses", "silent", "told"),
    [
        # (how long it was quiet between signs, how long it has been now, whether that is told of)
        ([], UNKNOWN - 1, False),  # nothing was ever heard: it may load, or compile
        ([], UNKNOWN + 1, True),
        ([5], FLOOR + 1, False),  # next to nothing is known
        ([5] * 10, FLOOR - 1, False),
        ([5] * 10, FLOOR + 1, True),
        ([600] * 10, 2900, False),  # a line an epoch
        ([600] * 10, 3100, True),
        ([5] * 10 + [300], 1400, False),  # it validates now and then
        ([5] * 10 + [300] + [5] * 40, 70, True),  # as it did once, long ago
        ([900] + [5] * 40, 70, True),  # a compilation at the beginning
        ([0.1] * 1000, FLOOR + 1, True),  # a flood is a sign now and then
    ],
)
def test_the_time_is_learned(pauses: list[float], silent: float, told: bool) -> None:
    rhythms, at = Rhythms(), BEGAN
    for pause in [0.0, *pauses] if pauses else []:
        at += pause
        rhythms.heard("run", 3, at)
    found = rhythms.quiet("run", 3, BEGAN, at + silent)
    assert (found is not None) is told
    assert found is None or found == pytest.approx(silent)
    assert rhythms.quiet("other", 3, at, at + FLOOR) is None


@given(st.lists(st.floats(0, 1e9)), st.floats(0, 1e9))
def test_whatever_clocks_say_a_rank_that_was_just_heard_is_not_quiet(times: list[float], now: float) -> None:
    rhythms = Rhythms()
    for at in times:
        rhythms.heard("run", 0, at)
    rhythms.heard("run", 0, now)
    assert rhythms.quiet("run", 0, 0.0, now + FLOOR) is None


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (0.0, True),
        (0.01, True),
        (0.5, False),
        (40.0, False),
    ],  # of a processor; threads of a framework that waits take some
)
def test_who_works_is_not_quiet(share: float, told: bool) -> None:
    rhythms, at, spent = Rhythms(), BEGAN, 3.0
    for _ in range(600):  # as agents tell it
        at += 2.0
        spent += 2.0 * share
        rhythms.spent(3, spent, at)
        rhythms.spent(3, spent, at + 0.01)  # another ping
    assert (rhythms.quiet("run", 3, BEGAN, at) is not None) is told
    rhythms.spent(3, 0.0, at + 2)  # another process
    assert (rhythms.quiet("run", 3, BEGAN, at + 2) is not None) is told


def test_runs_of_long_ago_are_forgotten() -> None:
    rhythms = Rhythms()
    for number in range(3 * RUNS):
        rhythms.heard(f"run{number}", 0, float(number))
    assert len(rhythms._runs) == RUNS


def test_a_quiet_rank_says_so_on_its_card() -> None:
    session = FakeSession()
    view = session.pool("p", 2)
    run = session.open_run(view, total=2)
    start = session.now
    for rank in (0, 1):
        session.emit(view, ev.RankBegan(pool="p", run=run.id, index=rank, rank=rank, node=rank, at=start))
    for step in range(10):
        session.now = start + 5 * step
        for rank in (0, 1):
            session.print(view, rank, f"step {step}\n")
    for _ in range(60):  # rank 1 sends numbers, and prints nothing
        session.now += 5
        view.metrics.note(run.id, 1, session.now, {"loss": 1.0})
    quiet, busy = rank_states(view, run, session.now)
    assert quiet.note == "quiet for 5:00: step 9"
    assert (quiet.quiet, busy.quiet) == (300.0, None)
    assert busy.note == "loss 1"
    session.end_rank(view, run, 0)
    (ended, _) = rank_states(view, run, session.now)
    assert ended.quiet is None


def test_while_a_rank_stands_at_a_breakpoint_nobody_is_quiet_and_the_wait_is_not_learned() -> None:
    session = FakeSession()
    view = session.pool("llama-ft", 2)
    run = session.open_run(view)
    at = session.now
    for _ in range(10):
        at += 5
        for rank in (0, 1):
            view.rhythms.heard(run.id, rank, at)
    session.emit(view, ev.RankPhase(pool=view.name, rank=1, phase="paused", at=at))
    assert [view.rhythms.quiet(run.id, rank, BEGAN, at + 3600) for rank in (0, 1)] == [None, None]
    at += 3600
    session.emit(view, ev.RankPhase(pool=view.name, rank=1, phase="running", at=at))
    assert view.rhythms.quiet(run.id, 0, BEGAN, at + FLOOR - 1) is None
    for rank in (0, 1):
        view.rhythms.heard(run.id, rank, at + 5)
    assert [view.rhythms.quiet(run.id, rank, BEGAN, at + 6 + FLOOR) for rank in (0, 1)] == [FLOOR + 1] * 2
    session.emit(view, ev.RankPhase(pool=view.name, rank=1, phase="paused", at=at + 6))
    session.emit(view, ev.NodePhase(pool=view.name, node=1, phase="gone", at=at + 7))
    assert view.rhythms.quiet(run.id, 0, BEGAN, at + 8 + FLOOR) == FLOOR + 1, "it stands nowhere any more"
    assert view.rank_phases == {}
