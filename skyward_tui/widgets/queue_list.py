"""The runs of a pool that have nodes, and those that wait for some, a row each."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from ..queue_rows import QueueRow
from ..queue_words import numbers, reason
from ..theme import look
from ..words import clip, duration, fit
from .roll import Roll


class QueueList(Roll):
    """With a cursor, which stays on its run.

    Attributes:
        rows: the runs.
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.rows: Sequence[QueueRow] = ()
        self._at = ""
        self._now = 0.0

    @property
    def chosen(self) -> QueueRow | None:
        """The run under the cursor."""
        return self.rows[self._cursor] if self.rows else None

    @property
    def _cursor(self) -> int:
        return next((place for place, row in enumerate(self.rows) if row.run == self._at), 0)

    def update(self, rows: Sequence[QueueRow], now: float) -> None:
        self.rows, self._now = rows, now
        self.refresh_if_changed()

    def action_step(self, rows: int) -> None:
        if self.rows:
            self._at = self.rows[max(0, min(len(self.rows) - 1, self._cursor + rows))].run
            self.refresh()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.rows) if end else -len(self.rows))

    def keep_in_view(self) -> range:
        return range(self._cursor, self._cursor + 1)

    def row_count(self, width: int) -> int:
        return len(self.rows)

    def row(self, index: int, width: int) -> Content:
        row = self.rows[index]
        mark = look("waiting" if row.waits else "running")
        has = f"has {numbers(row.nodes)}" if row.nodes else "its calls wait for ranks that others have"
        has = reason(row, self._now) if row.waits else has
        age = duration(max(0.0, self._now - row.since))
        text = clip(f"{fit(row.name, 16)} {age:>6}  {has}", max(0, width - 4))
        line = Content.assemble(
            ("▸ " if index == self._cursor and self.has_focus else "  ", "$text-accent"),
            (f"{mark.glyph} ", mark.style),
            (text, "bold" if index == self._cursor and self.has_focus else ""),
        )
        return line
