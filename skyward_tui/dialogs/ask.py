"""Small questions: a line of text, a yes or no."""

from __future__ import annotations

from typing import ClassVar

from textual import getters
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from ..app_face import AppFace

DIALOG_CSS = """
{0} {{ align: center middle; background: $background 60%; }}
{0} #dialog {{
    width: 72; max-width: 94%; height: auto; max-height: 94%;
    border: round $primary; background: $surface; padding: 1 2; border-title-style: bold;
}}
{0} #buttons {{ height: auto; margin-top: 1; align-horizontal: center; }}
{0} Button {{ margin: 0 1; min-width: 12; }}
{0} Input {{ margin-top: 1; background: $panel; }}
"""


class AskScreen(ModalScreen[str | None]):
    """Asks for one line; escape gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel", show=False)]
    DEFAULT_CSS = DIALOG_CSS.format("AskScreen")
    app = getters.app(AppFace)

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as dialog:
            dialog.border_title = self._question
            answer = Input(compact=True)
            answer.cursor_blink = False
            yield answer

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class ChoiceScreen(ModalScreen[str]):
    """A question with a few answers, the harmless one first and focused.

    Args:
        title: in the border.
        text: what is asked, as markup.
        choices: (id, label, dangerous) of each answer; escape gives ``escape``.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "give_up", "Cancel", show=False),
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]
    AUTO_FOCUS = "Button"
    DEFAULT_CSS = DIALOG_CSS.format("ChoiceScreen")
    app = getters.app(AppFace)

    def __init__(self, title: str, text: str, choices: list[tuple[str, str, bool]], escape: str) -> None:
        super().__init__()
        self._title, self._text, self._choices, self._escape = title, text, choices, escape

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as dialog:
            dialog.border_title = self._title
            yield Static(self._text, markup=False)
            with Horizontal(id="buttons"):
                for name, label, dangerous in self._choices:
                    yield Button(label, id=name, variant="error" if dangerous else "default", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id or self._escape)

    def action_give_up(self) -> None:
        self.dismiss(self._escape)
