"""Timing of paints and CPU time of an app under measurement, and equivalent apps with the peers' widgets."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .fresh import BenchError

SECONDS = 120.0


class Paints:
    """Recorder of an app's paints.

    Attributes:
        then: Called after each paint; None for nothing.
    """

    def __init__(self, app: Any) -> None:
        self.then: Callable[[], object] | None = None
        self._waits: list[asyncio.Event] = []
        display = app._display

        def noted(*about: Any) -> None:
            display(*about)
            if self.then is not None:
                self.then()
            for event in self._waits:
                event.set()

        app._display = noted

    async def after(self, press: Callable[[], Any], done: Callable[[], bool]) -> tuple[float, float]:
        """Press a key. Return the seconds until its change is painted, and the CPU seconds of the app's loop."""
        began, worked = time.perf_counter(), time.thread_time()
        painted = asyncio.Event()
        self._waits.append(painted)
        try:
            press()
            while True:
                painted.clear()
                await asyncio.wait_for(painted.wait(), SECONDS)
                if done():
                    return time.perf_counter() - began, time.thread_time() - worked
        finally:
            self._waits.remove(painted)


def as_opened() -> None:
    """Prepare the app in this process like the command does."""
    from skyward_tui.app import defer_collection, freeze_imports

    with freeze_imports():
        import skyward_tui.app.app
        import skyward_tui.screens.home_runs_and_pools  # noqa: F401
    defer_collection()


async def painted(app: Any) -> None:
    """Wait until the screen shows everything that was requested."""
    await asyncio.sleep(0)
    done = asyncio.Event()
    app.screen.call_after_refresh(done.set)
    await asyncio.wait_for(done.wait(), SECONDS)
    app.screen._on_timer_update()


async def until(true: Callable[[], bool], seconds: float = SECONDS) -> None:
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() > ends:
            raise BenchError("it has not come to that")
        await asyncio.sleep(0.01)


def differs(thing: Any, name: str, value: object) -> bool:
    return bool(getattr(thing, name) != value)


def log_widget(name: str, number: int = 0) -> Any:
    from textual.widgets import Log, RichLog

    kind: Any = {"RichLog": RichLog, "Log": Log}[name]
    return kind(max_lines=10_000, id=f"{name}-{number}")


def write(widget: Any, *lines: str) -> None:
    from textual.widgets import Log

    if isinstance(widget, Log):
        widget.write_lines(lines)
    else:
        for line in lines:
            widget.write(line)


def p95(values: list[float]) -> float:
    if not values:
        raise BenchError("nothing was painted")
    return sorted(values)[int(len(values) * 0.95)]


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def resident_mb() -> float:
    pages = re.match(r"\d+ (\d+)", Path("/proc/self/statm").read_text())
    return int(pages[1]) * 4096 / 1e6 if pages else 0.0
