"""Machines that are rented at a price that nobody says are not shown as free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.launch.launch_plan import LaunchPlan, make_plan
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.client.leftover_cleanup import JudgedLeftover
from skyward_core.model.machines import Leftover
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.aws.boto_calls import shared_calls
from skyward_core.views.pool_view import PoolView
from skyward_tui.launch_form.plan_text import plan_rows
from skyward_tui.text.json_output import pool_json
from skyward_tui.text.number_and_time_format import hourly
from skyward_tui.text.receipts_and_leftovers import leftovers_amount


def test_a_pool_of_rented_machines_is_precious_and_its_price_unknown() -> None:
    spec = PoolSpec(name="p", provider=sky.AWS(region="us-east-1")).describe()
    view = PoolView("p", spec=spec)
    assert view.has_unknown_price and view.needs_confirmation
    assert hourly(view) == "$?/h" and pool_json(view)["price_hourly"] is None
    free = PoolView("p", spec=PoolSpec(name="p", provider=sky.Local()).describe())
    assert not free.has_unknown_price and not free.needs_confirmation
    assert hourly(free) == "" and pool_json(free)["price_hourly"] == 0
    view.price_hourly = 7.5
    assert hourly(view) == "$7.50/h" and not view.has_unknown_price


NOBODY = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody without credentials, whom no service is asked for."""
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, text in NOBODY.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    shared_calls.cache_clear()  # of an earlier test's credentials


def plan_of(folder: Path, region: str, accelerator: str | None = "T4:4", provider: str = "aws") -> LaunchPlan:
    script = folder / "train.py"
    script.write_text("import skyward_core as sky\n\n@sky.function\ndef train():\n    pass\n")
    settings = {"region": region} if provider == "aws" else {}
    return make_plan(
        LaunchRequest(
            script=str(script),
            function="train",
            provider=provider,
            settings=settings,
            accelerator=accelerator,
            nodes=2,
        )
    )


def test_the_plan_of_a_launch_on_them_has_their_price(tmp_path: Path, nobody: None) -> None:
    told = plan_rows(plan_of(tmp_path, "us-east-1"))
    assert ("cost", "$7.86/h") in told
    assert ("tries", "g4dn.12xlarge in us-east-1, $3.93/h each, by the list of this release") in told
    assert sum(name == "makes" for name, _ in told) == 3
    assert any("there are no AWS credentials" in text for _, text in told)
    assert not any("nothing is rented" in text for _, text in told)


def test_the_command_line_tells_what_it_does_and_not_what_the_app_does(tmp_path: Path, nobody: None) -> None:
    (tmp_path / "train.py").write_text("import skyward_core as sky\n\n@sky.function\ndef train(): ...\n")
    asked = LaunchRequest(
        script=str(tmp_path / "train.py"), provider="aws", settings={"region": "us-east-1"},
        accelerator="T4:4", pool="mine", keep=True, budget=5,
    )  # fmt: skip
    here, there = dict(plan_rows(make_plan(asked))), dict(plan_rows(make_plan(asked), as_options=True))
    assert here["budget"] == "$5.00 in all; when it is spent the app asks"
    assert there["budget"] == "$5.00 in all; when it is spent the pool is torn down"
    assert here["then"] == "the pool stays up; X tears it down"
    assert there["then"] == "the pool stays up; skyward-tui down mine tears it down"


def test_a_price_that_nobody_knows_is_not_shown_as_none(tmp_path: Path, nobody: None) -> None:
    told = plan_rows(plan_of(tmp_path, "eu-west-1"))
    assert ("cost", "$?/h") in told
    assert any(text.startswith("nothing in eu-west-1 is what was asked for") for _, text in told)


def test_machines_that_are_there_are_not_rented(tmp_path: Path, nobody: None) -> None:
    assert "cost" not in dict(plan_rows(plan_of(tmp_path, "", None, "local")))
    plan = sky.Compute(provider=sky.Local(), nodes=2).plan()
    assert (plan.attempts, plan.hourly, str(plan)) == ((), 0.0, "nothing is rented")


def test_what_was_left_and_costs_nothing_is_given_no_price() -> None:
    thing = Leftover("instance", "i-1", "here", "p", "t", "led", ours=True, owner="me", is_machine=True, hourly=0.0)
    assert leftovers_amount([JudgedLeftover(thing, "left", 0)]) == "1 machine"
    assert leftovers_amount([JudgedLeftover(replace(thing, hourly=1.5), "left", 0)]) == "1 machine ($1.50/h)"
