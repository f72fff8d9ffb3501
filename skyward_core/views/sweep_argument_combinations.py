"""Trial sheet of a sweep: its combinations of arguments, and the task or run of each combination."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from skyward_core.util.light_dataclass import Value
from skyward_core.util.light_dataclass import value as dataclass_value

MAX_TEXT = 200  # maximum characters of an argument's value as text


@dataclass_value
class TrialSheet(Value):
    """Table of a sweep's combinations of arguments, with a row for each.

    Attributes:
        names: Names of the arguments.
        rows: Values of the arguments as text, in the order of ``names``.
        tasks: Row of each task of the run.
        before: Rows whose results come from earlier runs: row -> (run, task).
        gang: Whether each row is a separate run, on all ranks of some or all nodes.
        nodes: Nodes of each run; 0 for all nodes of the pool.
        runs: Row -> run, in a sweep by gangs. Known before the first run begins.
        client: Process that starts the runs one after the other; 0 if unknown.
        after: Sweep whose missing rows this sweep runs: key of its pool, and the run of its sheet.
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

    @classmethod
    def from_texts(cls, combinations: Sequence[Sequence[str]], *, gang: bool = False, nodes: int = 0) -> TrialSheet:
        """Create a sheet from combinations of texts ``name=value``."""
        split = [[pair.partition("=")[::2] for pair in each] for each in combinations]
        names = tuple(name.strip() for name, _ in split[0])
        return replace(cls.new(names, [[text for _, text in each] for each in split]), gang=gang, nodes=nodes)

    @classmethod
    def new(cls, names: Sequence[str], rows: Sequence[Sequence[str]]) -> TrialSheet:
        """Create a sheet of a sweep in which no combination has run yet."""
        short = tuple(tuple(text[:MAX_TEXT] for text in row) for row in rows)
        return cls(tuple(names), short, tuple(range(len(short))), {})

    def missing(self, run: str, returned: Container[int]) -> TrialSheet:
        """Return the sheet for a new run that runs the combinations which have no result yet.

        Args:
            run: Run that this sheet belongs to.
            returned: Tasks of that run with results.
        """
        return self._rest({row: (run, task) for task, row in enumerate(self.tasks) if task in returned})

    # -- by gangs ------------------------------------------------------------------------------------------

    def with_client(self, client: int, ids: Sequence[str]) -> TrialSheet:
        """Return the sheet with the client and the run ids of a sweep by gangs that begins now.

        Args:
            client: Process that starts the runs.
            ids: Ids of the runs, in the order of the tasks.
        """
        return replace(self, client=client, runs=dict(zip(self.tasks, ids, strict=True)))

    @property
    def name(self) -> str:
        """Id of a sweep by gangs: the id of its first run."""
        return self.runs[self.tasks[0]]

    def missing_of_gangs(self, done: Container[str]) -> TrialSheet:
        """Return the sheet for a new sweep by gangs that runs the combinations which have no result yet.

        Args:
            done: Runs with results of all ranks.
        """
        return self._rest({row: (run, 0) for row, run in self.runs.items() if run in done})

    def _rest(self, have: Mapping[int, tuple[str, int]]) -> TrialSheet:
        """Return the sheet of the combinations without a result. ``have``: further combinations that have results."""
        before = {**self.before, **have}
        remaining = tuple(row for row in range(len(self.rows)) if row not in before)
        return replace(self, tasks=remaining, before=before, runs={}, client=0)

    def to_json(self) -> dict[str, Any]:
        before = [[row, *place] for row, place in sorted(self.before.items())]
        data: dict[str, Any] = {"names": self.names, "rows": self.rows, "tasks": self.tasks, "before": before}
        if self.after is not None:
            data["after"] = self.after
        if not self.gang:
            return data
        runs = [[row, run] for row, run in sorted(self.runs.items())]
        return data | {"gang": True, "nodes": self.nodes, "runs": runs, "client": self.client}

    @classmethod
    def from_json(cls, data: Any) -> TrialSheet:
        """Create a sheet from the output of :meth:`to_json`.

        Raises:
            ValueError: If the data is invalid.
        """
        try:
            names = tuple(map(str, data["names"]))
            rows = tuple(tuple(map(str, row)) for row in data["rows"])
            tasks = tuple(map(int, data["tasks"]))
            before = {int(row): (str(run), int(task)) for row, run, task in data["before"]}
            runs = {int(row): str(run) for row, run in data.get("runs", ())}
            nodes, client = int(data.get("nodes", 0)), int(data.get("client", 0))
            after = None if (place := data.get("after")) is None else (str(place[0]), str(place[1]))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"not a trial sheet: {error!r}") from error
        known = range(len(rows))
        if (
            any(len(row) != len(names) for row in rows)
            or not all(row in known for row in (*tasks, *before, *runs))
            or (runs and runs.keys() != set(tasks))
        ):
            raise ValueError("not a trial sheet: its rows are inconsistent")
        return cls(names, rows, tasks, before, data.get("gang") is True, nodes, runs, client, after)
