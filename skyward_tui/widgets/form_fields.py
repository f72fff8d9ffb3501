"""Input fields of forms."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.segment import Segment
from rich.text import Text
from textual import events, on
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.suggester import Suggester, SuggestFromList
from textual.visual import Visual
from textual.widget import Widget
from textual.widgets import Input, Label, OptionList, Select, Static
from textual.widgets.option_list import Option

from skyward_core.client.ssh_host_groups_and_access import configured_hosts
from skyward_core.model.provider_settings_schema import Field, Setting
from skyward_core.util.safe_file_access import expand_user
from skyward_core.util.terminal_safe_text import sanitize_in_place
from skyward_tui.shutdown_and_daemon_threads import run_in_daemon_thread
from skyward_tui.text.text_width_tables_and_ascii import clip_path, one_line
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.screen_frame_and_replay_line import Panel, TextLine

if TYPE_CHECKING:
    from skyward_core.client.launch.plugin_and_provider_catalog import PluginInfo


class OptionRows(OptionList):
    """Option list whose highlighted option has no colours of its own, which may be unreadable on the highlight."""

    def _get_visual(self, option: Option) -> Visual:
        visual = super()._get_visual(option)
        is_highlighted = self.highlighted is not None and option is self.options[self.highlighted]
        return Content(visual.plain) if is_highlighted and isinstance(visual, Content) else visual


class Toggles(Widget, can_focus=True):
    """Row of check boxes such as ``[x] torch  [ ] jax``.

    Args:
        options: (name, label) of each box.
        chosen: Names of the boxes that are checked.
    """

    BINDINGS = bindings("toggles")
    DEFAULT_CSS = read_style_sheet(__file__, "toggles")

    @dataclass
    class Changed(Message):
        toggles: Toggles

        @property
        def control(self) -> Toggles:
            return self.toggles

    chosen: reactive[Set[str]] = reactive(frozenset())

    def __init__(self, options: list[tuple[str, str]], chosen: Collection[str], *, id: str) -> None:
        super().__init__(id=id)
        self.options = options
        self.chosen = frozenset(chosen)
        self._cursor = 0

    def render(self) -> Content:
        parts: list[tuple[str, str]] = []
        row = 0
        for place, ((name, label), (_, y)) in enumerate(zip(self.options, self._places(), strict=True)):
            here = self.has_focus and place == self._cursor
            style = "$block-cursor-foreground on $block-cursor-background bold" if here else ""
            # Separators are written before a box: a newline at the start of a row, otherwise two blanks. So a full row
            # gets no separator at its end.
            parts.append(("\n" * (y - row) if y > row else "  " if place else "", ""))
            is_on = name in self.chosen
            parts.append((f"[{'x' if is_on else ' '}] {label}", style or ("$text-success" if is_on else "")))
            row = y
        return Content.assemble(*parts) if parts else Content.styled("none installed", "$muted")

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        places = self._places(width)
        return places[-1][1] + 1 if places else 1

    def _places(self, width: int = 0) -> list[tuple[int, int]]:
        """Return the cell column and the row at which each check box begins."""
        width = width or self.size.width
        places, x, y = [], 0, 0
        for _, label in self.options:
            if x and x + len(label) + 4 > width:
                x, y = 0, y + 1
            places.append((x, y))
            x += len(label) + 6
        return places

    def action_move(self, step: int) -> None:
        self._cursor = min(max(0, self._cursor + step), max(0, len(self.options) - 1))
        self.refresh()

    def action_switch(self) -> None:
        if self.options:
            self.chosen ^= {self.options[self._cursor][0]}
            self.post_message(self.Changed(self))

    def on_click(self, event: events.Click) -> None:
        for cursor, ((_, label), (x, y)) in enumerate(zip(self.options, self._places(), strict=True)):
            if y == event.y and x <= event.x < x + len(label) + 4:
                self._cursor = cursor
                self.action_switch()


class Choice(Select[str], inherit_bindings=False):
    """Drop-down list that opens with enter, because the arrow keys move between fields.

    Labels are shown literally, because names of files and values from a script must not be parsed as markup.
    """

    BINDINGS = bindings("choice")

    def _setup_variables_for_options(self, options: Iterable[tuple[Any, str]]) -> None:
        # Textual searches for typed characters only in prompts of type str, which is parsed as markup, and Text.
        super()._setup_variables_for_options([(Text(label), value) for label, value in options])

    def replace_options(self, options: list[tuple[str, str]], value: str) -> None:
        """Replace the options without a message. Select a value, or the first option if the value is not listed."""
        with self.prevent(Select.Changed):
            self.set_options(options)
            if options:
                self.value = value if value in [each for _, each in options] else options[0][1]
                self.mutate_reactive(Choice.value)  # type: ignore[misc]  # shows the new label of an unchanged value


class FormLine(TextLine):
    """Input that cuts a long text while it is not focused: it shows the start and "…", or the end of a path."""

    def render_line(self, y: int) -> Strip:
        text, width = sanitize_in_place(self.value) or self.placeholder, self.scrollable_content_region.width
        if y or self.has_focus or self.password or cell_len(text) <= width:
            return super().render_line(y)
        style = self.rich_style if self.value else self.get_component_rich_style("input--placeholder")
        cut = Strip([Segment(clip_path(text, width), style)])
        return cut.extend_cell_length(width + 1).apply_style(self.rich_style)


class ScriptSuggester(Suggester):
    """Completion of a path: a recent script, or else the first folder, script or job file of that name.

    Args:
        recent: Paths of recent scripts.
    """

    def __init__(self, recent: Iterable[str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._recent = list(recent)

    async def get_suggestion(self, value: str) -> str | None:
        known = [each for each in self._recent if each.startswith(value)]
        return known[0] if known else await run_in_daemon_thread(lambda: _complete_path(value))


def _complete_path(value: str) -> str | None:
    folder, slash, name = value.rpartition("/")
    with suppress(OSError, ValueError):
        for entry in sorted(os.scandir(expand_user(f"{folder}{slash}")), key=lambda entry: entry.name):
            if name and entry.name.startswith(name) and (entry.is_dir() or entry.name.endswith(_SCRIPTS)):
                return f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
    return None


_SCRIPTS = (".py", ".yaml", ".yml")


class PluginToggles(Toggles):
    """Check boxes of plugins.

    While they have the focus, the form's border shows the help text of the plugin under the cursor, and the tooltip
    shows its parameters.
    """

    def __init__(self, listed: list[PluginInfo], *, id: str) -> None:
        super().__init__([(each.name, each.name) for each in listed], (), id=id)
        self._listed = listed

    def on_blur(self) -> None:
        self._set_panel_subtitle("")

    def action_move(self, step: int) -> None:
        super().action_move(step)
        self._show_help()

    @on(events.Focus)
    def _show_help(self) -> None:
        if self._listed:
            here = self._listed[self._cursor]
            self._set_panel_subtitle(one_line(f"{here.name}: {here.help}"))
            given = [f"{name}: {text}" for name, text in here.parameters.items()]
            self.tooltip = Content("\n".join([here.name, *given]))

    def _set_panel_subtitle(self, text: str) -> None:
        for around in self.ancestors:
            if isinstance(around, Panel):
                around.border_subtitle = Content(text)


def field_row(label: str, *content: Widget, id: str | None = None) -> Horizontal:
    """Return a row of the form with a label and fields."""
    return Horizontal(Label(label), *content, classes="row", id=id)


def setting_row(id: str, setting: Setting) -> Horizontal:
    """Return the row for a provider's setting. It is hidden until the provider is chosen."""
    field = setting.field() if setting.field else Field(label=setting.name)
    text = text_field(id, field.placeholder or ("" if setting.default is None else str(setting.default)))
    text.suggester = SuggestFromList((*field.suggestions, *(configured_hosts() if setting.names_machines else ())))
    row = field_row(field.label, text, id=f"{id}-row")
    row.display = False
    return row


def text_field(name: str, placeholder: str = "", *, value: str = "", type: str = "text") -> Input:
    """Return an input for text or a number."""
    kind: Literal["integer", "text"] = "integer" if type == "integer" else "text"
    return FormLine(value, placeholder, id=name, compact=True, type=kind, valid_empty=True)


def update_label(line: Static, text: Content) -> None:
    """Change the text of a label. Textual lays out the screen again only if the number of rows changes.

    Args:
        line: Widget as wide as its container and as high as its text.
    """
    before, width = line.content, line.content_size.width
    if not isinstance(before, Content):
        line.update(text)
    elif not before.is_same(text):
        rules = line.styles.get_rules()
        needs_layout = not width or before.get_height(rules, width) != text.get_height(rules, width)
        line.update(text, layout=needs_layout)
