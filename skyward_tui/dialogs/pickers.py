"""Accelerators, files, Pythons, presets, themes, keys."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len
from textual import events, work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from skyward_core import accelerators
from skyward_core.client.launch.discovery import (
    InterpreterOption,
    UnusablePython,
    choose_interpreter,
    known_python,
    list_interpreters,
)
from skyward_core.model.errors import SkywardError
from skyward_core.model.offers import OfferList
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.util.user_files import expand_user, is_dir, is_file, list_entries, resolve_path
from skyward_tui.dialogs.dialog import ChoiceScreen, Dialog, Picker
from skyward_tui.launch_form.form import Form, example_paths
from skyward_tui.launch_form.recent_launches import MAX_SHOWN, example_row, missing_packages, recent_row
from skyward_tui.shutdown import run_in_daemon_thread as in_thread
from skyward_tui.terminal_info import current_folder
from skyward_tui.text.error_hints import format_error
from skyward_tui.text.hardware_cells import OFFERS_HEAD as HEAD
from skyward_tui.text.hardware_cells import OfferRow, offer_rows
from skyward_tui.text.number_format import fit_width, one_line
from skyward_tui.ui.actions import bindings

if TYPE_CHECKING:
    from skyward_core.client.launch.presets import Preset


class AcceleratorsScreen(Picker):
    """Returns an accelerator as a launch names it, with how many where that is known; or None.

    Args:
        ask: asks what is offered, and may take its time; None where whoever has the machines offers nothing.
    """

    heading = "Pick an accelerator"
    ENTER = "takes it"
    PLACEHOLDER = "part of a name, maker, memory or zone: 8x80gb, hopper, us-east"

    def __init__(self, ask: Callable[[], OfferList] | None = None) -> None:
        super().__init__()
        self._ask = ask
        self._offers: Sequence[OfferRow] = ()
        self._notes: Sequence[str] = ()
        self._option_values: list[str] = []  # of the rows, in their order

    def on_mount(self) -> None:
        if self._ask is not None:
            self._notes = ("asking what is offered …",)
            self._load_offers(self._ask)

    @work
    async def _load_offers(self, ask: Callable[[], OfferList]) -> None:
        try:
            found = await in_thread(ask)
        except (SkywardError, OSError) as error:
            self._notes = (format_error(error),)
        else:
            self._offers, self._notes = offer_rows(found.offers), found.notes
        if self.is_attached:
            self.fill(self.query_one(Input).value)

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        self._option_values = []
        found = [row for row in self._offers if row.matches(typed)]
        if not typed.strip() and (usual := next(filter(lambda row: row.is_usual, found), None)):
            self.add_note("the cheapest 8 × 80 GB")
            self._add(usual.accelerator, Content(f"  {usual.label}"))
        for note in self._notes:
            self.add_note(one_line(sanitize_line(note)))
        if found:
            self.add_note(f"  {HEAD}")
        for row in found:
            self._add(row.accelerator, Content(f"  {row.label}"))
        entries = accelerators.search(typed)
        if self._ask is not None and entries:
            self.add_note("of the catalogue, whether it is offered or not")
        for entry in entries:
            self._add(entry.name, _row(entry))
        if not self._option_values:
            self.add_note(f"no accelerator of the catalogue fits {typed.strip()!r}")
        listed.action_first()

    def _add(self, wanted: str, row: Content) -> None:
        self.query_one(OptionList).add_option(Option(row, id=str(len(self._option_values))))
        self._option_values.append(wanted)

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def accept(self, picked: str) -> None:
        self.dismiss(self._option_values[int(picked)])


def _row(entry: accelerators.Entry) -> Content:
    sizes = "/".join(f"{variant.memory_gb:g}" for variant in entry.variants)
    best = max((variant.bf16_tflops or 0.0 for variant in entry.variants), default=0.0)
    power = f"bf16 {best:,.0f} TFLOP/s" if best else ""
    return Content.assemble(
        f"{entry.name:<20}", (f"{sizes + ' GB':<12} {power:<20} {entry.maker} {entry.architecture}", "$muted")
    )


_MOST = 500  # entries of one folder


class FilesScreen(Picker):
    """Returns the path of a script, or None.

    Args:
        folder: where to begin.
        recent: earlier launches, newest first.

    Attributes:
        again: the launch that was picked, where it was one of these.
    """

    heading = "Pick a script"
    ENTER = "opens"
    PLACEHOLDER = "type part of a name, or a path"

    def __init__(self, folder: Path, recent: Sequence[Form] = ()) -> None:
        super().__init__()
        self.again: Form | None = None
        self._folder = folder
        self._recent = recent
        self._walks = False  # whether the person has opened a folder: what lies there is what is looked for
        self._launches: dict[str, Form] = {}
        self._entries: dict[str, Path] = {}
        self._lacking: dict[Path, str] = {}

    def on_mount(self) -> None:
        self._look_for_packages()

    @work
    async def _look_for_packages(self) -> None:
        """Say what examples need and cannot find here; a Python that hangs is not waited for with the list."""
        self._lacking = await in_thread(missing_packages)
        for key, path in self._entries.items():
            if self._lacking.get(path) and self.display:
                self.query_one(OptionList).replace_option_prompt(key, self._example(path))

    def _example(self, path: Path) -> Content:
        return example_row(path, self._lacking.get(path, ""))

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        self._entries.clear()
        self._launches.clear()
        typed = typed.strip()
        folder, part = self._folder, typed
        if "/" in typed or typed.startswith("~"):
            path = expand_user(typed)
            folder, part = (path, "") if typed.endswith("/") else (path.parent, path.name)
            folder = self._folder / folder
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
            listed.add_option(Option(Content.styled(f"  {error.strerror or error}", "$text-error"), disabled=True))
            found = []
        if not part:
            self._add(folder.parent, Content("  ../"))
        for path in found[:_MOST]:
            is_folder = is_dir(path)
            wanted = is_folder or path.suffix in (".py", ".yaml", ".yml")
            if wanted and not path.name.startswith((".", "__")) and part.lower() in path.name.lower():
                self._add(path, Content(f"  {sanitize_line(path.name)}{'/' if is_folder else ''}"))
        if part and not self._entries and is_dir(folder):
            self.add_note(f"  no script or folder has {part!r} in its name")
        listed.action_first()

    def _list_recent(self, part: str) -> None:
        found = [form for form in self._recent if part.lower() in Path(form.script).name.lower()][:MAX_SHOWN]
        if found:
            self.add_note("recent launches")
        for form in found:
            self._launches[str(len(self._entries))] = form
            self._add(Path(form.script), recent_row(form))

    def _add(self, path: Path, label: Content) -> None:
        key = str(len(self._entries))
        self._entries[key] = path
        # A field of the form holds its text as it is, and hands it to the terminal so.
        unfit = str(path) != sanitize_line(str(path))
        self.query_one(OptionList).add_option(Option(label, id=key, disabled=unfit))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = expand_user(event.value.strip())
        if event.value.strip() and is_file(self._folder / typed):
            self.dismiss(str(self._folder / typed))
        else:
            self.query_one(OptionList).action_select()

    def accept(self, picked: str) -> None:
        path, self.again = self._entries[picked], self._launches.get(picked)
        if not is_dir(path):
            self.dismiss(str(path))
            return
        self._folder, self._walks = resolve_path(path), True
        narrow = self.query_one(Input)
        narrow.focus()
        if narrow.value:
            narrow.value = ""
        else:
            self.fill("")


MAX_CONCURRENT = 4  # interpreters that are looked up at a time: their disks may be slow
AUTOMATIC_PYTHON = InterpreterOption("", "found for the script")


class _InterpreterInfo(NamedTuple):
    """What is known of an interpreter: its version, why it is offered, what is amiss."""

    version: str
    reason: str = ""
    problem: str = ""


class PythonsScreen(Picker):
    """Returns the path of an interpreter, "" for the one that is found for the script, or None.

    Args:
        script: which one; None where none is named.
    """

    heading = "Pick a Python"
    ENTER = "takes it"
    PLACEHOLDER = "type part of a version or name, or a path"

    def __init__(self, script: Path | None) -> None:
        super().__init__()
        self._script = script
        self._offered = [AUTOMATIC_PYTHON]
        self._interpreter_info: dict[str, _InterpreterInfo] = {}  # by path
        self._asks = asyncio.Semaphore(MAX_CONCURRENT)

    def on_mount(self) -> None:
        self._find_interpreters()

    @work
    async def _find_interpreters(self) -> None:
        self._offered += await in_thread(lambda: list_interpreters(self._script, os.environ))
        if self.display:
            self.fill(self.query_one(Input).value)
        await asyncio.gather(*map(self._inspect, self._offered))

    async def _inspect(self, each: InterpreterOption) -> None:
        async with self._asks:
            told = self._interpreter_info[each.path] = await in_thread(
                lambda: _inspect_interpreter(self._script, each.path)
            )
        if told.problem and not each.source:
            self._offered.remove(each)  # it is too old, as a rule, and nobody thinks of it
        if not self.display:  # it is being closed
            return
        listed = self.query_one(OptionList)
        if each.path not in (option.id for option in listed.options):
            return
        if each in self._offered:
            listed.replace_option_prompt(each.path, self._row(each))
        else:
            listed.remove_option(each.path)

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        typed = typed.strip()
        for each in self._offered:
            row = self._row(each)
            if typed.lower() in row.plain.lower():
                listed.add_option(Option(row, id=each.path))
        if not listed.option_count:
            listed.add_option(Option(Content(f"  {typed}"), id=str(expand_user(typed))))
        listed.action_first()

    def _row(self, each: InterpreterOption) -> Content:
        told = self._interpreter_info.get(each.path, _InterpreterInfo("…"))
        why = told.reason or each.source or "installed here"
        behind = (told.problem, "$text-warning") if told.problem else (sanitize_line(each.path), "$muted")
        return Content.assemble(f"  {told.version:<8} {sanitize_line(why)}  ", behind)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = expand_user(event.value.strip())
        if event.value.strip() and is_file(typed):
            self.dismiss(str(typed))
        else:
            self.query_one(OptionList).action_select()

    def accept(self, picked: str) -> None:
        self.dismiss(picked)


def _inspect_interpreter(script: Path | None, path: str) -> _InterpreterInfo:
    """Return what files say about an interpreter."""
    try:
        if path:
            return _InterpreterInfo(known_python(path).version or "?")
        if script is None:
            return _InterpreterInfo("")
        found = choose_interpreter(script)
        return _InterpreterInfo(found.version, f"{AUTOMATIC_PYTHON.source}: {found.source}")
    except (UnusablePython, SkywardError) as error:
        return _InterpreterInfo("✗", problem=sanitize_line(one_line(str(error))))


_NAME = 24  # cells of a name, at least


class PresetsScreen(Picker):
    """Returns the name of a preset, or None.

    Args:
        presets: what there is to pick.

    Attributes:
        presets: by name.
    """

    heading = "Pick a preset"
    ENTER = "fills the form"
    PLACEHOLDER = "type part of a name"
    SCOPE = "presets"
    BINDINGS = bindings("presets")

    def __init__(self, presets: Sequence[Preset]) -> None:
        super().__init__()
        self.presets = {each.name: each for each in presets}
        self._listed: list[str] = []

    def hint(self) -> str:
        return f"{super().hint()}, {self.key_of('presets.delete')} delete"

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        self._listed = [name for name in self.presets if typed.strip().lower() in name.lower()]
        for number, name in enumerate(self._listed):
            listed.add_option(Option(_preset_row(self.presets[name]), id=str(number)))
        if not self.presets:
            self.add_note(f"none yet: {self.key_of('launch.save')} in the form saves what it says")
        elif not self._listed:
            self.add_note(f"no preset has {typed.strip()!r} in its name")
        listed.action_first()

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def accept(self, picked: str) -> None:
        self.dismiss(self._listed[int(picked)])

    def action_delete(self) -> None:
        cursor = self.query_one(OptionList).highlighted
        if cursor is None or cursor >= len(self._listed):
            return
        preset = self.presets[self._listed[cursor]]
        self.app.push_screen(_question(preset), self._on_delete_answer(preset))

    def _on_delete_answer(self, preset: Preset) -> Callable[[str | None], None]:
        def answered(choice: str | None) -> None:
            if choice == "delete":
                self._delete(preset)

        return answered

    @work
    async def _delete(self, preset: Preset) -> None:
        from skyward_core.client.launch.presets import delete

        try:
            await in_thread(lambda: delete(preset))
        except (SkywardError, OSError) as error:
            self.app.flash(f"not deleted: {format_error(error)}", "error")
            return
        self.app.flash(f"deleted preset {preset.name} of {_relative_path(preset.file)}", "done")
        self.presets.pop(preset.name, None)
        if self.display:
            self.fill(self.query_one(Input).value)


def _question(preset: Preset) -> ChoiceScreen:
    text = f"Delete preset {sanitize_line(preset.name)} of {sanitize_line(str(preset.file))}?"
    return ChoiceScreen("Delete a preset", text, [("keep", "Keep it", False), ("delete", "Delete", True)], "keep")


def _preset_row(preset: Preset) -> Content:
    """Its name, and of what it asks for what fits."""
    entry: Any = preset.entry if isinstance(preset.entry, dict) else {}
    script, function = str(entry.get("script", "")), str(entry.get("function", ""))
    words = [Path(script).name + (f":{function}" if function else "")]
    arguments = entry.get("arguments") or entry.get("script_args")
    words += [shlex.join(map(str, arguments))] if isinstance(arguments, list) else []
    words += [f"{name} {entry[name]}" for name in ("provider", "nodes", "accelerator") if name in entry]
    name = sanitize_line(preset.name)
    shown = fit_width(name, max(_NAME, cell_len(name)))
    return Content.assemble(f"  {shown}  ", (sanitize_line("  ".join(filter(None, words))), "$muted"))


def _relative_path(path: Path) -> str:
    return str(path.relative_to(current_folder())) if path.is_relative_to(current_folder()) else str(path)


class ThemePicker(Picker):
    """Returns a theme's name, or None.

    Args:
        names: of all themes.
        now: the one that holds.
    """

    ENTER = "takes it"
    PLACEHOLDER = "type to narrow the list"
    heading = "Theme"

    def __init__(self, names: Sequence[str], now: str) -> None:
        super().__init__()
        self._names, self._now = names, now

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        fitting = [name for name in self._names if typed.strip().casefold() in name.casefold()]
        listed.add_options(Option(name, id=name) for name in fitting)
        if not fitting:
            self.add_note(f"no theme has {typed.strip()} in its name")
        else:
            listed.highlighted = fitting.index(self._now) if self._now in fitting else 0

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def accept(self, picked: str) -> None:
        self.dismiss(picked)


class _KeyPrompt(Static, can_focus=True):
    """Has the focus, so that no button takes the key."""


class KeyScreen(Dialog[str | None]):
    """Returns the key that was pressed, in Textual's names; escape gives None, and so can be no key of one's own here.

    Args:
        doing: what the key is to do.
    """

    heading = "Another key"

    def __init__(self, doing: str) -> None:
        super().__init__()
        self._doing = doing
        self._is_dismissed = False

    def body(self) -> ComposeResult:
        yield _KeyPrompt(f"{self._doing}\n\nPress the key that is to do that; esc leaves it as it is.", markup=False)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        if self._is_dismissed:  # several keys may come before it is gone
            return
        self._is_dismissed = True
        self.dismiss(None if event.key == "escape" else event.key)
