"""Ranks shown by a figure in place of their state: one key goes through what figures there are."""

from __future__ import annotations

import json

import pytest

from skyward_core.views.machine_metrics import MachineMetrics
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels.ranks import SHADES, STATE, heat_map, heat_metrics
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import screen_text, until
from tests.support.fake_session import FakeSession


def measured(session: FakeSession, nodes: int, gpus: int) -> MachineMetrics:
    """Of each GPU the use is its place among all, of the memory the half is used."""
    book = MachineMetrics()
    for node in range(nodes):
        of_each = [{"util": (node * gpus + gpu) % 100, "mem_used": 40, "mem_total": 80} for gpu in range(gpus)]
        sample = {"at": session.now, "node": {"cpu": 10.0 * node}, "gpus": of_each}
        book.feed(node, json.dumps(sample).encode())
    return book


def test_each_rank_has_the_figure_of_its_own_gpus(session: FakeSession) -> None:
    view = session.pool("llama-ft", 2, 4)
    run = session.open_run(view)
    assert heat_metrics(view, run, session.now) == [STATE]
    view.machines = measured(session, 2, 4)
    assert heat_metrics(view, run, session.now) == [STATE, "use %", "memory %"]
    assert [each.text for each in heat_map(view, run, "use %", session.now).of.values()] == [
        f"{rank} %" for rank in range(8)
    ]
    assert {each.text for each in heat_map(view, run, "memory %", session.now).of.values()} == {"50 %"}
    view.machines = measured(session, 2, 8)  # two GPUs each
    assert [each.text for each in heat_map(view, run, "use %", session.now).of.values()][:2] == ["0 %", "2 %"]
    view.machines = measured(session, 2, 3)  # nobody knows which are whose
    assert [each.text for each in heat_map(view, run, "use %", session.now).of.values()] == ["1 %"] * 4 + ["4 %"] * 4
    view.machines = measured(session, 2, 0)
    assert heat_map(view, run, "use %", session.now).of[7].text == "10 %", "of its node"
    assert heat_map(view, run, "use %", session.now + 60).of == {}, "no figures of now"


@pytest.mark.parametrize(
    ("values", "shades"),
    [
        ([1.0, 2.0, 3.0, 4.0], SHADES),
        ([5.0, 5.0], SHADES[0] * 2),
        ([1.0, float("nan"), 9.0], f"{SHADES[0]}!{SHADES[3]}"),
        ([float("inf")], "!"),
    ],
)
def test_numbers_are_shaded_from_the_least_to_the_greatest(
    session: FakeSession, values: list[float], shades: str
) -> None:
    view = session.pool("llama-ft", len(values))
    run = session.open_run(view)
    for rank, value in enumerate(values):
        view.metrics.add_values(run.id, rank, session.now, {"loss": value})
    assert "".join(each.shade for each in heat_map(view, run, "loss", session.now).of.values()) == shades


@pytest.mark.parametrize(("nodes", "per_node"), [(4, 1), (4, 4), (32, 8)])  # cards, a table, a grid
async def test_a_key_goes_through_the_figures(app: SkywardApp, session: FakeSession, nodes: int, per_node: int) -> None:
    view = session.pool("llama-ft", nodes, per_node)
    run = session.open_run(view)
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "▶" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("H")
        await until(pilot, lambda: "ranks have no figures yet" in screen_text(app))
        view.machines = measured(session, nodes, per_node)
        for rank in range(nodes * per_node):
            view.metrics.add_values(run.id, rank, session.now, {"loss": 2.0 + rank})
        session.end_rank(view, run, 3, "raised")
        await until(pilot, lambda: "✗ 1" in screen_text(app))
        await pilot.press("H")
        await until(pilot, lambda: f"1 ranks use % 0 {SHADES} 100 %" in screen_text(app))
        await pilot.press("H", "H")
        await until(pilot, lambda: f"1 ranks loss 2 {SHADES}" in screen_text(app))
        shown = screen_text(app)
        assert SHADES[1] in shown and SHADES[3] in shown
        assert shown.count("✗") > 1, "what has failed is not hidden by a shade"
        await pilot.press("H")
        await until(pilot, lambda: SHADES not in screen_text(app))
