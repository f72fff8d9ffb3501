"""Logged metrics in the run header, the rank list and the charts of the metrics panel."""

from __future__ import annotations

import json
import re

import pytest
from rich.cells import cell_len
from textual.geometry import Size
from textual.pilot import Pilot

from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, RootCause
from skyward_core.views import events
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.pool_view import PoolView, apply
from skyward_core.views.rank_metrics_and_progress import PACE_SIZE
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels.machine_metrics import GIB, MachineGrid
from skyward_tui.panels.rank_metrics import MetricsPane
from skyward_tui.screens.run import RunScreen, pool_status
from skyward_tui.text.rank_states_from_views import rank_states
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
    assert notes == ["loss 2.314  lr 0.5  tokens 7  step 1,234", "step 1,200"]
    assert "r0: step 1,234  loss 2.314  lr 0.5" in [part.plain for part in pool_status(view, run, 1.0)]
    for at in (2.0, 3.0):
        view.metrics.add_values("r", 0, at, {"step": 1230 + 4 * at})
    shown = [part.plain for part in pool_status(view, run, 63.0)]
    assert {"● RUNNING 2 ranks", "1:03 elapsed", "4 it/s"} < set(shown), "without a total"


def metrics_of(screen: RunScreen) -> MetricsPane:
    return screen.query_one(MetricsPane)


async def test_metrics_panel_opens_with_the_first_metrics(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    async with on_run_screen(app, (120, 40), until="3 nodes") as (pilot, screen):
        await press(pilot, "5", until="no metrics yet: call sky.log")
        assert screen.active != "metrics"
        assert "4 results" not in screen_text(app), "there is no result"
        centre = screen.panels["log"].region
        view.metrics.add_values(run.id, 0, 1.0, {"step": 1, "loss": 2.5})
        view.metrics.add_values(run.id, 0, 2.0, {"step": 2, "loss": 1.25})
        await until(pilot, lambda: "5 metrics  rank 0" in screen_text(app) and "1.25" in screen_text(app))
        region = screen.panels["metrics"].region
        assert region.offset == centre.offset and region.height >= 18, "at the log's place"
        assert screen.panels["log"].region.y == region.bottom
        assert "3 nodes  4/4 ready" in screen_text(app) and screen.panels["phases"].size.height == 1
        await press(pilot, "3", until=lambda: screen.panels["phases"].size.height == 4)
        await press(pilot, "5", until=lambda: app.focused is metrics_of(screen))
        assert metrics_of(screen).name_shown == "loss"
        await until(pilot, lambda: "└1─" in screen_text(app) and "2.5┤" in screen_text(app))
        await press(pilot, "z", until=lambda: "╭─ 2 log" not in screen_text(app) and "└1─" in screen_text(app))


async def test_metrics_of_another_rank_and_of_all_ranks_are_shown(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    for rank in range(2):
        for step in range(4):
            view.metrics.add_values(run.id, rank, float(step), {"loss": 1.0 + 2 * rank})
    async with on_run_screen(app, (160, 48), until="5 metrics  rank 0") as (pilot, screen):
        await press(pilot, "]", until="5 metrics  rank 1")
        await until(pilot, " loss 3  1 to 3")
        await press(pilot, "a", until="5 metrics  median of 2 ranks")
        await until(pilot, " loss 2  1 to 3")
        assert metrics_of(screen).ranks == [0, 1]


async def test_run_shows_progress_and_machine_curves_then_its_cause(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 1, 4)
    for rank in range(4):
        for step in range(1, 81):
            values = {"step": step, "total": 160, "loss": 1 / step}
            view.metrics.add_values(run.id, rank, session.now + step, values)
    view.machines = book = MachineMetrics()
    for at, cpu in ((1.0, 20.0), (2.0, 90.0)):
        node = {"cpu": cpu, "memory_used": 2.0 * GIB, "memory_total": 8.0 * GIB, "net_in": 5e6}
        book.feed(0, json.dumps({"at": session.now + at, "node": node}).encode() + b"\n")
    async with on_run_screen(app, (160, 48), until="r3 n0 ● ━━━━━─────  50 % loss 0.0125") as (pilot, screen):
        for text in ("CPU  90 %", "memory  2.0 of 8.0 GiB", "net in  5 MB/s, most 5 MB/s", "▇ to 80"):
            await until(pilot, text)
        assert screen.panels["log"].region.x == 56 and "before the failure" not in screen_text(app)
        session.end_rank(view, run, 2, "raised", error=ErrorInfo("ValueError", "bad", "Traceback:\nValueError: bad\n"))
        session.end_run(view, run, "failed", RootCause(2, "raised", "ValueError", "bad"))
        await until(pilot, "last 60 values before the failure")
        assert "root cause: rank 2 on n0" in screen_text(app).splitlines()[1]
        assert metrics_of(screen)._charts["loss"].front[0][0] == 21.0
        await press(pilot, "5", "z", until=lambda: "before the failure" not in screen_text(app))
        assert metrics_of(screen)._charts["loss"].front[0][0] == 1.0


async def test_metric_names_in_wide_letters_keep_the_columns(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft")
    names = {"loss": 7.25, "損失": 8.25, "検証データの損失の平均": 9.25}
    view.metrics.add_values(run.id, 0, 1.0, names)
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await press(pilot, "5", "I", until=lambda: "損失" in screen_text(app) and " 9.25" in screen_text(app))
        rows = [row for row in screen_text(app).splitlines() if "▄" in row]
        assert all(cell_len(row) == 160 for row in rows) and rows


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
        await until(pilot, lambda: screen.has_class("-metrics"))
        await press(pilot, "5", until=" reward 20")
        assert "note" not in screen_text(app)
        session.end_run(view, first)
        session.open_run(view)
        await until(pilot, lambda: not screen.has_class("-metrics"))
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
        await until(pilot, lambda: screen.has_class("-metrics"))
        pane = metrics_of(screen)
        assert pane.ranks == list(range(256))
        await until(pilot, " loss 3  ")
        for step in range(50):
            view.metrics.add_values(run.id, 0, 4.0 + step, {"loss": 4.0 + step})
            screen.tick(session.now)
            await pilot.pause()
            assert " loss 3  " in screen_text(app)  # no time has passed: it was not looked at

        def later() -> bool:
            nonlocal now
            now += 2.0  # charts and the search for outliers have turns
            session.now += 2.0
            return " loss 53 !" in screen_text(app)

        await until(pilot, later)


async def test_outlier_among_256_ranks_is_named_and_drawn(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 32, 8)
    for rank in range(256):
        for step in range(PACE_SIZE):
            view.metrics.add_values(run.id, rank, float(step), {"loss": 900.0 if rank == 77 else 1.0})
    async with on_run_screen(app, (160, 48), until="5 metrics  ! outlier: r77  rank 0") as (pilot, screen):
        await until(pilot, "1 to 900")
        assert " loss 1 !" in screen_text(app)
        await press(
            pilot, "a", until=lambda: metrics_of(screen).subject == "! outlier: r77  median of 256 ranks  x: time"
        )
        await until(pilot, "1 to 900")


async def four_values(app: SkywardApp, session: FakeSession, pilot: Pilot[None]) -> MetricsPane:
    """Show the metrics of two ranks: four values each, one second and ten steps apart."""
    view, run = session.pool_with_run("llama-ft", 2)
    for rank in range(2):
        for step, loss in enumerate((1000.0, 100.0, 10.0, 1.0)):
            numbers = {"step": 10 * step, "loss": loss * (1 + rank), "lr": 0.1 * (step + 1)}
            view.metrics.add_values(run.id, rank, session.now + step, numbers)
            session.print(view, rank, f"line {step} of {rank}\n", at=session.now + step)
    screen = await open_pool(app, pilot)
    await until(pilot, lambda: screen.has_class("-metrics"))
    await press(pilot, "5", until=lambda: app.focused is metrics_of(screen))
    return metrics_of(screen)


def hairs(app: SkywardApp) -> int:
    """Return the number of lines of text with a piece of the hairline."""
    return sum("⡇" in line for line in screen_text(app).splitlines())


async def test_wide_values_have_a_log_scale_unless_a_key_changes_it(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        pane = await four_values(app, session, pilot)
        await until(pilot, "100┤")
        assert "log scale" in screen_text(app), "of the loss, not of lr"
        await press(pilot, "b", "b", until="5 metrics  rank 0  x: step  linear scale")
        assert "1.0k┤" in screen_text(app) and "500┤" in screen_text(app)
        await press(pilot, "b", "x", until="5 metrics  rank 0  x: step  smoothed")
        assert pane.smooth and not pane.scale
        await press(pilot, "x", until=lambda: "smoothed" not in screen_text(app))


async def test_hairline_shows_the_values_of_all_charts_at_its_step(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        pane = await four_values(app, session, pilot)
        await until(pilot, lambda: " loss 1  1 to 2" in screen_text(app) and " lr 0.4" in screen_text(app))
        before = hairs(app)
        await press(pilot, "left", until=" loss 10  10 to 20")
        await until(pilot, lambda: " lr 0.3" in screen_text(app) and "at step 20" in screen_text(app))
        assert hairs(app) > before + 10
        await press(pilot, "right", until=" loss 1  1 to 2")
        await press(pilot, "escape", until=lambda: pane.instant is None and hairs(app) == before)


async def test_log_shows_the_lines_at_the_hairline_until_it_is_hidden(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        await four_values(app, session, pilot)
        for number in range(99):
            session.print(app.pools()[0], 0, f"later {number}\n", at=session.now + 9)
        await until(pilot, "later 98")
        await press(pilot, "left", "left", until=lambda: "line 1 of 0" in screen_text(app))
        assert "later 98" not in screen_text(app) and "PAUSED" in screen_text(app)
        await press(pilot, "escape", until="later 98")
        assert "FOLLOW" in screen_text(app)


async def test_x_axis_is_the_step_or_the_time(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        pane = await four_values(app, session, pilot)
        await until(pilot, "x: step")
        assert re.search(r"└0─+10─+20─+30", screen_text(app))
        await press(pilot, "left", until="at step 20")
        at = pane.instant
        await press(pilot, "m", until="at 0:02")
        assert pane.instant == at and re.search(r"└0:00─+0:01─+0:02─+0:03", screen_text(app))
        await press(pilot, "escape", until="x: time")


async def test_counter_metrics_have_no_chart(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 1)
    for step in range(9):
        numbers = {"step": step, "seen": 512 * step, "lr": 0.5, "loss": 2.0 / (1 + step)}
        view.metrics.add_values(run.id, 0, session.now + step, numbers)
    async with on_run_screen(app, (160, 48)) as (pilot, screen):
        await until(pilot, lambda: screen.has_class("-metrics"))
        pane = metrics_of(screen)
        assert pane.names == ["loss", "lr"] and pane.counters == ["step", "seen"]
        await press(pilot, "5", until=lambda: screen_text(app).count("└0─") == 2)
        await press(pilot, "G", "I", until=lambda: pane.name_shown == "lr" and screen_text(app).count("└0─") == 1)


async def test_mouse_moves_the_hairline(app: SkywardApp, session: FakeSession) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        pane = await four_values(app, session, pilot)
        await until(pilot, "└0")
        area, name = pane._areas[1]
        await pilot.mouse_down(pane, offset=(area.x, area.y + 3))
        await pilot.mouse_up(pane, offset=(area.x, area.y + 3))
        await until(pilot, "rank 0  at step 0")
        assert "loss 1,000 " in screen_text(app) and pane.name_shown == name
        before = pane.instant
        await pilot.mouse_down(pane, offset=(0, area.y + 3))  # the labels are not a part of a chart
        assert pane.instant == before


@pytest.mark.parametrize(
    ("size", "names", "charts"), [((160, 48), 2, 2), ((160, 48), 9, 6), ((120, 40), 5, 5), ((80, 24), 9, 4)]
)
async def test_charts_fill_the_panel_and_other_metrics_have_a_row(
    app: SkywardApp, session: FakeSession, size: tuple[int, int], names: int, charts: int
) -> None:
    view, run = session.pool_with_run("llama-ft", 1)
    for step in range(20):
        values = {f"m{name}": (step * 7919 % 13) / (1 + name) for name in range(names)}
        view.metrics.add_values(run.id, 0, session.now + step, values)
    async with on_run_screen(app, size) as (pilot, screen):
        await until(pilot, lambda: screen.has_class("-metrics"))
        await press(pilot, "5", until="└0:00")
        pane = metrics_of(screen)
        assert len(pane._areas) == charts
        rest = [name for name in pane.names if name not in {name for _, name in pane._areas}]
        assert all(f" {name} " in screen_text(app) for name in rest[:2])
        assert sum(line.strip() == "" for line in "\n".join(map(str, pane._lines or ())).splitlines()) == 0
        if size[1] >= 30:
            assert screen.panels["metrics"].region.height >= 0.45 * size[1]


async def test_panel_painted_for_another_size_is_not_shown(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Textual may request lines before a widget receives its new size."""
    view, run = session.pool_with_run("llama-ft", 4)
    logged(view, run, session)
    view.machines = measured(session.now, 4, 0)
    async with on_run_screen(app, (160, 48)) as (pilot, screen):
        await until(pilot, lambda: "└0" in screen_text(app) and "net in" in screen_text(app))
        for widget in (metrics_of(screen), screen.query_one(MachineGrid)):
            widget.render_line(0)
            monkeypatch.setattr(type(widget), "size", Size(widget.size.width - 10, widget.size.height))
            assert widget.render_line(0).cell_length == widget.size.width
