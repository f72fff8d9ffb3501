"""What the ranks gave back."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content

from skyward_core.views.views import PoolView, RunView

from ..widgets.rank_state import FAILURES
from ..widgets.results import ResultsPane
from .base import Chosen, RunPanel, Saved
from .table import Row


class ResultsPanel(RunPanel):
    """The results, with how many there are and how many ranks have failed."""

    def __init__(self, row: Row, show: Callable[[], None]) -> None:
        pane = ResultsPane(id=row.id)
        super().__init__(row, show, pane)
        self._pane = pane

    def look(self, pool: PoolView, run: RunView | None, now: float, chosen: Chosen) -> bool:
        changed = self._pane.update(run)
        if changed and run is not None:
            failed = sum(run.counts.get(kind, 0) for kind in FAILURES)
            parts: list[tuple[str, str]] = [(f"{self.heading}  {run.ended:,}/{run.total:,}", "")]
            if failed:
                parts.append((f"  ✗ {failed}, e shows why", "$text-error"))
            self.retitle(Content.assemble(*parts))
        return changed

    def copied(self) -> tuple[str, str] | None:
        from ..saving import results_text

        return None if self._pane.run is None else (results_text(self._pane.run), "results")

    async def saved(self, run: RunView | None, chosen: Chosen) -> Saved:
        from ..saving import results_csv, results_json

        if run is None:
            return Saved({})
        return Saved({"results.json": [results_json(run)], "results.csv": [results_csv(run)]})
