"""Pick a preset, or delete one."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from textual import work
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from skyward_core.model.errors import SkywardError
from skyward_core.wire.safe_text import field

from ..actions import bindings
from ..current_folder import current_folder
from ..ends import beside as in_thread
from ..hints import words_of
from ..words import fit
from .ask import ChoiceScreen
from .picker import Picker

if TYPE_CHECKING:
    from skyward_core.front.presets import Preset

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
            listed.add_option(Option(_row(self.presets[name]), id=str(number)))
        if not self.presets:
            self.say(f"none yet: {self.key_of('launch.save')} in the form saves what it says")
        elif not self._listed:
            self.say(f"no preset has {typed.strip()!r} in its name")
        listed.action_first()

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def take(self, picked: str) -> None:
        self.dismiss(self._listed[int(picked)])

    def action_delete(self) -> None:
        cursor = self.query_one(OptionList).highlighted
        if cursor is None or cursor >= len(self._listed):
            return
        preset = self.presets[self._listed[cursor]]
        self.app.push_screen(_question(preset), self._deleting(preset))

    def _deleting(self, preset: Preset) -> Callable[[str | None], None]:
        def answered(choice: str | None) -> None:
            if choice == "delete":
                self._delete(preset)

        return answered

    @work
    async def _delete(self, preset: Preset) -> None:
        from skyward_core.front.presets import delete

        try:
            await in_thread(lambda: delete(preset))
        except (SkywardError, OSError) as error:
            self.app.flash(f"not deleted: {words_of(error)}", "error")
            return
        self.app.flash(f"deleted preset {preset.name} of {_near(preset.file)}", "done")
        self.presets.pop(preset.name, None)
        if self.display:
            self.fill(self.query_one(Input).value)


def _question(preset: Preset) -> ChoiceScreen:
    text = f"Delete preset {field(preset.name)} of {field(str(preset.file))}?"
    return ChoiceScreen(
        "Delete a preset", text, [("keep", "Keep it", False), ("delete", "Delete", True)], "keep"
    )


def _row(preset: Preset) -> Content:
    """Its name, and of what it asks for what fits."""
    entry: Any = preset.entry if isinstance(preset.entry, dict) else {}
    script, function = str(entry.get("script", "")), str(entry.get("function", ""))
    words = [Path(script).name + (f":{function}" if function else "")]
    arguments = entry.get("arguments") or entry.get("script_args")
    words += [shlex.join(map(str, arguments))] if isinstance(arguments, list) else []
    words += [f"{name} {entry[name]}" for name in ("provider", "nodes", "accelerator") if name in entry]
    name = field(preset.name)
    shown = fit(name, max(_NAME, cell_len(name)))
    return Content.assemble(f"  {shown}  ", (field("  ".join(filter(None, words))), "$muted"))


def _near(path: Path) -> str:
    return str(path.relative_to(current_folder())) if path.is_relative_to(current_folder()) else str(path)
