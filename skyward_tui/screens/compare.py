"""Two runs side by side: what they were launched with, how they went, what they logged and gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.content import Content

from skyward_core.model.errors import SkywardError

from ..actions import bindings
from ..app_face import settled
from ..compared import lines_of
from ..hints import words_of
from ..styles import beside
from ..widgets.chrome import Crumbs, Panel
from ..widgets.comparison import LEFT, RIGHT, STYLES, ComparedList, TwoCurves
from ..widgets.results import task_note
from ..words import number
from .base import BaseScreen

if TYPE_CHECKING:
    from skyward_core.front.comparing import Comparison


class CompareScreen(BaseScreen[None]):
    """Reads both as it opens.

    Args:
        left, right: ids of the runs.
    """

    SCOPE = "compare"
    BINDINGS = bindings("compare")
    DEFAULT_CSS = beside(__file__)

    def __init__(self, left: str, right: str) -> None:
        super().__init__()
        self._ids = left, right
        self._found: Comparison | None = None

    def body(self) -> ComposeResult:
        rows = Panel(ComparedList(), id="both")
        rows.border_title = "two runs"
        yield rows
        curves = Panel(TwoCurves(), id="chart")
        curves.border_title = "numbers"
        yield curves

    def on_mount(self) -> None:
        self.query_one(ComparedList).focus()
        self._read()
        self.pulse(self.app.clock())

    def pulse(self, now: float) -> None:
        runs = [
            Content.styled(f"━ {run}", f"bold {STYLES[who]}")
            for who, run in zip((LEFT, RIGHT), self._ids, strict=True)
        ]
        self.query_one(Crumbs).show(["pools", "history", "compare"], runs)
        super().pulse(now)

    @work(group="compare", exclusive=True)
    async def _read(self) -> None:
        session = self.app.session
        if session is None:
            return self.flash(self.app.session_error or "the ledger is not read yet", "error")
        try:
            self._found = await settled(session.compare(*self._ids))
        except (SkywardError, OSError) as error:
            return self.flash(words_of(error), "error")
        if self.is_attached:
            self._show()
        return None

    def _show(self) -> None:
        found = self._found
        if found is None:
            return
        listed = self.query_one(ComparedList)
        names = [row.name for row in found.numbers()]
        listed.update(list(lines_of(found, self.app.clock(), task_note)), names)
        name = listed.name_shown
        left, right = found.left.curve(name), found.right.curve(name)
        # No curve is told from the other by its colour alone.
        ends = [
            f"{run} ends at {number(curve[-1][1])}"
            for run, curve in zip(self._ids, (left, right), strict=True)
            if curve
        ]
        title = f"{name}, median of ranks: {', '.join(ends)}" if ends else name or "numbers"
        self.query_one("#chart", Panel).border_title = title
        note = "neither has logged numbers" if not names else "no numbers of these are kept here any more"
        self.query_one(TwoCurves).show(left, right, note)

    def action_number(self, steps: int) -> None:
        self.query_one(ComparedList).choose(steps)
        self._show()

    def action_copy(self) -> None:
        if self._found is None:
            return
        lines = lines_of(self._found, self.app.clock(), task_note)
        self.app.copy(
            "\n".join("\t".join((line.name, line.left, line.right)) for line in lines), "comparison"
        )

    def action_back(self) -> None:
        self.dismiss(None)
