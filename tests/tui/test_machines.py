"""The machines panel of the run screen, which requests machine metrics itself."""

from __future__ import annotations

import json
import re

import pytest
from textual.geometry import Region

from skyward_core.model.metric_definitions_series_and_export import GPU_METRIC_DEFINITIONS
from skyward_core.pool.machine_metrics_recorder import AGENT_TOO_OLD
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_tui.app.app import SkywardApp
from skyward_tui.panels.machine_metrics import DRAWN_EVERY, MachineGrid
from skyward_tui.screens.run import RunScreen
from tests.support.app_driver import on_run_screen, press, screen_text, until
from tests.support.fake_session import FakeSession
from tests.support.machines import measured


def measured_later(session: FakeSession, *shape: int) -> MachineMetrics:
    """Return a function that adds metrics to a pool with a run and a number of nodes and ranks."""
    view, _ = session.pool_with_run("llama-ft", *shape)
    view.machines = book = MachineMetrics()
    return book


async def test_machine_metrics_are_requested_when_a_run_is_shown(app: SkywardApp, session: FakeSession) -> None:
    view = session.pool("llama-ft", 4, 8)
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await press(pilot, "6", until="machine metrics appear once a run starts")
        assert session.measured == [], "a start may be under way"
        session.open_run(view)
        await until(pilot, lambda: session.measured == [view.key])
        assert "6 machines" not in screen_text(app)
        view.machines = measured(session.now, 4, 8)
        await until(pilot, "6 machines  use %")
        assert "GPU 0: lost by the driver; Xid 79" in screen_text(app)
        assert session.measured == [view.key], "once"


async def test_keys_choose_the_machine_metric_and_the_node(app: SkywardApp, session: FakeSession) -> None:
    view, _ = session.pool_with_run("llama-ft", 4, 8)
    view.machines = measured(session.now, 40, 8)
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await until(pilot, "6 machines  use %")
        await press(pilot, "6", until=lambda: isinstance(app.focused, MachineGrid))
        assert "n39" not in screen_text(app) and "more nodes" in screen_text(app)
        await pilot.press("right", "right", "right", "right")
        await until(pilot, lambda: "6 machines  °C" in screen_text(app) and "  61   62 " in screen_text(app))
        await press(pilot, "right", "right", until="6 machines  use %")  # past what one of them tells: why it is slowed
        await press(pilot, "G", until="n39")
        await press(pilot, "g", until=lambda: " n0 " in screen_text(app) and "n39" not in screen_text(app))


async def test_metrics_of_nodes_without_gpus_are_chosen_by_key(app: SkywardApp, session: FakeSession) -> None:
    book = measured_later(session, 2)
    for at in range(40):
        for node in range(2):
            figures = {"cpu": 50.0, "memory_used": 2.0, "memory_total": 4.0, "net_in": 1e6 * at * (node + 1)}
            sample = {"at": session.now - 40 + at, "node": figures}
            book.feed(node, json.dumps(sample).encode())
    async with on_run_screen(app, (120, 40)) as (pilot, _):
        await until(pilot, "CPU % (←→ metric), last 0:39")
        await press(pilot, "6", "right", until="memory % (←→ metric), last 0:39")
        await press(pilot, "right", until="net in, 0 to 78 MB/s (←→ metric), last 0:39")
        await press(pilot, "left", "left", "left", until="I/O pressure % (←→ metric), last 0:39")


@pytest.mark.proof("1 s of a processor")
async def test_every_gpu_metric_has_a_chart(app: SkywardApp, session: FakeSession) -> None:
    book = measured_later(session, 1, 2)
    values = dict.fromkeys(GPU_METRIC_DEFINITIONS.keys() - {"util", "xid", "lost"}, 0.0) | {
        "mem_total": 8e9,
        "power_limit": 700.0,
    }

    def measure(second: int, **figures: float) -> None:
        gpus = [values | {"util": 50.0} | figures, {"util": 50.0}]
        sample = {"at": session.now - 40 + second, "node": {"cpu": 50.0}, "gpus": gpus}
        book.feed(0, json.dumps(sample).encode())

    for second in range(39):
        measure(second, sm_clock=1980 if second < 20 else 990, nvlink_out=4e9 / (second + 1), throttle=4 * (second < 9))
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await until(pilot, "6 machines  use %")
        await press(pilot, "6", "z", until=lambda: isinstance(app.focused, MachineGrid))

        def curve() -> str:
            return next(line for line in screen_text(app).splitlines() if "GPU 0" in line)

        seen = []
        for _ in range(30):
            subject = app.screen.query_one(MachineGrid).subject
            if subject in seen:
                break
            seen.append(subject)
            await until(pilot, lambda subject=subject: f"6 machines  {subject} " in screen_text(app))  # type: ignore[misc]
            if subject == "clock, % of 1,980 MHz":
                await until(pilot, lambda: "█" in curve() and curve().rstrip("│ ").endswith("▅"))
                assert "  50    – " in next(line for line in screen_text(app).splitlines() if " n0 " in line)
            if subject.startswith("throttling"):
                await until(pilot, lambda: "█" in curve() and curve().rstrip("│ ").endswith("▁"))
            await pilot.press("right")
        assert seen == [
            "use %", "memory %", "power %", "tensor cores %", "°C", "multiprocessors %", "memory read or written %",
            "clock, % of 1,980 MHz", "memory clock, 0 so far", "PCIe in, 0 so far", "PCIe out, 0 so far",
            "NVLink in, 0 so far", "NVLink out, % of 4 GB/s", "processes, 0 so far", "ECC errors, 0 so far",
            "corrected ECC errors, 0 so far", "throttling (0 or 100)",
        ]  # fmt: skip
        await press(pilot, "left", "left", "left", "left", "left", until="NVLink out, % of 4 GB/s")
        measure(39, nvlink_out=9e9)
        await until(pilot, "NVLink out, % of 9 GB/s")


async def test_curves_fill_the_panel_and_an_idle_network_has_one_row(app: SkywardApp, session: FakeSession) -> None:
    book = measured_later(session, 1)
    for at in range(40):
        node = {"cpu": 90.0, "memory_used": 20e9, "memory_total": 24e9, "net_in": 300.0, "disk_write": 5e6}
        book.feed(0, json.dumps({"at": session.now - 40 + at, "node": node}).encode())
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        await press(pilot, "6", "z", until="net in  300 bytes/s")
        rows = [line.strip("│ ") for line in screen_text(app).splitlines()]
        titles = [rows.index(next(row for row in rows if row.startswith(name))) for name in ("CPU", "net", "disk")]
        assert titles[2] - titles[1] == 2 < titles[1] - titles[0]
        assert all(rows[titles[0] : -2]), "no row of the panel is empty"


@pytest.mark.proof("0.7 s of a processor")
async def test_curves_are_drawn_again_after_some_samples(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, draw = [], MachineGrid._drawn
    monkeypatch.setattr(MachineGrid, "_drawn", lambda *given: drawn.append(given) or draw(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr("skyward_tui.panels.machine_metrics.REPAINT_SECONDS", 0.0)
    book = measured_later(session, 1)

    def feed(at: float, cpu: float) -> None:
        book.feed(0, json.dumps({"at": session.now + at, "node": {"cpu": cpu}}).encode())

    for at in range(4 * DRAWN_EVERY):
        feed(at - 4 * DRAWN_EVERY, 50.0)
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        await press(pilot, "6", "z", until="CPU  50 %")
        times = len(drawn)
        feed(0.0, 90.0)
        await until(pilot, "CPU  90 %")
        assert len(drawn) == times
        for at in range(1, DRAWN_EVERY):
            feed(at, 70.0)
        await until(pilot, "CPU  70 %")
        assert len(drawn) > times


async def test_missing_gpu_metric_has_no_chart(app: SkywardApp, session: FakeSession) -> None:
    book = measured_later(session, 1, 2)
    book.feed(0, json.dumps({"at": session.now, "node": {}, "gpus": [{"util": 5}, {}]}).encode())
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await until(pilot, "6 machines  use %")
        await press(pilot, "6", "left", until="6 machines  °C")
        await press(pilot, "right", until="6 machines  use %")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(("width", "hidden"), [(80, 6), (160, 0)])
async def test_gpus_without_room_are_counted(app: SkywardApp, session: FakeSession, width: int, hidden: int) -> None:
    view, _ = session.pool_with_run("llama-ft", 1)
    view.machines = measured(session.now, 1, 16)
    async with on_run_screen(app, (width, 24)) as (pilot, _):
        await press(pilot, "6", until="GPUs: use %")
        row = next(line for line in screen_text(app).splitlines() if line.startswith("│ n0 "))
        assert f"+{hidden} " in row if hidden else "+" not in row


async def test_node_with_an_older_agent_is_named(app: SkywardApp, session: FakeSession) -> None:
    book = measured_later(session, 1)
    book.set_silence_reason(0, AGENT_TOO_OLD)
    async with on_run_screen(app, (120, 40)) as (pilot, _):
        await until(pilot, f"n0    {AGENT_TOO_OLD}")


async def test_each_node_has_its_utilization_history(app: SkywardApp, session: FakeSession) -> None:
    book = measured_later(session, 4, 2)
    for second in range(120):
        for node in range(4):
            cpu = 90.0 if (second > 60) == (node < 2) else 10.0
            sample = {"at": session.now - 120 + second, "node": {"cpu": cpu}, "gpus": []}
            book.feed(node, json.dumps(sample).encode())
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await until(pilot, "CPU % (←→ metric), last 1:59")
        rows = [line for line in screen_text(app).splitlines() if "90 %" in line or "10 %" in line]
        low, high = "\u28c0", "\u2809"
        drawn = [(row.count(low) > row.count(high), row.rstrip("│ ")[-1]) for row in rows]
        assert len(drawn) == 4 and drawn[0][1] == drawn[1][1] == high and drawn[2][1] == drawn[3][1] == low
        await press(pilot, "6", "z", until=lambda: sum("⣿" in line for line in screen_text(app).splitlines()) >= 16)
        await pilot.resize_terminal(90, 30)
        await until(pilot, lambda: "GPU utilization %" not in screen_text(app))


async def test_each_gpu_has_a_history_row_if_there_is_room(app: SkywardApp, session: FakeSession) -> None:
    book = measured_later(session, 2, 4)
    for second in range(120):
        for node in range(2):
            gpus = [{"util": 100.0 if gpu < 3 else 30.0 * (second > 60), "temp": 50} for gpu in range(4)]
            sample = {"at": session.now - 120 + second, "node": {"cpu": 10.0}, "gpus": gpus}
            book.feed(node, json.dumps(sample).encode())
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await until(pilot, "GPU utilization %, last")
        await press(pilot, "6", "z", until="  use %, last 1:59")
        rows = [line for line in screen_text(app).splitlines() if re.search(r"GPU [0-3] .*[▁-█]{20,}", line)]
        assert len(rows) == 8
        assert "30 %" in rows[3] and "50 °C" in rows[3] and "–" in rows[3], "its own figures"
        assert all("████" in row for row in rows[:3]) and "▁▁▁" in rows[3] and "▃▃▃" in rows[3]
        await press(pilot, "left", until="  °C, last 1:59")
        assert "▅▅▅" in screen_text(app), "the figure that is chosen"


async def test_only_changed_machine_rows_are_painted(
    app: SkywardApp, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, run = session.pool_with_run("llama-ft", 3)
    session.end_run(view, run)
    view.machines = book = MachineMetrics()

    def report_cpu(node: int, cpu: float) -> None:
        book.feed(node, json.dumps({"at": session.now, "node": {"cpu": cpu}, "gpus": []}).encode())

    for node in range(3):
        report_cpu(node, 10.0)
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        await press(pilot, "6", until=lambda: screen_text(app).count("10 %") == 3)
        grid = app.screen.query_one(MachineGrid)
        painted: list[list[Region]] = []
        monkeypatch.setattr(grid, "refresh", lambda *regions: painted.append(list(regions)))
        monkeypatch.setattr("skyward_tui.panels.machine_metrics.REPAINT_SECONDS", 0.0)
        report_cpu(1, 10.2)
        assert grid.update(book, session.now) and painted == [], "it reads the same"
        report_cpu(1, 20.0)
        assert grid.update(book, session.now) and [[each.y for each in paint] for paint in painted] == [[6]]


async def test_machine_panel_of_an_idle_pool_updates_less_often(app: SkywardApp, session: FakeSession) -> None:
    view, run = session.pool_with_run("llama-ft", 4)
    view.machines = measured(session.now, 4, 0)
    async with on_run_screen(app, (160, 48)) as (pilot, _):
        await until(pilot, "6 machines")
        screen, now = app.screen, session.now - session.now % 3
        assert isinstance(screen, RunScreen)
        assert screen.time_token(now) != screen.time_token(now + 1), "a run goes on"
        session.end_run(view, run)
        await until(pilot, "✓ DONE")
        await until(pilot, lambda: screen.time_token(now) == screen.time_token(now + 2))
        assert screen.time_token(now) != screen.time_token(now + 3)


async def test_node_history_is_below_its_node_in_a_narrow_panel(app: SkywardApp, session: FakeSession) -> None:
    book = measured_later(session, 2)
    for second in range(60):
        for node in range(2):
            sample = {"at": session.now - 60 + second, "node": {"cpu": 97.0}, "gpus": []}
            book.feed(node, json.dumps(sample).encode())
    async with on_run_screen(app, (80, 24)) as (pilot, _):
        await press(pilot, "6", until=lambda: sum("⣿⣿⣿" in line for line in screen_text(app).splitlines()) == 8)
        for node in range(2, 12):
            sample = {"at": session.now, "node": {"cpu": 97.0}, "gpus": []}
            book.feed(node, json.dumps(sample).encode())
        await until(pilot, lambda: screen_text(app).count("97 %") == 12)
        assert "⣿" not in screen_text(app), "figures come first"
