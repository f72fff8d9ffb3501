"""Past runs in the ledger: their outcomes, stored output and metrics, and the search for runs."""

from __future__ import annotations

import heapq
import itertools
import json
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from skyward_core.client.launch.launch_option_declarations import WAYS
from skyward_core.client.pool_costs import bills_of_pool
from skyward_core.client.sweep_launch_and_resumption import trial_table_source
from skyward_core.model.errors import NoTrials, SkywardError, UsageError
from skyward_core.protocol.node_paths import ERR, OUT
from skyward_core.store import pool_folder, sweep_trial_files
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import REMAINS as REMAINS
from skyward_core.store.ledger_rows import PoolRow as PoolRow
from skyward_core.store.ledger_rows import RetainedResults as RetainedResults
from skyward_core.store.ledger_rows import RunRow as RunRow
from skyward_core.store.old_pool_environment_and_clone_pruning import prune_clones as prune_clones
from skyward_core.store.old_pool_environment_and_clone_pruning import prune_environments as prune_environments
from skyward_core.store.old_pool_environment_and_clone_pruning import prune_pools as prune_pools
from skyward_core.store.past_pool_views import load_metrics as load_metrics
from skyward_core.store.pool_folder import fill_last_metrics, has_metrics, parse_rank
from skyward_core.store.receipts_and_bills import Bill
from skyward_core.store.receipts_and_bills import Receipt as Receipt
from skyward_core.store.run_log_reader import LogRange
from skyward_core.store.run_log_reader import MergedLines as MergedLines
from skyward_core.store.run_log_reader import RunLogs as RunLogs
from skyward_core.store.run_log_reader import StoredLines as StoredLines
from skyward_core.store.run_log_reader import ring_tail as ring_tail
from skyward_core.store.state_folder import pool_path
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views import group_pairs
from skyward_core.views.metric_kinds_and_order import metric_direction, metric_rank, run_value
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.recording_entries import parse_attempt_ends
from skyward_core.views.stdout_stderr_order import PIECE_BYTES, Place, merge_streams
from skyward_core.views.sweep_trials import MISSING, TrialTable, sort_key

POLL_INTERVAL = 0.05  # seconds between checks of growing log files for new bytes
MERGE_CHUNK_BYTES = 16 << 10  # bytes in memory of each rank's log files while the files of all ranks are merged
QUIET_SECONDS = 0.3  # seconds without new output after which a log counts as complete


class OutputChunk(NamedTuple):
    """Piece of a worker's output. The pieces of one ``file`` are in order; ``at`` is the time by the clock of the
    worker's node.
    """

    rank: int
    file: str
    stream: str
    data: bytes
    at: float | None = None


def run_view(ledger: Ledger, row: RunRow) -> RunView:
    """Return the view of a run from the ledger, with its outcomes and without its logs.

    Raises:
        LedgerError: If the ledger cannot be read.
    """
    view = RunView(row.run, ledger.pool(row.token).name, row.function, row.kind, row.total, row.opened_at)
    view.nodes = row.nodes or ()
    for end in parse_attempt_ends(view.pool, row.run, row.attempt_ends or ()):
        view.add_ended_attempt(end)
    for outcome, _ in ledger.outcomes(row.run):
        view.tasks[outcome.index] = TaskView(outcome.index, outcome.rank, outcome.node, outcome.kind, outcome=outcome)
        view.counts[outcome.kind] = view.counts.get(outcome.kind, 0) + 1
    view.set_end(row.state, row.ended_at, row.root_cause)
    with suppress(OSError):  # without readable metric files, show the run without metrics
        fill_last_metrics(view, pool_path(ledger.pool(row.token).key))
    return view


def result_pickles(ledger: Ledger, run: RunView) -> dict[int, Path]:
    """Return the files with the pickled values of the ranks or tasks that returned.

    Raises:
        UsageError: If a value is not on this machine, because only the run's script received it or it is still on a
        node.
        LedgerError: If the ledger cannot be read.
    """
    row = ledger.run(run.id)
    folder = pool_path(ledger.pool(row.token).key) / "results" if row is not None else None
    returned = [out.index for out in run.outcomes() if out.kind == "returned"]
    paths = {index: folder / f"{run.id}.{index}.pickle" for index in returned} if folder is not None else {}
    if not paths or not all(path.is_file() for path in paths.values()):
        raise UsageError(
            f"Some results of run {run.id} are not on this machine: only its script received them, or the nodes still "
            "have them. Export the available results to a .csv, .json or .parquet file."
        )
    return paths


def installed_packages(ledger: Ledger, row: RunRow) -> dict[int, str]:
    """Return the packages that each node of a run's pool had when the run ended, as text for ``Image(lock=...)``.

    If the image requested no packages, only nodes on this machine are included.

    Raises:
        LedgerError, OSError: If the packages cannot be read.
    """
    return pool_folder.read_lock(ledger.pool(row.token).key, row.ended_at)


def rank_output(ledger: Ledger, run: str) -> Iterator[OutputChunk]:
    """Yield the stored output of a run, one rank after the other."""
    found = RunLogs(ledger, run)
    for rank in sorted(found.ranges):
        for part in found.ranges[rank]:
            yield from _pieces(found, part)


def merged_output(ledger: Ledger, run: str) -> Iterator[OutputChunk]:
    """Yield the stored output of all ranks, merged by time."""
    found = RunLogs(ledger, run)
    ranks = [_with_times(found, found.ranges[rank]) for rank in sorted(found.ranges)]
    return (piece for _, piece in heapq.merge(*ranks, key=itemgetter(0)))


def _with_times(found: RunLogs, parts: list[LogRange]) -> Iterator[tuple[float, OutputChunk]]:
    """Yield a rank's pieces in order, each with the last known time at or before it."""
    latest = 0.0
    for part in parts:
        for piece in _pieces(found, part, MERGE_CHUNK_BYTES):
            latest = max(latest, piece.at or 0.0)
            yield latest, piece


def follow_output(ledger: Ledger, run: str, ended: Future[Any] | None) -> Iterator[OutputChunk]:
    """Yield the output of a running run as it arrives, without the output of earlier runs on the same ranks.

    Args:
        ended: Future that is done when the output is complete, and whose error is raised; None to stop after
            ``QUIET_SECONDS`` without output.
    """
    seen: dict[str, Place] = {}
    quiet = 0.0
    while True:
        over = quiet >= QUIET_SECONDS if ended is None else ended.done()
        found = RunLogs(ledger, run)
        has_new_output = False
        for part in itertools.chain.from_iterable(found.ranges.values()):
            at = seen.get(part.stem, (0, 0))
            start = max(at[0], part.start[0]), max(at[1], part.start[1])
            yield from _pieces(found, part._replace(start=start))
            seen[part.stem] = end = max(start[0], part.end[0]), max(start[1], part.end[1])
            has_new_output |= start != end
        if over:
            break
        quiet = 0.0 if has_new_output else quiet + POLL_INTERVAL
        time.sleep(POLL_INTERVAL)
    if ended is not None:
        ended.result()


def _pieces(found: RunLogs, part: LogRange, size: int = PIECE_BYTES) -> Iterator[OutputChunk]:
    for piece in merge_streams(found.folder, *part, size):
        yield OutputChunk(parse_rank(part.stem), f"{part.stem}.{piece.stream}", piece.stream, piece.data, piece.at)


EVERY = 10_000  # maximum number of runs that a listing reads from the ledger, the newest first
MOST_MEASURED = 1_000  # maximum number of runs whose metrics are read, the newest first
MOST_OUTCOMES = 64  # maximum number of a run's outcomes whose metrics are read
LAST_BYTES = 16 << 10  # bytes at the end of a rank's metric file that contain its last values
_CHUNK = 500  # number of runs in one query of the ledger
RECENT = 30 * 86400.0  # seconds since its end after which a failure is no longer listed
# Kind of a run -> unit in which its size is counted; other kinds count tasks.
_COUNTED = {"broadcast": "rank", "sweep": "trial"}
FAILED = ("failed", "lost")  # states of runs and pools that count as failed
# Columns by which runs can be sorted, besides arguments (``arg:lr``) and the best or last values of metrics
# (``best:loss``, ``last:loss``).
COLUMNS = ("when", "pool", "function", "outcome", "took", "cost", "script")
_OPTION = re.compile(r"--?[A-Za-z]")  # pattern of the start of an option, which does not match a negative number


class MetricSummary(NamedTuple):
    """Summary of one metric in one run: the run's last value (see ``run_value``), and minimum and maximum of all ranks.

    ``last`` is None if the value is not finite.
    """

    last: float | None
    least: float | None
    most: float | None

    def best(self, name: str) -> float | None:
        """Return the best value, judged by the metric's name; None if neither lower nor higher values are better."""
        return {-1: self.least, 1: self.most}.get(metric_direction(name))


# Metric summaries by run and the time of its end in the ledger.
MetricCache = dict[tuple[str, float | None], dict[str, MetricSummary]]


# A rank, and last value, minimum and maximum of each metric that it logged.
RankSummaries = tuple[int, Mapping[str, Sequence[float | None]]]


def merge_summaries(found: Iterable[RankSummaries]) -> dict[str, MetricSummary]:
    """Merge the metric summaries of several ranks or tasks. The last task of a rank has the rank's last value."""
    by_name = group_pairs(
        (sanitize_line(name), (rank, summary)) for rank, each in found for name, summary in each.items()
    )
    merged: dict[str, MetricSummary] = {}
    for name, summaries in by_name.items():
        least = min((each[1] for _, each in summaries if each[1] is not None), default=None)
        most = max((each[2] for _, each in summaries if each[2] is not None), default=None)
        merged[name] = MetricSummary(run_value({rank: each[0] for rank, each in summaries}), least, most)
    return merged


def logged_summaries(metrics: MetricStore, run: str, without: Container[int] = ()) -> Iterator[RankSummaries]:
    """Yield the metric summaries of each rank of a run, from its logged values.

    Args:
        without: Ranks whose summaries are omitted.
    """
    for name in metrics.names(run):
        for rank, trace in metrics.traces(run, name).items():
            if rank not in without and trace.values:
                finite = [value for value in trace.values if isfinite(value)]
                last = trace.values[-1] if isfinite(trace.values[-1]) else None
                yield rank, {name: MetricSummary(last, min(finite, default=None), max(finite, default=None))}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """Past run for lists; all texts are safe to show.

    Attributes:
        run: ID of the run; "" for an entry about a pool without runs.
        pool, key: Name and unique key of the pool.
        provider: Name of the provider.
        function: Name of the function.
        script: Name of the script; "" if it is not saved, as for runs that a script dispatched itself.
        arguments: Texts of the arguments.
        ranks: Number of ranks or tasks.
        attempts: Number of started attempts.
        failed_attempts: Failed attempts before the last one: number, cause, message, step, seconds and dollars of each.
        remark: Reason why the run was not restarted again, or the number of nodes of a restart on fewer nodes.
        counted: Unit of ``ranks``: "rank", "trial" or "task".
        state: Final state, "running" or "queued"; for a pool without a run, the state of the pool, or "failed" if the
            pool did not start.
        opened_at, ended_at: Unix times of start and end; ``ended_at`` is None while the run continues.
        error: Description of the root cause, or "".
        dollars: Cost of the pool's machines during the run; None if unknown.
        is_up: Whether the pool is up.
        figures: Metrics of the failed machine before the failure: as one text, and by name; None if unknown.
        metrics: Summaries of the logged metrics by name; empty if unknown.
        user_note: Note of the user, whose words that begin with ``#`` are tags.
    """

    run: str
    pool: str
    key: str
    provider: str
    function: str
    script: str = ""
    arguments: tuple[str, ...] = ()
    ranks: int = 0
    attempts: int = 1
    failed_attempts: tuple[dict[str, Any], ...] = ()
    remark: str = ""
    counted: str = "rank"
    state: str
    opened_at: float
    ended_at: float | None
    error: str = ""
    dollars: float | None = 0.0
    is_up: bool = False
    figures: dict[str, Any] | None = None
    metrics: Mapping[str, MetricSummary] = field(default_factory=dict)
    user_note: str = ""

    @property
    def tags(self) -> list[str]:
        """Tags of the user's note, without the ``#``."""
        return [word[1:] for word in self.user_note.split() if word.startswith("#") and word[1:]]

    @property
    def figures_note(self) -> str:
        """Text of ``figures``, or ""."""
        words = None if self.figures is None else self.figures["words"]
        return f"n{self.figures['node']}: {', '.join(words)}" if self.figures is not None and words else ""

    @property
    def has_failed(self) -> bool:
        return self.state in FAILED

    @property
    def id(self) -> str:
        """ID for dismissals: of the run, or of the pool that did not start."""
        return self.run or self.key.partition(".")[2]

    @property
    def note(self) -> str:
        """Note of the user, number of attempts if several, and the error of the run or else its arguments."""
        return self.note_without(())

    def note_without(self, shown: Container[str]) -> str:
        """Return the note without some arguments, because they have columns of their own."""
        spent = sum(each["dollars"] or 0.0 for each in self.failed_attempts)
        cost = f" (${spent:,.2f} in failed ones)" if spent >= 0.005 else ""
        attempts = f"{self.attempts} attempts{cost}" if self.attempts > 1 else ""
        words = " ".join(text for name, _, text in self._named_words() if name not in shown)
        return "; ".join(filter(None, (self.user_note, attempts, self.remark, self.error or words)))

    def named_arguments(self) -> dict[str, str]:
        """Return the arguments by name: of a whole script by option, and by position if it is not an option's value.

        The value of an option is the word after it, unless that word is an option. Values of a repeated option are
        joined.
        """
        found = dict[str, str]()
        for name, value, _ in self._named_words():
            found[name] = f"{found[name]} {value}" if name in found else value
        return found

    def _named_words(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, value and text of each argument."""
        words, place, at = self.arguments, 0, 0
        while at < len(words):
            text, (name, equals, value) = words[at], words[at].partition("=")
            if not equals and _OPTION.match(name):
                has_value = at + 1 < len(words) and not _OPTION.match(words[at + 1])
                value = words[at + 1] if has_value else "given"
                text = " ".join(words[at : at + 1 + has_value])
                at += has_value
            elif not equals:
                place += 1
                name, value = f"argument {place}", name
            yield name, value, text
            at += 1

    def seconds(self, now: float) -> float:
        """Return the seconds that the run took, or has taken so far if it continues."""
        return max(0.0, (now if self.ended_at is None else self.ended_at) - self.opened_at)

    def unmatched_words(self, words: Iterable[str]) -> tuple[str, ...]:
        """Return the given words, casefolded, that do not occur in the run's texts."""
        names = self.run, self.pool, self.provider, self.function, self.script
        text = "\n".join((*names, self.state, *self.arguments, self.error, self.user_note)).casefold()
        return tuple(word for word in words if word not in text)


@dataclass(frozen=True, slots=True)
class RunSearch:
    """Criteria of a search for runs.

    Attributes:
        words: Words that must all occur, regardless of case, in the ID, pool, provider, function, script, arguments,
            outcome, error or note.
        failed: Whether only failed and lost runs match.
        since: Earliest start of a run, Unix time.
    """

    words: Sequence[str] = ()
    failed: bool = False
    since: float = 0.0

    def matches(self, run: PastRun) -> bool:
        return self.matches_filters(run) and not run.unmatched_words(word.casefold() for word in self.words)

    def matches_filters(self, run: PastRun) -> bool:
        """Check whether a run matches all criteria of the search except the words."""
        return run.has_failed or not self.failed


def past_runs(
    ledger: Ledger,
    search: RunSearch,
    launches: dict[str, LaunchSummary],
    seen: Mapping[str, RunView],
    measured: MetricCache | None = None,
) -> list[PastRun]:
    """Return the matching runs among the newest 10,000, newest first, including pools without a run.

    Args:
        launches: Cache of saved launches by run; missing ones are added.
        seen: Views of runs of watched pools by run ID. The ledger may lack their state, because observers do not write
            to it.
        measured: Cache of the metrics of ended runs, empty for those without metrics; missing ones are added.

    Raises:
        LedgerError: If the ledger cannot be read.
    """
    pools = _PoolCache(ledger, launches)
    rows = ledger.latest_runs(search.since, EVERY)
    found = [pools.past_run(_with_seen_end(row, seen.get(row.run))) for row in rows]
    found += [pools.pool_without_run(row) for row in ledger.pools_without_runs(search.since, EVERY)]
    found = sorted(filter(search.matches, found), key=lambda each: -each.opened_at)
    ended = {run.run for run in found[:MOST_MEASURED] if run.state != "queued" and run.ended_at is not None}
    ends = {row.run: row.ended_at for row in rows if row.run in ended}
    failed = {run.run: run.key for run in found if run.has_failed}
    metrics = _load_metric_summaries(ledger, ends, failed, {} if measured is None else measured)
    return [replace(run, metrics=metrics[run.run]) if metrics.get(run.run) else run for run in found]


def _load_metric_summaries(
    ledger: Ledger, ends: Mapping[str, float | None], failed: Mapping[str, str], known: MetricCache
) -> dict[str, dict[str, MetricSummary]]:
    """Return the metric summaries of ended runs, from their outcomes in the ledger.

    Args:
        failed: By failed run: its pool's key. A killed process has no outcome, so the last values of rank 0 are then
            read from its file.
    """
    summaries = {run: known[run, at] for run, at in ends.items() if (run, at) in known}
    missing = sorted(ends.keys() - summaries.keys())
    for first in range(0, len(missing), _CHUNK):
        chunk = missing[first : first + _CHUNK]
        found: dict[str, list[RankSummaries]] = {run: [] for run in chunk}
        for run, text in ledger.outcome_texts(chunk, MOST_OUTCOMES):
            with suppress(ValueError, TypeError, LookupError):
                outcome = json.loads(text)
                found[run].append((outcome["rank"], outcome["numbers"] or {}))
        for run in failed.keys() & found.keys():
            if not dict(found[run]).get(0):
                with suppress(OSError):
                    logged = load_metrics(pool_path(failed[run]) / "logs", run, LAST_BYTES, 2)
                    last = {name: logged.run_value(run, name) for name in logged.latest(run, 0)}
                    found[run].append((0, {name: (value, None, None) for name, value in last.items()}))
        summaries |= {run: merge_summaries(each) for run, each in found.items()}
    # Cache only runs whose end is in the ledger, because it may lack outcomes of other runs.
    known |= {(run, at): summaries[run] for run, at in ends.items() if at is not None}
    return summaries


def past_run(ledger: Ledger, row: RunRow) -> PastRun:
    """Return a run of the ledger as a past run.

    Raises:
        LedgerError: If the ledger cannot be read.
    """
    return _PoolCache(ledger, {}).past_run(row)


def sorted_runs(runs: Sequence[PastRun], column: str, now: float, *, falling: bool) -> list[PastRun]:
    """Return runs sorted by one of ``COLUMNS``, or by an argument or metric. The sort is stable, and runs without a
    value come last.
    """
    keys: dict[str, Callable[[PastRun], Any]] = {
        "when": lambda run: run.opened_at,
        "pool": lambda run: run.pool,
        "function": lambda run: run.function,
        "outcome": lambda run: run.state,
        "took": lambda run: run.seconds(now),
        "cost": lambda run: -1.0 if run.dollars is None else run.dollars,
        "script": lambda run: run.script,
    }
    kind, _, name = column.partition(":")
    keys["arg"] = lambda run: run.named_arguments().get(name)
    keys |= {each: partial(metric_value, column=column) for each in ("best", "last")}
    values = {id(run): sort_key(keys[kind](run)) for run in runs} if name else {}
    missing = [run for run in runs if name and values[id(run)][0] == MISSING]
    present = [run for run in runs if not name or values[id(run)][0] != MISSING]
    present.sort(key=(lambda run: values[id(run)]) if name else keys[kind], reverse=falling)
    return present + missing


def metric_value(run: PastRun, column: str) -> float | None:
    """Return the value of a column such as ``best:loss``; None if the run lacks the metric."""
    kind, _, name = column.partition(":")
    summary = run.metrics.get(name)
    return None if summary is None else summary.best(name) if kind == "best" else summary.last


def chosen_columns(runs: Sequence[PastRun]) -> tuple[list[str], list[str]]:
    """Choose columns of metrics and of arguments for a list of runs, the most important first.

    Metrics are those by which runs can be ranked: losses, then errors, then scores, each with its best and its last
    value. Arguments are those whose values differ, the most frequent first.
    """
    runs = runs[:MOST_MEASURED]
    ranked = Counter(name for run in runs for name in run.metrics if metric_direction(name))
    names = sorted(ranked, key=lambda name: (metric_rank(name), -ranked[name]))
    values: dict[str, Counter[str]] = {}
    for run in runs:
        for name, value in run.named_arguments().items():
            values.setdefault(name, Counter())[value] += 1
    differing = [name for name, found in values.items() if len(found) > 1]
    differing.sort(key=lambda name: -values[name].total())
    return [f"{kind}:{name}" for name in names for kind in ("best", "last")], [f"arg:{name}" for name in differing]


def best_runs(runs: Iterable[PastRun], column: str) -> set[str]:
    """Return the ID of the best run of each script and function, by a column such as ``best:loss``.

    Scripts and functions of which only one run has a value are left out.
    """
    sign = metric_direction(column.partition(":")[2])
    found = ((run, value) for run in runs if (value := metric_value(run, column)) is not None)
    groups = group_pairs(((run.script, run.function), (-sign * value, run.run)) for run, value in found)
    return {min(group)[1] for group in groups.values() if len(group) > 1}


def failures(ledger: Ledger, seen: Mapping[str, RunView]) -> list[PastRun]:
    """Return the failed and lost runs, and the failed starts of pools, of the last 30 days that are not dismissed,
    newest first.

    Args:
        seen: Views of runs of watched pools by ID. They have metrics that reach the disk a few seconds later.

    Raises:
        LedgerError: If the ledger cannot be read.
    """
    known, pools = set(pool_folder.read_dismissed()), _PoolCache(ledger, {})
    since = time.time() - RECENT
    rows = ledger.failed_runs(since, EVERY)
    pairs = ((row, pools.past_run(row)) for row in rows if row.run not in known)
    found = [_with_failure_metrics(ledger, row, run, seen.get(row.run)) for row, run in pairs if run.has_failed]
    starts = [pools.pool_without_run(row) for row in ledger.pools_without_runs(since, EVERY) if row.token not in known]
    return sorted([*found, *(each for each in starts if each.error)], key=lambda each: -each.opened_at)


def _with_failure_metrics(ledger: Ledger, row: RunRow, run: PastRun, view: RunView | None) -> PastRun:
    """Return the run with the metrics of the machine on which its root cause occurred, from the view or from files."""
    metrics = view.cause_metrics if view is not None else None
    if metrics is None and row.root_cause is not None and has_metrics(pool_path(run.key)):
        metrics = run_view(ledger, row).cause_metrics
    return run if metrics is None else replace(run, figures=metrics.to_json())


def _with_seen_end(row: RunRow, view: RunView | None) -> RunRow:
    """Return a row with the run's end as seen in the view, if the ledger does not contain the end yet."""
    if row.state != "running" or view is None or view.state == "running":
        return row
    return replace(row, state=view.state, ended_at=view.ended_at, root_cause=view.root_cause)


@dataclass(slots=True)
class _PoolCache:
    """Cache of the data that several runs of one pool share."""

    ledger: Ledger
    launches: dict[str, LaunchSummary]
    rows: dict[str, tuple[PoolRow, list[Bill]]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=pool_folder.read_notes)

    def past_run(self, row: RunRow) -> PastRun:
        if row.token not in self.rows:
            pool = self.ledger.pool(row.token)
            self.rows[row.token] = pool, list(bills_of_pool(self.ledger, pool))
        pool, bills = self.rows[row.token]
        cause = row.root_cause
        error = "" if cause is None else f"{cause.rank_prefix.replace('rank ', 'r')}{cause.text}"
        summary = self.launches.get(row.run) or _load_launch_summary(pool.key, row.run)
        if summary.script:  # a launch without a script is not cached, because its record may still be saved later
            self.launches[row.run] = summary
        end = time.time() if row.ended_at is None else row.ended_at
        return PastRun(
            run=row.run, pool=sanitize_line(pool.name), key=pool.key, provider=_provider(pool),
            function=sanitize_line(row.function),
            script=summary.script, arguments=summary.arguments, ranks=row.total,
            attempts=row.attempts or 1, failed_attempts=tuple(_failed_attempts(pool, bills, row)),
            remark=_remark(pool, row), counted=_COUNTED.get(row.kind, "task"), state=row.state,
            opened_at=row.opened_at, ended_at=row.ended_at, error=sanitize_line(error),
            dollars=_dollars(pool, bills, row.opened_at, end), is_up=pool.ended_at is None,
            user_note=sanitize_line(self.notes.get(row.run, "")),
        )  # fmt: skip

    def pool_without_run(self, pool: PoolRow) -> PastRun:
        bills, error = bills_of_pool(self.ledger, pool), (pool.receipt or {}).get("start_error", "")
        return PastRun(
            run="", pool=sanitize_line(pool.name), key=pool.key, provider=_provider(pool), function="",
            state="failed" if error else pool.state, error=sanitize_line(error),
            opened_at=pool.created_at, ended_at=pool.ended_at, is_up=pool.ended_at is None,
            dollars=_dollars(pool, bills, 0.0, time.time()),
        )  # fmt: skip


def _failed_attempts(pool: PoolRow, bills: Sequence[Bill], row: RunRow) -> Iterator[dict[str, Any]]:
    since = row.opened_at
    for end in parse_attempt_ends(pool.name, row.run, row.attempt_ends or ()):
        if end.restarts:
            message, cost = sanitize_line(end.message), _dollars(pool, bills, since, end.starts_at)
            facts = {"number": end.number, "cause": end.cause, "message": message, "step": end.step}
            yield facts | {"seconds": max(0.0, end.at - since), "dollars": cost}
            since = end.starts_at


def _remark(pool: PoolRow, row: RunRow) -> str:
    """Return why a run was not restarted again, or the number of nodes of a restart on fewer nodes; otherwise ""."""
    ends = parse_attempt_ends(pool.name, row.run, row.attempt_ends or ())
    if ends and not ends[-1].restarts and ends[-1].reason:
        return f"not restarted: {sanitize_line(ends[-1].reason)}"
    all_nodes = pool.spec.get("nodes", 0)
    is_smaller = ends and row.nodes and len(row.nodes) < all_nodes
    return f"on {len(row.nodes or ())} of {all_nodes} nodes" if is_smaller else ""


def _provider(pool: PoolRow) -> str:
    return sanitize_line(str(pool.spec.get("provider") or pool.provider.get("provider", "")))


def _dollars(pool: PoolRow, bills: Iterable[Bill], since: float, until: float) -> float | None:
    """Return the cost in US dollars of a pool's machines between two Unix times."""
    parts = [each.hourly * max(0.0, min(each.until, until) - max(each.since, since)) / 3600 for each in bills]
    return sum(parts) if parts or not pool.spec.get("rents") else None


class LaunchSummary(NamedTuple):
    """Script and arguments of a run's launch."""

    script: str = ""
    arguments: tuple[str, ...] = ()


def _gang_arguments(pool: str, run: str) -> list[str]:
    """Return the arguments of one run of a sweep that runs as gangs."""
    sheet = sweep_trial_files.read_trials(pool, run)
    rows = {} if sheet is None else {each: row for row, each in sheet.runs.items()}
    if sheet is None or run not in rows:
        return []
    return [f"{name}={text}" for name, text in zip(sheet.names, sheet.rows[rows[run]], strict=True)]


def _load_launch_summary(pool: str, run: str) -> LaunchSummary:
    """Return the saved launch of a run; empty if it is missing or unreadable."""
    try:
        launch = pool_folder.read_launch(pool, run) or {}
        if "job" in launch:
            variables = tuple(sanitize_line(f"{name}={text}") for name, text in dict(launch["job"]["env"]).items())
            return LaunchSummary(sanitize_line(Path(str(launch["job"]["path"])).name), variables)
        if "command" in launch:
            return LaunchSummary("", tuple(sanitize_line(str(word)) for word in launch["command"]["words"]))
        request = dict(launch["request"])
        words = request.get("arguments") or request.get("script_args") or ()
        if any(map(request.get, WAYS)):
            words = _gang_arguments(pool, run) or words
        return LaunchSummary(
            sanitize_line(Path(str(request["script"])).name), tuple(sanitize_line(str(word)) for word in words)
        )
    except (OSError, KeyError, TypeError, ValueError):
        return LaunchSummary()


MAX_LINES = 60  # maximum number of lines of a log that a preview shows
SHORT_LOG_BYTES = 256 << 10  # bytes; shorter logs are read completely, which preserves the order of stdout and stderr
TAIL_BYTES = 16 << 10  # bytes that are read from the end of a longer log


class RunPreviewData(NamedTuple):
    """Data of a run's preview.

    Attributes:
        view: The run with its outcomes; None if unknown.
        book: Metrics of the run over time.
        rank: Rank that printed ``lines``: the root cause of a failed run; None for none.
        lines: Last lines of that rank.
        trials: Table of a sweep; None for other runs.
    """

    view: RunView | None = None
    book: MetricStore = MetricStore()
    rank: int | None = None
    lines: Sequence[str] = ()
    trials: TrialTable | None = None


def load_preview(ledger: Ledger, run: str) -> RunPreviewData:
    """Load the preview of a run from files on this machine.

    Raises:
        LedgerError: If the ledger cannot be read.
    """
    row = ledger.run(run)
    if row is None:
        return RunPreviewData()
    key = ledger.pool(row.token).key
    view, folder = run_view(ledger, row), pool_path(key) / "logs"
    rank, lines = None, []
    with suppress(OSError, SkywardError):  # the log files may have been pruned
        logs = RunLogs(ledger, run)
        cause = None if row.root_cause is None else row.root_cause.rank
        rank = cause if cause in logs.ranges else min(logs.ranges, default=None)
        lines = [] if rank is None else last_lines(logs, rank)
    metrics = MetricStore()
    with suppress(OSError):
        metrics = load_metrics(folder, run)
    return RunPreviewData(view, metrics, rank, lines, _trial_table(ledger, key, view, metrics))


def _trial_table(ledger: Ledger, pool: str, run: RunView, metrics: MetricStore) -> TrialTable | None:
    """Return the table of a sweep, also of a sweep that runs as gangs; None for other runs."""
    if run.kind != "sweep":
        return None
    with suppress(UsageError, NoTrials):
        return trial_table_source(ledger, pool, run, {}).table(run.id, run.tasks, metrics)
    return None


def last_lines(logs: RunLogs, rank: int) -> list[str]:
    """Return the last lines that a rank printed in a run."""
    parts = logs.ranges[rank]
    if sum(sum(part.end) - sum(part.start) for part in parts) <= SHORT_LOG_BYTES:
        return list(deque((line.text for line in logs.lines(rank)), MAX_LINES))
    # Show the end of stdout or stderr, whichever has more text, because the two streams of a long log are not merged.
    return max([_read_tail(logs.folder, parts[-1], stream) for stream in (0, 1)], key=len)


def _read_tail(folder: Path, part: LogRange, stream: int) -> list[str]:
    end = part.end[stream]
    start = max(part.start[stream], end - TAIL_BYTES)
    if start == end:
        return []
    with open(folder / f"{part.stem}{(OUT, ERR)[stream]}", "rb") as source:
        source.seek(start)
        lines = source.read(end - start).split(b"\n")
    whole = lines[1:] if start > part.start[stream] else lines
    return [line.decode("utf-8", "replace") for line in whole if line][-MAX_LINES:]


def load_all_metrics(ledger: Ledger, row: RunRow) -> MetricStore:
    """Load all values that the ranks of a run logged, from the files of its pool on this machine."""
    return load_metrics(pool_path(ledger.pool(row.token).key) / "logs", row.run, sys.maxsize, None, thin=False)
