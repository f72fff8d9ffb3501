"""A line of text that is edited, painted so that a terminal acts on nothing in it."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Input

from skyward_core.wire.safe_text import in_place


class TextLine(Input):
    """Its value stays what it is: a preset of a folder that somebody else made, or what was pasted."""

    @property
    def _value(self) -> Text:  # what Textual paints of it
        if self.password:
            return super()._value
        return Text(in_place(self.value), no_wrap=True, overflow="ignore", end="")
