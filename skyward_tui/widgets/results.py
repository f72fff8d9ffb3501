"""What the ranks of a run gave back: the aggregate on top, a row per rank or task below."""

from __future__ import annotations

from textual.content import Content

from skyward_core.model.outcome import Summary, signal_name
from skyward_core.views.views import RunView, TaskView

from ..theme import look
from ..words import clip, failure, number, one_line, took
from .roll import Roll


def task_note(task: TaskView) -> str:
    """What a task gave back or died of, or the newest item it yielded, in one line."""
    outcome = task.outcome
    if outcome is None:
        return f"#{task.items} {value_note(task.last_item)}" if task.last_item else ""
    if outcome.error is not None:
        return failure(outcome.kind, outcome.error.type, one_line(outcome.error.message))
    if outcome.kind == "exited":
        return signal_name(outcome.signal) if outcome.signal else f"exit status {outcome.exit_code}"
    if task.items:
        last = f", last {value_note(task.last_item)}" if task.last_item else ""
        return f"yielded {task.items:,}{last}"
    return value_note(outcome.summary)


def value_note(summary: Summary | None) -> str:
    """A value in short: small JSON objects as ``loss 0.21  acc 0.9``."""
    if summary is None:
        return ""
    if summary.is_json and isinstance(summary.json, dict) and len(summary.json) <= 8:
        return "  ".join(f"{key} {_scalar(item)}" for key, item in summary.json.items())
    return _scalar(summary.json) if summary.is_json else summary.text


def _scalar(item: object) -> str:
    return number(item) if isinstance(item, float) else str(item)


class ResultsPane(Roll):
    """The results of one run as they come."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.run: RunView | None = None
        self._tasks: list[TaskView] = []
        self._head: list[tuple[str, str, str]] = []
        self._state: object = None

    def update(self, run: RunView | None) -> bool:
        """Look at a run; returns whether anything is new."""
        state = None if run is None else (run.id, run.version, run.state)
        if state == self._state:
            return False
        self.run, self._state = run, state
        self._tasks = [] if run is None else [task for _, task in sorted(run.tasks.items())]
        self._head = [] if run is None else [*_cause_row(run), *_aggregate_rows(run)]
        self.refresh()
        return True

    def head(self, width: int) -> list[Content]:
        return [
            Content.assemble((f" {name:<11}", "bold"), (clip(text, max(0, width - 12)), style))
            for name, text, style in self._head
        ]

    def row_count(self, width: int) -> int:
        return len(self._tasks)

    def row(self, index: int, width: int) -> Content:
        task = self._tasks[index]
        mark = look(task.state)
        seconds = took(task.outcome.seconds) if task.outcome else ""
        name = (
            f" r{task.rank:<4}" if self.run is None or self.run.kind == "broadcast" else f" #{task.index:<5}"
        )
        head = f"{mark.text:<13}{seconds:>8}  "
        note = clip(task_note(task), max(0, width - len(name) - len(head)))
        dim = "$muted" if task.state in ("collateral", "waiting") else ""
        return Content.assemble((name, "bold"), (head, mark.style), (note, dim))


def _cause_row(run: RunView) -> list[tuple[str, str, str]]:
    cause = run.root_cause
    if cause is None:
        return []
    said = failure(cause.outcome, cause.type, one_line(cause.message))
    return [("root cause", f"r{cause.rank} {cause.outcome}: {said}", "$text-error")]


def _aggregate_rows(run: RunView) -> list[tuple[str, str, str]]:
    rows = run.aggregate() or {}
    return [
        (
            clip(name, 10),
            f"mean {number(row['mean'])} ± {number(row['std'])}"
            f"   min {number(row['min'])}   max {number(row['max'])}",
            "$text-accent",
        )
        for name, row in list(rows.items())[:6]
    ]
