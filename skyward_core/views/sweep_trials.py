"""Trials of a sweep and their best values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any

from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import RunView, TaskView, TrialSheet
from skyward_core.views.rank_metrics import MetricStore

PLACE, STATE, TIME, RESULT = "#", "outcome", "time", "result"
"""Columns that all tables have; the others have the names of arguments and numbers."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One combination.

    Attributes:
        place: which one, counted from 0.
        arguments: texts, in the order of the table's names.
        task: what came of it; None where nothing has run.
        run: the run that ran it, "" for none.
        live: the last numbers of one that goes on.
    """

    place: int
    arguments: tuple[str, ...]
    task: TaskView | None = None
    run: str = ""
    live: Mapping[str, float] = field(default_factory=dict)

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
        if outcome is None:
            return self.live
        return {name: gist[0] for name, gist in (outcome.numbers if outcome and outcome.numbers else {}).items()}


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
    def outcome_column(self) -> int:
        """How many columns stand before the outcome's."""
        return 1 + len(self.names)

    @property
    def columns(self) -> tuple[str, ...]:
        """What it can be sorted by, as it is shown: each name once, so that none stands for an argument, too."""
        own = (PLACE, *self.names)
        rest = [(STATE, f"trial's {STATE}"), (TIME, f"trial's {TIME}")]
        rest += [(name, f"logged {name}") for name in self.numbers]
        rest.append((RESULT, f"trial's {RESULT}"))
        taken = set(own)
        shown = []
        for name, otherwise in rest:
            shown.append(otherwise if name in taken else name)
            taken.add(shown[-1])
        return (*own, *shown)

    def sorted_rows(self, by: str, *, falling: bool = False) -> list[TrialRow]:
        """The rows by a column, or by a key of their results. Numbers come before texts, what is missing comes last.

        Raises:
            KeyError: there is nothing of that name.
        """
        columns = self.columns
        at = columns.index(by) if by in columns else None
        keys = {row.place: _sort_key(self._sort_value(row, by, at)) for row in self.rows}
        if at is None and all(key[0] == _MISSING for key in keys.values()):
            raise KeyError(by)
        there = [row for row in self.rows if keys[row.place][0] != _MISSING]
        missing = [row for row in self.rows if keys[row.place][0] == _MISSING]
        there.sort(key=lambda row: keys[row.place], reverse=falling)
        return there + missing

    def comparison_values(self, by: str, otherwise: Sequence[str] = ()) -> tuple[str, dict[int, float]]:
        """A number to compare rows by, as (its name, the finite ones by place): that of a column, or of the result
        where the column is none that a trial brought about. ("", {}) where there is none.

        Args:
            otherwise: names of what they logged, for trials whose results are no numbers.
        """
        columns = self.columns
        own = self.outcome_column
        wanted = [by] if by in columns[own + 1 :] else []
        named = zip(self.numbers, columns[own + 2 :], strict=False)
        logged = [column for name, column in named if name in otherwise]
        for name in dict.fromkeys((*wanted, columns[-1], *logged)):
            keys = {row.place: _sort_key(self._sort_value(row, name, columns.index(name))) for row in self.rows}
            found = {place: float(key[1]) for place, key in keys.items() if key[0] == _NUMBER}
            if finite := {place: value for place, value in found.items() if isfinite(value)}:
                return (self._result_name if name == columns[-1] else name), finite
        return "", {}

    @property
    def _result_name(self) -> str:
        """What the number of the results is called, where they say so."""
        values = (row.value for row in self.rows)
        names = (next(iter(value), "") for value in values if isinstance(value, dict))
        return sanitize_line(str(next(names, RESULT)))

    def _sort_value(self, row: TrialRow, by: str, at: int | None) -> Any:
        """What a row is sorted by: what stands in a column, or a key of its result."""
        value = row.value
        if at is None:
            return value.get(by) if isinstance(value, dict) else None
        first = next(iter(value.values()), None) if isinstance(value, dict) else value
        numbers = (row.numbers.get(name) for name in self.numbers)
        return (row.place, *row.arguments, row.state, row.seconds, *numbers, first)[at]


@dataclass(frozen=True, slots=True)
class TrialTableSource:
    """What a table is made of beside the run itself.

    Attributes:
        sheet: the combinations.
        earlier: what came of those that runs before this one ran, by run and task.
    """

    sheet: TrialSheet
    earlier: Mapping[tuple[str, int], TaskView] = field(default_factory=dict)

    def table(
        self,
        run: str,
        tasks: Mapping[int, TaskView],
        book: MetricStore,
        runs: Mapping[str, RunView] | None = None,
    ) -> TrialTable:
        """The table as it is now.

        Args:
            run: id of the run.
            tasks: its tasks, by index.
            book: what its ranks log while it goes on.
            runs: others of its pool, as they are held; of a sweep by gangs each row is one.
        """
        places = {row: (run, task) for task, row in enumerate(self.sheet.tasks)}
        if self.sheet.gang:
            places = {row: (of, 0) for row, of in self.sheet.runs.items()}
        rows = []
        for at, texts in enumerate(self.sheet.rows):
            of, task = places.get(at) or self.sheet.before.get(at) or ("", -1)
            found = self.earlier.get((of, task)) if of != run else None
            if found is None:
                held = tasks if of == run else runs[of].tasks if runs and of in runs else {}
                found = representative_task(held.values()) if self.sheet.gang else held.get(task)
            live = {}
            if found is not None and found.state == "running" and found.began_at is not None:
                live = book.latest_since(of, found.rank, found.began_at)
            rows.append(TrialRow(at, tuple(map(sanitize_line, texts)), found, of if found is not None else "", live))
        numbers = dict.fromkeys(name for row in rows for name in row.numbers)
        return TrialTable(tuple(map(sanitize_line, self.sheet.names)), tuple(numbers), rows)


def representative_task(tasks: Iterable[TaskView]) -> TaskView | None:
    """What stands for all ranks of a run: one that failed, else one that goes on, else the first of them."""
    ranks = sorted(tasks, key=lambda task: task.index)
    failed = [task for task in ranks if task.state in ("raised", "exited", "lost")]
    going = [task for task in ranks if task.outcome is None]
    return next(iter([*failed, *going, *ranks]), None)


_NUMBER, _TEXT, _MISSING = range(3)


def _sort_key(key: Any) -> tuple[int, Any]:
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
