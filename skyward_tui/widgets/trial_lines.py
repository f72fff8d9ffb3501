"""The trials of a sweep as lines: arguments, outcome, last numbers and result, sorted by the column that is chosen."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content

from skyward_core.views.metrics import MetricBook
from skyward_core.views.trials import RESULT, TrialRow, TrialTable

from ..theme import look
from ..trial_words import ranks_cell
from ..words import clip, number, took
from .results import task_note
from .trial_picture import TrialPicture

WIDEST = 24  # cells of a column but the last
GAP = 2  # cells between two
_UP, _DOWN = "▲", "▼"


class TrialLines:
    """A window's worth at a time of what may be thousands of rows."""

    def __init__(self) -> None:
        self._table = TrialTable((), (), ())
        self._here = ""
        self._by, self._falling = "", False
        self._rows: list[TrialRow] = []
        self._cells: list[list[str]] = []
        self._widths: list[int] = []
        self._right: set[int] = set()  # columns of figures, which end below each other
        self._book, self._run, self._picture = MetricBook(), "", TrialPicture()

    def update(self, table: TrialTable, book: MetricBook, run: str, here: str = "") -> None:
        """Take the table as it is now.

        Args:
            book, run: what the trials logged, and the run that did where a row does not say.
            here: a run whose rows are marked.
        """
        self._table, self._here, self._book, self._run = table, here, book, run
        self._sort()

    def below(self, width: int, height: int) -> list[Content]:
        """What they come to, in so many rows below them."""
        return self._picture.rows(width, height)

    @property
    def ended(self) -> tuple[int, int]:
        """How many trials have ended, of how many."""
        return sum(row.state not in ("waiting", "running") for row in self._rows), len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def choose(self, steps: int) -> None:
        """Sort by the column so many to the right."""
        columns = self._table.columns
        at = columns.index(self._by) if self._by in columns else 0
        self._by = columns[(at + steps) % len(columns)]
        self._falling = False
        self._sort()

    def turn(self) -> None:
        """The greatest first, or the least again."""
        self._falling = not self._falling
        self._sort()

    def _sort(self) -> None:
        columns = self._table.columns
        if self._by not in columns:
            self._by = columns[0]
        self._rows = self._table.sorted(self._by, falling=self._falling)
        self._picture.update(self._table, self._rows, self._by, self._book, self._run)
        self._cells = [self._texts(row) for row in self._rows]
        heads = [self._head_of(column) for column in columns]
        everything = [heads, *self._cells]
        self._widths = [min(WIDEST, max(map(cell_len, column))) for column in zip(*everything, strict=True)]

        cells = list(zip(*self._cells, strict=True))
        self._right = {
            at for at, column in enumerate(cells) if at and all(map(_is_figure, filter(None, column)))
        }

    def _head_of(self, column: str) -> str:
        return f"{column}{_DOWN if self._falling else _UP}" if column == self._by else column

    def _texts(self, row: TrialRow) -> list[str]:
        numbers = (row.numbers.get(name) for name in self._table.numbers)
        return [
            str(row.place), *row.arguments, *((ranks_cell(row.ranks),) if self._table.by_ranks else ()),
            look(row.state).text, "" if row.seconds is None else took(row.seconds),
            *("" if each is None else number(each) for each in numbers),
            "" if row.task is None else task_note(row.task),
        ]  # fmt: skip

    def _shown(self, width: int) -> list[int]:
        """The columns that fit: the first, and of the others so many that the chosen one is among them."""
        columns = self._table.columns
        chosen, rest, room = (
            columns.index(self._by),
            list(range(1, len(columns))),
            width - 1 - self._widths[0],
        )
        while chosen in rest[1:] and sum(self._room(at) for at in rest[: rest.index(chosen) + 1]) > room:
            del rest[0]
        return [0, *rest]

    def _room(self, at: int) -> int:
        return GAP + (self._widths[at] if at < len(self._widths) - 1 else len(RESULT) + 1)

    def head(self, width: int) -> Content:
        """The columns' names; the one that the rows are sorted by is marked."""
        parts = []
        for at in self._shown(width):
            column = self._table.columns[at]
            style = "bold $text-accent" if column == self._by else "$muted"
            parts.append((self._cell(self._head_of(column), at), style))
        return _cut([(" ", ""), *parts], width)

    def row(self, index: int, width: int) -> Content:
        """The row that stands there in this order."""
        texts, found = self._cells[index], self._rows[index]
        state = found.state
        dim = "$muted" if state in ("collateral", "waiting") else ""
        styles = {0: "bold", self._table.before: look(state).style}  # its place, its outcome
        parts = [(self._cell(texts[at], at), styles.get(at, dim)) for at in self._shown(width)]
        mark = ("▸", "$text-accent") if self._here and found.run == self._here else (" ", "")
        return _cut([mark, *parts], width)

    def _cell(self, text: str, at: int) -> str:
        if at == len(self._widths) - 1:  # the result has what is left
            return text
        room = self._widths[at]
        blank = " " * (room - min(room, cell_len(text)))
        return (blank + clip(text, room) if at in self._right else clip(text, room) + blank) + " " * GAP


def _is_figure(text: str) -> bool:
    """Whether it is a number, or a time."""
    return text[0] in "+-.0123456789" and not text.strip("+-.,:0123456789einf ms")


def _cut(parts: list[tuple[str, str]], width: int) -> Content:
    """What fits into a line."""
    kept = []
    for text, style in parts:
        if width <= 0:
            break
        kept.append((clip(text, width), style))
        width -= cell_len(text)
    return Content.assemble(*kept)
