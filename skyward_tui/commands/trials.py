"""Sweeps over arguments on the command line: each trial as it ends, and the table of all of them."""

from __future__ import annotations

from skyward_core.model.errors import UsageError
from skyward_core.model.outcome import Outcome
from skyward_core.views.events import RunEnded, RunOpened
from skyward_core.views.trial_sheet import TrialSheet
from skyward_core.views.trials import TrialBoard, TrialRow, TrialTable, block_of, of_gang
from skyward_core.views.views import PoolView, RunView, TaskView

from ..trial_words import combination, ranks_cell
from ..words import clip, count, number, took
from .console import Console
from .report import GLYPHS, failure_lines, note_of, table

COLORS = {"returned": 32, "raised": 31, "exited": 31, "lost": 31, "collateral": 2, "waiting": 2}


class TrialNotes:
    """Tells of each trial of a run as it ends."""

    def __init__(self, console: Console, sheet: TrialSheet) -> None:
        self._console = console
        self._sheet = sheet
        self._ended: set[int] = set()
        self._run = ""
        self._early: list[tuple[str, Outcome]] = []  # until it is known which run is the sweep's

    def begin(self, run: str) -> None:
        """The sweep is that run."""
        self._run = run
        for of, outcome in self._early:
            self.told(of, outcome)
        self._early.clear()

    def told(self, run: str, outcome: Outcome) -> None:
        """A task of a run of the pool has ended."""
        if not self._run:
            self._early.append((run, outcome))
            return
        if run != self._run or outcome.index in self._ended or outcome.index >= len(self._sheet.tasks):
            return
        self._ended.add(outcome.index)
        task = TaskView(outcome.index, outcome.rank, outcome.node, outcome.kind, outcome=outcome)
        said = combination(self._sheet, self._sheet.tasks[outcome.index])
        so_far = f"{len(self._ended):,}/{len(self._sheet.tasks):,}"
        line = f"{so_far} {said}: {outcome.kind} {note_of(task)}".rstrip()
        ranks = block_of(self._sheet, outcome.rank)
        where = f" on ranks {ranks[0]} to {ranks[-1]}" if ranks else ""
        self._console.note(f"{clip(line, 300)}{where} ({took(outcome.seconds)})")


class GangNotes:
    """Tells of each run of a sweep by gangs as it begins, and as it ends.

    Args:
        board: of the sweep.
        pool: what it looks like, always as it is now.

    Attributes:
        views: of the runs that have begun; a pool has those of late alone.
    """

    def __init__(self, console: Console, board: TrialBoard, pool: PoolView) -> None:
        self._console = console
        self._sheet = board.sheet
        self._rows = {run: row for row, run in board.sheet.runs.items()}
        self._pool = pool
        self._ended = 0
        self.views: dict[str, RunView] = {}

    def began(self, run: str) -> None:
        """A run of the pool has begun."""
        if run in self._rows and run not in self.views and (view := self._pool.runs.get(run)) is not None:
            self.views[run] = view
            so_far = f"{len(self.views):,}/{len(self._rows):,}"
            self._console.note(f"run {run}: {so_far} {self._said(run)} on {count(view.total, 'rank')}")

    def told(self, event: RunOpened | RunEnded) -> None:
        """A run of the pool begins, or has ended."""
        self.began(event.run)
        if isinstance(event, RunOpened) or event.run not in self.views:
            return
        self._ended += 1
        view = self.views[event.run]
        stands = of_gang(view.tasks.values())
        what = "" if stands is None or event.state == "done" else f" ({note_of(stands)})"
        nodes = "node" if len(view.nodes) == 1 else "nodes"
        where = f" on {nodes} {', '.join(map(str, view.nodes))}" if view.nodes else ""
        line = f"run {view.id}: {self._ended:,}/{len(self._rows):,} have ended, {self._said(view.id)}: {event.state}"
        self._console.note(f"{clip(line + what, 300)}{where} ({took(event.at - view.opened_at)})")

    def _said(self, run: str) -> str:
        return combination(self._sheet, self._rows[run])


def show_trials(run: RunView, found: TrialTable, console: Console, sort: str | None = None) -> None:
    """The table of a sweep, and the first failure.

    Args:
        sort: a column, or a key of the results; with a - before it the greatest first. None: as combined.

    Raises:
        UsageError: there is no such column.
    """
    rows = sorted_rows(found, sort)
    lines = table(trial_cells(found, rows))
    console.say(clip(lines[0], console.width), 1)
    for line, row in zip(lines[1:], rows, strict=True):
        codes = (COLORS[row.state],) if row.state in COLORS else ()
        console.say(clip(line, console.width), *codes)
    for line in failure_lines(run) if run.kind == "sweep" else ():  # by gangs it is of one trial alone
        console.note(line)


def sorted_rows(found: TrialTable, sort: str | None) -> list[TrialRow]:
    """The rows as a person wants them.

    Raises:
        UsageError: there is no such column.
    """
    if sort is None:
        return list(found.rows)
    try:
        return found.sorted(sort.removeprefix("-"), falling=sort.startswith("-"))
    except KeyError:
        raise UsageError(
            f"there is no column {sort!r} to sort by; there are {', '.join(found.columns)}"
        ) from None


def trial_cells(found: TrialTable, rows: list[TrialRow]) -> list[tuple[str, ...]]:
    """The table's texts, its head first; results last, which may be long."""
    cells = [found.columns]
    for row in rows:
        numbers = (row.numbers.get(name) for name in found.numbers)
        state = f"{GLYPHS.get(row.state, '◌')} {row.state}"
        time = "" if row.seconds is None else took(row.seconds)
        shown = ("" if each is None else number(each) for each in numbers)
        note = "" if row.task is None else note_of(row.task)
        ranks = (ranks_cell(row.ranks),) if found.by_ranks else ()
        cells.append((str(row.place), *row.arguments, *ranks, state, time, *shown, note))
    return cells
