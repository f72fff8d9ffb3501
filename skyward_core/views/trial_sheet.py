"""The combinations of arguments of a sweep, and where what came of each of them is found: as data that is kept."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from ..model.value import Value, value

TEXT = 200  # characters of an argument that are kept


@value
class TrialSheet(Value):
    """A row for each combination.

    Attributes:
        names: of the arguments.
        rows: their values as texts, in that order.
        tasks: of the run that this belongs to, for each task the row that it is.
        before: rows of which runs before this one have the result: row -> (run, task).
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    tasks: tuple[int, ...]
    before: Mapping[int, tuple[str, int]]

    @classmethod
    def of_texts(cls, combinations: Sequence[Sequence[str]]) -> TrialSheet:
        """Of combinations of texts ``name=value``, of which none has run."""
        split = [[pair.partition("=")[::2] for pair in each] for each in combinations]
        names = tuple(name.strip() for name, _ in split[0])
        return cls.new(names, [[text for _, text in each] for each in split])

    @classmethod
    def new(cls, names: Sequence[str], rows: Sequence[Sequence[str]]) -> TrialSheet:
        """Of which none has run."""
        short = tuple(tuple(text[:TEXT] for text in row) for row in rows)
        return cls(tuple(names), short, tuple(range(len(short))), {})

    def missing(self, run: str, returned: Container[int]) -> TrialSheet:
        """The same for a run that goes on with what this one's lacks.

        Args:
            run: the one that this belongs to.
            returned: tasks of it that have a result.
        """
        have = {row: (run, task) for task, row in enumerate(self.tasks) if task in returned}
        have = {**self.before, **have}
        left = tuple(row for row in range(len(self.rows)) if row not in have)
        return TrialSheet(self.names, self.rows, left, have)

    def to_json(self) -> dict[str, Any]:
        before = [[row, *place] for row, place in sorted(self.before.items())]
        return {"names": self.names, "rows": self.rows, "tasks": self.tasks, "before": before}

    @classmethod
    def from_json(cls, data: Any) -> TrialSheet:
        """What :meth:`to_json` gave.

        Raises:
            ValueError: it is not that.
        """
        try:
            names = tuple(map(str, data["names"]))
            rows = tuple(tuple(map(str, row)) for row in data["rows"])
            tasks = tuple(map(int, data["tasks"]))
            before = {int(row): (str(run), int(task)) for row, run, task in data["before"]}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"it is no sheet of trials: {error!r}") from error
        known = range(len(rows))
        if any(len(row) != len(names) for row in rows) or not all(row in known for row in (*tasks, *before)):
            raise ValueError("it is no sheet of trials: its rows do not fit")
        return cls(names, rows, tasks, before)
