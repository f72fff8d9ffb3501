"""Benchmarks of the busy app: printing ranks, many logs, long logs, memory; compared with Textual's RichLog and Log.

Each part runs in its own interpreter. The app runs in that process, on a terminal that discards all output. The app's
CPU time and waiting times are measured. The peers get the same lines from the same thread.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from .app_clocks import Paints, as_opened, differs, log_widget, median, p95, painted, resident_mb, until, write
from .fresh import BenchError, fresh
from .metric import Bar, Metric

if TYPE_CHECKING:
    from skyward_core.views.pool_view import PoolView, RunView
    from tests.support.fake_session import FakeSession

SIZE = (160, 48)
# 64 ranks that print
NODES, PER_NODE, EACH = 8, 8, 200  # lines a second
LOOKS = 8.0  # seconds
KEYS = 40
TYPED, TYPE_INTERVAL = 60, 0.1  # characters, seconds
LINES = {each: f"#{each}" for each in ("script", "arguments", "name", "hosts")} | {"argument": "#argument-fields Input"}
# Logs side by side
PANES, FLOOD = 8, 50_000  # lines a second, of each
FLOODS = 3.0  # seconds
MANY = 256
METRICS, EARLIER, UPDATES_PER_SECOND = 40, 120, 4  # metrics of each rank, seconds before the measurement
MILLION = 1_000_000
GONE_BY = 10_000_000
LINE = "step {:>9} loss 0.{:06} and what else a training loop says in each of its many steps\n"
TALKS = """
import time
import skyward_core as sky

@sky.function
def talks(each: int, seconds: float) -> None:
    ends = time.time() + seconds
    due, number = time.time(), 0
    while due < ends:
        for _ in range(each // 20):
            print(f"{time.time():.6f} step {number} and what else a training loop says", flush=False)
            number += 1
        due += 0.05
        time.sleep(max(0.0, due - time.time()))
"""


def measure() -> list[Metric]:
    watched, logs = (fresh("screens:watched"), {each: fresh("screens:log", each) for each in ("RichLog", "Log")})
    eight = {each: fresh("screens:eight", each) for each in ("ours", "RichLog", "Log")}
    grid, table, charted = fresh("screens:grid"), fresh("screens:data_table"), fresh("screens:charts")
    million, memory, large = fresh("screens:million"), fresh("screens:memory"), fresh("screens:large")
    typed = typing()
    rich, plain = logs["RichLog"], logs["Log"]
    return [
        Metric("key_to_paint_p95_ms", watched["key_p95_ms"], rich["key_p95_ms"], Bar(at_most=50)),
        Metric("key_to_paint_core_p95_ms", watched["key_core_p95_ms"], rich["key_core_p95_ms"], Bar(at_most=50)),
        Metric("source_to_screen_p95_ms", watched["screen_p95_ms"], rich["screen_p95_ms"], Bar(at_most=250)),
        Metric("app_core_percent", watched["core_percent"], rich["core_percent"], Bar(at_most=35)),
        Metric("app_core_beside_log_percent", watched["core_percent"], plain["core_percent"]),
        Metric("lines_a_second_seen", watched["lines_per_s"], rich["lines_per_s"]),
        Metric("panes_lost_lines", eight["ours"]["lost"], eight["RichLog"]["lost"], Bar(at_most=0)),
        Metric("panes_lag_p95_ms", eight["ours"]["lag_p95_ms"], eight["RichLog"]["lag_p95_ms"], Bar(at_most=20)),
        Metric("panes_lag_beside_log_p95_ms", eight["ours"]["lag_p95_ms"], eight["Log"]["lag_p95_ms"]),
        Metric("panes_lines_per_s", eight["ours"]["lines_per_s"], eight["RichLog"]["lines_per_s"]),
        Metric("panes_lines_beside_log_per_s", eight["ours"]["lines_per_s"], eight["Log"]["lines_per_s"]),
        Metric("grid_mount_ms", grid["mount_ms"], table["mount_ms"], Bar(at_most=80)),
        Metric("grid_update_ms", grid["update_ms"], table["update_ms"], Bar(at_most=5)),
        Metric("charts_mount_ms", charted["mount_ms"]),
        Metric("charts_update_ms", charted["update_ms"], None, Bar(at_most=8)),
        Metric("charts_update_p95_ms", charted["update_p95_ms"]),
        Metric("filter_first_page_ms", million["page_ms"], None, Bar(at_most=150)),
        Metric("filter_all_hits_s", million["all_s"]),
        Metric("memory_mb", memory["mb"], None, Bar(at_most=200)),
        Metric("memory_lines_per_s", memory["lines_per_s"]),
        Metric("find_in_1_gb_first_page_s", large["first_s"]),
        Metric("find_in_1_gb_all_s", large["all_s"]),
        Metric("find_in_1_gb_grown_mb", large["grown_mb"], None, Bar(at_most=150)),
        *(
            Metric(f"typed_{field}_ms", typed[field], typed["bare"], Bar(at_most=10, ratio_at_most=4))
            for field in LINES
        ),
    ]


# -- typing --------------------------------------------------------------------------------------------------


def typing() -> dict[str, float]:
    """Milliseconds of CPU per typed character in fields of the launch form, and in a bare Textual Input."""
    return {field: fresh("screens:typed", field)["ms"] for field in (*LINES, "bare")}


def typed(field: str) -> dict[str, float]:
    """Type a text into a field of the launch form, or into an Input of an app that has nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_typed(field, Path(folder)))


async def _typed(field: str, folder: Path) -> dict[str, float]:
    as_opened()
    from textual import events
    from textual.app import App
    from textual.widgets import Input, Select

    from skyward_tui.app.app import SkywardApp
    from skyward_tui.screens.launch import LaunchScreen
    from tests.support.fake_session import FakeSession
    from tests.support.launch_script import SCRIPT

    class Bare(App[None]):
        def compose(self) -> Iterator[Any]:
            yield Input()

    os.chdir(folder)
    Path("train.py").write_text(SCRIPT)
    app: Any = Bare() if field == "bare" else SkywardApp(FakeSession)
    async with app.run_test(size=SIZE) as pilot:
        if field != "bare":
            await until(lambda: app.session is not None)
            await app.push_screen(LaunchScreen())
            app.screen.query_one("#script", Input).value = "train.py"
            app.screen.query_one("#provider", Select).value = "ssh"
        await pilot.pause(1.0)
        line = app.screen.query(LINES.get(field, "Input")).first(Input)
        line.focus()
        line.action_end()
        await pilot.pause(1.0)
        before = time.process_time()
        for _ in range(TYPED):
            length = len(line.value)
            app.post_message(events.Key("a", "a"))
            await asyncio.sleep(TYPE_INTERVAL)
            await until(lambda length=length: len(line.value) == length + 1)  # type: ignore[misc]
        await asyncio.sleep(1.0)  # validation follows a pause
        return {"ms": (time.process_time() - before) / TYPED * 1000}


# -- 64 ranks that print -------------------------------------------------------------------------------------


def watched() -> dict[str, float]:
    """Measure the run screen on a real pool of 64 local ranks: one rank's log, then keys."""
    return asyncio.run(_watched())


async def _watched() -> dict[str, float]:
    as_opened()
    from skyward_core.client.launch.launch_plan import NICE
    from skyward_core.client.session import Session
    from skyward_core.model.specs import Options, PoolSpec, Worker
    from skyward_core.providers.local.provider import Local
    from skyward_tui.app.app import SkywardApp
    from skyward_tui.panels.log_pane import LogPane
    from skyward_tui.screens.run import RunScreen
    from tests.support.loaded_calls import build_task

    session = Session()
    spec = PoolSpec(
        name="bench-watch", provider=Local(), nodes=NODES, worker=Worker(ranks_per_node=PER_NODE),
        options=Options(console=False, nice=NICE),
    )  # fmt: skip
    pool = await asyncio.wrap_future(session.create(spec))
    try:
        app = SkywardApp(lambda: session)
        async with app.run_test(size=SIZE) as pilot:
            while app.session is None:
                await pilot.pause(0.01)
            with tempfile.TemporaryDirectory() as folder:
                script = Path(folder) / "talks.py"
                script.write_text(TALKS)
                task = build_task(script, "talks", {"each": EACH, "seconds": LOOKS + 25.0})
            run = await asyncio.wrap_future(session.launch(pool.key, task))
            await until(lambda: sum(len(ring.lines(0, 1)) for ring in list(pool.logs.ranks.values())) >= 64)
            await app.push_screen(RunScreen(pool.key, run.id))
            paints = Paints(app)
            await asyncio.sleep(1.5)
            pane = app.screen.query_one(LogPane)
            painted = [pane.window.ring]
            render = pane.render_lines

            def noted(crop: Any) -> Any:
                painted[0] = pane.window.ring
                return render(crop)

            pane.render_lines = noted  # type: ignore[method-assign]
            lags: list[float] = []
            seen = pane.window.end

            def look() -> None:
                nonlocal seen
                now, end = time.time(), pane._painted_rows[-1][0] + 1 if pane._painted_rows else 0
                lags.extend(
                    now - float(line.text.split()[0]) for line in pane.window.unfiltered(max(seen, end - 200), end)
                )
                seen = max(seen, end)

            paints.then = look
            before, began = time.process_time(), time.monotonic()
            there = sum(ring.end for ring in list(pool.logs.ranks.values()))
            await asyncio.sleep(LOOKS)
            taken = time.monotonic() - began
            share = 100 * (time.process_time() - before) / taken
            rate = (sum(ring.end for ring in list(pool.logs.ranks.values())) - there) / taken
            paints.then = None
            keys = []

            def press() -> None:
                app.simulate_key("right_square_bracket")

            for _ in range(KEYS):
                ring = painted[0]
                keys.append(await paints.after(press, lambda ring=ring: painted[0] is not ring))  # type: ignore[misc]
                await asyncio.sleep(0.07)
            await asyncio.wrap_future(session.cancel(pool.key, run.id))
        return {
            "key_p95_ms": p95([waited for waited, _ in keys]) * 1000,
            "key_core_p95_ms": p95([worked for _, worked in keys]) * 1000,
            "screen_p95_ms": p95(lags) * 1000, "core_percent": share,
            "lines_per_s": rate,
        }  # fmt: skip
    finally:
        await asyncio.wrap_future(session.tear_down(pool.key))
        await asyncio.to_thread(session.detach)


def log(name: str) -> dict[str, float]:
    """Measure one widget of Textual that gets the lines of all ranks, in an otherwise empty app."""
    return asyncio.run(_log(name))


async def _log(name: str) -> dict[str, float]:
    from textual.app import App

    class Bare(App[None]):
        def compose(self) -> Iterator[Any]:
            yield log_widget(name)

        def key_x(self) -> None:
            self.presses += 1
            self.query_one(f"#{name}-0").styles.padding = self.presses % 2

        presses = 0

    app = Bare()
    async with app.run_test(size=SIZE):
        paints, widget = Paints(app), app.query_one(f"#{name}-0")
        lags: list[float] = []
        times: list[float] = []
        paints.then = lambda: (lags.extend(time.time() - at for at in times), times.clear())  # type: ignore[func-returns-value]
        before, began, count = time.process_time(), time.monotonic(), 0
        while (passed := time.monotonic() - began) < LOOKS:
            due = int(passed * NODES * PER_NODE * EACH)
            for number in range(count, due):
                at = time.time()
                times.append(at)
                write(widget, f"{at:.6f} step {number} and what else a training loop says")
            count = due
            await asyncio.sleep(0.05)
        share = 100 * (time.process_time() - before) / (time.monotonic() - began)
        keys = []

        def press() -> None:
            app.simulate_key("x")

        for _ in range(KEYS):
            presses = app.presses
            keys.append(await paints.after(press, partial(differs, app, "presses", presses)))
            await asyncio.sleep(0.07)
        return {
            "key_p95_ms": p95([waited for waited, _ in keys]) * 1000,
            "key_core_p95_ms": p95([worked for _, worked in keys]) * 1000,
            "screen_p95_ms": p95(lags) * 1000, "core_percent": share,
            "lines_per_s": count / LOOKS,
        }  # fmt: skip


# -- logs side by side ---------------------------------------------------------------------------------------


def eight(name: str) -> dict[str, float]:
    """Measure the loop lag of an app with eight logs that get 50,000 lines per second each."""
    return asyncio.run(_eight(name))


async def _eight(name: str) -> dict[str, float]:
    if name == "ours":
        as_opened()
    from textual.app import App
    from textual.containers import Grid

    from skyward_core.views.log_buffers_and_rank_activity import LogRing
    from skyward_tui.app.app import SkywardApp
    from skyward_tui.panels.log_pane import LogPane
    from tests.support.fake_session import FakeSession

    class Eight(App[None]):
        CSS = "Grid { grid-size: 4 2; }"

        def compose(self) -> Iterator[Any]:
            with Grid():
                yield from (log_widget(name, number) for number in range(PANES))

    rings = [LogRing() for _ in range(PANES)]
    chunk = "".join(LINE.format(number, number) for number in range(FLOOD // 50)).encode()
    lines = chunk.decode().splitlines()
    lags: list[float] = []
    given = [0] * PANES
    ours = name == "ours"
    app: Any = SkywardApp(FakeSession) if ours else Eight()
    async with app.run_test(size=SIZE) as pilot:
        if ours:
            panes = [LogPane() for _ in range(PANES)]
            grid = Grid(*panes)
            grid.styles.grid_size_columns, grid.styles.grid_size_rows = 4, 2
            await app.screen.mount(grid)
            for pane, ring in zip(panes, rings, strict=True):
                pane.show(ring)
            app.screen.set_interval(1 / 15, lambda: [pane.repaint_if_changed() for pane in panes])
        else:
            widgets = [app.query_one(f"#{name}-{number}") for number in range(PANES)]
        await pilot.pause()
        over = threading.Event()
        if ours:
            thread = threading.Thread(target=_flood, args=(rings, chunk, given, over), daemon=True)
            thread.start()
        began = time.monotonic()
        due = began
        while (passed := time.monotonic() - began) < FLOODS:
            asked = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - asked - 0.005)
            if not ours and time.monotonic() >= due:
                due += 0.02
                for number, widget in enumerate(widgets):
                    write(widget, *lines)
                    given[number] += len(lines)
        over.set()
        if ours:
            thread.join()
        await pilot.pause()
        lost = sum(ring.end != number for ring, number in zip(rings, given, strict=True)) if ours else 0
    return {"lag_p95_ms": p95(lags) * 1000, "lines_per_s": sum(given) / passed, "lost": lost}


def _flood(rings: list[Any], chunk: bytes, given: list[int], over: threading.Event) -> None:
    """Add lines every 20 ms, like the session's thread does with data of nodes."""
    due, count = time.monotonic(), chunk.count(b"\n")
    while not over.is_set():
        for number, ring in enumerate(rings):
            ring.feed(chunk)
            given[number] += count
        due += 0.02
        time.sleep(max(0.0, due - time.monotonic()))


# -- 256 ranks ---------------------------------------------------------------------------------------------


def grid() -> dict[str, float]:
    """Measure the grid of a run's ranks: CPU time of the first paint, and of the changes of one second."""
    return asyncio.run(_grid())


async def _grid() -> dict[str, float]:
    from skyward_tui.app.app import SkywardApp
    from skyward_tui.panels.rank_states_and_heat_map import RankList
    from skyward_tui.text.rank_states_from_views import rank_states

    class Still(SkywardApp):
        @override
        def _refresh_screen(self) -> None:
            """Do nothing, so that no other part is painted."""

    session, view, run = _many()
    app = Still(lambda: session, clock=lambda: session.now)
    async with app.run_test(size=SIZE) as pilot:
        await until(lambda: app.session is not None)
        await pilot.pause(0.3)
        mounts, updates = [], []
        for _ in range(5):
            board = RankList()
            board.styles.height, board.styles.dock = 30, "top"
            began = time.process_time()
            board.update(rank_states(view, run, session.now))
            await app.screen.mount(board)
            await painted(app)
            mounts.append(time.process_time() - began)
            if board.mode != "grid":
                raise BenchError(f"the ranks are shown as {board.mode}")
            for second in range(10):
                _second(session, view, run, second)
                began = time.process_time()
                board.update(rank_states(view, run, session.now))
                await painted(app)
                updates.append(time.process_time() - began)
            await board.remove()
    return {"mount_ms": median(mounts) * 1000, "update_ms": median(updates) * 1000}


def charts() -> dict[str, float]:
    """Measure the charts of 256 ranks with 40 metrics each: CPU time of the first paint, and of each update."""
    return asyncio.run(_charts())


async def _charts() -> dict[str, float]:
    from skyward_tui.app.app import SkywardApp
    from skyward_tui.panels.rank_metrics import MetricsPane

    class Still(SkywardApp):
        @override
        def _refresh_screen(self) -> None:
            """Do nothing, so that no other part is painted."""

    session, view, run = _many()

    def second(number: int) -> None:
        session.now += 1
        values = {f"metric_{name}": (number * 31 + name) % 97 / (1 + name) for name in range(METRICS - 1)}
        for rank in range(MANY):
            of_rank = {"step": number, "loss": (1 + rank / MANY) / (number + 1), **values}
            view.metrics.add_values(run.id, rank, session.now, of_rank)

    for number in range(EARLIER):
        second(number)
    app = Still(lambda: session, clock=lambda: session.now)
    async with app.run_test(size=SIZE) as pilot:
        await until(lambda: app.session is not None)
        await pilot.pause(0.3)
        pane = MetricsPane()
        pane.styles.width, pane.styles.height, pane.styles.dock = 102, 23, "top"
        began = time.process_time()
        pane.update(view.metrics, run.id, 0)
        await app.screen.mount(pane)
        await painted(app)
        mount = time.process_time() - began
        updates = []
        for number in range(EARLIER, EARLIER + 10):
            second(number)
            for _ in range(UPDATES_PER_SECOND):
                pane._updated_at = 0.0
                began = time.process_time()
                pane.update(view.metrics, run.id, 0)
                await painted(app)
                updates.append(time.process_time() - began)
    return {"mount_ms": mount * 1000, "update_ms": median(updates) * 1000, "update_p95_ms": p95(updates) * 1000}


def data_table() -> dict[str, float]:
    """Measure the same ranks as cells of Textual's DataTable."""
    return asyncio.run(_data_table())


async def _data_table() -> dict[str, float]:
    from textual.app import App
    from textual.widgets import DataTable

    from skyward_tui.text.rank_states_from_views import rank_states

    session, view, run = _many()
    app: App[None] = App()
    across = 16
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(0.3)
        mounts, updates = [], []
        for _ in range(5):
            table: DataTable[str] = DataTable()
            began = time.process_time()
            states = [f"{state.rank} {state.state}" for state in rank_states(view, run, session.now)]
            await app.screen.mount(table)
            table.add_columns(*map(str, range(across)))
            table.add_rows(states[at : at + across] for at in range(0, MANY, across))
            await painted(app)
            mounts.append(time.process_time() - began)
            for second in range(10):
                _second(session, view, run, second)
                began = time.process_time()
                for at, state in enumerate(rank_states(view, run, session.now)):
                    text = f"{state.rank} {state.state} {second % 10}"
                    table.update_cell_at((at // across, at % across), text)  # type: ignore[arg-type]
                await painted(app)
                updates.append(time.process_time() - began)
            await table.remove()
    return {"mount_ms": median(mounts) * 1000, "update_ms": median(updates) * 1000}


def _many() -> tuple[FakeSession, PoolView, RunView]:
    from tests.support.fake_session import FakeSession

    session = FakeSession()
    view = session.pool("many", MANY // 8, 8)
    run = session.open_run(view)
    for second in range(20):
        _second(session, view, run, second)
    return session, view, run


def _second(session: FakeSession, view: PoolView, run: RunView, second: int) -> None:
    """Add the changes of one second: a line and some metrics of each rank."""
    session.now += 1
    for rank in range(MANY):
        session.print(view, rank, f"step {second} of rank {rank}\n")
        view.metrics.add_values(run.id, rank, session.now, {"step": second, "loss": 1 / (second + 1), "step_time": 0.9})


# -- long logs -----------------------------------------------------------------------------------------------


def million() -> dict[str, float]:
    """Measure a filter over a million stored lines: until the newest matches are shown, and until all are known."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_searched(Path(folder), MILLION, filters=True))


def large() -> dict[str, float]:
    """Measure a search in a log of 1 GB."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_searched(Path(folder), 0, filters=False))


async def _searched(folder: Path, lines: int, *, filters: bool) -> dict[str, float]:
    from skyward_core.client.run_history import StoredLines
    from skyward_core.store.run_log_reader import LogRange
    from skyward_core.views.log_buffers_and_rank_activity import LogRing
    from skyward_tui.app.app import SkywardApp
    from skyward_tui.panels.log_pane import LogPane
    from skyward_tui.panels.log_viewport_and_matching import Matcher
    from tests.support.fake_session import FakeSession

    as_opened()
    size = _written(folder / "r000.out", lines)
    ring = LogRing()
    with open(folder / "r000.out", "rb") as file:
        file.seek(max(0, size - 10_000 * 90))
        file.readline()
        ring.feed(file.read())
    app = SkywardApp(FakeSession)
    async with app.run_test(size=SIZE) as pilot:
        pane = LogPane()
        pane.styles.height, pane.styles.dock = 40, "top"
        await app.screen.mount(pane)
        parts = [LogRange("r000", (0, 0), (size, 0))]
        pane.show(ring, files=lambda: StoredLines(folder, parts, whole=True))
        await pilot.pause()
        before = resident_mb()
        if filters:
            pane._load_files()
            await until(lambda: not pane.is_reading)
        matcher = Matcher.parse("loss 0.(777|000123)")
        began, worked = time.perf_counter(), time.process_time()
        (pane.set_filter if filters else pane.set_search)(matcher)
        await painted(app)
        page = time.process_time() - worked
        most = 0.0

        def found() -> bool:
            nonlocal most
            most = max(most, resident_mb())
            return not pane.is_reading

        await until(found, 600.0)
        whole = time.perf_counter() - began
        hits = pane.window.filter if filters else pane.window.search
        if hits is None or not hits.numbers:
            raise BenchError("nothing was found")
    return {"page_ms": page * 1000, "first_s": page, "all_s": whole, "grown_mb": most - before}


def _written(path: Path, lines: int) -> int:
    size = number = 0
    with open(path, "wb") as file:
        while number < lines if lines else size < 1_000_000_000:
            text = "".join(LINE.format(each, each % 1_000_000) for each in range(number, number + 10_000)).encode()
            file.write(text)
            size, number = size + len(text), number + 10_000
    return size


def memory() -> dict[str, float]:
    """Measure the memory for ten million lines of 256 ranks, while the run screen shows one of them."""
    return asyncio.run(_memory())


async def _memory() -> dict[str, float]:
    from skyward_tui.app.app import SkywardApp
    from skyward_tui.screens.run import RunScreen

    session, view, run = _many()
    app = SkywardApp(lambda: session, clock=lambda: session.now)
    async with app.run_test(size=SIZE):
        await until(lambda: app.session is not None)
        await app.push_screen(RunScreen(view.key, run.id))
        each = 500
        chunk = "".join(LINE.format(number, number) for number in range(each))
        began = time.monotonic()

        def flood() -> None:
            for _ in range(GONE_BY // each // MANY):
                for rank in range(MANY):
                    session.print(view, rank, chunk)

        await asyncio.to_thread(flood)
        taken = time.monotonic() - began
        await asyncio.sleep(1.0)
        return {"mb": resident_mb(), "lines_per_s": GONE_BY / taken}
