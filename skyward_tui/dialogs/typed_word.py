"""A question that a word must be typed to where much is at stake, and facts above it that may be long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.content import Content
from textual.widgets import Button, Input, Static

from ..styles import beside
from ..widgets.text_line import TextLine
from .base import Dialog, Result


class TypedWord(Dialog[Result]):
    """Its body has the facts, ``#text`` in ``#facts``, and below them the field.

    Attributes:
        CONFIRMS: the buttons that wait for the word.
    """

    DEFAULT_CSS = beside(__file__)
    CONFIRMS: ClassVar[str] = ""

    @property
    def word(self) -> str:
        """What must be typed; "" where a press of a button is enough."""
        raise NotImplementedError

    def confirmed(self) -> None:
        """The word was typed."""
        raise NotImplementedError

    def refused(self, said: str) -> None:
        """Something else was, in words."""
        raise NotImplementedError

    def field(self) -> Iterable[Input]:
        """Where the word is typed: empty, so that nobody confirms what was not read."""
        if self.word:
            answer = TextLine(compact=True, id="answer")
            answer.cursor_blink = False
            yield answer

    def show(self, text: Content) -> None:
        """Other facts."""
        self.query_one("#text", Static).update(text)
        self.call_after_refresh(self.fit)

    def on_input_changed(self, event: Input.Changed) -> None:
        for button in self.query(self.CONFIRMS).results(Button):
            button.disabled = event.value.strip() != self.word

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = event.value.strip()
        if typed == self.word:
            self.confirmed()
        else:
            self.refused(f"{typed!r} is not {self.word!r}" if typed else "nothing was typed")
