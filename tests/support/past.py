"""Runs of the past, as a session tells them."""

from __future__ import annotations

from typing import Any

from skyward_core.front.past_runs import PastRun
from tests.support.fake_session import NOW, FakeSession

HOUR = 3600.0


def past_run(number: int, **other: Any) -> PastRun:
    """One that ended as many days ago."""
    began = NOW - number * 24 * HOUR
    said: dict[str, Any] = {
        "run": f"{number:010x}", "pool": f"llama-{number}", "key": f"llama-{number}.{number}", "provider": "aws",
        "function": "train", "script": "train.py", "arguments": (f"lr=0.{number}", "epochs=5"), "ranks": 8,
        "state": "done", "opened_at": began, "ended_at": began + number * HOUR, "dollars": 12.5 * number,
    }  # fmt: skip
    return PastRun(**said | other)


def some_past(session: FakeSession) -> list[PastRun]:
    """Six of them: three went well, one failed, one was cancelled, of one nobody knows; and a pool without a run."""
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
