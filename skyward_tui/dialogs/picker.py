"""What dialogs have in common in which one thing of a list is picked, narrowed by typing."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ..actions import bindings
from ..styles import beside
from ..widgets.text_line import TextLine
from .base import Dialog


class Picker(Dialog[str | None]):
    """Returns what was picked, or None. The input has the focus; keys move the list's cursor all the same."""

    ENTER: ClassVar[str]  # what that key does
    PLACEHOLDER: ClassVar[str]
    BINDINGS = bindings("files")
    DEFAULT_CSS = beside(__file__)

    def body(self) -> ComposeResult:
        narrow = TextLine(placeholder=self.PLACEHOLDER, compact=True)
        narrow.cursor_blink = False
        yield narrow
        yield OptionList(compact=True)

    def hint(self) -> str:
        return f"enter {self.ENTER}, type to narrow, {self.key_of('files.back')} back"

    def on_mount(self) -> None:
        self.fill("")

    def fill(self, typed: str) -> None:
        """List what fits to what was typed."""
        raise NotImplementedError

    def take(self, picked: str) -> None:
        """Do what is to be done with the option of this id."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Stand a line in the list that cannot be picked."""
        self.query_one(OptionList).add_option(Option(Content.styled(text, "$muted"), disabled=True))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.fill(event.value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        # The second half of a double click may arrive after the list was refilled.
        if event.option in event.option_list.options:
            self.take(event.option_id or "")

    def action_step(self, step: int) -> None:
        listed = self.query_one(OptionList)
        if step > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()
