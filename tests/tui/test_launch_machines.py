"""What the launch form says of machines: hosts and their groups, accelerators of the catalogue, and what is offered."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input, Select

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.offers import MachineRequirements, Market, Offer, OfferList
from skyward_tui.app.app import SkywardApp
from skyward_tui.dialogs.pickers import AcceleratorsScreen
from skyward_tui.launch_form.form import command_line
from skyward_tui.screens.launch.screen import LaunchScreen
from tests.support.app_driver import launch_form, screen_text, typed, until
from tests.support.fake_session import FakeSession
from tests.support.launch_script import GROUPS, SCRIPT, plan_text

SIZE = (120, 40)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.proof("1 s of a processor")
async def test_hosts_that_did_not_answer_can_be_changed(app: SkywardApp, session: FakeSession, script: Path) -> None:
    session.auto = False
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "train.py")
        screen.query_one("#arguments", Input).value = "epochs=1"
        screen.query_one("#provider", Select).value = "ssh"
        await until(pilot, lambda: bool(screen.query_one("#hosts-row").display))
        screen.query_one("#hosts", Input).value = "gpu1 gpu2"
        await until(pilot, lambda: "2 hosts × 1 rank" in screen_text(app))
        entered = screen.form()
        assert entered.nodes == ""
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "train" in session.creating)
        session.creating["train"].set_exception(PoolError("no machine answered"))
        await until(pilot, lambda: "no machine answered" in screen_text(app))
        await pilot.press("right", "enter")
        await until(pilot, lambda: isinstance(app.screen, LaunchScreen) and app.screen.is_mounted)
        again = app.screen
        assert isinstance(again, LaunchScreen)
        await until(pilot, lambda: "2 hosts × 1 rank" in screen_text(app))
        assert again.form() == entered
        assert again.query_one("#hosts-row").display


@pytest.mark.proof("1 s of a processor")
async def test_hosts_are_a_list_or_a_group(
    app: SkywardApp, session: FakeSession, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("skyward.toml").write_text(GROUPS)
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "train.py")
        screen.query_one("#arguments", Input).value = "epochs=1"
        for _ in range(8):
            await pilot.press("tab")
        await until(pilot, lambda: app.focused is screen.query_one("#provider"))
        await pilot.press("enter", "down", "down", "enter", "tab")
        await until(pilot, lambda: "enter hosts or a group of skyward.toml" in screen_text(app))
        await pilot.press("l", "a", "right")  # completed to the group's name
        await until(pilot, lambda: "hosts    gpu1, gpu2, me@gpu3:2222" in screen_text(app))
        assert "pool train: 3 hosts × 1 rank" in screen_text(app)
        wanted = "skyward-tui run train.py:train --arg epochs=1 --provider ssh --hosts lab --keep"
        await pilot.press("ctrl+y")
        assert app.clipboard == wanted
        await pilot.press("tab", "tab", "2")
        await until(pilot, lambda: "2 hosts × 1 rank" in screen_text(app))
        await pilot.press("ctrl+r")
        await until(pilot, lambda: bool(session.created))
        spec = session.created[0]
        assert (spec.nodes, spec.provider.hosts) == (2, ("gpu1", "gpu2", "me@gpu3:2222"))
        assert spec.provider.host_keys == "ask"


@pytest.mark.proof("1 s of a processor")
async def test_an_accelerator_is_picked_from_the_catalogue(app: SkywardApp, session: FakeSession, script: Path) -> None:
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "train.py")
        screen.query_one("#arguments", Input).value = "epochs=1"
        screen.query_one("#accelerator", Input).value = ":8"
        await pilot.press("ctrl+g")
        await until(pilot, lambda: isinstance(app.screen, AcceleratorsScreen))
        await typed(app, pilot, "hopper h100")
        await until(pilot, lambda: "bf16" in screen_text(app) and "A100" not in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: screen.query_one("#accelerator", Input).value == "H100:8")
        await until(pilot, lambda: "8 × NVIDIA H100 per node" in screen_text(app))
        assert "not checked: each node must have H100:8" in " ".join(plan_text(screen).split())
        assert "--accelerator H100:8" in command_line(screen.form())
        await pilot.press("ctrl+r")
        await until(pilot, lambda: bool(session.created))
        assert str(session.created[0].accelerator) == "H100:8"


def offer(kind: str, zone: str, name: str, count: int, memory: float, hourly: float, market: Market) -> Offer:
    return Offer(
        provider="aws", instance_type=kind, region="us-east-1", zone=f"us-east-1{zone}", market=market,
        accelerator=name, count=count, memory_each_gb=memory, hourly=hourly,
    )  # fmt: skip


OFFERS = OfferList(
    offers=[
        offer("p5.48xlarge", "a", "H100", 8, 80.0, 55.0, "on-demand"),
        offer("p4de.24xlarge", "b", "A100", 8, 80.0, 27.45, "on-demand"),
        offer("p4de.24xlarge", "b", "A100", 8, 80.0, 11.5, "spot"),
        offer("p4d.24xlarge", "b", "A100", 8, 40.0, 21.0, "on-demand"),
        offer("g4dn.xlarge", "c", "T4", 1, 16.0, 0.53, "on-demand"),
    ],
    notes=["spot prices of some zones are not known"],
)


async def test_an_accelerator_is_picked_from_what_is_offered(
    app: SkywardApp, session: FakeSession, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.client.offers_and_capacity.list_offers", lambda wish: OFFERS)
    monkeypatch.setattr("skyward_tui.screens.launch.screen.TYPING", 3600.0)  # nobody asks for a plan
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "train.py")
        field = screen.query_one("#accelerator", Input)
        screen.query_one("#provider", Select).value = "aws"
        await until(pilot, lambda: screen.form().provider == "aws")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "cheapest 8 × 80 GB" in screen_text(app))
        shown = screen_text(app)
        assert shown.index("$0.53/h") < shown.rindex("$11.50/h") < shown.index("$21.00/h") < shown.index("$55.00/h")
        assert "$27.45/h" in shown and "us-east-1b" in shown and "spot prices of some zones" in shown
        await pilot.press("enter")  # the cheapest in two keys
        await until(pilot, lambda: field.value == "A100-80GB:8")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "cheapest 8 × 80 GB" in screen_text(app))
        await typed(app, pilot, "8x80gb h100")
        await until(pilot, lambda: "p5.48xlarge" in screen_text(app) and "p4d" not in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: field.value == "H100:8")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "cheapest 8 × 80 GB" in screen_text(app))
        await typed(app, pilot, "mi300")  # which nobody offers
        await until(pilot, lambda: "catalogue, including accelerators without an offer" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: field.value.startswith("MI300") and field.value.endswith(":8"))


@pytest.mark.proof("1 s of a processor")
async def test_why_nothing_is_offered_is_said_and_the_catalogue_is_there(
    app: SkywardApp, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(wish: MachineRequirements) -> OfferList:
        raise UsageError("no provider lists its offers")

    monkeypatch.setattr("skyward_core.client.offers_and_capacity.list_offers", refuse)
    monkeypatch.setattr("skyward_tui.screens.launch.screen.TYPING", 3600.0)
    async with app.run_test(size=SIZE) as pilot:
        screen = await launch_form(app, pilot, "train.py")
        screen.query_one("#provider", Select).value = "aws"
        await until(pilot, lambda: screen.form().provider == "aws")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "no provider lists its offers" in screen_text(app) and "bf16" in screen_text(app))
