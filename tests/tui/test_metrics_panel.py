"""Logged metrics in the run header, the rank list and the charts of the metrics panel."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from base64 import b64decode
from fcntl import ioctl
from io import BytesIO
from struct import pack
from termios import TIOCSWINSZ

import pytest
from PIL import Image
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
from skyward_tui.widgets.metric_charts import draw_image, image_protocol
from tests.support.app_driver import on_run_screen, open_pool, press, screen_text, until
from tests.support.fake_session import FakeSession, logged, value
from tests.support.images import bomb, flat, log_image, many_scans, picture
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
        await until(pilot, " loss 3  r0-1 1…3")
        await press(pilot, "a", until="5 metrics  median of 2 ranks")
        await until(pilot, " loss 2  r0-1 1…3")
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
        for text in (
            "CPU  90 %",
            "memory  2.0 of 8.0 GiB",
            "memory 25 % of 8 GiB",
            "net in  5 MB/s, most 5 MB/s",
            "▇ to 80",
        ):
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
        await until(pilot, "r0-255 1…900")
        assert " loss 1 !" in screen_text(app)
        await press(
            pilot, "a", until=lambda: metrics_of(screen).subject == "! outlier: r77  median of 256 ranks  x: time"
        )
        await until(pilot, "r0-255 1…900")


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


async def test_chart_title_names_the_source_of_printed_metrics(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    for step in range(4):
        view.metrics.add_values(run.id, 0, session.now + step, {"loss": 4.0 - step}, origin="log")
        view.metrics.add_values(run.id, 0, session.now + step, {"lr": 0.1})
    async with on_run_screen(app, (160, 48), until="from the log") as (_, _):
        titles = [line for line in screen_text(app).splitlines() if "from the log" in line]
        assert [("loss" in line, "lr 0.1  from" in line) for line in titles] == [(True, False)]


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
        await until(pilot, lambda: " loss 1  r0-1 1…2" in screen_text(app) and " lr 0.4" in screen_text(app))
        assert "← → values" in screen_text(app)
        before = hairs(app)
        await press(pilot, "left", until=" loss 10  r0-1 10…20")
        await until(pilot, lambda: " lr 0.3" in screen_text(app) and "at step 20" in screen_text(app))
        assert hairs(app) > before + 10
        await press(pilot, "right", until=" loss 1  r0-1 1…2")
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


@pytest.mark.proof("0.4 s of a processor", after=2)
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


@pytest.mark.proof("0.7 s of a processor")
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


def cells(app: SkywardApp, text: str) -> list[tuple[str, str, str]]:
    """Return text, colour and background of the segments of the screen that contain a text."""
    strips = app.screen._compositor.render_strips()
    segments = [segment for strip in strips for segment in strip if segment.style is not None and text in segment.text]
    styles = ((segment.text, segment.style.color, segment.style.bgcolor) for segment in segments if segment.style)
    return [(text, *(each.get_truecolor().hex if each else "" for each in colors)) for text, *colors in styles]  # type: ignore[misc]


async def test_newest_images_are_shown_in_half_blocks(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    view, run = session.pool_with_run("llama-ft", 2)
    log_image(view, run.id, "samples", picture(), step=None)
    async with on_run_screen(app, (120, 40), until="5 metrics  images") as (pilot, _):
        await until(pilot, " samples  r0")
        for step in (1200, 1201.5):
            log_image(view, run.id, "samples", picture(), step=step)
        log_image(view, run.id, "maps", picture(2, 90), rank=1)
        await until(
            pilot, lambda: " samples  step 1,201.5  r0" in screen_text(app) and " maps  step 3  r1" in screen_text(app)
        )
        top = cells(app, "▀")[0]
        assert top[1].startswith("#3") and top[2].startswith("#"), "the upper pixel is dark red"
        view.metrics.add_values(run.id, 0, 1.0, {"loss": 2.5})
        await until(pilot, lambda: "5 metrics  rank 0" in screen_text(app) and " loss 2.5" in screen_text(app))
        assert " samples  step" in screen_text(app), "below the charts"
        for number in range(8):
            log_image(view, run.id, f"more{number}", picture())
        await until(pilot, "images")
        assert re.search(r"\+\d images", screen_text(app))


async def test_images_of_a_small_panel_are_shown_by_the_zoom_key(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    view.metrics.add_values(run.id, 0, 1.0, {"loss": 2.5})
    log_image(view, run.id, "samples", picture())
    session.print(view, 0, "line\n" * 12)
    async with on_run_screen(app, (80, 24), until="│ loss ") as (pilot, _):
        assert "samples" not in screen_text(app)
        await press(pilot, "5", "z", until=" samples  step 3  r0")


@pytest.mark.proof("0.3 s of a processor", after=3)
@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", "images/x.png"),
        (b"GIF89a", "images/x.png (invalid)"),
        (picture()[:60], "images/x.png (invalid)"),
        (picture().replace(b"IDAT", b"IDOT"), "images/x.png (invalid)"),
        (bomb(), "images/x.png (invalid)"),
        (flat(640), "images/x.png (invalid)"),
        (many_scans(), "images/x.png (invalid)"),
    ],
)
async def test_hostile_image_shows_only_the_name_of_its_file(
    data: bytes, shown: str, app: SkywardApp, session: FakeSession
) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    log_image(view, run.id, "\x1b]0;title\x07\x1b[2Jred\n" + "x" * 999, data)
    async with on_run_screen(app, (120, 40), until=shown) as (_, screen):
        assert "red↵xxx" in screen_text(app) and "title" not in screen_text(app)
        assert not any("\x1b" in segment.text for strip in metrics_of(screen)._lines_now() for segment in strip)


@pytest.mark.proof("1 s of a processor")
async def test_images_without_pillow_or_colours_show_their_file(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, run = session.pool_with_run("llama-ft", 2)
    log_image(view, run.id, "samples", picture())
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL", None)
        async with on_run_screen(app, (120, 40), until="images/x.png (install skyward-tui[images] to show it)"):
            pass
    monkeypatch.setenv("NO_COLOR", "1")
    bare = SkywardApp(lambda: session, clock=lambda: session.now)
    async with on_run_screen(bare, (120, 40), until="images/x.png"):
        assert "▀" not in screen_text(bare)


async def test_kitty_receives_the_image_and_its_place(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-kitty")
    view, run = session.pool_with_run("llama-ft", 2)
    log_image(view, run.id, "samples", picture())
    sent: list[str] = []
    async with on_run_screen(app, (120, 40), until=" samples  step 3") as (pilot, screen):
        assert app._driver is not None
        monkeypatch.setattr(app._driver, "write", sent.append)
        log_image(view, run.id, "samples", picture(30, 10), step=4)
        await until(pilot, " samples  step 4")
        rows = [text for text, _, _ in cells(app, chr(0x10EEEE))]
        first, last = (each for each in sent if each.startswith("\x1b_G"))
        keys, _, data = first.removeprefix("\x1b_G").removesuffix("\x1b\\").partition(";")
        assert Image.open(BytesIO(b64decode(data))).size == (30, 10) and last == "\x1b_Gm=0;\x1b\\"
        sizes = dict(each.split("=") for each in keys.split(","))
        assert (int(sizes["r"]), int(sizes["c"])) == (len(rows), cell_len(rows[0])) and sizes["q"] == "2"
        assert len({row[1] for row in rows}) == len(rows), "each row has its mark"
        view.metrics.add_values(run.id, 0, 1.0, {"loss": 2.5})
        await until(pilot, " loss 2.5")
        for number in (1.25, 1.5):
            sent.clear()
            size = metrics_of(screen).size
            view.metrics.add_values(run.id, 0, 2.0, {"loss": number})
            await until(pilot, f"│ loss {number}")
        assert size == metrics_of(screen).size
        assert [each[:50] for each in sent if "a=T" in each] == [], "a repaint does not send the image again"
    ascii_app = SkywardApp(lambda: session, clock=lambda: session.now, plain=True)
    async with on_run_screen(ascii_app, (120, 40), view.key, until=" samples  step 4"):
        assert '""""' in screen_text(ascii_app) and "????" not in screen_text(ascii_app)


def test_large_image_is_sent_to_kitty_in_parts() -> None:
    sent: list[str] = []
    Image.effect_noise((640, 480), 90).save(file := BytesIO(), "PNG")
    rows = draw_image(file.getvalue(), 300, 90, "kitty", 7, sent.append)
    parts = [each.removeprefix("\x1b_G").removesuffix("\x1b\\").partition(";") for each in sent]
    assert max(len(data) for _, _, data in parts) == 4096 and {keys for keys, _, _ in parts[1:]} == {"m=1", "m=0"}
    image = Image.open(BytesIO(b64decode("".join(data for _, _, data in parts))))
    assert image.size == (320, 240) and parts[0][0].endswith("m=1")
    assert [row.cell_length for row in rows] == [56] * 21, "as many rows as Kitty's marks"


def test_protocol_of_images_follows_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert image_protocol({"TERM": "xterm-kitty"}) == image_protocol({"TERM": "xterm-ghostty"}) == "kitty"
    for names in ({}, {"TERM": "tmux-256color", "TERM_PROGRAM": "WezTerm"}, {"TERM": "xterm-256color"}):
        assert image_protocol(names) == "blocks"
    monkeypatch.setitem(sys.modules, "textual_image", None)
    assert image_protocol({"TERM": "foot"}) == "blocks"


def test_sixel_picture_has_the_size_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textual_image")
    assert image_protocol({"TERM": "foot"}) == image_protocol({"TERM": "xterm", "TERM_PROGRAM": "WezTerm"}) == "sixel"
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("4H", 40, 120, 1200, 800))  # cells of 10 x 20 pixels
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "__stdout__", terminal)
        rows = draw_image(picture(), 30, 30, "sixel", 1, lambda _: None)
    os.close(ours)
    assert [row.cell_length for row in rows] == [*[0] * 9, 30]
    text, sixels = rows[-1]
    assert text.text == " " * 30 and sixels.control
    assert sixels.text.startswith("\x1b7\x1b[30D\x1b[10A\x1b[B\x1bP") and sixels.text.endswith("\x1b\\\x1b8")
    assert '"1;1;300;200' in sixels.text
