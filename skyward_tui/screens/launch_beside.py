"""What the launch form shows in room that its fields leave: the code that is to run, and how it went before; while no
script is named, what a launch can begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from skyward_core.front.past_runs import RunSearch
from skyward_core.model.errors import SkywardError

from ..actions import first_key
from ..app_face import settled
from ..launch_form import is_job
from ..packaged import named
from ..recent import recent
from ..widgets.earlier_runs import earlier
from ..widgets.plan_panel import PlanPanel
from ..widgets.script_code import ScriptCode
from .launch_starts import StartList

if TYPE_CHECKING:
    from skyward_core.front.past_runs import PastRun
    from skyward_core.front.scripts import FunctionInfo

    from ..launch_form import Form
    from .base import BaseScreen

_GAP = 1  # row above the code
_LEAST = 8  # rows of code that are worth their heading
_LEAST_STARTS = 3  # rows of what one can begin with


class LaunchBeside:
    """Reads the ledger once.

    Args:
        screen: the form's.
        fill: has its fields say what an earlier launch said.
    """

    def __init__(self, screen: BaseScreen[None], fill: Callable[[Form], None]) -> None:
        self._screen, self._fill = screen, fill
        self._starts: StartList | None = None
        self._runs: list[PastRun] = []
        self._form: Form | None = None
        self._is_read = self._asked = False
        self.code = ScriptCode(id="code")

    def look(self, form: Form, script: Path, called: FunctionInfo | None) -> None:
        """Show those of what the form says.

        Args:
            script: the file; none where it cannot be read.
            called: None for the whole of it.
        """
        self._form = form
        shown = script != Path() and not is_job(form.script)
        self._is_read = shown and self.code.show(script, 1 if called is None else called.line)
        place = script.name if called is None else f"{called.name}  {script.name}:{called.line}"
        self.code.border_title = f" {place} "
        self._offer(form)
        self.share()
        self._show_runs()
        if not self._asked and self._screen.app.session is not None:
            self._asked = True
            self._screen.run_worker(self._read(), group="before")

    def share(self) -> None:
        """Give the code what rows the fields leave."""
        form, fields, last = (
            self._screen.query_one(f"#{name}", Widget) for name in ("form", "fields", "last")
        )
        room = form.content_size.height - fields.virtual_size.height - last.outer_size.height - _GAP
        narrow = self._screen.has_class("-narrow")
        there = self._is_read and room >= _LEAST and not narrow
        if self.code.display != there:
            self.code.display = there
        if self._starts is not None:
            self._starts.display = narrow or room >= _LEAST_STARTS

    def _offer(self, form: Form) -> None:
        """Have a list of what one can begin with for as long as no script is named."""
        where = "#plan" if self._screen.has_class("-narrow") else "#form"
        parent, there = self._screen.query_one(where, Widget), self._starts
        wanted = not form.script.strip()
        if there is not None and not (wanted and there.parent is parent):
            there.remove()
            self._starts = there = None
        if wanted and there is None:
            self._starts = StartList(recent(), self._begin_with)
            key = first_key("launch.previous", self._screen.app.keys)
            self._starts.border_title = Content.assemble("begin with", f"  {key} goes there")
            parent.mount(self._starts)

    def _begin_with(self, start: Form | Path) -> None:
        if isinstance(start, Path):
            self._screen.query_one("#script", Input).value = named(str(start))
        else:
            self._fill(start)
        self._screen.query_one("#arguments").focus()

    def _show_runs(self) -> None:
        form = self._form
        if form is not None:
            function = "" if form.whole else form.function
            found = earlier(self._runs, Path(form.script).name, function)
            self._screen.query_one(PlanPanel).show_earlier(found, self._screen.app.clock())

    async def _read(self) -> None:
        session = self._screen.app.session
        if session is None:
            return
        try:
            self._runs = await settled(session.past_runs(RunSearch()))
        except (SkywardError, OSError):
            return  # the list of past runs says why
        if self._screen.is_attached and self._screen.display:
            self._show_runs()
