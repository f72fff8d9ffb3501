"""Rows of tables about the queue of a pool, the trials of a sweep, and the comparison of two runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.model.errors import UsageError
from skyward_core.model.outcomes_states_and_alerts import Summary, signal_name
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.stack_groups_and_profiles import format_ranges
from skyward_tui.text.number_time_and_run_state_format import count, duration, failure, money, number
from skyward_tui.text.text_width_tables_and_ascii import clip, one_line, table

if TYPE_CHECKING:
    from skyward_core.client.run_comparison import ComparedRow, Comparison
    from skyward_core.views.pool_view import PoolView, RunView, TaskView
    from skyward_core.views.result_comparison import Difference
    from skyward_core.views.sweep_argument_combinations import TrialSheet
    from skyward_core.views.sweep_trials import TrialTable


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Row of the queue: a running or a queued run.

    Attributes:
        run: ID of the run.
        name: Name of the run's function.
        waits: Whether the run is queued.
        nodes: Nodes of the run; empty while the run is queued.
        wants: Number of nodes that a queued run needs.
        only: Nodes that the run requires; () if it can use any nodes.
        since: Unix time of the run's start, or of its arrival in the queue.
        free: Number of free nodes, for a queued run.
        gone: Nodes that the run requires but that are not ready.
        behind: ID and name of the previous run in the queue; ("", "") for the first run.
        holders: Running runs on nodes that the queued run could use: ID, name, nodes, since.
        who: Owner of the run, if known.
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
    """Return the active runs of a pool: first the running ones, then the queued ones in the order of the queue."""
    every = tuple(node.index for node in view.nodes)
    there = {node.index for node in view.nodes if node.phase == "ready"}
    queued = {each.run for each in view.waiting}
    rows: list[QueueRow] = []
    for run in sorted(view.begun_runs(), key=lambda run: run.opened_at):
        began = [task.began_at for task in run.tasks.values() if task.began_at is not None]
        rows.append(QueueRow(run.id, run.function, False, view.nodes_of(run), since=min(began, default=run.opened_at)))
    holders = tuple((row.run, row.name, row.nodes, row.since) for row in rows if row.nodes)
    free = len(there - {node for row in rows for node in row.nodes})
    # These queued runs already have nodes. They wait until the ranks there have finished other runs.
    behind = [view.runs[run] for run in view.queued_runs() if run not in queued]
    waiting = [
        QueueRow(run.id, run.function, True, wants=len(view.nodes_of(run)), since=run.opened_at, holders=holders)
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


def queue_reason(view: PoolView, run: RunView, now: float) -> str:
    """Return the reason why a run is queued; "" if it is not."""
    return next((waiting_reason(row, now) for row in queue_rows(view) if row.run == run.id), "")


SHOWN = 3  # maximum number of running runs that the reason of a queued run names, so that it fits one line


def _named(nodes: Sequence[int]) -> str:
    """Format nodes as ``node 3`` or ``nodes 0-2,5``."""
    return f"node{'s' * (len(nodes) > 1)} {format_ranges(nodes)}"


def waiting_reason(row: QueueRow, now: float) -> str:
    """Return the reason why a run is queued; "" for a running one."""
    if not row.waits:
        return ""
    needed = _named(row.only) if row.only else count(row.wants, "node")
    parts = [f"queued: needs {needed}, {row.free} free"]
    if row.behind[0]:
        parts.append(f"behind {row.behind[1]} ({row.behind[0]})")
    for run, name, nodes, since in row.holders[:SHOWN]:
        parts.append(f"{name} ({run}) holds {_named(nodes)} for {duration(max(0.0, now - since))}")
    if len(row.holders) > SHOWN:
        parts.append(f"{count(len(row.holders) - SHOWN, 'more run')} on other nodes")
    if row.gone:
        parts.append(f"{_named(row.gone)} not ready")
    return "; ".join(parts)


def queue_row_json(row: QueueRow, now: float) -> dict[str, Any]:
    """Return a row of the queue as a JSON object."""
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


NAMED = 5  # maximum number of failed trials that a summary names


def gang_text(nodes: int, has: int) -> str:
    """Describe how the trials of a sweep by gangs share a pool.

    Args:
        nodes: Number of nodes of each trial; 0 for all.
        has: Number of nodes of the pool, including those that may still be added.
    """
    if not nodes or nodes >= has:
        return "each on all ranks, one at a time"
    at_once, unused = divmod(has, nodes)
    text = f"each on all ranks of {count(nodes, 'node')}, {at_once:,} at a time"
    return f"{text} ({count(unused, 'node')} of {has} unused)" if unused else text


def combination_text(sheet: TrialSheet, row: int) -> str:
    """Format the combination of arguments of one trial."""
    pairs = zip(sheet.names, sheet.rows[row], strict=True)
    return " ".join(f"{name}={sanitize_line(text)}" for name, text in pairs)


def sweep_outcome(found: TrialTable, run: str) -> str:
    """Describe the trials of a sweep by gangs that have no result; "" if all have one.

    Args:
        found: The trials.
        run: ID of any run of the sweep.
    """
    missing = [row for row in found.rows if row.state != "returned"]
    if not missing:
        return ""
    failed = [row for row in missing if row.task is not None]
    parts = [f"{len(found.rows) - len(missing):,} of {count(len(found.rows), 'combination')} have results"]
    for row in failed[:NAMED]:
        pairs = zip(found.names, row.arguments, strict=True)
        parts.append(f"{' '.join(map('='.join, pairs))} {row.state} (run {row.run})")
    if len(failed) > NAMED:
        parts.append(f"{len(failed) - NAMED:,} more failed")
    if pending := len(missing) - len(failed):
        parts.append(f"{pending:,} did not start")
    return f"{'; '.join(parts)}. Run the missing ones with: skyward-tui rerun {run} --missing"


class ComparedLine(NamedTuple):
    """Line of a comparison. In a heading, both sides are empty."""

    name: str
    left: str = ""
    right: str = ""
    differs: bool = False
    is_heading: bool = False


def comparison_lines(
    found: Comparison, now: float, note: Callable[[Any], str], diff_hint: str
) -> Iterator[ComparedLine]:
    """Yield the lines of a comparison of two runs, in sections.

    Args:
        found: The comparison.
        now: Unix time in seconds.
        note: Formats the result or the error of a task in one line.
        diff_hint: Text that names the key or the option for the diff of the scripts.
    """
    yield ComparedLine("", found.left.past.run, found.right.past.run)
    for row in found.facts(now):
        if row.name == "text" and found.script_diff:
            yield ComparedLine(_LABELS["text"], found.diff_summary, diff_hint, differs=True)
        elif row.left or row.right:
            yield _line(row, _FACTS.get(row.name, str))
    parts: list[tuple[str, list[ComparedRow], Callable[[Any], str]]] = [
        ("arguments", found.arguments(), str),
        ("metrics: last (min … max)", found.numbers(), _metric_summary),
        ("results", found.aggregate_rows(), _statistics),
        ("results by rank" if found.left.view.kind == "broadcast" else "results by task", found.results(), note),
    ]
    for heading, rows, text in parts:
        if rows:
            yield ComparedLine(heading, is_heading=True)
            yield from (_line(row, text) for row in rows)


def _line(row: ComparedRow, text: Callable[[Any], str]) -> ComparedLine:
    left, right = ("–" if value is None else one_line(text(value)) for value in (row.left, row.right))
    return ComparedLine(_LABELS.get(row.name, row.name), left, right, left != right)


def _metric_summary(gist: tuple[float | None, float | None, float | None]) -> str:
    last, least, most = ("–" if each is None else number(each) for each in gist)
    return f"{last} ({least} … {most})"


def _statistics(row: Mapping[str, float]) -> str:
    return f"{number(row['mean'])} ± {number(row['std'])}, {number(row['min'])} … {number(row['max'])}"


def _files(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown}, …" if len(names) > 3 else shown or "–"


_LABELS: Mapping[str, str] = {"text": "script text"}
_FACTS: Mapping[str, Callable[[Any], str]] = {
    "text": lambda source: f"{source:.10}" or "–",
    "commit": lambda commit: f"{commit:.10}" or "–",
    "changed": _files,
    **dict.fromkeys(("plugins", "parameters", "image"), lambda names: ", ".join(names) or "–"),
    "began": lambda at: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)),
    "took": duration,
    "cost": money,
}


MAX_VALUE_CHARS = 60  # maximum characters of a value in a comparison, so that both values fit one line


def parse_rank_pair(run: RunView, text: str) -> tuple[TaskView, TaskView]:
    """Return the two ranks (or tasks) that a text such as ``0,3`` names.

    Raises:
        UsageError: If the text does not name two ranks of the run.
    """
    words = [word.strip().lstrip("r#") for word in text.replace(" ", ",").split(",") if word.strip()]
    found = [run.tasks.get(int(word)) for word in words if word.isdecimal() and len(word) < 10]
    if len(words) != 2 or len(found) != 2 or found[0] is None or found[1] is None or found[0] is found[1]:
        what = "ranks" if run.kind == "broadcast" else "tasks"
        raise UsageError(
            f"{sanitize_line(text)!r} does not name two of {run.total:,} {what}. Write two numbers from 0, such as 0,1"
        )
    return found[0], found[1]


def difference_table(names: Sequence[str], found: Sequence[Difference], equal: int) -> list[str]:
    """Return the differences as lines of a table. The last line states the number of equal values."""
    same = f"{count(equal, 'value')} equal" if equal else "no value is equal"
    if not found:
        return [f"{names[0]} and {names[1]} are the same: {same}"]
    rows = [("where", *names, "by")]
    for each in found:
        by = "" if each.by is None else number(each.by)
        rows.append((sanitize_line(each.at) or "value", _short(each.left), _short(each.right), by))
    differ = f"{count(len(found), 'value')} differ" if len(found) > 1 else "1 value differs"
    return [*table(rows), f"{differ}, {same}"]


def _short(text: str) -> str:
    return clip(one_line(text), MAX_VALUE_CHARS)


def task_note(task: TaskView) -> str:
    """Return the result, the error, or the latest yielded item of a task, in one line."""
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
    """Return a value in short form. Small JSON objects look like ``loss 0.21  acc 0.9``."""
    if summary is None:
        return ""
    if summary.is_json and isinstance(summary.json, dict) and len(summary.json) <= 8:
        return "  ".join(f"{key} {scalar_text(item)}" for key, item in summary.json.items())
    return scalar_text(summary.json) if summary.is_json else summary.text


def scalar_text(item: object) -> str:
    return number(item) if isinstance(item, float) else str(item)
