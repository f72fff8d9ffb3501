"""What was before a rank failed: its machine's figures over time, and what the rank printed last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content
from textual.widget import Widget

from skyward_core.model.outcome import Outcome
from skyward_core.views.last_figures import LATER
from skyward_core.views.machines import MachineView, Track, filled
from skyward_core.views.views import PoolView, RunView

from ..sgr import plain
from ..styles import beside
from ..words import clip
from .small_chart import curve

BEFORE = 600.0  # seconds that are drawn, at most
_ROWS, _ROWS_TALL, _TALL = 3, 5, 34  # of a curve, and in a panel that is so tall
_LEAST_LOG = 6  # rows below which curves give way to lines
_PERCENT = (0.0, 100.0)

Line = Sequence[tuple[float, float]]


class BeforeFailure(Widget, can_focus=False):
    """One rank's. What the views have not, is not shown."""

    DEFAULT_CSS = beside(__file__)

    def __init__(self) -> None:
        super().__init__()
        self._of: tuple[PoolView, RunView, Outcome] | None = None

    def show(self, pool: PoolView | None, run: RunView, outcome: Outcome) -> None:
        """Show what was before another failure."""
        self._of = None if pool is None else (pool, run, outcome)
        self.refresh()

    def render(self) -> Content:
        width, height = self.size
        if self._of is None or width < 1:
            return Content("")
        pool, run, outcome = self._of
        rows: list[Content] = []
        for name, line in _figures(pool, run, outcome):
            drawn = curve(line, width, _ROWS_TALL if height >= _TALL else _ROWS, part_of=_PERCENT)
            if drawn and height - len(rows) - len(drawn) - 1 >= _LEAST_LOG:
                rows += [Content.assemble((name, "$muted"), (f"  {line[-1][1]:.0f} %", "bold")), *drawn]
        printed = _printed(pool, run, outcome.rank, height - len(rows) - (2 if rows else 1))
        if printed:
            rows += [Content("")] if rows else []
            rows.append(Content.styled(f"last lines of rank {outcome.rank}", "$muted"))
            rows += [Content(clip(text, width)) for text in printed]
        room = height - len(rows) - (2 if rows else 1)
        if others := _of_all(pool, run, outcome.rank, room):
            rows += [Content("")] if rows else []
            rows.append(Content.styled("last lines of all ranks", "$muted"))
            rows += [Content(clip(text, width)) for text in others]
        if not rows:
            rows.append(Content.styled("its machine was not measured, and it printed nothing", "$muted"))
        return Content("\n").join(rows[:height])


def _figures(pool: PoolView, run: RunView, outcome: Outcome) -> Iterator[tuple[str, Line]]:
    machine = pool.machines.nodes.get(outcome.node) if pool.machines is not None else None
    if machine is None:
        return
    figures = run.figures.get(outcome.node)
    until = machine.host.latest_at if figures is None else figures.failed_at + LATER
    for name, line in _lines(outcome.node, machine):
        if near := [(at, value) for at, value in line if until - BEFORE <= at <= until]:
            yield name, near


def _lines(node: int, machine: MachineView) -> Iterator[tuple[str, Line]]:
    yield f"memory of n{node}", _part(machine.host, "memory_used", "memory_total")
    if machine.gpus:
        number, fullest = max(enumerate(machine.gpus), key=lambda each: filled(each[1].latest))
        yield f"memory of its GPU {number}", _part(fullest, "mem_used", "mem_total")
        yield f"use of its GPU {number}", _points(fullest, "util")
    yield f"processors of n{node}", _points(machine.host, "cpu")


def _points(track: Track, name: str) -> Line:
    return list(zip(*track.trace(name), strict=True))


def _part(track: Track, used: str, whole: str) -> Line:
    total = track.latest.get(whole)
    return [(at, 100 * value / total) for at, value in _points(track, used)] if total else []


def _printed(pool: PoolView, run: RunView, rank: int, most: int) -> list[str]:
    ring = pool.logs.of(run.id).ranks.get(rank) if pool.logs.has(run.id) else None
    if ring is None or most <= 0:
        return []
    return [plain(text).rstrip() for text in ring.last(most)]


def _of_all(pool: PoolView, run: RunView, rank: int, most: int) -> list[str]:
    """What ranks printed last, where one of them has left room for what others did."""
    if most <= 0 or not pool.logs.has(run.id):
        return []
    book = pool.logs.of(run.id)
    if not any(ring.end for other, ring in list(book.ranks.items()) if other != rank):
        return []
    ring = book.merged
    return [plain(text).rstrip() for text in ring.lines(max(ring.first, ring.end - most), ring.end)]
