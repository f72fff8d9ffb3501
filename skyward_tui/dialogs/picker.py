"""What dialogs have in common in which one thing of a list is picked, narrowed by typing."""

from __future__ import annotations

from typing import ClassVar

from textual import getters
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList

from ..actions import bindings
from ..app_face import AppFace
from .ask import DIALOG_CSS


class Picker(ModalScreen[str | None]):
    """Returns what was picked, or None. The input has the focus; keys move the list's cursor all the same."""

    TITLE_TEXT: ClassVar[str]
    HINT: ClassVar[str]
    PLACEHOLDER: ClassVar[str]
    BINDINGS = bindings("files")
    DEFAULT_CSS = (
        DIALOG_CSS.format("Picker")
        + """
    Picker #dialog { height: 80%; padding: 0 1; }
    Picker Input { margin: 0 0 1 0; }
    Picker OptionList {
        height: 1fr; border: none; padding: 0; background: transparent;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    """
    )
    app = getters.app(AppFace)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as dialog:
            dialog.border_title = self.TITLE_TEXT
            dialog.border_subtitle = self.HINT
            narrow = Input(placeholder=self.PLACEHOLDER, compact=True)
            narrow.cursor_blink = False
            yield narrow
            yield OptionList(compact=True)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.fill("")

    def fill(self, typed: str) -> None:
        """List what fits to what was typed."""
        raise NotImplementedError

    def on_input_changed(self, event: Input.Changed) -> None:
        self.fill(event.value)

    def action_step(self, step: int) -> None:
        listed = self.query_one(OptionList)
        if step > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()

    def action_cancel(self) -> None:
        self.dismiss(None)
