"""The runs of late, a line each, below the list of pools: what a start of the app begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from ..theme import look
from ..words import ago, clip, duration, fit, one_line

if TYPE_CHECKING:
    from skyward_core.front.past_runs import PastRun

MINUTE = 60.0  # seconds
_FUNCTION, _POOL = 14, 14  # cells


class RecentRuns(Widget, can_focus=False):
    """As many as there is room for; their own screen has all."""

    def __init__(self) -> None:
        super().__init__()
        self._runs: Sequence[PastRun] = ()
        self._now = 0.0

    def update(self, runs: Sequence[PastRun], now: float) -> None:
        """Show these, newest first."""
        beat = 1.0 if any(run.ended_at is None for run in runs[: self.size.height]) else MINUTE
        if runs is not self._runs or now // beat != self._now // beat:
            self._runs, self._now = runs, now
            self.refresh()

    def render(self) -> Content:
        width, height = self.size
        return Content("\n").join(self._row(run, width) for run in self._runs[:height])

    def _row(self, run: PastRun, width: int) -> Content:
        mark = look(run.state)
        parts = [
            (f"  {mark.text:<12}", "$muted" if run.state == "done" else mark.style),
            (f"{fit(run.function, _FUNCTION)} ", ""),
            (fit(run.pool, _POOL), "$muted"),
            (f"{duration(run.seconds(self._now)):>8}", ""),
            (f"  {ago(self._now - run.opened_at):>8}  ", "$muted"),
        ]
        room = width - sum(cell_len(text) for text, _ in parts)
        return Content.assemble(
            *parts, (clip(one_line(run.note), max(0, room)), "$text-error" if run.error else "$muted")
        )
