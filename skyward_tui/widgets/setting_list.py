"""What a person can set, a row each, with a cursor: how the app looks, how it calls them, its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.message import Message

from ..words import clip, fit
from .roll import Roll

_NAME, _VALUE = 36, 24  # columns
_NARROW_NAME, _NARROW_VALUE, _ROOMY = 24, 16, 100


@dataclass(frozen=True)
class SettingRow:
    """A setting, or the name of those that follow.

    Attributes:
        name: its table and its name in there; "" for a heading.
        shown: what it is now, as a person reads it; the words of a heading.
        help: what it does, in a sentence.
        is_own: whether the person has set it.
        remark: why what they have set does not hold; "" where it does.
    """

    name: str
    shown: str
    help: str = ""
    is_own: bool = False
    remark: str = ""


class SettingList(Roll):
    """Settings with what they do beside them."""

    class SettingOpened(Message):
        """The chosen one is to be changed."""

    def __init__(self) -> None:
        super().__init__(id="list")
        self.rows: Sequence[SettingRow] = ()
        self.cursor = 0
        self._note = ""

    @property
    def chosen(self) -> SettingRow | None:
        return self.rows[self.cursor] if self.rows and self.rows[self.cursor].name else None

    def update(self, rows: Sequence[SettingRow], note: str) -> None:
        """Show these; the cursor stays on its setting.

        Args:
            note: what stands there where there are none.
        """
        name = self.chosen.name if self.chosen else ""
        self.rows, self._note = rows, note
        places = [at for at, row in enumerate(rows) if row.name and row.name == name]
        self.cursor = places[0] if places else 0
        self._off_headings(1)
        self.refresh()

    def shown(self) -> list[Content]:
        return super().shown() if self.rows else [self.blank(self._note)]

    def row_count(self, width: int) -> int:
        return len(self.rows)

    def keep_in_view(self) -> range:
        heading = self.cursor > 0 and not self.rows[self.cursor - 1].name
        return range(self.cursor - heading, self.cursor + 1)

    def row(self, index: int, width: int) -> Content:
        row, here = self.rows[index], index == self.cursor
        if not row.name:
            return Content.styled(clip(row.shown, width), "bold")
        value = ("$text-error" if row.remark else "$text-accent") if row.is_own else "$muted"
        name, cell = (_NAME, _VALUE) if width >= _ROOMY else (_NARROW_NAME, _NARROW_VALUE)
        room = max(0, width - name - cell - 4)
        line = Content.assemble(
            ("▶ " if here else "  ", "$text-accent"),
            f"{fit(row.name, name)} ",
            (f"{fit(row.shown, cell)} ", value),
            (clip(row.remark or row.help, room), "$text-error" if row.remark else "$muted"),
        )
        if here:
            line = line.pad_right(max(0, width - line.cell_length)).stylize_before(
                "on $block-cursor-background"
            )
        return line

    def action_step(self, rows: int) -> None:
        self.cursor = min(max(0, self.cursor + rows), max(0, len(self.rows) - 1))
        self._off_headings(1 if rows > 0 else -1)
        self.refresh()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.rows) if end else -len(self.rows))

    def action_open(self) -> None:
        self.post_message(self.SettingOpened())

    def _off_headings(self, step: int) -> None:
        """Let the cursor stand on no heading; the first row is one."""
        if self.rows and not self.rows[self.cursor].name:
            self.cursor = min(max(1, self.cursor + step), len(self.rows) - 1)
