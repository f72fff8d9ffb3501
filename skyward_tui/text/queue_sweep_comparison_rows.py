"""Rows of tables about the queue of a pool, the trials of a sweep, and the comparison of two runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from skyward_core.client.run_comparison import ComparedRow, Comparison
from skyward_core.model.errors import UsageError
from skyward_core.model.outcomes import Summary, signal_name
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import PoolView, RunView, TaskView, TrialSheet
from skyward_core.views.result_agreement import Difference
from skyward_core.views.stack_groups import format_ranges
from skyward_core.views.sweep_trials import TrialTable
from skyward_tui.text.number_and_time_format import clip, count, duration, failure, money, number, one_line, table


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A run that goes on, or waits.

    Attributes:
        run: its id.
        name: its function's.
        waits: whether it waits.
        nodes: that it has; none while it waits.
        wants: how many nodes it wants, while it waits.
        only: which ones these must be; () for any.
        since: Unix time, since when it has its nodes or waits for them.
        free: how many nodes are free, while it waits.
        gone: those of the nodes that it wants that are not there.
        behind: id and name of the run that is before it; ("", "") where it is the first.
        holders: who has nodes that it could have: id, name, nodes, since.
        who: whose it is, where that is told.
    """

    run: str
    name: str
    waits: bool
    nodes: tuple[int, ...] = ()
    wants: int = 0
    only: tuple[int, ...] = ()
    since: float = 0.0
    free: int = 0
    gone: tuple[int, ...] = ()
    behind: tuple[str, str] = ("", "")
    holders: tuple[tuple[str, str, tuple[int, ...], float], ...] = ()
    who: str = ""


def queue_rows(view: PoolView) -> list[QueueRow]:
    """The runs of a pool that have not ended, those that have nodes first, then those that wait, in their order."""
    every = tuple(node.index for node in view.nodes)
    there = {node.index for node in view.nodes if node.phase == "ready"}
    queued = {each.run for each in view.waiting}
    going = [run for run in view.runs.values() if run.state == "running" and run.id not in queued]
    going.sort(key=lambda run: run.opened_at)
    rows: list[QueueRow] = []
    behind: list[RunView] = []
    for run in going:
        nodes = _nodes(run, every)
        if run.kind == "broadcast" and not run.tasks and any(set(nodes) & set(row.nodes) for row in rows):
            behind.append(run)  # its calls wait on its nodes already
        else:
            rows.append(QueueRow(run.id, run.function, False, nodes, since=_run_started_at(run)))
    holders = tuple((row.run, row.name, row.nodes, row.since) for row in rows if row.nodes)
    free = len(there - {node for row in rows for node in row.nodes})
    waiting = [
        QueueRow(run.id, run.function, True, wants=len(_nodes(run, every)), since=run.opened_at, holders=holders)
        for run in behind
    ]
    for each in view.waiting:
        only = tuple(each.only)
        mine = tuple(
            (run, name, tuple(node for node in nodes if not only or node in only), since)
            for run, name, nodes, since in holders
        )
        gone = tuple(node for node in only or every if node not in there)
        row = QueueRow(each.run, each.name, True, wants=each.nodes or len(every), only=only, since=each.since)
        waiting.append(replace(row, gone=gone, holders=tuple(holder for holder in mine if holder[2]), who=each.who))
    before = ("", "")
    for row in waiting:
        rows.append(replace(row, free=free, behind=before))
        before = (row.run, row.name)
    return rows


def _nodes(run: RunView, every: tuple[int, ...]) -> tuple[int, ...]:
    if run.kind == "broadcast":
        return run.nodes or every
    return tuple(sorted({task.node for task in run.tasks.values() if task.state == "running" and task.node >= 0}))


def _run_started_at(run: RunView) -> float:
    began = [task.began_at for task in run.tasks.values() if task.began_at is not None]
    return min(began, default=run.opened_at)


SHOWN = 3  # of those that have nodes that a run waits for


def _named(nodes: Sequence[int]) -> str:
    """``node 3``, ``nodes 0-2,5``."""
    return f"node{'s' * (len(nodes) > 1)} {format_ranges(nodes)}"


def waiting_reason(row: QueueRow, now: float) -> str:
    """Why a run waits; "" where it does not."""
    if not row.waits:
        return ""
    wanted = _named(row.only) if row.only else count(row.wants, "node")
    said = f"waits for {wanted}: {row.free} free"
    if row.behind[0]:
        said += f"; {row.behind[1]} ({row.behind[0]}) is before it"
    held = [
        f"{name} ({run}) has {_named(nodes)} for {duration(max(0.0, now - since))}"
        for run, name, nodes, since in row.holders[:SHOWN]
    ]
    if len(row.holders) > SHOWN:
        held.append(f"{len(row.holders) - SHOWN} more have others")
    if row.gone:
        held.append(f"{_named(row.gone)} not ready")
    return said + "".join(f", {each}" for each in held)


def queue_row_json(row: QueueRow, now: float) -> dict[str, Any]:
    """A row for programs."""
    return {
        "run": row.run,
        "name": row.name,
        "state": "waiting" if row.waits else "running",
        "nodes": list(row.nodes),
        "wants": row.wants,
        "only": list(row.only),
        "since": row.since,
        "reason": waiting_reason(row, now),
        "behind": row.behind[0],
        "who": row.who,
    }


NAMED = 5  # combinations that failed, at the end


def gang_text(nodes: int, has: int) -> str:
    """How the combinations of a sweep by gangs share a pool.

    Args:
        nodes: of each; 0 for all.
        has: how many the pool has, or may get.
    """
    if not nodes or nodes >= has:
        return "each on every rank, one after the other"
    at_once, left = divmod(has, nodes)
    words = f"each on every rank of {count(nodes, 'node')}, {at_once:,} at a time"
    return f"{words} ({count(left, 'node')} of {has} left over)" if left else words


def combination_text(sheet: TrialSheet, row: int) -> str:
    """A combination of arguments, in words."""
    pairs = zip(sheet.names, sheet.rows[row], strict=True)
    return " ".join(f"{name}={sanitize_line(text)}" for name, text in pairs)


def sweep_outcome(found: TrialTable, run: str) -> str:
    """How a sweep by gangs went, and which combinations have no results; "" where all have.

    Args:
        run: any of its runs.
    """
    lack = [row for row in found.rows if row.state != "returned"]
    if not lack:
        return ""
    failed = [row for row in lack if row.task is not None]
    said = [f"{len(found.rows) - len(lack):,} of {count(len(found.rows), 'combination')} have results"]
    for row in failed[:NAMED]:
        pairs = zip(found.names, row.arguments, strict=True)
        said.append(f"{' '.join(map('='.join, pairs))} {row.state} (run {row.run})")
    if len(failed) > NAMED:
        said.append(f"{len(failed) - NAMED:,} more failed")
    if waiting := len(lack) - len(failed):
        said.append(f"{waiting:,} did not begin")
    return f"{'; '.join(said)}: skyward-tui rerun {run} --missing runs what has none"


class ComparedLine(NamedTuple):
    """A row of the comparison; of a heading both sides are empty."""

    name: str
    left: str = ""
    right: str = ""
    differs: bool = False
    is_heading: bool = False


def comparison_lines(found: Comparison, now: float, note: Callable[[Any], str]) -> Iterator[ComparedLine]:
    """All of them, in their parts.

    Args:
        note: what a task gave or died of, in a line.
    """
    yield ComparedLine("", found.left.past.run, found.right.past.run)
    for row in found.facts(now):
        if row.left or row.right:
            yield _line(row, _FACTS.get(row.name, str))
    parts: list[tuple[str, list[ComparedRow], Callable[[Any], str]]] = [
        ("arguments", found.arguments(), str),
        ("numbers: last, least … greatest", found.numbers(), _metric_summary),
        ("results", found.aggregate_rows(), _statistics),
        (
            "results by rank" if found.left.view.kind == "broadcast" else "results by task",
            found.results(),
            note,
        ),
    ]
    for heading, rows, text in parts:
        if rows:
            yield ComparedLine(heading, is_heading=True)
            yield from (_line(row, text) for row in rows)


def _line(row: ComparedRow, text: Callable[[Any], str]) -> ComparedLine:
    left, right = ("–" if value is None else one_line(text(value)) for value in (row.left, row.right))
    return ComparedLine(row.name, left, right, left != right)


def _metric_summary(gist: tuple[float | None, float | None, float | None]) -> str:
    last, least, most = ("–" if each is None else number(each) for each in gist)
    return f"{last}, {least} … {most}"


def _statistics(row: Mapping[str, float]) -> str:
    return f"{number(row['mean'])} ± {number(row['std'])}, {number(row['min'])} … {number(row['max'])}"


def _files(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown}, …" if len(names) > 3 else shown or "–"


_FACTS: Mapping[str, Callable[[Any], str]] = {
    "text": lambda source: f"{source:.10}" or "–",
    "commit": lambda commit: f"{commit:.10}" or "–",
    "changed": _files,
    **dict.fromkeys(("plugins", "parameters", "image"), lambda names: ", ".join(names) or "–"),
    "began": lambda at: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)),
    "took": duration,
    "cost": money,
}


MAX_VALUE_CHARS = 60  # characters of a value


def parse_rank_pair(run: RunView, said: str) -> tuple[TaskView, TaskView]:
    """Two ranks of a run, or tasks, as a person names them: ``0,3``.

    Raises:
        UsageError: these are no two of them.
    """
    words = [word.strip().lstrip("r#") for word in said.replace(" ", ",").split(",") if word.strip()]
    found = [run.tasks.get(int(word)) for word in words if word.isdecimal() and len(word) < 10]
    if len(words) != 2 or len(found) != 2 or found[0] is None or found[1] is None or found[0] is found[1]:
        what = "ranks" if run.kind == "broadcast" else "tasks"
        raise UsageError(f"name two {what} of {run.total:,}, counted from 0, such as 0,1: not {sanitize_line(said)!r}")
    return found[0], found[1]


def difference_table(names: Sequence[str], found: Sequence[Difference], equal: int) -> list[str]:
    """The differences as lines, with how many things are equal."""
    same = f"{count(equal, 'value')} equal" if equal else "nothing is equal"
    if not found:
        return [f"{names[0]} and {names[1]} are the same: {same}"]
    rows = [("where", *names, "by")]
    for each in found:
        by = "" if each.by is None else number(each.by)
        rows.append((sanitize_line(each.at) or "value", _short(each.left), _short(each.right), by))
    return [
        *table(rows),
        f"{count(len(found), 'value')} differ, {same}" if len(found) > 1 else f"1 value differs, {same}",
    ]


def _short(text: str) -> str:
    return clip(one_line(text), MAX_VALUE_CHARS)


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
        return "  ".join(f"{key} {scalar_text(item)}" for key, item in summary.json.items())
    return scalar_text(summary.json) if summary.is_json else summary.text


def scalar_text(item: object) -> str:
    return number(item) if isinstance(item, float) else str(item)
