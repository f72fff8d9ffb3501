"""The trials of a sweep: arguments against what came of them, sorted by anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from ..wire.safe_text import field as safe
from .trial_sheet import TrialSheet
from .views import TaskView

PLACE, STATE, TIME, RESULT = "#", "outcome", "time", "result"
"""Columns that every table has; the others are called as arguments and numbers are."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One combination.

    Attributes:
        place: which one, counted from 0.
        arguments: texts, in the order of the table's names.
        task: what came of it; None where nothing has run.
        run: the run that ran it, "" for none.
    """

    place: int
    arguments: tuple[str, ...]
    task: TaskView | None = None
    run: str = ""

    @property
    def state(self) -> str:
        return "waiting" if self.task is None else self.task.state

    @property
    def seconds(self) -> float | None:
        return None if self.task is None or self.task.outcome is None else self.task.outcome.seconds

    @property
    def value(self) -> Any:
        """The result, where it is one of JSON's types; else None."""
        outcome = None if self.task is None else self.task.outcome
        return outcome.summary.json if outcome and outcome.summary and outcome.kind == "returned" else None

    @property
    def numbers(self) -> Mapping[str, float | None]:
        """The last number of each name that it logged; None for what was not finite."""
        outcome = None if self.task is None else self.task.outcome
        return {
            name: gist[0] for name, gist in (outcome.numbers if outcome and outcome.numbers else {}).items()
        }


@dataclass(frozen=True, slots=True)
class TrialTable:
    """All of a sweep.

    Attributes:
        names: of the arguments.
        numbers: names of what the trials logged, in the order in which they came.
        rows: in the order of the combinations.
    """

    names: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: Sequence[TrialRow]

    @property
    def columns(self) -> tuple[str, ...]:
        """What it can be sorted by, as it is shown."""
        return (PLACE, *self.names, STATE, TIME, *self.numbers, RESULT)

    @property
    def varied(self) -> tuple[int, ...]:
        """The arguments that are not the same in all rows, by their places."""
        several = range(len(self.names))
        return tuple(at for at in several if len({row.arguments[at] for row in self.rows}) > 1)

    def sorted(self, by: str, *, falling: bool = False) -> list[TrialRow]:
        """The rows by a column, or by a key of their results. Numbers come before texts, what is missing comes last.

        Raises:
            KeyError: there is nothing of that name.
        """
        keys = {row.place: _rank(self._key(row, by)) for row in self.rows}
        if by not in self.columns and all(key[0] == _MISSING for key in keys.values()):
            raise KeyError(by)
        there = [row for row in self.rows if keys[row.place][0] != _MISSING]
        missing = [row for row in self.rows if keys[row.place][0] == _MISSING]
        there.sort(key=lambda row: keys[row.place], reverse=falling)
        return there + missing

    def _key(self, row: TrialRow, by: str) -> Any:
        if by in self.names:
            return row.arguments[self.names.index(by)]
        if by == PLACE:
            return row.place
        if by == STATE:
            return row.state
        if by == TIME:
            return row.seconds
        if by in self.numbers:
            return row.numbers.get(by)
        if by == RESULT:
            return row.value if not isinstance(row.value, dict) else next(iter(row.value.values()), None)
        return row.value.get(by) if isinstance(row.value, dict) else None


@dataclass(frozen=True, slots=True)
class TrialBoard:
    """What a table is made of beside the run itself.

    Attributes:
        sheet: the combinations.
        earlier: what came of those that runs before this one ran, by run and task.
    """

    sheet: TrialSheet
    earlier: Mapping[tuple[str, int], TaskView] = field(default_factory=dict)

    def table(self, run: str, tasks: Mapping[int, TaskView]) -> TrialTable:
        """The table as it is now.

        Args:
            run: id of the run.
            tasks: its tasks, by index.
        """
        places = {row: (run, task) for task, row in enumerate(self.sheet.tasks)}
        rows = []
        for at, texts in enumerate(self.sheet.rows):
            of, task = places.get(at) or self.sheet.before.get(at) or ("", -1)
            found = tasks.get(task) if of == run else self.earlier.get((of, task))
            rows.append(TrialRow(at, tuple(map(safe, texts)), found, of if found is not None else ""))
        numbers = dict.fromkeys(name for row in rows for name in row.numbers)
        return TrialTable(tuple(map(safe, self.sheet.names)), tuple(numbers), rows)


_NUMBER, _TEXT, _MISSING = range(3)


def _rank(key: Any) -> tuple[int, Any]:
    """Something of which any two can be compared."""
    if key is None:
        return _MISSING, 0
    if isinstance(key, str):
        try:
            key = float(key)
        except ValueError:
            return _TEXT, key
    if isinstance(key, int | float):
        return (_MISSING, 0) if isnan(key) else (_NUMBER, key)
    return _TEXT, str(key)
