"""In what two results differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from skyward_tui.dialogs.dialog import Dialog
from skyward_tui.ui.style_sheets import read_style_sheet


class DifferencesScreen(Dialog[None]):
    """Lines to scroll.

    Args:
        heading: whose results they are.
        lines: the first is what their columns are called.
    """

    BOX: ClassVar[type[Widget]] = VerticalScroll
    DEFAULT_CSS = read_style_sheet(__file__, "differences")

    def __init__(self, heading: str, lines: Sequence[str]) -> None:
        super().__init__()
        self.heading = heading
        self._lines = lines

    def body(self) -> ComposeResult:
        first, *others = self._lines
        yield Static(Content("\n").join([Content.styled(first, "bold"), *map(Content, others)]))

    def hint(self) -> str:
        return f"{self.key_of('dialog.close')} closes"
