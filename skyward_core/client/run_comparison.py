"""Two runs side by side: what they were launched with, how they went, what they logged and gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from skyward_core.client.launch.launch_records import LaunchRecord, load_launch_record
from skyward_core.client.run_history import PastRun, load_metrics, past_run, run_view
from skyward_core.model.errors import UsageError
from skyward_core.store.ledger import Ledger
from skyward_core.store.state_folder import pool_path
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.outliers import Trace, compute_band, median
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.rank_metrics import MetricStore

MAX_RESULT_ROWS = 32  # ranks or tasks of which results are told one by one
MAX_METRIC_BYTES = 64 << 20  # bytes of each rank's numbers that are read, from their end
CURVE_POINTS = 512  # parts of a run's time of which a curve has the median each


class MetricSummary(NamedTuple):
    """What is left of one name's numbers in one run: of all ranks the median of the last ones, least and greatest."""

    last: float | None
    least: float | None
    most: float | None


class ComparedRow(NamedTuple):
    """One thing of both, as values; None where one has no such thing."""

    name: str
    left: Any
    right: Any

    @property
    def differs(self) -> bool:
        return bool(self.left != self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of the two.

    Attributes:
        past: what is known of any run.
        view: the run with its outcomes.
        commit: of the repository that the script lies in; "" for none that is known.
        changed: files there that differed from that commit.
        source: a hash of the script's text; "" for none that is known.
        nodes, plugins: of its pool.
        parameters: of these plugins, as the launch gave them.
        image: what it said of the ranks' environment; of secrets the names.
        numbers: by name, what is left of what it logged.
        book: its numbers over time, as far as they are kept here.
    """

    past: PastRun
    view: RunView
    commit: str = ""
    changed: tuple[str, ...] = ()
    source: str = ""
    nodes: int = 0
    plugins: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    image: tuple[str, ...] = ()
    numbers: Mapping[str, MetricSummary] = field(default_factory=dict)
    book: MetricStore = field(default_factory=MetricStore)

    def arguments(self) -> dict[str, str]:
        """By name; the words of a whole script by their places."""
        named = [text.partition("=") for text in self.past.arguments]
        return {
            name if equals else f"word {at}": value if equals else name
            for at, (name, equals, value) in enumerate(named, 1)
        }

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Seconds since the run began, and the median of all ranks then."""
        lines = [line for line in self.book.traces(self.past.run, name).values() if len(line.at)]
        if len(lines) == 1 and len(lines[0].at) <= CURVE_POINTS:
            found: Sequence[Sequence[float]] = lines[0]
        else:
            span = compute_band(lines, CURVE_POINTS)
            found = span.at, span.middle
        began = self.past.opened_at
        return [(at - began, value) for at, value in zip(*found, strict=True)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both, and what is told of them row by row."""

    left: ComparedRun
    right: ComparedRun

    def facts(self, now: float) -> list[ComparedRow]:
        """How they were made and how they went; times in seconds, costs in dollars."""
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
        return [ComparedRow(name, of(self.left), of(self.right)) for name, of in facts.items()]

    def arguments(self) -> list[ComparedRow]:
        """Each argument of either."""
        return list(_pair_rows(self.left.arguments(), self.right.arguments()))

    def numbers(self) -> list[ComparedRow]:
        """Of each name that either logged, a :class:`MetricSummary` of both."""
        return list(_pair_rows(self.left.numbers, self.right.numbers))

    def results(self) -> list[ComparedRow]:
        """By rank or task a ``TaskView`` of both; none where there are more than 32."""
        if max(self.left.view.total, self.right.view.total) > MAX_RESULT_ROWS:
            return []
        tasks = [
            {_task_label(each.view, index): task for index, task in sorted(each.view.tasks.items())}
            for each in (self.left, self.right)
        ]
        return list(_pair_rows(*tasks))

    def aggregate_rows(self) -> list[ComparedRow]:
        """Of numeric results the statistics of both."""
        return list(_pair_rows(self.left.view.aggregate() or {}, self.right.view.aggregate() or {}))


def compare_runs(ledger: Ledger, left: str, right: str) -> Comparison:
    """Two runs by their ids, as far as they are kept here.

    Raises:
        UsageError: there is no such run, or both are one.
        LedgerError: the ledger cannot be read.
    """
    if left == right:
        raise UsageError(f"both are run {left}: name two")
    return Comparison(_load_run(ledger, left), _load_run(ledger, right))


def _load_run(ledger: Ledger, run: str) -> ComparedRun:
    row = ledger.run(run)
    if row is None:
        raise UsageError(f"the ledger has no run {run}")
    pool = ledger.pool(row.token)
    launch: LaunchRecord | None
    try:
        launch = load_launch_record(ledger, row)
    except UsageError:  # a script dispatched it itself, or it was long ago
        launch = None
    view, metrics = (
        run_view(ledger, row),
        load_metrics(pool_path(pool.key) / "logs", run, MAX_METRIC_BYTES, None),
    )
    given = launch.request.plugin_settings if launch else {}
    nodes, plugins = pool.spec.get("nodes"), pool.spec.get("plugins")
    return ComparedRun(
        past=past_run(ledger, row),
        view=view,
        commit=sanitize_line(launch.source.commit) if launch else "",
        changed=tuple(map(sanitize_line, launch.source.changed)) if launch else (),
        source=sanitize_line(launch.source.script) if launch else "",
        nodes=nodes if isinstance(nodes, int) else 0,
        plugins=tuple(sanitize_line(str(each)) for each in plugins) if isinstance(plugins, list) else (),
        parameters=tuple(sanitize_line(f"{name}={text}") for name, text in sorted(given.items())),
        image=tuple(map(sanitize_line, launch.request.image_settings)) if launch else (),
        numbers=_summarize_metrics(view.tasks, metrics, run),
        book=metrics,
    )


def _summarize_metrics(tasks: Mapping[int, TaskView], metrics: MetricStore, run: str) -> dict[str, MetricSummary]:
    """What outcomes tell, and of those whose processes did not live to tell what they sent while they ran."""
    told: dict[str, list[MetricSummary]] = {}
    silent = set(metrics.ranks(run))
    for _, task in sorted(tasks.items()):
        if task.outcome is not None and task.outcome.numbers is not None:
            silent.discard(task.rank)
            for name, gist in task.outcome.numbers.items():
                told.setdefault(name, []).append(MetricSummary(*gist))
    for name in metrics.names(run):
        for rank, trace in metrics.traces(run, name).items():
            if rank in silent:
                told.setdefault(name, []).append(_summarize_trace(trace))
    return {name: _merge_summaries(summaries) for name, summaries in told.items()}


def _summarize_trace(trace: Trace) -> MetricSummary:
    finite = [value for value in trace.values if isfinite(value)]
    last = trace.values[-1] if trace.values and isfinite(trace.values[-1]) else None
    return MetricSummary(last, min(finite, default=None), max(finite, default=None))


def _merge_summaries(summaries: Sequence[MetricSummary]) -> MetricSummary:
    lasts = [each.last for each in summaries if each.last is not None]
    least = [each.least for each in summaries if each.least is not None]
    most = [each.most for each in summaries if each.most is not None]
    return MetricSummary(median(lasts) if lasts else None, min(least, default=None), max(most, default=None))


def _task_label(view: RunView, index: int) -> str:
    return f"r{index}" if view.kind == "broadcast" else f"#{index}"


def _pair_rows(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[ComparedRow]:
    for name in dict.fromkeys([*left, *right]):
        yield ComparedRow(name, left.get(name), right.get(name))
