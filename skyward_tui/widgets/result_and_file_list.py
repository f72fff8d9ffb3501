"""List of a run's results: first aggregates, then a row per rank or task, then the files that ranks wrote."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content

from skyward_core.model.output_files import WrittenFile
from skyward_core.util.format_bytes import format_size
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.result_comparison import find_disagreements
from skyward_tui.text.number_time_and_run_state_format import ago, count, failure, number, precise_duration
from skyward_tui.text.queue_trial_and_comparison_rows import scalar_text, task_note
from skyward_tui.text.state_styles import state_style
from skyward_tui.text.text_width_and_tables import clip, fit_width, one_line
from skyward_tui.widgets.sweep_table_and_charts import TrialLines
from skyward_tui.widgets.virtual_list import VirtualList

MOST_ALIGNED = 256  # maximum number of results to align; comparing the keys of more results would delay repaints
MOST_PARTS, MOST_WIDE = 8, 24  # maximum number of keys of an aligned result, and maximum cells of a value
_BEFORE = 29  # cells of a row before the result


def _parts(task: TaskView) -> dict[str, object] | None:
    """Return a result if it is a small JSON object of scalars, otherwise None."""
    outcome = task.outcome
    if outcome is None or outcome.kind != "returned" or task.items or outcome.summary is None:
        return None
    value = outcome.summary.json if outcome.summary.is_json else None
    if not isinstance(value, dict) or not 0 < len(value) <= MOST_PARTS:
        return None
    return None if any(isinstance(each, dict | list) for each in value.values()) else value


def _columns(ended: list[TaskView]) -> dict[str, int]:
    """Return the width of each key if all aligned results have the same keys; otherwise an empty dict."""
    values = [value for task in ended if (value := _parts(task)) is not None]
    if not values or any(value.keys() != values[0].keys() for value in values[1:]):
        return {}
    return {
        name: min(MOST_WIDE, max(cell_len(name), *(cell_len(scalar_text(value[name])) for value in values)))
        for name in values[0]
    }


class ResultsPane(VirtualList[TaskView]):
    """Results of one run, updated while the run continues."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.run: RunView | None = None
        self._tasks: list[TaskView] = []
        self._head: list[tuple[str, str, str]] = []
        self._state: object = None
        self._columns: dict[str, int] = {}  # width of each key if all results have the same keys
        self._files: list[WrittenFile] = []
        self._trouble = self._files_of = self._key = ""
        self.trials: TrialLines | None = None  # rows of a sweep's trials, shown instead of tasks

    def update(self, run: RunView | None) -> bool:
        """Show the results of a run. Return whether anything has changed."""
        state = None if run is None else (run.id, run.version, run.state)
        if state == self._state:
            return False
        if self.run is not None and (run is None or run.id != self.run.id):
            self.trials = None
        self.run, self._state = run, state
        self._tasks = [] if run is None else [task for _, task in sorted(run.tasks.items())]
        self._columns = _columns([task for task in self._tasks[:MOST_ALIGNED] if task.outcome is not None])
        self._head = [] if run is None else [*_cause_row(run), *_outlier_rows(run), *_aggregate_rows(run)]
        if run is None or run.id != self._files_of:
            self._files, self._trouble = [], ""
        self.refresh()
        return True

    def show_trials(self, trials: TrialLines | None) -> None:
        """Show the rows of trials. None shows the run's own results."""
        self.trials, self._state = trials, None
        self.refresh()

    def show_files(self, run: str, files: list[WrittenFile], trouble: str, key: str) -> bool:
        """Show the files that the ranks of a run wrote, or why they cannot be listed. Return whether anything has
        changed.

        Args:
            key: Displayed name of the key that fetches the files.
        """
        self._key = key
        if self.run is None or self.run.id != run:
            return False
        is_new = (files, trouble, run) != (self._files, self._trouble, self._files_of)
        self._files, self._trouble, self._files_of = files, trouble, run
        self.refresh()  # the displayed ages always change
        return is_new

    @property
    def has_files(self) -> bool:
        """Whether any written files are known."""
        return bool(self._files)

    @property
    def has_results(self) -> bool:
        """Whether there is more to show than the states of ranks: a result, a yielded item, a trial or a file."""
        shown = self.run is not None and (self.run.ended or any(task.items for task in self._tasks))
        return bool(shown or self.trials is not None or self._files or self._trouble)

    def head(self, width: int) -> list[Content]:
        lines = [
            Content.assemble((f" {name:<11}", "bold"), (clip(text, max(0, width - 12)), style))
            for name, text, style in self._head
        ]
        if self.trials is not None:
            return [*lines, self.trials.head(width)]
        if self._columns and len(self._tasks) > 1:
            names = "  ".join(fit_width(name, -room) for name, room in self._columns.items())
            before = _BEFORE if self.run is None or self.run.kind == "broadcast" else _BEFORE + 1
            lines.append(Content.styled(f"{'':{before}}{clip(names, max(0, width - before))}", "$muted"))
        return lines

    def visible_rows(self) -> list[Content]:
        """Return the visible rows. In a sweep, charts fill the space below the trials."""
        rows = super().visible_rows()
        if self.trials is None or (room := self.size.height - len(rows) - 1) < 1:
            return rows
        charts = self.trials.chart_rows(self.size.width, room)
        return [*rows, Content(""), *charts] if charts else rows

    @property
    def _count(self) -> int:
        return len(self._tasks if self.trials is None else self.trials)

    def action_sideways(self, steps: int) -> None:
        if self.trials is not None:
            self.trials.select_column(steps)
            self.refresh()

    def action_open(self) -> None:
        if self.trials is not None:
            self.trials.reverse_sort()
            self.refresh()

    def row_count(self, width: int) -> int:
        return self._count + (1 + len(self._files) if self._files or self._trouble else 0)

    def row(self, index: int, width: int) -> Content:
        if index >= self._count:
            return self._file_row(index - self._count, width)
        if self.trials is not None:
            return self.trials.row(index, width)
        task = self._tasks[index]
        mark = state_style(task.state)
        seconds = precise_duration(task.outcome.seconds) if task.outcome else ""
        name = f" r{task.rank:<4}" if self.run is None or self.run.kind == "broadcast" else f" #{task.index:<5}"
        head = f"{mark.text:<13}{seconds:>8}  "
        note = clip(self._note(task), max(0, width - len(name) - len(head)))
        dim = "$muted" if task.state in ("collateral", "waiting") else ""
        return Content.assemble((name, "bold"), (head, mark.style), (note, dim))

    def _note(self, task: TaskView) -> str:
        """Return the note of a task, aligned with the columns of keys if there are any."""
        value = _parts(task)
        if not self._columns or len(self._tasks) < 2 or value is None or value.keys() != self._columns.keys():
            return task_note(task)
        return "  ".join(fit_width(scalar_text(value[name]), -room) for name, room in self._columns.items())

    def _file_row(self, index: int, width: int) -> Content:
        if index == 0:
            size = format_size(sum(file.size for file in self._files))
            text = self._trouble or f"{count(len(self._files), 'file')} on the nodes, {size} ({self._key}: fetch)"
            return Content.assemble((" files ", "bold"), (clip(sanitize_line(text), max(0, width - 7)), "$muted"))
        file = self._files[index - 1]
        head = f" n{file.node:<4}{format_size(file.size):>9}  {ago(file.age):>8}  "
        return Content.assemble((head, "$muted"), clip(sanitize_line(file.path), max(0, width - len(head))))


def _cause_row(run: RunView) -> list[tuple[str, str, str]]:
    cause = run.root_cause
    if cause is None:
        return []
    text = failure(cause.outcome, cause.type, one_line(cause.message))
    rows = [("root cause", f"{cause.rank_prefix.replace('rank ', 'r')}{cause.outcome}: {text}", "$text-error")]
    if (figures := run.cause_metrics) is not None and (words := figures.describe()):
        rows.append(("before", f"n{figures.node} {', '.join(words)}", "$text-warning"))
    return rows


def _outlier_rows(run: RunView) -> list[tuple[str, str, str]]:
    """Return rows about values that differ from those of most ranks."""
    return [
        (
            "disagree" if not at else "",
            f"{sanitize_line(each.name)}: "
            + ", ".join(f"r{rank} {one_line(text)}" for rank, text in each.ranks.items())
            + f"; most have {one_line(each.usual)}",
            "$text-warning",
        )
        for at, each in enumerate(find_disagreements(run)[:4])
    ]


def _aggregate_rows(run: RunView) -> list[tuple[str, str, str]]:
    rows = run.aggregate() or {}
    return [
        (
            clip(name, 10),
            f"mean {number(row['mean'])} ± {number(row['std'])}   min {number(row['min'])}   max {number(row['max'])}",
            "$text-accent",
        )
        for name, row in list(rows.items())[:6]
    ]
