"""Runs that tests start on a staged pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from skyward_core.pool import agent_link
from skyward_core.pool.runs.run import Run
from tests.support.staged_pool import Stage, task


@contextmanager
def home_for_runs(factory: pytest.TempPathFactory) -> Iterator[None]:
    """State folder of the test, with links that reconnect quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(factory.mktemp("home")))
        patch.setattr(agent_link, "BACKOFF", (0.001, 0.01))
        yield


def gather(stage: Stage, number: int) -> Run:
    """Start a number of tasks, as many at a time as the nodes accept."""
    run = stage.add("gather", *map(task, range(number)))
    run.dispatch()
    return run


def broadcast(stage: Stage, **more: Any) -> Run:
    run = stage.add("broadcast", task(7, **more))
    run.send_broadcast(1)
    return run


def kinds(run: Run) -> list[str]:
    return [run.outcomes[index].kind for index in sorted(run.outcomes)]
