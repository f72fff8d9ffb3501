"""The combinations of arguments of a sweep, and where what came of each of them is found: as data that is kept."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace
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
        gang: whether each row is a run of its own on every rank; the one that this belongs to is then one row, and
            those before it are the others.
        tried: rows of such a sweep that failed before, and where that is found.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    tasks: tuple[int, ...]
    before: Mapping[int, tuple[str, int]]
    gang: bool = False
    tried: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of_texts(cls, combinations: Sequence[Sequence[str]], *, gang: bool = False) -> TrialSheet:
        """Of combinations of texts ``name=value``, of which none has run."""
        split = [[pair.partition("=")[::2] for pair in each] for each in combinations]
        names = tuple(name.strip() for name, _ in split[0])
        return replace(cls.new(names, [[text for _, text in each] for each in split]), gang=gang)

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
        tried = (
            {row: (run, task) for task, row in enumerate(self.tasks) if row not in have} if self.gang else {}
        )
        return replace(self, tasks=left, before=have, tried={**self.tried, **tried})

    def of_row(self, row: int) -> TrialSheet:
        """Of a sweep by gangs, the sheet of the run that is this row."""
        return replace(self, tasks=(row,))

    def to_json(self) -> dict[str, Any]:
        before, tried = (
            [[row, *place] for row, place in sorted(each.items())] for each in (self.before, self.tried)
        )
        told = {"names": self.names, "rows": self.rows, "tasks": self.tasks, "before": before}
        return told | ({"gang": True, "tried": tried} if self.gang else {})

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
            before, tried = (
                {int(row): (str(run), int(task)) for row, run, task in each}
                for each in (data["before"], data.get("tried", ()))
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"it is no sheet of trials: {error!r}") from error
        known = range(len(rows))
        if any(len(row) != len(names) for row in rows) or not all(
            row in known for row in (*tasks, *before, *tried)
        ):
            raise ValueError("it is no sheet of trials: its rows do not fit")
        return cls(names, rows, tasks, before, data.get("gang") is True, tried)
