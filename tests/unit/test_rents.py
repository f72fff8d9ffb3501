"""Machines that are rented at a price that nobody says are not shown as free."""

from __future__ import annotations

from pathlib import Path

import skyward_core as sky
from skyward_core.front.launch_request import LaunchRequest
from skyward_core.model.spec import PoolSpec
from skyward_core.views.views import PoolView
from skyward_tui.as_json import pool_json
from skyward_tui.launch_plan import rows
from skyward_tui.words import hourly


def test_a_pool_of_rented_machines_is_precious_and_its_price_unknown() -> None:
    spec = PoolSpec(name="p", provider=sky.AWS(region="us-east-1")).describe()
    view = PoolView("p", spec=spec)
    assert view.rents and view.is_precious
    assert hourly(view) == "$?/h" and pool_json(view)["price_hourly"] is None
    free = PoolView("p", spec=PoolSpec(name="p", provider=sky.Local()).describe())
    assert not free.rents and not free.is_precious
    assert hourly(free) == "$0.00/h" and pool_json(free)["price_hourly"] == 0
    view.price_hourly = 7.5
    assert hourly(view) == "$7.50/h" and not view.rents


def test_the_plan_of_a_launch_on_them_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import skyward_core as sky\n\n@sky.function\ndef train():\n    pass\n")
    plan = LaunchRequest(
        script=str(script),
        function="train",
        provider="aws",
        settings={"region": "us-east-1"},
        accelerator="T4:4",
    ).plan()
    told = rows(plan)
    assert ("cost", "$?/h") in told
    assert not any("nothing is rented" in text for _, text in told)
