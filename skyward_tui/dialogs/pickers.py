"""Pickers of accelerators, files, Python interpreters, presets, themes, keys and dashboards."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rich.cells import cell_len
from textual import events, on, work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from skyward_core import accelerators
from skyward_core.client.launch.plugin_and_provider_catalog import (
    InterpreterOption,
    UnusablePython,
    choose_interpreter,
    list_interpreters,
    read_python,
)
from skyward_core.model.errors import SkywardError
from skyward_core.model.offers_and_rental_plans import OfferList
from skyward_core.util.safe_file_access import expand_user, is_dir, is_file, list_entries, resolve_path
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.dialogs.basic_dialogs import ChoiceScreen, Dialog
from skyward_tui.launch_form.form import Form, example_paths, relative_path
from skyward_tui.launch_form.recent_launches import MAX_SHOWN, example_row, missing_packages, recent_row
from skyward_tui.shutdown_and_daemon_threads import run_in_daemon_thread
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.hardware_and_offer_cells import OFFERS_HEAD, OfferRow, offer_rows
from skyward_tui.text.text_width_tables_and_ascii import fit_width, one_line
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.session_futures import flash_errors, wait_shielded
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.form_fields import OptionRows
from skyward_tui.widgets.screen_frame_and_replay_line import TextLine

if TYPE_CHECKING:
    from skyward_core.client.launch.presets import Preset
    from skyward_core.views.pool_view import PoolView
    from skyward_tui.app import SkywardApp


class Picker(Dialog[str | None]):
    """Base class of pickers, which return the picked value, or None.

    The input has the focus, and the arrow keys move the list's cursor.

    Attributes:
        ENTER: Description of the enter key in the hint.
        PLACEHOLDER: Text of the empty input.
        folder: Folder to which typed paths are relative; None if paths are not accepted.
    """

    ENTER: ClassVar[str]
    PLACEHOLDER: ClassVar[str]
    folder: Path | None = None
    BINDINGS = bindings("files")
    DEFAULT_CSS = read_style_sheet(__file__, "picker")

    def body(self) -> ComposeResult:
        yield TextLine(placeholder=self.PLACEHOLDER, compact=True)
        yield OptionRows(compact=True)

    def hint(self) -> str:
        return f"enter: {self.ENTER}, type to filter, {self.key_of('files.back')}: back"

    def __init__(self) -> None:
        super().__init__()
        # values of the selectable options; the ID of an option is an index in this list
        self._values: list[Any] = []

    def on_mount(self) -> None:
        self.fill("")

    def fill(self, typed: str) -> None:
        """List the options that match the typed text."""
        self._values.clear()
        self._listed.clear_options()
        self.list_options(typed.strip())
        self._listed.action_first()

    def refill(self) -> None:
        """List the options again, for example because new ones were found. Does nothing while the dialog is being
        closed.
        """
        if self.has_widgets:
            self.fill(self.query_one(Input).value)

    def list_options(self, typed: str) -> None:
        """Add the options that match the typed text."""
        raise NotImplementedError

    def accept(self, value: Any) -> None:
        """Close the picker with the picked value. Subclasses may open a folder instead."""
        self.dismiss(value)

    @property
    def _listed(self) -> OptionList:
        return self.query_one(OptionList)

    def add(self, value: Any, row: Content, *, disabled: bool = False) -> None:
        """Add an option for a value to the list."""
        self._listed.add_option(Option(row, id=str(len(self._values)), disabled=disabled))
        self._values.append(value)

    def add_note(self, text: str, style: str = "$muted") -> None:
        """Add a line to the list that cannot be selected."""
        self._listed.add_option(Option(Content.styled(text, style), disabled=True))

    def replace(self, value: Any, row: Content | None) -> None:
        """Replace the row of a listed value, or remove it if ``row`` is None. Does nothing while the dialog is being
        closed."""
        if self.display and value in self._values:
            id = str(self._values.index(value))
            if row is None:
                self._listed.remove_option(id)
            else:
                self._listed.replace_option_prompt(id, row)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.fill(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = None if self.folder is None else self.folder / expand_user(event.value.strip())
        if typed is not None and event.value.strip() and is_file(typed):
            self.dismiss(str(typed))
        else:
            self._listed.action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        # The second half of a double click may arrive after the list has got new options, so ignore options that are
        # gone.
        if event.option in event.option_list.options:
            self.accept(self._values[int(event.option_id or 0)])

    def action_step(self, step: int) -> None:
        if step > 0:
            self._listed.action_cursor_down()
        else:
            self._listed.action_cursor_up()


class AcceleratorsScreen(Picker):
    """Picker of an accelerator. Returns the accelerator for a launch, with its count if known; or None.

    Args:
        ask: Returns the offers, and may be slow; None if the provider has no offers.
    """

    heading = "Pick an accelerator"
    ENTER = "select"
    PLACEHOLDER = "part of a name, maker, memory or zone: 8x80gb, hopper, us-east"

    def __init__(self, ask: Callable[[], OfferList] | None = None) -> None:
        super().__init__()
        self._ask = ask
        self._offers: Sequence[OfferRow] = ()
        self._notes: Sequence[str] = ()

    def on_mount(self) -> None:
        if self._ask is not None:
            self._notes = ("loading offers …",)
            self._load_offers(self._ask)

    @work
    async def _load_offers(self, ask: Callable[[], OfferList]) -> None:
        try:
            found = await run_in_daemon_thread(ask)
        except (SkywardError, OSError) as error:
            self._notes = (format_error(error),)
        else:
            self._offers, self._notes = offer_rows(found.offers), found.notes
        self.refill()

    def list_options(self, typed: str) -> None:
        found = [row for row in self._offers if row.matches(typed)]
        if not typed and (usual := next(filter(lambda row: row.is_usual, found), None)):
            self.add_note("cheapest 8 × 80 GB")
            self.add(usual.accelerator, Content(f"  {usual.label}"))
        for note in self._notes:
            self.add_note(one_line(sanitize_line(note)))
        if found:
            self.add_note(f"  {OFFERS_HEAD}")
        for row in found:
            self.add(row.accelerator, Content(f"  {row.label}"))
        entries = accelerators.search(typed)
        if self._ask is not None and entries:
            self.add_note("catalogue, including accelerators without an offer")
        for entry in entries:
            self.add(entry.name, _row(entry))
        if not self._values:
            self.add_note(f"no accelerator matches {typed!r}")


def _row(entry: accelerators.Entry) -> Content:
    sizes = "/".join(f"{variant.memory_gb:g}" for variant in entry.variants)
    best = max((variant.bf16_tflops or 0.0 for variant in entry.variants), default=0.0)
    power = f"bf16 {best:,.0f} TFLOP/s" if best else ""
    return Content.assemble(
        f"{entry.name:<20}", (f"{sizes + ' GB':<12} {power:<20} {entry.maker} {entry.architecture}", "$muted")
    )


_MAX_ENTRIES = 500  # maximum number of a folder's entries that the picker inspects; more would block the app


class FilesScreen(Picker):
    """Picker of a script. Returns its path, or None.

    Args:
        folder: Initial folder.
        recent: Recent launches, newest first.

    Attributes:
        again: The picked recent launch; None if a file was picked.
    """

    heading = "Pick a script"
    ENTER = "open"
    PLACEHOLDER = "part of a name, or a path"
    folder: Path

    def __init__(self, folder: Path, recent: Sequence[Form] = ()) -> None:
        super().__init__()
        self.again: Form | None = None
        self.folder = folder
        self._recent = recent
        # whether the user has opened a folder; the picker then lists only the entries of this folder
        self._walks = False
        self._lacking: dict[Path, str] = {}

    @on(events.Mount)
    @work
    async def _look_for_packages(self) -> None:
        """Add notes about missing packages to the examples. Runs in the background, because the check may start a slow
        Python."""
        self._lacking = await run_in_daemon_thread(missing_packages)
        for path in filter(self._lacking.get, example_paths()):
            self.replace(path, self._example(path))

    def _example(self, path: Path) -> Content:
        return example_row(path, self._lacking.get(path, ""))

    def list_options(self, typed: str) -> None:
        folder, part = self.folder, typed
        if "/" in typed or typed.startswith("~"):
            path = expand_user(typed)
            folder, part = (path, "") if typed.endswith("/") else (path.parent, path.name)
            folder = self.folder / folder
        elif not self._walks:
            self._list_recent(part)
            found_examples = [path for path in example_paths() if part.lower() in path.stem]
            if found_examples:
                self.add_note("packaged examples")
            for path in found_examples:
                self._add(path, self._example(path))
        self.add_note(sanitize_line(str(folder)))
        try:
            found = sorted(list_entries(folder), key=lambda path: (is_file(path), path.name.lower()))
        except OSError as error:
            self.add_note(f"  {error.strerror or error}", "$text-error")
            found = []
        if not part:
            self._add(folder.parent, Content("  ../"))
        for path in found[:_MAX_ENTRIES]:
            is_folder = is_dir(path)
            is_listed = is_folder or path.suffix in (".py", ".yaml", ".yml")
            if is_listed and not path.name.startswith((".", "__")) and part.lower() in path.name.lower():
                self._add(path, Content(f"  {sanitize_line(path.name)}{'/' if is_folder else ''}"))
        if part and not self._values and is_dir(folder):
            self.add_note(f"  no script or folder matches {part!r}")

    def _list_recent(self, part: str) -> None:
        found = [form for form in self._recent if part.lower() in Path(form.script).name.lower()][:MAX_SHOWN]
        if found:
            self.add_note("recent launches")
        for form in found:
            self.add(form, recent_row(form), disabled=form.script != sanitize_line(form.script))

    def _add(self, path: Path, label: Content) -> None:
        # A path with unprintable characters cannot be picked, because the form's input would write them to the
        # terminal.
        self.add(path, label, disabled=str(path) != sanitize_line(str(path)))

    def accept(self, value: Path | Form) -> None:
        if not isinstance(value, Path):
            self.again, value = value, Path(value.script)
        if not is_dir(value):
            self.dismiss(str(value))
            return
        self.folder, self._walks = resolve_path(value), True
        narrow = self.query_one(Input)
        narrow.focus()
        if narrow.value:
            narrow.value = ""
        else:
            self.fill("")


# maximum number of interpreters that are inspected at the same time; more could overload a slow disk
MAX_CONCURRENT = 4
AUTOMATIC_PYTHON = InterpreterOption("", "chosen automatically")


class _InterpreterInfo(NamedTuple):
    """Facts about an interpreter: its version, why it is offered, and why it may not run the script."""

    version: str
    reason: str = ""
    problem: str = ""


class PythonsScreen(Picker):
    """Picker of a Python interpreter. Returns its path, "" for the automatic choice, or None.

    Args:
        script: The script; None if the form has none yet.
    """

    heading = "Pick a Python"
    ENTER = "select"
    PLACEHOLDER = "part of a version or name, or a path"
    folder = Path()

    def __init__(self, script: Path | None) -> None:
        super().__init__()
        self._script = script
        self._offered = [AUTOMATIC_PYTHON]
        self._interpreter_info: dict[str, _InterpreterInfo] = {}  # by path of the interpreter
        self._asks = asyncio.Semaphore(MAX_CONCURRENT)

    @on(events.Mount)
    @work
    async def _find_interpreters(self) -> None:
        self._offered += await run_in_daemon_thread(lambda: list_interpreters(self._script, os.environ))
        self.refill()
        await asyncio.gather(*map(self._inspect, self._offered))

    async def _inspect(self, each: InterpreterOption) -> None:
        async with self._asks:
            info = self._interpreter_info[each.path] = await run_in_daemon_thread(
                lambda: _inspect_interpreter(self._script, each.path)
            )
        if info.problem and not each.source:
            # an automatically found interpreter with a problem, usually an old Python of the system, is not offered
            self._offered.remove(each)
        self.replace(each.path, self._row(each) if each in self._offered else None)

    def list_options(self, typed: str) -> None:
        for each in self._offered:
            row = self._row(each)
            if typed.lower() in row.plain.lower():
                self.add(each.path, row)
        if not self._values:
            self.add(str(expand_user(typed)), Content(f"  {typed}"))

    def _row(self, each: InterpreterOption) -> Content:
        info = self._interpreter_info.get(each.path, _InterpreterInfo("…"))
        reason = info.reason or each.source or "installed on this machine"
        behind = (info.problem, "$text-warning") if info.problem else (sanitize_line(each.path), "$muted")
        return Content.assemble(f"  {info.version:<8} {sanitize_line(reason)}  ", behind)


def _inspect_interpreter(script: Path | None, path: str) -> _InterpreterInfo:
    """Read the version of an interpreter from its files, without starting it."""
    try:
        if path:
            return _InterpreterInfo(read_python(path).version or "?")
        if script is None:
            return _InterpreterInfo("")
        found = choose_interpreter(script)
        return _InterpreterInfo(found.version, f"{AUTOMATIC_PYTHON.source}: {found.source}")
    except (UnusablePython, SkywardError) as error:
        return _InterpreterInfo("✗", problem=sanitize_line(one_line(str(error))))


_NAME = 24  # minimum cells of the column with a preset's name


class PresetsScreen(Picker):
    """Picker of a preset. Returns its name, or None.

    Args:
        presets: The presets.

    Attributes:
        presets: The presets by name.
    """

    heading = "Pick a preset"
    ENTER = "fill the form"
    PLACEHOLDER = "part of a name"
    SCOPE = "presets"
    BINDINGS = bindings("presets")

    def __init__(self, presets: Sequence[Preset]) -> None:
        super().__init__()
        self.presets = {each.name: each for each in presets}

    def hint(self) -> str:
        return f"{super().hint()}, {self.key_of('presets.delete')}: delete"

    def list_options(self, typed: str) -> None:
        for name, preset in self.presets.items():
            if typed.lower() in name.lower():
                self.add(name, _preset_row(preset))
        if not self.presets:
            self.add_note(f"no presets yet. {self.key_of('launch.save')} in the form: save a preset")
        elif not self._values:
            self.add_note(f"no preset matches {typed!r}")

    @work
    async def action_delete(self) -> None:
        cursor = self._listed.highlighted
        if cursor is None or cursor >= len(self._values):
            return
        from skyward_core.client.launch.presets import delete

        preset = self.presets[self._values[cursor]]
        text = f"Delete preset {sanitize_line(preset.name)} of {sanitize_line(str(preset.file))}?"
        choices = [("keep", "Keep it", False), ("delete", "Delete", True)]
        if await self.app.push_screen_wait(ChoiceScreen("Delete a preset", text, choices, "keep")) != "delete":
            return
        with flash_errors(self.app, "not deleted: "):
            await run_in_daemon_thread(lambda: delete(preset))
            self.app.flash(f"deleted preset {preset.name} of {relative_path(str(preset.file))}", "done")
            self.presets.pop(preset.name, None)
            self.refill()


def _preset_row(preset: Preset) -> Content:
    """Return a row of the picker with a preset's name and main options."""
    entry: Any = preset.entry if isinstance(preset.entry, dict) else {}
    script, function = str(entry.get("script", "")), str(entry.get("function", ""))
    words = [Path(script).name + (f":{function}" if function else "")]
    arguments = entry.get("arguments") or entry.get("script_args")
    words += [shlex.join(map(str, arguments))] if isinstance(arguments, list) else []
    words += [f"{name} {entry[name]}" for name in ("provider", "nodes", "accelerator") if name in entry]
    name = sanitize_line(preset.name)
    shown = fit_width(name, max(_NAME, cell_len(name)))
    return Content.assemble(f"  {shown}  ", (sanitize_line("  ".join(filter(None, words))), "$muted"))


class ThemePicker(Picker):
    """Picker of a theme. Returns its name, or None.

    Args:
        names: Names of all themes.
        now: Name of the current theme.
    """

    ENTER = "select"
    PLACEHOLDER = "part of a name"
    heading = "Theme"

    def __init__(self, names: Sequence[str], now: str) -> None:
        super().__init__()
        self._names, self._now = names, now

    def fill(self, typed: str) -> None:
        super().fill(typed)
        if self._now in self._values:
            self._listed.highlighted = self._values.index(self._now)

    def list_options(self, typed: str) -> None:
        for name in self._names:
            if typed.casefold() in name.casefold():
                self.add(name, Content(name))
        if not self._values:
            self.add_note(f"no theme matches {typed!r}")


# environment variables of a desktop; if none is set, a text browser would start in the terminal of the app
DISPLAY_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY")


async def open_dashboard(app: SkywardApp, pool: PoolView | None) -> None:
    """Open a dashboard of a pool's head node, and show its address. If there are several dashboards, the user
    chooses."""
    if pool is None or not pool.is_live:
        return app.flash("the pool has ended: it has no dashboards")
    try:
        found = await wait_shielded(app.required_session.dashboards(pool.key))
    except SkywardError as error:
        return app.flash(format_error(error), "error")
    if not found:
        return app.flash(
            f"no dashboard found on the head node of pool {pool.name} (plugins, TensorBoard on 6006, Jupyter on 8888). "
            f"For another port: skyward-tui forward {pool.name} PORT"
        )
    addresses = {each.name: each.address for each in found}

    def opened(name: str | None) -> None:
        if address := addresses.get(name or ""):
            if sys.platform == "darwin" or any(os.environ.get(each) for each in DISPLAY_VARIABLES):
                app.open_url(address)
            app.flash(f"{name}: {address}")

    if len(addresses) == 1:
        opened(found[0].name)
        return None
    choices = [(name, f"{name}  {address}", False) for name, address in addresses.items()]
    app.push_screen(ChoiceScreen("Open a dashboard", f"Dashboards of pool {pool.name}:", choices, escape=""), opened)
