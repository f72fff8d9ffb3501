"""Table of a sweep's trials: arguments, outcomes, metrics and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any

from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.metric_kinds_and_order import metric_direction, metric_rank
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.sweep_argument_combinations import TrialSheet

# Columns of all tables. Further columns have the names of arguments and metrics.
PLACE, STATE, TIME, RESULT = "#", "outcome", "time", "result"


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial of a sweep: a combination of arguments, and its outcome.

    Attributes:
        place: Index of the combination, from 0.
        arguments: Values as text, in the order of the table's names.
        task: The task of this trial. None if nothing has run.
        run: The run of the task, or "".
        live: Newest metrics of an active trial.
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
        """Result of the trial if it is of a JSON type, else None."""
        outcome = None if self.task is None else self.task.outcome
        return outcome.summary.json if outcome and outcome.summary and outcome.kind == "returned" else None

    @property
    def numbers(self) -> Mapping[str, float | None]:
        """Last value of each metric that the trial logged. None for values that were not finite."""
        outcome = None if self.task is None else self.task.outcome
        if outcome is None:
            return self.live
        return {name: gist[0] for name, gist in (outcome.metrics if outcome and outcome.metrics else {}).items()}


@dataclass(frozen=True, slots=True)
class TrialTable:
    """Table of all trials of a sweep.

    Attributes:
        names: Names of the arguments.
        numbers: Names of the logged metrics, in order of appearance.
        rows: Trials in the order of the combinations.
    """

    names: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: Sequence[TrialRow]

    @property
    def outcome_column(self) -> int:
        """Number of columns before the outcome's column."""
        return 1 + len(self.names)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, for sorting. A metric with the name of an argument gets a longer name."""
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
        """Return the rows sorted by a column or by a key of their results.

        Numbers precede texts; missing values come last.

        Args:
            by: Name of the column or key.
            falling: Whether to sort in descending order.

        Raises:
            KeyError: If there is no such column or key.
        """
        columns = self.columns
        at = columns.index(by) if by in columns else None
        keys = {row.place: sort_key(self._sort_value(row, by, at)) for row in self.rows}
        if at is None and all(key[0] == MISSING for key in keys.values()):
            raise KeyError(by)
        present = [row for row in self.rows if keys[row.place][0] != MISSING]
        missing = [row for row in self.rows if keys[row.place][0] == MISSING]
        present.sort(key=lambda row: keys[row.place], reverse=falling)
        return present + missing

    def comparison_values(self, by: str, otherwise: Sequence[str] = ()) -> tuple[str, dict[int, float]]:
        """Return the values by which trials are compared: those of a column that trials produce, or else their results.

        Args:
            by: Name of the preferred column.
            otherwise: Names of metrics to use if the results are not numbers.

        Returns:
            Name of the column, and its finite values by place. ("", {}) if there are none.
        """
        columns = self.columns
        own = self.outcome_column
        columns_of_argument = [by] if by in columns[own + 1 :] else []
        named = zip(self.numbers, columns[own + 2 :], strict=False)
        logged = [column for name, column in named if name in otherwise]
        for name in dict.fromkeys((*columns_of_argument, columns[-1], *logged)):
            keys = {row.place: sort_key(self._sort_value(row, name, columns.index(name))) for row in self.rows}
            found = {place: float(key[1]) for place, key in keys.items() if key[0] == _NUMBER}
            if finite := {place: value for place, value in found.items() if isfinite(value)}:
                return (self._result_name if name == columns[-1] else name), finite
        return "", {}

    @property
    def best_place(self) -> int | None:
        """Place of the trial with the best result, or else with the best logged metric. None if fewer than two trials
        have a value, or if it is unknown whether lower or higher values are better."""
        for by in ("", *sorted(self.numbers, key=metric_rank)):
            name, values = self.comparison_values(by)
            if len(values) > 1 and (sign := metric_direction(name)):
                return max(values, key=lambda place: sign * values[place])
        return None

    @property
    def _result_name(self) -> str:
        """Name of the number in the trials' results: the first key of dictionaries, otherwise "result"."""
        values = (row.value for row in self.rows)
        names = (next(iter(value), "") for value in values if isinstance(value, dict))
        return sanitize_line(str(next(names, RESULT)))

    def _sort_value(self, row: TrialRow, by: str, at: int | None) -> Any:
        """Return a trial's value in a column, or under a key of its result, for sorting."""
        value = row.value
        if at is None:
            return value.get(by) if isinstance(value, dict) else None
        first = next(iter(value.values()), None) if isinstance(value, dict) else value
        numbers = (row.numbers.get(name) for name in self.numbers)
        return (row.place, *row.arguments, row.state, row.seconds, *numbers, first)[at]


@dataclass(frozen=True, slots=True)
class TrialTableSource:
    """Data for a trial table that is not part of the run itself.

    Attributes:
        sheet: The combinations.
        earlier: Tasks of earlier runs of the sweep, by run and task index.
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
        """Return the table of the sweep's trials in their current state.

        Args:
            run: Id of the run.
            tasks: Tasks of the run by index.
            book: Metrics of all ranks of the pool.
            runs: All other runs of the pool. In a sweep by gangs, each row is a run.
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
    """Return the task that represents all ranks of a run: a failed task, else an active one, else the first."""
    ranks = sorted(tasks, key=lambda task: task.index)
    failed = [task for task in ranks if task.state in ("raised", "exited", "lost")]
    return next(iter([*failed, *(task for task in ranks if task.outcome is None), *ranks]), None)


_NUMBER, _TEXT, MISSING = range(3)


def sort_key(key: Any) -> tuple[int, Any]:
    """Return a key by which values of any type can be sorted."""
    if key is None:
        return MISSING, 0
    if isinstance(key, str):
        try:
            key = float(key)
        except ValueError:
            return _TEXT, key
    if isinstance(key, int | float):
        return (MISSING, 0) if isnan(key) else (_NUMBER, key)
    return _TEXT, str(key)
