"""Fields of the launch form for the arguments of a function, or the parameters of a plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Label, Select, Static

from skyward_core.client.launch.plugin_and_provider_catalog import argument_values
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.launch_form.form import parse_arguments, set_argument, value_list_error
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.form_fields import Choice, Toggles, text_field, update_label

if TYPE_CHECKING:
    from skyward_core.client.launch.plugin_and_provider_catalog import ArgumentField


_ON = "on"
_LABEL, _WIDEST = 11, 30  # minimum and maximum width in cells of a field's label


class ArgumentRow(Vertical):
    """Field of one argument, with its error below it. While the field has the focus, its description is shown as well.

    Args:
        argument: The argument.
        id: ID of the field.
        text: Given value; None for none.
    """

    def __init__(self, argument: ArgumentField, id: str, text: str | None) -> None:
        super().__init__()
        self.argument = argument
        self.label = Label(sanitize_line(argument.name))
        self.field = _field_of(argument, id, text)
        self._under = Static(classes="under", markup=False)
        self._result = Content("")  # result of validating the value: an error, a warning, or the number of values

    def compose(self) -> ComposeResult:
        yield Horizontal(self.label, self.field, classes="row argument")
        yield self._under

    @property
    def text(self) -> str | None:
        """Value in the field; None for none."""
        if isinstance(self.field, Toggles):
            is_on = bool(self.field.chosen)
            return None if is_on == self.argument.is_on else str(is_on).lower()
        value = self.field.value if isinstance(self.field, Input | Select) else ""
        return value if isinstance(value, str) and value else None

    def fill(self, text: str | None) -> None:
        """Show a value in the field; None empties the field."""
        if isinstance(self.field, Toggles):
            self.field.chosen = _chosen(self.argument, text)
        elif isinstance(self.field, Select):
            # Set the value only once the drop-down list is mounted, because before, the list would not display the
            # value.
            if self.field.is_mounted and self.field.value != (choice := _choice(self.argument, text)):
                self.field.value = choice
        elif isinstance(self.field, Input) and (text or "") != self.field.value:
            self.field.value = text or ""

    def show_error(self, text: str | None, script: Path, *, sweep: bool) -> None:
        """Validate the value and show the first error.

        Args:
            sweep: Whether the text is a list of values for a sweep.
        """
        if text is not None and sweep:
            problem = value_list_error(self.argument, text)
            values = [] if problem else argument_values(self.argument.name, text)
        else:
            problem = "" if text is None else self.argument.validation_error(text)
            values = [] if text is None or problem else [text]
        missing = [error for value in values if (error := self.argument.missing_path_error(value, script))]
        if problem:
            self._result = Content.styled(sanitize_line(f"✗ {problem}"), "$text-error")
        elif missing:
            self._result = Content.styled(sanitize_line(f"! {missing[0]}"), "$text-warning")
        else:
            self._result = Content.styled(f"{len(values):,} values" if len(values) > 1 else "", "$text-accent")
        self._update_hint()

    @on(events.Mount)
    @on(events.DescendantFocus)
    @on(events.DescendantBlur)
    def _update_hint(self) -> None:
        hint = self._result
        if not hint and self.field.has_focus:
            shows_placeholder = isinstance(self.field, Input) and not self.field.value
            hint = Content.styled(sanitize_line(_description(self.argument, shows_placeholder)), "$muted")
        update_label(self._under, hint)
        self._under.display = bool(hint.plain)


class ArgumentFields(Vertical):
    """Fields of a function's arguments, or of plugin parameters.

    Args:
        prefix: Start of the fields' IDs.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "argument_fields")

    @dataclass
    class Edited(Message):
        """Message that a field was edited.

        Attributes:
            line: New line of all arguments.
        """

        line: str

    def __init__(self, *, id: str, prefix: str = "argument") -> None:
        super().__init__(id=id)
        self._prefix = prefix
        self._arguments: Sequence[ArgumentField] = ()
        self._rows: list[ArgumentRow] = []
        self._line = ""
        # lines that this widget has posted after edits; the form passes each of them back to :meth:`show`
        self._own_lines: list[str] = []
        # number in the IDs of the current fields. Removed fields keep their IDs for a moment, so new fields need new
        # IDs.
        self._generation = 0

    def show(self, arguments: Sequence[ArgumentField], line: str, script: Path, *, sweep: bool) -> None:
        """Show fields for arguments, with the values from a line of arguments."""
        # A line that results from an earlier edit in this widget must not overwrite what the user has typed since then.
        is_own = line in self._own_lines
        del self._own_lines[: self._own_lines.index(line) + 1 if is_own else None]
        is_new = not is_own and line != self._line
        if is_new:
            self._line = line
        texts: Mapping[str, str] | None = parse_arguments(line)
        if list(arguments) != list(self._arguments):
            self._arguments = arguments
            self._generation += 1
            self.remove_children()
            self._rows = [
                ArgumentRow(each, f"{self._prefix}-{self._generation}-{number}", (texts or {}).get(each.name))
                for number, each in enumerate(arguments)
            ]
            self.mount(*self._rows)
            widest = max((len(each.name) for each in arguments), default=0)
            for each in self._rows:
                each.label.styles.width = max(_LABEL, min(_WIDEST, widest + 3))
        if texts is not None:
            with self.prevent(Input.Changed, Select.Changed, Toggles.Changed):
                for each in self._rows:
                    text = texts.get(each.argument.name)
                    if is_new:
                        each.fill(text)
                    each.show_error(text, script, sweep=sweep)

    def field_of(self, name: str) -> Widget | None:
        """Return the field of an argument; None if it has none."""
        return next((each.field for each in self._rows if each.argument.name == name), None)

    @on(Input.Changed)
    @on(Select.Changed)
    @on(Toggles.Changed)
    def _edited(self, event: Input.Changed | Select.Changed | Toggles.Changed) -> None:
        event.stop()
        changed = next((each for each in self._rows if event.control in each.walk_children()), None)
        if changed is None:
            return
        name, text = changed.argument.name, changed.text
        before = (parse_arguments(self._line) or {}).get(name)
        if text == before or (text is None and before == ""):
            return
        if isinstance(event.control, Select) and _choice(changed.argument, before) == (text or ""):
            return  # the drop-down list has posted its initial value, which is not an edit
        self._line = set_argument(self._line, name, text, [each.name for each in self._arguments])
        self._own_lines.append(self._line)
        self.post_message(self.Edited(self._line))


def _field_of(argument: ArgumentField, id: str, text: str | None) -> Widget:
    if argument.kind == "switch":
        return Toggles([(_ON, _ON)], _chosen(argument, text), id=id)
    if argument.kind == "choice":
        first = "choose one" if argument.required else f"default: {sanitize_line(argument.default or 'none')}"
        listed = [(first, ""), *((sanitize_line(each), each) for each in argument.choices)]
        return Choice(listed, value=_choice(argument, text), allow_blank=False, id=id, compact=True)
    return text_field(id, sanitize_line(argument.placeholder), value=text or "")


def _description(argument: ArgumentField, shows_placeholder: bool) -> str:
    """Return the text below a focused field. Includes the placeholder, unless the field itself shows it."""
    placeholder = "" if shows_placeholder else argument.placeholder
    listed = "list: 1,2,3" if argument.type.startswith("*") else ""
    return "  ".join(filter(None, (placeholder, listed, argument.help)))


def _choice(argument: ArgumentField, text: str | None) -> str:
    return "" if text is None else argument.match_choice(text) or ""


def _chosen(argument: ArgumentField, text: str | None) -> frozenset[str]:
    is_on = None if text is None or argument.validation_error(text) else text.lower() in ("true", "yes", "on", "1")
    return frozenset([_ON] if (argument.is_on if is_on is None else is_on) else ())
