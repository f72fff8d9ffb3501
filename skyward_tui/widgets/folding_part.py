"""A part of a form that folds: closed it is one line, which says what is set in it."""

from __future__ import annotations

from typing import Self

from textual.content import Content
from textual.widget import Widget
from textual.widgets import Collapsible
from textual.widgets.collapsible import CollapsibleTitle

from ..actions import bindings
from ..styles import beside


class FoldTitle(CollapsibleTitle, inherit_bindings=False):
    """Its line, which has the focus."""

    BINDINGS = bindings("fold")


class FoldingPart(Collapsible):
    """That part.

    Args:
        label: what it is called.
        content: what is in it.
    """

    DEFAULT_CSS = beside(__file__)

    def __init__(self, label: str, *content: Widget, id: str) -> None:
        super().__init__(*content, title=label, id=id)
        self._label = label
        self._title = FoldTitle(label=label, collapsed_symbol="▸", expanded_symbol="▾", collapsed=True)

    def focus(self, scroll_visible: bool = True) -> Self:
        """Open it: who is led here is to see what is in it."""
        self.collapsed = False
        self._title.focus(scroll_visible)
        return self

    def tell(self, said: str, *, amiss: bool = False) -> None:
        """Say behind its name what is set in it."""
        self._title.label = Content.assemble(self._label, "  ", (said, "$text-error" if amiss else "$muted"))
