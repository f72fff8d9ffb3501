"""Logged metrics in the run header, the rank list and the charts of the metrics panel."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from textual.geometry import Size
from textual.pilot import Pilot

from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, apply
from skyward_core.views.rank_metrics_and_diagnostics import PACE_SIZE
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels.machine_metrics import MachineGrid
from skyward_tui.panels.rank_metrics import MetricsPane
from skyward_tui.screens.base_screen import pool_status
from skyward_tui.screens.run import RunScreen
from skyward_tui.text.state_styles_and_rank_states import rank_states
from tests.support.app_driver import on_run_screen, open_pool, press, screen_text, until
from tests.support.fake_session import FakeSession, logged, value
from tests.support.machines import measured


def test_rank_notes_show_the_newest_metrics():
    view = PoolView("p")
    apply(view, events.PoolOpened(pool="p", spec={"nodes": 2, "worker": {"ranks_per_node": 1}}, created_at=0.0))
    apply(view, events.RunOpened(pool="p", run="r", function="f", kind="broadcast", total=2, at=0.0))
    for node in (0, 1):
        apply(view, events.NodePhase(pool="p", node=node, phase="ready"))
        apply(view, events.RankBegan(pool="p", run="r", index=node, rank=node, node=node))
    run = view.runs["r"]
    assert [state.note for state in rank_states(view, run, 1.0)] == ["", ""]
    view.metrics.add_values("r", 0, 1.0, {"step": 1234, "loss": 2.31449, "lr": 0.5, "tokens": 7})
    view.metrics.add_values("r", 1, 1.0, {"step": 1200})
    view.metrics.add_values("earlier", 1, 1.0, {"step": 5})
    notes = [state.note for state in rank_states(view, run, 1.0)]
    assert notes == ["step 1,234  loss 2.314  lr 0.5  tokens 7", "step 1,200"]
    assert "step 1,234  loss 2.314  lr 0.5" in [part.plain for part in pool_status(view, run, 1.0)]


def numbers(screen: RunScreen) -> MetricsPane:
    return screen.query_one(MetricsPane)


async def test_metrics_panel_opens_with_the_first_metrics(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    async with on_run_screen(app, (120, 40), until="3 nodes") as (pilot, screen):
        await press(pilot, "5", until="no metrics yet: call sky.log")
        assert screen.active != "numbers"
        view.metrics.add_values(run.id, 0, 1.0, {"step": 1, "loss": 2.5})
        view.metrics.add_values(run.id, 0, 2.0, {"step": 2, "loss": 1.25})
        await until(pilot, lambda: "5 metrics  rank 0" in screen_text(app) and "1.25" in screen_text(app))
        assert "3 nodes" not in screen_text(app)  # one place for both
        await press(pilot, "3", until=lambda: "3 nodes" in screen_text(app) and "5 metrics" not in screen_text(app))
        await press(pilot, "5", until=lambda: app.focused is numbers(screen))
        assert numbers(screen).name_shown == "loss"
        assert "└ 0:00" in screen_text(app) and " 2.5 ┤" in screen_text(app)
        await press(pilot, "down", until=lambda: numbers(screen).name_shown == "step")  # what only counts stands last
        await press(pilot, "z", until=lambda: "2 log" not in screen_text(app) and "└ 0:00" in screen_text(app))


async def test_metrics_of_another_rank_and_of_all_ranks_are_shown(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    for rank in range(2):
        for step in range(4):
            view.metrics.add_values(run.id, rank, float(step), {"loss": 1.0 + 2 * rank})
    async with on_run_screen(app, (160, 48), until="5 metrics  rank 0") as (pilot, screen):
        assert "3 nodes" in screen_text(app) and "4 results" in screen_text(app)
        await press(pilot, "]", until="5 metrics  rank 1")
        await until(pilot, "loss                 3 ")
        await press(pilot, "a", until="5 metrics  median of 2 ranks")
        await until(pilot, "loss                 2 ")
        assert numbers(screen).ranks == [0, 1]


async def test_metric_names_in_wide_letters_keep_the_columns(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    view.metrics.add_values(run.id, 0, 1.0, {"loss": 7.25, "損失": 8.25, "検証データの損失の平均": 9.25})
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await until(pilot, lambda: "損失" in screen_text(app) and " 9.25" in screen_text(app))
        rows = [row for row in screen_text(app).splitlines() if "▄" in row]
        ends = {cell_len(row[: row.index("▄")]) for row in rows}
        assert len(rows) == 3
        assert len(ends) == 1, screen_text(app)


async def test_yielded_values_are_charted_per_run(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 1)
    first = session.open_run(view)
    async with on_run_screen(app, (80, 24)) as (pilot, screen):
        for seq in range(3):
            summary = value({"step": seq, "reward": 10.0 * seq, "note": "text"})
            item = events.ItemYielded(
                pool=view.name, run=first.id, index=0, rank=0, seq=seq, summary=summary, at=float(seq)
            )
            session.emit(view, item)
        await until(pilot, lambda: screen.has_class("-numbers"))
        await press(pilot, "5", until="reward              20")
        assert "note" not in screen_text(app)
        session.end_run(view, first)
        session.open_run(view)
        await until(pilot, lambda: not screen.has_class("-numbers"))
        await until(pilot, "2 log")  # nothing is left to look at there


@pytest.mark.proof("0.5 s of a processor")
async def test_frequent_metrics_update_the_panel_at_intervals(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, run = session.pool_with_run("llama-ft", 32, 8)
    now = 100.0
    monkeypatch.setattr("skyward_tui.panels.rank_metrics.monotonic", lambda: now)
    async with on_run_screen(app, (160, 48)) as (pilot, screen):
        for rank in range(256):
            for step in range(PACE_SIZE):
                view.metrics.add_values(run.id, rank, step / 2, {"loss": min(3.0, float(step))})
        now += 1.0
        await until(pilot, lambda: screen.has_class("-numbers"))
        pane = numbers(screen)
        assert pane.ranks == list(range(256))
        await until(pilot, "loss                 3 ")
        for step in range(50):
            view.metrics.add_values(run.id, 0, 4.0 + step, {"loss": 4.0 + step})
            screen.tick(session.now)
            await pilot.pause()
            assert "loss                 3 " in screen_text(app)  # no time has passed: it was not looked at
        now += 2.0
        session.now += 2.0
        await until(pilot, "loss                53!")


async def test_outlier_among_256_ranks_is_named_and_drawn(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 32, 8)
    for rank in range(256):
        for step in range(PACE_SIZE):
            view.metrics.add_values(run.id, rank, float(step), {"loss": 900.0 if rank == 77 else 1.0})
    async with on_run_screen(app, (160, 48), until="5 metrics  ! outlier: r77  rank 0") as (pilot, screen):
        await until(pilot, "900 ┤")
        assert "loss                 1!" in screen_text(app)
        await press(pilot, "a", until=lambda: numbers(screen).subject == "! outlier: r77  median of 256 ranks")
        await until(pilot, "900 ┤")


async def many_numbers(app: SkywardApp, session: FakeSession, pilot: Pilot[None]) -> MetricsPane:
    """Show the metrics of two ranks: four values each, one second apart."""
    view, run = session.pool_with_run("llama-ft", 2)
    for rank in range(2):
        for step, loss in enumerate((1000.0, 100.0, 10.0, 1.0)):
            numbers = {"loss": loss * (1 + rank), "lr": 0.1 * (step + 1)}
            view.metrics.add_values(run.id, rank, session.now + step, numbers)
    screen = await open_pool(app, pilot)
    await until(pilot, lambda: screen.has_class("-numbers"))
    await press(pilot, "5", until=lambda: app.focused is numbers_of(screen))
    return numbers_of(screen)


numbers_of = numbers


def hairs(app: SkywardApp) -> int:
    """Return the number of lines with two vertical pieces."""
    return sum(line.count("⡇") > 1 for line in screen_text(app).splitlines())


async def test_log_scale_and_smoothing_have_a_key(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        pane = await many_numbers(app, session, pilot)
        await until(pilot, "2e+03 ┤")
        linear = screen_text(app)
        await press(pilot, "b", until="5 metrics  rank 0  log scale")
        assert "2e+03 ┤" in screen_text(app) and "   1 ┤" in screen_text(app)
        assert screen_text(app) != linear
        await press(pilot, "b", "x", until="5 metrics  rank 0  smoothed")
        assert pane.smooth and not pane.log_scale
        await press(pilot, "x", until=lambda: "smoothed" not in screen_text(app))


async def test_hairline_shows_the_values_of_all_charts_at_its_time(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        pane = await many_numbers(app, session, pilot)
        await pilot.press("z", "c")
        await until(pilot, lambda: " loss 1  1 to 2" in screen_text(app) and " lr 0.4" in screen_text(app))
        await press(pilot, "left", until="rank 0  at 0:02")
        assert " loss 10  10 to 20" in screen_text(app) and " lr 0.3" in screen_text(app)
        assert hairs(app) > 30, "through both charts"
        await press(pilot, "right", until=" loss 1  1 to 2")
        await press(pilot, "escape", until=lambda: pane.instant is None and not hairs(app))
        await press(pilot, "escape", until="2 log")  # the zoom was next


async def test_counter_metrics_have_no_chart_beside_others(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 1)
    for step in range(9):
        numbers = {"step": step, "seen": 512 * step, "loss": 2.0 / (1 + step), "lr": 0.5}
        view.metrics.add_values(run.id, 0, session.now + step, numbers)
    async with on_run_screen(app, (160, 48)) as (pilot, screen):
        await until(pilot, lambda: screen.has_class("-numbers"))
        pane = numbers_of(screen)
        assert pane.names == ["loss", "lr", "step", "seen"] and pane.counters == ["step", "seen"]
        await press(pilot, "5", "z", "c", until=lambda: screen_text(app).count("└ 0:00") == 2)
        assert " step 8  seen 4,096" in screen_text(app)
        await pilot.press("up", "up", "G")
        await until(pilot, lambda: pane.name_shown == "seen" and screen_text(app).count("└ 0:00") == 2)


async def test_mouse_moves_the_hairline(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        pane = await many_numbers(app, session, pilot)
        await until(pilot, "└ 0:00")
        await pilot.mouse_down(pane, offset=(9, pane.size.height - 3))
        await pilot.mouse_up(pane, offset=(9, pane.size.height - 3))
        await until(pilot, "rank 0  at 0:00")
        assert "loss             1,000 " in screen_text(app)
        before = pane.instant
        await pilot.mouse_down(pane, offset=(9, 0))  # a name's row, and no chart
        assert pane.instant == before


async def test_panel_painted_for_another_size_is_not_shown(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Textual may request lines before a widget receives its new size."""
    view, run = session.pool_with_run("llama-ft", 4)
    logged(view, run, session)
    view.machines = measured(session.now, 4, 0)
    async with on_run_screen(app, (160, 48)) as (pilot, screen):
        await until(pilot, lambda: "└ 0:00" in screen_text(app) and "net in" in screen_text(app))
        for widget in (numbers(screen), screen.query_one(MachineGrid)):
            widget.render_line(0)
            monkeypatch.setattr(type(widget), "size", Size(widget.size.width - 10, widget.size.height))
            assert widget.render_line(0).cell_length == widget.size.width
