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
        gang: whether each row is a run of its own, on every rank of some nodes or of all.
        nodes: how many nodes each of its runs has; 0 for all of the pool.
        runs: which run each of its tasks' rows is: known before any of them begins.
        client: the process that begins them, one after the other; 0 where that is not known.
        ranks: on how many ranks of a node each row runs, as a gang of their own, where they are one run.
        after: the sweep whose rest this is: the key of its pool, and the run that its sheet is kept under.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    tasks: tuple[int, ...]
    before: Mapping[int, tuple[str, int]]
    gang: bool = False
    nodes: int = 0
    runs: Mapping[int, str] = field(default_factory=dict)
    client: int = 0
    after: tuple[str, str] | None = None
    ranks: int = 1

    @classmethod
    def of_texts(
        cls, combinations: Sequence[Sequence[str]], *, gang: bool = False, nodes: int = 0
    ) -> TrialSheet:
        """Of combinations of texts ``name=value``, of which none has run."""
        split = [[pair.partition("=")[::2] for pair in each] for each in combinations]
        names = tuple(name.strip() for name, _ in split[0])
        return replace(cls.new(names, [[text for _, text in each] for each in split]), gang=gang, nodes=nodes)

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
        return replace(self, tasks=left, before=have)

    # -- by gangs ------------------------------------------------------------------------------------------

    def begun_by(self, client: int, ids: Sequence[str]) -> TrialSheet:
        """The same for a sweep by gangs that begins now.

        Args:
            client: the process that begins its runs.
            ids: what these are called, in the order of the tasks.
        """
        return replace(self, client=client, runs=dict(zip(self.tasks, ids, strict=True)))

    @property
    def name(self) -> str:
        """What a sweep by gangs is called: as its first run is."""
        return self.runs[self.tasks[0]]

    def missing_of_gangs(self, done: Container[str]) -> TrialSheet:
        """The same for a sweep by gangs that goes on with what this one lacks.

        Args:
            done: runs that have results of all ranks.
        """
        have = {**self.before, **{row: (run, 0) for row, run in self.runs.items() if run in done}}
        left = tuple(row for row in range(len(self.rows)) if row not in have)
        return replace(self, tasks=left, before=have, runs={}, client=0)

    def to_json(self) -> dict[str, Any]:
        before = [[row, *place] for row, place in sorted(self.before.items())]
        told: dict[str, Any] = {"names": self.names, "rows": self.rows, "tasks": self.tasks, "before": before}
        if self.after is not None:
            told["after"] = self.after
        if self.ranks > 1:
            told["ranks"] = self.ranks
        if not self.gang:
            return told
        runs = [[row, run] for row, run in sorted(self.runs.items())]
        return told | {"gang": True, "nodes": self.nodes, "runs": runs, "client": self.client}

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
            runs = {int(row): str(run) for row, run in data.get("runs", ())}
            ranks = max(1, int(data.get("ranks", 1)))
            nodes, client = int(data.get("nodes", 0)), int(data.get("client", 0))
            after = None if (place := data.get("after")) is None else (str(place[0]), str(place[1]))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"it is no sheet of trials: {error!r}") from error
        known = range(len(rows))
        if (
            any(len(row) != len(names) for row in rows)
            or not all(row in known for row in (*tasks, *before, *runs))
            or (runs and runs.keys() != set(tasks))
        ):
            raise ValueError("it is no sheet of trials: its rows do not fit")
        return cls(names, rows, tasks, before, data.get("gang") is True, nodes, runs, client, after, ranks)
