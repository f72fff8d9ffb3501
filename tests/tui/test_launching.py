"""Which pool a launch uses: the one that the person chose, and no other of its name."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.widgets import Select

from skyward_core.client.launch.launch_plan import LaunchPlan
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.client.launch.script_plugin_provider_discovery import FunctionInfo
from skyward_core.model.errors import PoolError
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.app.app import SkywardApp
from skyward_tui.launch_form.form import FieldError, Form, command_line, plan_launch
from skyward_tui.screens.launch.screen import LaunchScreen, create_pool
from tests.support.app_driver import until
from tests.support.fake_session import FakeSession


def plan(pool: PoolView) -> LaunchPlan:
    function: Any = FunctionInfo
    own: Any = None
    request = LaunchRequest(script="train.py")
    return LaunchPlan(request=request, interpreter=own, function=function, values={}, pool=pool, plugins=())


async def test_a_launch_goes_to_the_pool_that_was_chosen_and_to_no_namesake(session: FakeSession) -> None:
    chosen = session.pool("train")
    app: Any = SimpleNamespace(session=session)
    assert (await create_pool(app, plan(chosen))).key == chosen.key
    session.emit(chosen, events.PoolState(pool="train", state="gone", at=session.now))
    namesake = session.pool("train")
    with pytest.raises(PoolError, match="pool train is not up any more"):
        await create_pool(app, plan(chosen))
    assert (await create_pool(app, plan(namesake))).key == namesake.key


def test_a_form_means_the_pool_that_was_chosen_though_a_namesake_is_up(session: FakeSession, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import skyward_core as sky\n@sky.function\ndef train(): ...\n")
    chosen = session.pool("train")
    form = Form(str(script), "train", pool=chosen.key)
    assert plan_launch(form, session.pools()).pool is chosen
    assert shlex.split(command_line(form))[-3:-1] == ["--pool", "train"]
    session.emit(chosen, events.PoolState(pool="train", state="gone", at=session.now))
    session.pool("train")
    with pytest.raises(FieldError, match="pool train is not up any more; choose another") as caught:
        plan_launch(form, session.pools())
    assert caught.value.field == "pool"


async def test_a_form_for_a_pool_that_is_over_by_now_makes_a_new_one(app: SkywardApp, session: FakeSession) -> None:
    over = session.pool("train")
    session.emit(over, events.PoolState(pool="train", state="gone", at=session.now))
    session.pool("train")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.session is not None)
        app.show_launch(over.key)
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        assert app.screen.query_one("#pool", Select).value == ""
