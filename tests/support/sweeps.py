"""Sample sweeps for a fake session."""

from __future__ import annotations

from dataclasses import replace

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.sweep_argument_combinations import TrialSheet
from skyward_core.views.sweep_trials import TrialTableSource
from tests.support.fake_session import FakeSession, value

SHEET = TrialSheet.new(("lr", "seed"), [(lr, str(seed)) for lr in ("0.1", "0.01") for seed in range(1, 4)])


def swept(session: FakeSession) -> tuple[PoolView, RunView]:
    """Return a run of six trials: four returned, one failed, one has not begun."""
    view = session.pool("grid", 2)
    run = session.open_run(view, kind="sweep", total=6)
    session.boards[run.id] = TrialTableSource(SHEET)
    for index, loss in ((0, 0.5), (1, 0.25), (3, 0.75), (4, 0.125)):
        end(session, view, run, index, loss)
    session.end_rank(view, run, 2, "raised", error=ErrorInfo("ValueError", "bad seed 3"))
    return view, run


def learned(session: FakeSession, view: PoolView, run: RunView, index: int, loss: float) -> None:
    """Log a loss of a trial that falls to a value, from the trial's start to its end."""
    run.tasks[index].began_at = began = session.now - 3.25
    for step in range(20):
        worth = loss + (1 - loss) * 0.7**step
        view.metrics.add_values(run.id, index, began + step * 0.15, {"step": step, "loss": worth})


def end(session: FakeSession, view: PoolView, run: RunView, index: int, loss: float) -> None:
    gists = {"loss": [loss, loss, 1.0]}
    session.end_rank(view, run, index, "returned", summary=value({"acc": 1 - loss}), metrics=gists)


def gangs(session: FakeSession) -> tuple[PoolView, list[RunView]]:
    """Return a sweep by gangs of two of four nodes: of six runs one returned, one failed, one is active, three have not
    begun.
    """
    view = session.pool("pair", 4)
    ids = [f"pair-{place + 1}" for place in range(6)]
    sheet = replace(SHEET, gang=True, nodes=2).with_client(1, ids)
    runs = [session.open_run(view, total=2) for _ in range(3)]
    session.boards |= {run.id: TrialTableSource(sheet) for run in runs}
    end(session, view, runs[0], 0, 0.5)
    end(session, view, runs[0], 1, 0.625)
    session.end_run(view, runs[0])
    session.end_rank(view, runs[1], 0, "collateral")
    session.end_rank(view, runs[1], 1, "raised", error=ErrorInfo("ValueError", "bad seed 2"))
    session.end_run(view, runs[1], "failed")
    return view, runs
