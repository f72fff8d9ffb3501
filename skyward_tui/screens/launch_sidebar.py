"""Sidebar of the launch form: plan, equivalent command line and script, source code, recent launches, earlier runs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from textual import events, on, work
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from skyward_core.client.run_history import PastRun, RunSearch
from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import sanitize_line, sanitize_paragraph
from skyward_tui.launch_form.form import Form, example_paths, is_job, script_argument
from skyward_tui.launch_form.recent_launches import (
    MAX_SHOWN,
    example_row,
    missing_packages,
    recent_forms,
    recent_row,
)
from skyward_tui.shutdown_and_daemon_threads import run_in_daemon_thread
from skyward_tui.text.number_time_and_run_state_format import ago, duration
from skyward_tui.text.state_styles import state_style
from skyward_tui.text.text_width_tables_and_ascii import clip, one_line
from skyward_tui.ui.actions import first_key
from skyward_tui.ui.session_futures import wait_shielded
from skyward_tui.widgets.form_fields import OptionRows, update_label
from skyward_tui.widgets.screen_frame_and_replay_line import Panel
from skyward_tui.widgets.source_view import ScriptCode

if TYPE_CHECKING:
    from skyward_core.client.launch.plugin_and_provider_catalog import FunctionInfo
    from skyward_tui.screens.base_screen import BaseScreen


class StartList(OptionRows):
    """List of recent launches, scripts of the working folder and packaged examples.

    Args:
        recent: Recent launches, newest first.
        picked: Called with the chosen launch, or with the path of the chosen script.
        scripts: Rows of the scripts of the working folder, by path.
    """

    def __init__(
        self,
        recent: Sequence[Form],
        picked: Callable[[Form | Path], None],
        scripts: Mapping[Path, Content] = MappingProxyType({}),
    ) -> None:
        super().__init__(id="starts", compact=True)
        self._picked, self._scripts = picked, scripts
        self._starts: list[Form | Path] = [*recent[:MAX_SHOWN], *scripts, *example_paths()]

    def on_mount(self) -> None:
        before = ""
        for place, start in enumerate(self._starts):
            if isinstance(start, Path):
                is_example = start not in self._scripts
                heading = "packaged examples" if is_example else "scripts of this folder"
                row = example_row(start) if is_example else self._scripts[start]
            else:
                heading, row = "recent launches", recent_row(start)
            if heading != before:
                self.add_option(Option(Content.styled(heading, "$muted"), disabled=True))
            before, path = heading, str(start) if isinstance(start, Path) else start.script
            self.add_option(Option(row, id=str(place), disabled=path != sanitize_line(path)))
        self._check_packages()

    @work
    async def _check_packages(self) -> None:
        """Add the missing packages to the examples. The check may start a slow Python."""
        missing = await run_in_daemon_thread(missing_packages)
        for place, start in enumerate(self._starts):
            if self.is_attached and isinstance(start, Path) and missing.get(start):
                self.replace_option_prompt(str(place), example_row(start, missing[start]))

    def on_focus(self) -> None:
        if self.highlighted is None:
            self.action_first()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._picked(self._starts[int(event.option_id or "0")])


def earlier_runs(runs: Sequence[PastRun], script: str, function: str) -> list[PastRun]:
    """Return the runs of a script's function, in the given order. The function "" stands for the whole script. Without
    a script, return the runs of all scripts.
    """
    return [run for run in runs if run.run and (not script or (run.script == script and run.function == function))]


def earlier_run_rows(runs: Sequence[PastRun], now: float, width: int, *, with_scripts: bool) -> list[Content]:
    """Return one line of text for each earlier run, optionally with the name of its script."""
    rows = []
    for run in runs:
        mark = state_style(run.state)
        when, lasted = ago(now - run.opened_at), duration(run.seconds(now))
        head = f"{mark.text:<12}", mark.style
        facts = f"{lasted:>8}  {when:>8}  ", "$muted"
        name = f"{one_line(run.script or run.function)}  " if with_scripts else ""
        note = clip(f"{name}{one_line(run.note)}", max(0, width - 32))
        rows.append(Content.assemble(head, facts, (note, "$text-error" if run.error else "")))
    return rows


VIEWS = ("plan", "command", "Python")
_HEADING = 9  # width in cells of the headings of the plan's rows
_LEAST_ROWS = 4  # minimum rows that must be free to show earlier runs below the plan
_MINUTE = 60.0  # seconds between updates of the displayed ages of runs
_STYLES = {"cost": "bold", "note": "$text-warning", "preset": "$text-warning"}


class PlanPanel(Panel):
    """Panel beside the form, with the views plan, command line and Python script.

    Args:
        key: Displayed name of the key that switches between the :data:`VIEWS`.
    """

    def __init__(self, key: str) -> None:
        self._text = Static(id="why")
        self._scroll = VerticalScroll(self._text, can_focus=False)
        super().__init__(self._scroll, id="plan")
        self._key = key
        self._view = 0
        self._plan_rows: Sequence[tuple[str, str]] = ()
        self._trouble = self._command = self._script = ""
        self._earlier: tuple[Sequence[PastRun], float, bool] = ((), 0.0, False)
        self.fits = True  # whether plan, command line and Python script all fit into the panel
        self.border_title = VIEWS[0]

    def on_mount(self) -> None:
        self.watch(self._scroll, "show_vertical_scrollbar", self._paint, init=False)

    def show(self, rows: Sequence[tuple[str, str]], *, trouble: str, command: str, script: str) -> None:
        """Show plan, command line and script of a launch.

        Args:
            rows: Rows of the plan, as (heading, text).
            trouble: Error that is too long for the form; "" if there is none.
            command: Equivalent command line.
            script: Equivalent Python script; "" if there is none.
        """
        self._plan_rows, self._trouble, self._command, self._script = rows, trouble, command, script
        self._paint()

    def show_earlier(self, runs: Sequence[PastRun], now: float, *, with_scripts: bool) -> None:
        """Show earlier runs below the plan, newest first, if they fit, optionally with the names of their scripts."""
        before, at, named = self._earlier
        if (runs, now // _MINUTE, with_scripts) != (before, at // _MINUTE, named):
            self._earlier = runs, now, with_scripts
            self._paint()

    def show_next(self) -> None:
        """Switch to the next view: plan, command line or Python script."""
        self._view = (self._view + 1) % len(VIEWS)
        self._scroll.scroll_home(animate=False)
        self._paint()

    def page(self, pages: int) -> None:
        """Scroll the plan by a number of pages."""
        (self._scroll.scroll_page_down if pages > 0 else self._scroll.scroll_page_up)(animate=False)

    @on(events.Resize)
    def _paint(self) -> None:
        width, height = self._scroll.size
        apart = "\n" if height >= 12 else ""  # a low panel shows no blank lines between the views
        command = _part("as a command", self._command)
        script = _part("as Python", self._script)
        plan = self._plan(max(20, width - _HEADING))
        whole = _joined([plan, command, script], apart)
        rows_taken = whole.get_height({}, max(1, width))
        self.fits = rows_taken <= height
        if self.fits:
            previous = self._earlier_runs(width, height - rows_taken)
            shown, title = _joined([whole, previous], apart), Content(VIEWS[0])
        else:
            alone = [_part("", self._command), _part("", self._script)]
            shown = (_joined([plan, command], apart), *alone)[self._view]
            if not shown:
                shown = Content.styled("complete the form to see the plan", "$muted")
            title = Content(f"{VIEWS[self._view]} ({self._key}: {VIEWS[(self._view + 1) % len(VIEWS)]})")
        update_label(self._text, shown)
        self.set_titles(title, Content("pgdn, pgup: scroll" if self._scroll.show_vertical_scrollbar else ""))

    def _earlier_runs(self, width: int, room: int) -> Content:
        runs, now, with_scripts = self._earlier
        if room < _LEAST_ROWS or not runs:
            return Content("")
        heading = Content.styled("previous runs", "$muted")
        return Content("\n").join([heading, *earlier_run_rows(runs[: room - 2], now, width, with_scripts=with_scripts)])

    def _plan(self, room: int) -> Content:
        parts: list[tuple[str, str]] = []
        for heading, text in self._plan_rows:
            lines = ("\n" + " " * _HEADING).join(textwrap.wrap(text, room))
            parts += [(f"{heading:<{_HEADING}}", "$muted"), (f"{lines}\n", _STYLES.get(heading, ""))]
        if self._trouble:
            parts.append((f"{self._trouble}\n", "$text-error"))
        return Content.assemble(*parts)


def _part(heading: str, text: str) -> Content:
    if not text:
        return Content("")
    above = f"{heading}\n" if heading else ""
    return Content.assemble((above, "$muted"), (f"{sanitize_paragraph(text).rstrip()}\n", "$text-accent"))


def _joined(parts: Sequence[Content], apart: str) -> Content:
    return Content(apart).join([part for part in parts if part])


_GAP = 1  # number of blank rows above the source code
_LEAST = 8  # minimum rows for the source code; if they are not free, the code is hidden
_LEAST_STARTS = 3  # minimum rows for the list of recent launches and examples


class LaunchSidebar:
    """Controller of the code, the recent launches and the earlier runs beside the form. Reads the ledger once.

    Args:
        screen: Screen of the form.
        fill: Fills the form with a recent launch.
    """

    def __init__(self, screen: BaseScreen[None], fill: Callable[[Form], None]) -> None:
        self._screen, self._fill = screen, fill
        self._starts: StartList | None = None
        self._runs: list[PastRun] = []
        self._form: Form | None = None
        self._is_read = self._has_loaded = False
        self.code = ScriptCode(id="code")

    def update(self, form: Form, script: Path, called: FunctionInfo | None) -> None:
        """Show the code and the earlier runs for the current form.

        Args:
            script: The file; ``Path()`` if it cannot be read.
            called: The function; None for the whole script.
        """
        self._form = form
        is_python = script != Path() and not is_job(form.script)
        self._is_read = is_python and self.code.show(script, 1 if called is None else called.line)
        place = script.name if called is None else f"{called.name}  {script.name}:{called.line}"
        self.code.border_title = f" {place} "
        self._show_starts(form)
        self.fit_code()
        self._show_runs()
        if not self._has_loaded and self._screen.app.session is not None:
            self._has_loaded = True
            self._screen.run_worker(self._load_runs(), group="before")

    def fit_code(self) -> None:
        """Show the code if the fields leave enough rows, and mark a form without a script for the style sheet."""
        form, fields, last = (self._screen.query_one(f"#{name}", Widget) for name in ("form", "fields", "last"))
        room = form.content_size.height - fields.virtual_size.height - last.outer_size.height - _GAP
        narrow = self._screen.has_class("-narrow")
        self._screen.query("#form, #plan").set_class(self._starts is not None, "-empty")
        self.code.display = self._is_read and room >= _LEAST and not narrow
        if self._starts is not None:
            self._starts.display = narrow or room >= _LEAST_STARTS

    def _show_starts(self, form: Form) -> None:
        """Show recent launches and examples until the form has a script."""
        parent = self._screen.query_one("#sides" if self._screen.has_class("-narrow") else "#form", Widget)
        is_needed = not form.script.strip()
        if self._starts is not None and not (is_needed and self._starts.parent is parent):
            self._starts.remove()
            self._starts = None
        if is_needed and self._starts is None:
            self._starts = StartList(recent_forms(), self._fill_from_start)
            key = first_key("launch.previous", self._screen.app.keys)
            self._starts.border_title = Content(f"recent launches and examples ({key})")
            parent.mount(self._starts)

    def _fill_from_start(self, start: Form | Path) -> None:
        if isinstance(start, Path):
            self._screen.query_one("#script", Input).value = script_argument(str(start))
        else:
            self._fill(start)
        self._screen.query_one("#arguments").focus()

    def _show_runs(self) -> None:
        if (form := self._form) is not None:
            runs = earlier_runs(self._runs, Path(form.script).name, "" if form.whole else form.function)
            plan, now = self._screen.query_one(PlanPanel), self._screen.app.clock()
            plan.show_earlier(runs, now, with_scripts=not form.script.strip())

    async def _load_runs(self) -> None:
        try:
            self._runs = await wait_shielded(self._screen.app.required_session.past_runs(RunSearch()))
        except (SkywardError, OSError):
            return  # no error here, because the history screen reports the same error
        if self._screen.has_widgets:
            self._show_runs()
