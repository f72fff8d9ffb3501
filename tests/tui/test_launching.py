"""Which pool a launch uses: the one that the person chose, and no other of its name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.front.launch_plan import LaunchPlan
from skyward_core.front.scripts import FunctionInfo
from skyward_core.model.errors import PoolError
from skyward_core.views import events as ev
from skyward_core.views.views import PoolView
from skyward_tui.screens.launching import create
from tests.support.fake_session import FakeSession


def plan(pool: PoolView) -> LaunchPlan:
    function: Any = FunctionInfo
    return LaunchPlan(script=Path("train.py"), function=function, values={}, pool=pool, plugins=())


async def test_a_launch_goes_to_the_pool_that_was_chosen_and_to_no_namesake(session: FakeSession) -> None:
    chosen = session.pool("train")
    app: Any = SimpleNamespace(session=session)
    assert (await create(app, plan(chosen))).key == chosen.key
    session.emit(chosen, ev.PoolState(pool="train", state="gone", at=session.now))
    namesake = session.pool("train")
    with pytest.raises(PoolError, match="pool train is not up any more"):
        await create(app, plan(chosen))
    assert (await create(app, plan(namesake))).key == namesake.key
