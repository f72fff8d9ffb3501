"""Comparison of two runs: their launches, outcomes, metrics and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any, NamedTuple

from skyward_core.client.launch.launch_records_and_script_state import LaunchRecord, load_launch_record
from skyward_core.client.run_history import (
    MetricSummary,
    PastRun,
    load_metrics,
    logged_summaries,
    merge_summaries,
    past_run,
    run_view,
)
from skyward_core.model.errors import UsageError
from skyward_core.store.ledger import Ledger
from skyward_core.store.state_folder import pool_path
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.outliers_and_bands import compute_band
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.rank_metrics_and_progress import MetricStore

MAX_RESULT_ROWS = 32  # maximum ranks or tasks whose results are compared one by one
MAX_METRIC_BYTES = 64 << 20  # maximum bytes read of each rank's metrics, from the end
CURVE_POINTS = 512  # number of time intervals of a metric's curve; each shows the median of its values


class ComparedRow(NamedTuple):
    """One property of both runs; a value is None if that run lacks the property."""

    name: str
    left: Any
    right: Any

    @property
    def differs(self) -> bool:
        return bool(self.left != self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of two compared runs.

    Attributes:
        past: The run as listed among past runs.
        view: The run with its outcomes.
        commit: Commit of the script's repository; "" if unknown.
        changed: Files that differed from that commit.
        source: Hash of the script's content; "" if unknown.
        text: Saved content of the script; "" if it was not saved.
        nodes, plugins: Nodes and plugins of the run's pool.
        parameters: Parameters of these plugins, as given in the launch.
        image: Environment options of the launch; secrets by name only.
        numbers: Metric summaries by name.
        book: Metrics of the run over time, as far as this machine has them.
    """

    past: PastRun
    view: RunView
    commit: str = ""
    changed: tuple[str, ...] = ()
    source: str = ""
    text: str = field(default="", repr=False)
    nodes: int = 0
    plugins: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    image: tuple[str, ...] = ()
    numbers: Mapping[str, MetricSummary] = field(default_factory=dict)
    book: MetricStore = field(default_factory=MetricStore)

    def arguments(self) -> dict[str, str]:
        """Return the arguments of the run by name."""
        return self.past.named_arguments()

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Return a metric of rank 0, or its median if rank 0 did not log it, as pairs of Unix time and value."""
        traces = self.book.traces(self.past.run, name)
        lines = [line for rank, line in traces.items() if len(line.at) and (rank == 0 or 0 not in traces)]
        if len(lines) == 1 and len(lines[0].at) <= CURVE_POINTS:
            found: Sequence[Sequence[float]] = lines[0]
        else:
            span = compute_band(lines, CURVE_POINTS)
            found = span.at, span.middle
        return list(zip(*found, strict=True))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs and the rows of their comparison.

    Attributes:
        script_diff: Unified diff of the saved texts of both scripts, without control characters; empty if there is
            none, for the reason in ``no_diff_reason``.
    """

    left: ComparedRun
    right: ComparedRun
    script_diff: Sequence[str] = field(default=(), repr=False)

    @classmethod
    def of(cls, left: ComparedRun, right: ComparedRun) -> Comparison:
        """Compare two runs. The diff of long scripts takes a second: do not call on an event loop."""
        before, after = (run.text.split("\n") if left.text and right.text else [] for run in (left, right))
        diff = unified_diff(before, after, left.past.run, right.past.run, lineterm="")
        return cls(left, right, list(map(sanitize_line, diff)))

    @property
    def no_diff_reason(self) -> str:
        """Reason why the scripts have no diff."""
        lacking = [run.past.run for run in (self.left, self.right) if not run.text]
        if lacking and not (self.left.source and self.left.source == self.right.source):
            return f"the script text of run {lacking[0]} was not saved (earlier version, no script, or over 256 KiB)"
        return "the script texts of both runs are equal"

    @property
    def diff_summary(self) -> str:
        """Numbers of lines that the diff adds and removes."""
        added, removed = (sum(line.startswith(sign) for line in self.script_diff) - 1 for sign in "+-")
        return f"+{added:,} -{removed:,} lines"

    def facts(self, now: float) -> list[ComparedRow]:
        """Return rows with launch, state, times in seconds and costs in dollars of both runs."""
        facts: dict[str, Callable[[ComparedRun], Any]] = {
            "pool": lambda run: run.past.pool,
            "function": lambda run: run.past.function,
            "script": lambda run: run.past.script,
            "text": lambda run: run.source,
            "commit": lambda run: run.commit,
            "changed": lambda run: run.changed,
            "provider": lambda run: run.past.provider,
            "nodes": lambda run: run.nodes,
            "ranks": lambda run: run.past.ranks,
            "plugins": lambda run: run.plugins,
            "parameters": lambda run: run.parameters,
            "image": lambda run: run.image,
            "outcome": lambda run: run.past.state,
            "error": lambda run: run.past.error,
            "began": lambda run: run.past.opened_at,
            "took": lambda run: run.past.seconds(now),
            "cost": lambda run: run.past.dollars,
        }
        return [ComparedRow(name, get(self.left), get(self.right)) for name, get in facts.items()]

    def arguments(self) -> list[ComparedRow]:
        """Return a row for each argument of either run."""
        return list(_pair_rows(self.left.arguments(), self.right.arguments()))

    def numbers(self) -> list[ComparedRow]:
        """Return a row with the :class:`MetricSummary` of each metric of either run."""
        return list(_pair_rows(self.left.numbers, self.right.numbers))

    def results(self) -> list[ComparedRow]:
        """Return a row with the ``TaskView`` of each rank or task; none if there are more than 32."""
        if max(self.left.view.total, self.right.view.total) > MAX_RESULT_ROWS:
            return []
        tasks = [
            {f"{'r' if each.kind == 'broadcast' else '#'}{at}": task for at, task in sorted(each.tasks.items())}
            for each in (self.left.view, self.right.view)
        ]
        return list(_pair_rows(*tasks))

    def aggregate_rows(self) -> list[ComparedRow]:
        """Return rows with statistics of numeric results."""
        return list(_pair_rows(self.left.view.aggregate() or {}, self.right.view.aggregate() or {}))


def compare_runs(ledger: Ledger, left: str, right: str) -> Comparison:
    """Load two runs by their IDs.

    Raises:
        UsageError: If a run does not exist, or both are the same.
        LedgerError: If the ledger cannot be read.
    """
    if left == right:
        raise UsageError(f"both runs are {left}. Name two different runs")
    return Comparison.of(_load_run(ledger, left), _load_run(ledger, right))


def _load_run(ledger: Ledger, run: str) -> ComparedRun:
    row = ledger.require_run(run)
    pool = ledger.pool(row.token)
    launch: LaunchRecord | None
    try:
        launch = load_launch_record(ledger, row)
    except UsageError:  # a run that a script dispatched has no saved launch, and old records are pruned
        launch = None
    view, metrics = (run_view(ledger, row), load_metrics(pool_path(pool.key) / "logs", run, MAX_METRIC_BYTES, None))
    given = launch.request.plugin_settings if launch else {}
    nodes, plugins = pool.spec.get("nodes"), pool.spec.get("plugins")
    return ComparedRun(
        past=past_run(ledger, row),
        view=view,
        commit=sanitize_line(launch.source.commit) if launch else "",
        changed=tuple(map(sanitize_line, launch.source.changed)) if launch else (),
        source=sanitize_line(launch.source.script) if launch else "",
        text=launch.source.text.decode("utf-8", "replace") if launch else "",
        nodes=nodes if isinstance(nodes, int) else 0,
        plugins=tuple(sanitize_line(str(each)) for each in plugins) if isinstance(plugins, list) else (),
        parameters=tuple(sanitize_line(f"{name}={text}") for name, text in sorted(given.items())),
        image=tuple(map(sanitize_line, launch.request.image_settings)) if launch else (),
        numbers=_summarize_metrics(view.tasks, metrics, run),
        book=metrics,
    )


def _summarize_metrics(tasks: Mapping[int, TaskView], metrics: MetricStore, run: str) -> dict[str, MetricSummary]:
    """Summarize metrics from the outcomes. For ranks whose processes died, use the logged values."""
    outcomes = [task.outcome for _, task in sorted(tasks.items()) if task.outcome is not None]
    found = [(outcome.rank, outcome.metrics) for outcome in outcomes if outcome.metrics is not None]
    return merge_summaries([*found, *logged_summaries(metrics, run, dict(found))])


def _pair_rows(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[ComparedRow]:
    yield from (ComparedRow(name, left.get(name), right.get(name)) for name in dict.fromkeys([*left, *right]))
