"""Small questions: a line of text, a choice."""

from __future__ import annotations

from collections.abc import Iterable

from textual.app import ComposeResult
from textual.widgets import Button, Input, Static

from ..widgets.text_line import TextLine
from .base import Dialog


class AskScreen(Dialog[str | None]):
    """Asks for one line; escape gives None.

    Args:
        value: what the line holds at first.
    """

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self.heading = question
        self._value = value

    def body(self) -> ComposeResult:
        answer = TextLine(self._value, compact=True)
        answer.cursor_blink = False
        yield answer

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class ChoiceScreen(Dialog[str]):
    """A question with a few answers, the harmless one first and focused.

    Args:
        title: in the border.
        text: what is asked, as it is.
        choices: (id, label, dangerous) of each answer; escape gives ``escape``.
    """

    def __init__(self, title: str, text: str, choices: list[tuple[str, str, bool]], escape: str) -> None:
        super().__init__()
        self.heading = title
        self._text, self._choices, self._escape = text, choices, escape

    def body(self) -> ComposeResult:
        yield Static(self._text, markup=False)

    def buttons(self) -> Iterable[Button]:
        for name, label, dangerous in self._choices:
            yield Button(label, id=name, variant="error" if dangerous else "default", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id or self._escape)

    def action_close(self) -> None:
        self.dismiss(self._escape)
