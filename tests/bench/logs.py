"""Benchmark of eight ranks that print as fast as they can: lines per second into the views, lost lines, loop lag of the
app.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import TYPE_CHECKING, Any

from .fresh import BenchError, fresh, machine_cpu_s
from .metric import Bar, Metric

if TYPE_CHECKING:
    from skyward_core.client.session import Session
    from skyward_core.views.pool_view import PoolView, RunView

RANKS = 8
LINES = 100_000  # of each rank
POOL = "bench-logs"
SECONDS = 120.0
TICK = 0.005  # of the clock that feels the app's loop
SEARCHED_LINES_PER_S = 100_000  # of all ranks, in the search for metrics
SEARCHED_S = 4

FLOOD = """
import skyward_core as sky

@sky.function
def flood(lines: int) -> None:
    rank = sky.instance_info().rank
    for i in range(lines):
        print(f"rank {rank} step {i} loss {1 / (i + 1):.6f} and what else a training loop says")
"""


def measure() -> list[Metric]:
    into_views = fresh("logs:into_views")
    in_app = fresh("logs:in_app")
    search = fresh("logs:metric_search")["cpu_s_per_s"]
    path = into_views["cpu_us_per_line"] * SEARCHED_LINES_PER_S / 1e6
    return [
        Metric("lines_per_s", into_views["lines_per_s"], None, Bar(at_least=100_000)),
        Metric("ranks_with_loss", into_views["ranks_with_loss"], None, Bar(at_most=0)),
        Metric("with_app_lines_per_s", in_app["lines_per_s"], None, Bar(at_least=100_000)),
        Metric("with_app_ranks_with_loss", in_app["ranks_with_loss"], None, Bar(at_most=0)),
        Metric("app_loop_lag_p95_ms", in_app["lag_p95_ms"], None, Bar(at_most=20)),
        Metric("cpu_us_per_line", into_views["cpu_us_per_line"]),
        Metric("metric_search_percent_of_cpu", 100 * search / path, None, Bar(at_most=2)),
    ]


def into_views() -> dict[str, float]:
    """Measure without a screen, from the launch to the last line in the views."""
    from skyward_core.client.session import Session
    from skyward_core.providers.local.provider import Local

    session = Session()
    pool = session.create(_spec(Local(), RANKS)).result(SECONDS)
    try:
        return flood_figures(session, pool, RANKS, LINES)
    finally:
        session.tear_down(pool.name).result(SECONDS)
        session.detach()


class Flood:
    """Run that floods a pool with lines, and the check that each line arrived unchanged, once and in order."""

    def __init__(self, session: Session, pool: PoolView, ranks: int, lines: int) -> None:
        from tests.support.loaded_calls import build_task

        self._session, self._pool, self._ranks, self._lines = session, pool, ranks, lines
        self._seen = [hashlib.sha256() for _ in range(ranks)]
        self._next = [0] * ranks
        self._gaps = 0
        session.subscribe(pool.name, on_log=self._note).result(SECONDS)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "flood.py"
            script.write_text(FLOOD)
            self._task = build_task(script, "flood", {"lines": lines})

    def launch(self) -> RunView:
        """Start the run and the clock."""
        self._cpu = machine_cpu_s()
        self._began = perf_counter()
        self._deadline = self._began + SECONDS
        return self._session.launch(self._pool.name, self._task).result(SECONDS)

    @property
    def flows(self) -> bool:
        """Check whether lines are still arriving."""
        there = sum(self._pool.logs.rank(rank).end for rank in range(self._ranks))
        return there < self._ranks * self._lines and perf_counter() < self._deadline

    def figures(self) -> dict[str, float]:
        """Return ``lines_per_s``, ``cpu_us_per_line`` of the whole machine, and ``ranks_with_loss``: the number of
        ranks whose log in the views differs from their output.
        """
        taken = perf_counter() - self._began
        lines = self._ranks * self._lines
        cpu = (machine_cpu_s() - self._cpu) * 1e6 / lines
        wrong = sum(not self._is_whole(rank) for rank in range(self._ranks))
        return {"lines_per_s": lines / taken, "ranks_with_loss": wrong + self._gaps, "cpu_us_per_line": cpu}

    def _note(self, rank: int, stream: str, offset: int, data: bytes, run: str) -> None:
        if stream == "out":
            self._gaps += offset != self._next[rank]
            self._next[rank] = offset + len(data)
            self._seen[rank].update(data)

    def _is_whole(self, rank: int) -> bool:
        ring = self._pool.logs.rank(rank)
        printed = [_line(rank, i) for i in range(self._lines)]
        whole = hashlib.sha256("".join(f"{line}\n" for line in printed).encode()).digest()
        return (
            self._seen[rank].digest() == whole
            and ring.end == self._lines
            and ring.lines(ring.first, ring.end) == printed[ring.first :]
        )


def flood_figures(session: Session, pool: PoolView, ranks: int, lines: int) -> dict[str, float]:
    """Flood a running pool until all lines have arrived; see :meth:`Flood.figures`."""
    flood = Flood(session, pool, ranks, lines)
    flood.launch()
    while flood.flows:
        sleep(TICK)
    return flood.figures()


def metric_search() -> dict[str, float]:
    """Measure the processor time of the search for metrics in the output of all ranks, if each line has some."""
    from skyward_core.runtime.metric_logging import SCAN_INTERVAL, OutputScan

    each = int(SEARCHED_LINES_PER_S * SCAN_INTERVAL / RANKS)
    used = 0.0
    with tempfile.TemporaryDirectory() as folder:
        stems = [Path(folder, f"r{rank:03d}") for rank in range(RANKS)]
        for stem in stems:
            for ending in (".out", ".err"):
                stem.with_suffix(ending).touch()
        scans = [OutputScan(str(stem)) for stem in stems]
        for rank, scan in enumerate(scans):
            scan.start_call("run", rank)
        began, first = perf_counter(), int(1 / SCAN_INTERVAL)  # the first second loads the parser
        for turn in range(first + int(SEARCHED_S / SCAN_INTERVAL)):
            for stem in stems:
                with stem.with_suffix(".out").open("a") as file:
                    file.writelines(f"step {turn * each + i}: loss {1 / (i + 1):.6f}, lr 0.001\n" for i in range(each))
            sleep(max(0.0, began + (turn + 1) * SCAN_INTERVAL - perf_counter()))
            before = process_time()
            for scan in scans:
                scan.note_output()
                scan.search()
            used += process_time() - before if turn >= first else 0.0
    return {"cpu_s_per_s": used / SEARCHED_S}


def in_app() -> dict[str, float]:
    """Measure the same while the app shows the run, with the lag of its event loop."""
    return asyncio.run(_in_app())


async def _in_app() -> dict[str, float]:
    from skyward_core.client.launch.launch_plan import NICE
    from skyward_core.client.session import Session
    from skyward_core.providers.local.provider import Local
    from skyward_tui.app.app import SkywardApp
    from skyward_tui.screens.run import RunScreen

    session = Session()
    app = SkywardApp(lambda: session)
    async with app.run_test(size=(120, 40)) as pilot:
        deadline = perf_counter() + SECONDS
        while app.session is None:
            if perf_counter() > deadline:
                raise BenchError(f"the app got no session: {app.session_error}")
            await pilot.pause(TICK)
        pool = await asyncio.wrap_future(session.create(_spec(Local(), RANKS, nice=NICE)))
        try:
            flood = await asyncio.to_thread(Flood, session, pool, RANKS, LINES)
            run = await asyncio.to_thread(flood.launch)
            await app.push_screen(RunScreen(pool.name, run.id))
            lags: list[float] = []
            while flood.flows:
                asked = perf_counter()
                await asyncio.sleep(TICK)
                lags.append(perf_counter() - asked - TICK)
            figures = flood.figures()
        finally:
            await asyncio.wrap_future(session.tear_down(pool.name))
    lags.sort()
    return figures | {"lag_p95_ms": lags[int(len(lags) * 0.95)] * 1000}


def _spec(provider: Any, nodes: int, nice: int = 0) -> Any:
    from skyward_core.model.specs import Options, PoolSpec

    return PoolSpec(name=POOL, provider=provider, nodes=nodes, options=Options(console=False, nice=nice))


def _line(rank: int, i: int) -> str:
    return f"rank {rank} step {i} loss {1 / (i + 1):.6f} and what else a training loop says"
