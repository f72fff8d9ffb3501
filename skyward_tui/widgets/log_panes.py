"""One log, or up to four of them side by side, each with a line above it that says whose it is."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widgets import Static

from ..styles import beside
from .log_pane import LogPane

MOST = 4
NARROWEST = 32  # cells that a log beside others has at least, where there is room for two of that


class LogColumn(Vertical):
    """One log of them."""

    def __init__(self, rank: int, *, id: str | None = None) -> None:
        super().__init__()
        self.rank = rank
        self.explained: object = None  # what its empty text was made of
        self.pane = LogPane(id=id)
        self._head = Static(classes="log-head")
        self._said: Content | None = None

    def compose(self) -> ComposeResult:
        yield self._head
        yield self.pane

    def on_mount(self) -> None:
        self.pane.can_focus = True

    def head(self, said: Content) -> None:
        """What stands above it, where there are others."""
        if self._said is None or said.plain != self._said.plain or said.spans != self._said.spans:
            self._said = said
            self._head.update(said, layout=False)


class LogPanes(Container):
    """The logs. One of them is looked at; the first is always there.

    Attributes:
        columns: from left to right, then downwards.
        current: the one that is looked at.
    """

    DEFAULT_CSS = beside(__file__)

    def __init__(self) -> None:
        self.columns = [LogColumn(0, id="pane")]
        self.current = self.columns[0]
        super().__init__()

    def compose(self) -> ComposeResult:
        yield from self.columns

    @property
    def ranks(self) -> Sequence[int]:
        """Whose logs they are."""
        return [column.rank for column in self.columns]

    @property
    def several(self) -> bool:
        return len(self.columns) > 1

    def choose(self, rank: int) -> None:
        """Look at the log of a rank: at the one that is there, else the one that is looked at becomes it."""
        found = next((column for column in self.columns if column.rank == rank), None)
        if found is not None and found is not self.current:
            had_focus = self.current.pane.has_focus
            self.current = found
            if had_focus:
                found.pane.focus()
        self.current.rank = rank
        for column in self.columns:
            column.set_class(column is self.current, "-current")

    def add(self, rank: int) -> LogColumn:
        """Put the log of another rank beside them."""
        column = LogColumn(rank)
        column.pane.wrap, column.pane.times = self.current.pane.wrap, self.current.pane.times
        self.columns.append(column)
        self.mount(column)
        self._arrange()
        return column

    def remove_rank(self, rank: int) -> None:
        """Take the log of a rank away, unless it is the only one."""
        gone = next((column for column in self.columns if column.rank == rank), None)
        if gone is None or not self.several:
            return
        had_focus = gone.pane.has_focus
        place = self.columns.index(gone)
        self.columns.remove(gone)
        if gone is self.current:
            self.current = self.columns[max(0, place - 1)]
        if had_focus:
            self.current.pane.focus()
        gone.remove()
        self._arrange()

    def show_one(self, alone: bool) -> None:
        """Whether only the one that is looked at is shown."""
        for column in self.columns:
            column.display = column is self.current or not alone
        self._arrange(1 if alone else len(self.columns))

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    def _arrange(self, shown: int | None = None) -> None:
        many = sum(column.display for column in self.columns) if shown is None else shown
        across = next((n for n in (many, 2) if many % n == 0 and self.size.width // n >= NARROWEST), 1)
        if self.styles.grid_size_columns != across:
            self.styles.grid_size_columns = across
        self.set_class(many > 1, "-several")
