"""What a launch comes to: the plan, the same as a command line, and as Python. All at once where there is room for it,
else one of them at a time."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import events
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from skyward_core.wire.safe_text import paragraph

from .chrome import Panel
from .earlier_runs import rows
from .saying import say

if TYPE_CHECKING:
    from skyward_core.front.past_runs import PastRun

VIEWS = ("plan", "command", "Python")
_HEADING = 9  # cells
_LEAST = 4  # rows for runs that were before
_MINUTE = 60.0  # seconds
_STYLES = {"cost": "bold", "note": "$text-warning", "preset": "$text-warning"}


class PlanPanel(Panel):
    """The panel beside the form.

    Args:
        key: the key that goes on to the next of :data:`VIEWS`, as a person reads it.
    """

    def __init__(self, key: str) -> None:
        self._why = Static(id="why")
        self._scroll = VerticalScroll(self._why, can_focus=False)
        super().__init__(self._scroll, id="plan")
        self._key = key
        self._view = 0
        self._told: Sequence[tuple[str, str]] = ()
        self._trouble = self._command = self._script = ""
        self._earlier: tuple[Sequence[PastRun], float] = ((), 0.0)
        self.fits = True  # whether all are shown at once
        self.border_title = VIEWS[0]

    def on_mount(self) -> None:
        self.watch(self._scroll, "show_vertical_scrollbar", self._tell_of_more, init=False)

    def show(self, told: Sequence[tuple[str, str]], *, trouble: str, command: str, script: str) -> None:
        """Show a launch.

        Args:
            told: the plan's rows, as (heading, text).
            trouble: what is wrong, where it is more than the form has room for.
            command, script: the same as a command line, and as Python; of what cannot be said so, "".
        """
        self._told, self._trouble, self._command, self._script = told, trouble, command, script
        self._paint()

    def show_earlier(self, runs: Sequence[PastRun], now: float) -> None:
        """Show how runs of the same went before, the newest first, where there is room below all else."""
        if (runs, now // _MINUTE) != (self._earlier[0], self._earlier[1] // _MINUTE):
            self._earlier = runs, now
            self._paint()

    def turn(self) -> None:
        """The next of the three."""
        self._view = (self._view + 1) % len(VIEWS)
        self._scroll.scroll_home(animate=False)
        self._paint()

    def page(self, pages: int) -> None:
        """Scroll what has no room."""
        (self._scroll.scroll_page_down if pages > 0 else self._scroll.scroll_page_up)(animate=False)

    def on_resize(self, event: events.Resize) -> None:
        self._paint()

    def _paint(self) -> None:
        width, height = self._scroll.size
        apart = "\n" if height >= 12 else ""  # where lines are few, none is empty
        command = _part("as a command", self._command)
        script = _part("as Python", self._script)
        plan = self._plan(max(20, width - _HEADING))
        whole = _joined([plan, command, script], apart)
        rows_taken = whole.get_height({}, max(1, width))
        self.fits = rows_taken <= height
        if self.fits:
            before = self._before(width, height - rows_taken)
            shown, title = _joined([whole, before], apart), Content(VIEWS[0])
        else:
            alone = [_part("", self._command), _part("", self._script)]
            shown = (_joined([plan, command], apart), *alone)[self._view]
            if not shown:
                shown = Content.styled("not before the form is complete", "$muted")
            title = Content(f"{VIEWS[self._view]} ({self._key}: {VIEWS[(self._view + 1) % len(VIEWS)]})")
        say(self._why, shown)
        self.retitle(title, self._more)

    def _before(self, width: int, room: int) -> Content:
        runs, now = self._earlier
        if room < _LEAST or not runs:
            return Content("")
        return Content("\n").join([Content.styled("before", "$muted"), *rows(runs[: room - 2], now, width)])

    _more = Content("")

    def _tell_of_more(self, more: bool) -> None:
        """No key goes to the plan by itself, as the fields have the focus."""
        self._more = Content("pgdn, pgup scroll" if more else "")
        self._paint()

    def _plan(self, room: int) -> Content:
        parts: list[tuple[str, str]] = []
        for heading, text in self._told:
            lines = ("\n" + " " * _HEADING).join(textwrap.wrap(text, room))
            parts += [(f"{heading:<{_HEADING}}", "$muted"), (f"{lines}\n", _STYLES.get(heading, ""))]
        if self._trouble:
            parts.append((f"{self._trouble}\n", "$text-error"))
        return Content.assemble(*parts)


def _part(heading: str, text: str) -> Content:
    if not text:
        return Content("")
    above = f"{heading}\n" if heading else ""
    return Content.assemble((above, "$muted"), (f"{paragraph(text).rstrip()}\n", "$text-accent"))


def _joined(parts: Sequence[Content], apart: str) -> Content:
    return Content(apart).join([part for part in parts if part])
