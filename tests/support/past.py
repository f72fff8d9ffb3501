"""Past runs as a session reports them."""

from __future__ import annotations

from typing import Any

from skyward_core.client.run_comparison import ComparedRun, Comparison
from skyward_core.client.run_history import MetricSummary, PastRun
from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.rank_metrics_and_progress import MetricStore
from tests.support.fake_session import NOW, FakeSession, value

HOUR = 3600.0


def past_run(number: int, **other: Any) -> PastRun:
    """Return a run that ended a number of days ago."""
    began = NOW - number * 24 * HOUR
    data: dict[str, Any] = {
        "run": f"{number:010x}", "pool": f"llama-{number}", "key": f"llama-{number}.{number}", "provider": "aws",
        "function": "train", "script": "train.py", "arguments": (f"lr=0.{number}", "epochs=5"), "ranks": 8,
        "state": "done", "opened_at": began, "ended_at": began + number * HOUR, "dollars": 12.5 * number,
    }  # fmt: skip
    return PastRun(**data | other)


def some_past(session: FakeSession) -> list[PastRun]:
    """Return six past runs (three successful, one failed, one cancelled, one lost) and a pool without a run."""
    view = session.pool("llama-1", 2)
    run = session.open_run(view)
    session.end_run(view, run)
    session.past = [
        past_run(1, run=run.id, key=view.key, pool=view.name),
        past_run(2, state="failed", error="r3 OSError: disk full", function="evaluate"),
        past_run(3, provider="local", dollars=0.0),
        past_run(4, state="cancelled", script="", arguments=()),
        past_run(5, state="lost", dollars=None),
        past_run(6, run="", function="", state="gone", script="", arguments=(), dollars=0.25),
    ]
    return session.past


def compared_run(past: PastRun, rate: float, **other: Any) -> ComparedRun:
    """Return a run of two ranks with a loss that falls at a given rate, and a metric that only this run has."""
    book = MetricStore()
    for step in range(60):
        for rank in range(2):
            loss = 2.0 / (1 + rate * step) + rank / 50
            book.add_values(
                past.run, rank, past.opened_at + 60 * step, {"loss": loss, f"only_{rate:g}": step, "step": step}
            )
    view = RunView(past.run, past.pool, past.function, "broadcast", 2, past.opened_at, past.state)  # type: ignore[arg-type]
    for rank in range(2):
        outcome = Outcome(rank, rank, rank, "returned", 3.0, value(rate + rank))
        view.tasks[rank] = TaskView(rank, rank, rank, "returned", outcome=outcome)
    numbers = {
        "loss": MetricSummary(2.0 / (1 + rate * 59), 0.1, 2.02),
        f"only_{rate:g}": MetricSummary(59.0, 0.0, 59.0),
    }
    return ComparedRun(past=past, view=view, nodes=2, book=book, numbers=numbers, **other)


TEXT = "import skyward as sky\n\n\n@sky.function\ndef train(lr=0.1):\n    loss = 2.0\n"


def some_comparison(session: FakeSession) -> Comparison:
    """Return a comparison of the first and the third past run."""
    first, _, third, *_ = session.past
    left = compared_run(first, 0.1, commit="a1b2c3d4e5f6", plugins=("torch",), source="0123456789abc", text=TEXT)
    text = TEXT.replace("0.1", "0.02") + "    sky.log(loss=loss)\n"
    right = compared_run(third, 0.02, commit="ffffffffffff", plugins=("torch",), source="fedcba9876543", text=text)
    session.comparison = Comparison.of(left, right)
    return session.comparison
