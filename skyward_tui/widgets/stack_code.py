"""The code around where groups of ranks stand, as much of each as there is room for."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content
from textual.widget import Widget

from ..source_lines import SourceFile, excerpt

_MOST = 4  # groups that are shown
_LEAST = 3  # lines of each, for which a further group has to leave room


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands. ``said``: what is told where its code is not here."""

    head: Content
    source: SourceFile | None
    said: str = ""


class StackCode(Widget, can_focus=False):
    """The chosen group first."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._told: list[Standing] = []

    def update(self, told: list[Standing]) -> None:
        if told != self._told:
            self._told = told
            self.refresh()

    def render(self) -> Content:
        room = self.size.height + 1  # each has a blank line behind it, but for the last
        told = self._told[: max(1, min(_MOST, room // (_LEAST + 2)))]
        lines: list[Content] = []
        for left, each in zip(range(len(told), 0, -1), told, strict=True):
            lines += [Content("")] if lines else []
            rows = max(1, (room - len(lines)) // left - 2)
            code = (
                [Content.styled(each.said, "$muted")] if each.source is None else excerpt(each.source, rows)
            )
            lines += [each.head, *code]
        return Content("\n").join(lines)
