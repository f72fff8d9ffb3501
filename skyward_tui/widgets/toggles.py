"""A row of check boxes in one widget."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.widget import Widget

from ..actions import bindings
from ..styles import beside


class Toggles(Widget, can_focus=True):
    """``[x] torch  [ ] jax``: left and right move, space toggles.

    Args:
        options: (name, label) of each box.
        chosen: names that are on.
    """

    BINDINGS = bindings("toggles")
    DEFAULT_CSS = beside(__file__)

    @dataclass
    class Changed(Message):
        toggles: Toggles

        @property
        def control(self) -> Toggles:
            return self.toggles

    def __init__(self, options: list[tuple[str, str]], chosen: set[str], *, id: str) -> None:
        super().__init__(id=id)
        self.options = options
        self.chosen = set(chosen)
        self._cursor = 0

    def render(self) -> Content:
        parts: list[tuple[str, str]] = []
        row = 0
        for place, ((name, label), (_, y)) in enumerate(zip(self.options, self._places(), strict=True)):
            here = self.has_focus and place == self._cursor
            style = "$block-cursor-foreground on $block-cursor-background bold" if here else ""
            # Nothing stands behind the last one of a row: there may be no room for it.
            parts.append(("\n" * (y - row) if y > row else "  " if place else "", ""))
            parts.append(
                (_box(name in self.chosen, label), style or ("$text-success" if name in self.chosen else ""))
            )
            row = y
        return Content.assemble(*parts) if parts else Content.styled("none installed", "$muted")

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        places = self._places(width)
        return places[-1][1] + 1 if places else 1

    def _places(self, width: int = 0) -> list[tuple[int, int]]:
        """Column and row of each box."""
        width = width or self.size.width
        places, x, y = [], 0, 0
        for _, label in self.options:
            if x and x + len(label) + 4 > width:
                x, y = 0, y + 1
            places.append((x, y))
            x += len(label) + 6
        return places

    def action_move(self, step: int) -> None:
        self._cursor = min(max(0, self._cursor + step), max(0, len(self.options) - 1))
        self.refresh()

    def action_switch(self) -> None:
        if self.options:
            self.chosen ^= {self.options[self._cursor][0]}
            self.refresh()
            self.post_message(self.Changed(self))

    def on_click(self, event: events.Click) -> None:
        for cursor, ((_, label), (x, y)) in enumerate(zip(self.options, self._places(), strict=True)):
            if y == event.y and x <= event.x < x + len(label) + 4:
                self._cursor = cursor
                self.action_switch()


def _box(is_on: bool, label: str) -> str:
    return f"[{'x' if is_on else ' '}] {label}"
