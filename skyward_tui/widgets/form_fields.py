"""Rows of a form, and the fields in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.segment import Segment
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.strip import Strip
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Input, Label, Select

from skyward_core.model.setting import Field
from skyward_core.wire.safe_text import in_place

from ..actions import bindings
from ..words import clip_path, one_line
from .chrome import Panel
from .text_line import TextLine
from .toggles import Toggles

if TYPE_CHECKING:
    from skyward_core.front.plugins import PluginInfo
    from skyward_core.model.setting import Setting


class Choice(Select[str], inherit_bindings=False):
    """A list that opens by enter: the arrows go from field to field, past it as past all others. What stands in it is
    shown as it is: names of files and of a script's values are no markup."""

    BINDINGS = bindings("choice")

    def __init__(self, options: Iterable[tuple[str, str]], **more: Any) -> None:
        super().__init__(_as_they_are(options), **more)

    def set_options(self, options: Iterable[tuple[Any, str]]) -> None:
        super().set_options(_as_they_are(options))


def _as_they_are(options: Iterable[tuple[Any, str]]) -> list[tuple[Any, str]]:
    return [(Content(label) if isinstance(label, str) else label, value) for label, value in options]


class FormLine(TextLine):
    """A line of text. While it has not the focus, what has no room in it ends in "…"; of a path, the end stays."""

    def render_line(self, y: int) -> Strip:
        text, width = in_place(self.value) or self.placeholder, self.scrollable_content_region.width
        if y or self.has_focus or self.password or cell_len(text) <= width:
            return super().render_line(y)
        style = self.rich_style if self.value else self.get_component_rich_style("input--placeholder")
        cut = Strip([Segment(clip_path(text, width), style)])
        return cut.extend_cell_length(width + 1).apply_style(self.rich_style)


class FormFields(VerticalScroll, can_focus=False, inherit_bindings=False):
    """Scrolls to the field that has the focus; the keys that scroll are the plan's."""


class Plugins(Toggles):
    """What the plugin under the cursor is for stands at the form's edge while they have the focus; what it can be
    given from Python, in their tooltip."""

    def __init__(self, listed: list[PluginInfo], *, id: str) -> None:
        super().__init__([(each.name, each.name) for each in listed], set(), id=id)
        self._listed = listed

    def on_focus(self) -> None:
        self._tell()

    def on_blur(self) -> None:
        self._at_edge("")

    def action_move(self, step: int) -> None:
        super().action_move(step)
        self._tell()

    def _tell(self) -> None:
        if self._listed:
            here = self._listed[self._cursor]
            self._at_edge(one_line(f"{here.name}: {here.help}"))
            given = [f"{name}: {text}" for name, text in here.parameters.items()]
            self.tooltip = Content("\n".join([here.name, *given]))

    def _at_edge(self, text: str) -> None:
        for around in self.ancestors:
            if isinstance(around, Panel):
                around.border_subtitle = Content(text)


def row(label: str, *content: Widget, id: str | None = None) -> Horizontal:
    """A line of the form: fields behind a label."""
    return Horizontal(Label(label), *content, classes="row", id=id)


def inner(label: str, *, id: str | None = None) -> Label:
    """What a field is called that stands behind another in its row."""
    return Label(label, classes="inner", id=id)


def setting_row(id: str, setting: Setting) -> Horizontal:
    """The field of a provider's setting, which is there while its provider is chosen."""
    look = setting.field() if setting.field else Field(label=setting.name)
    text = line(id, look.placeholder or ("" if setting.default is None else str(setting.default)))
    text.suggester = SuggestFromList(look.suggestions)
    found = row(look.label, text)
    found.id = f"{id}-row"
    found.display = False
    return found


def line(name: str, placeholder: str = "", *, value: str = "", type: str = "text") -> Input:
    """A line of text, or a number."""
    kind: Literal["integer", "text"] = "integer" if type == "integer" else "text"
    field = FormLine(value, placeholder, id=name, compact=True, type=kind, valid_empty=True)
    field.cursor_blink = False
    return field
