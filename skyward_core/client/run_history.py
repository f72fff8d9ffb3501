"""Past runs and their costs, searched."""

from __future__ import annotations

import heapq
import itertools
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from skyward_core import providers
from skyward_core.client.launch.launch_request import WAYS
from skyward_core.client.sweep_results import trial_table_source
from skyward_core.model.errors import NoTrials, SkywardError, UsageError
from skyward_core.model.outcomes import Outcome
from skyward_core.model.provider_capabilities import hourly_price
from skyward_core.protocol.node_paths import ERR, METRICS, OUT
from skyward_core.store import pool_folder
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Bill, PoolRow, Receipt, RetainedResults, RunRow, make_bills
from skyward_core.store.pool_folder import fill_last_metrics, has_metrics, log_files, parse_rank
from skyward_core.store.pruning import prune_clones, prune_environments, prune_pools
from skyward_core.store.run_logs import LineBatch, LogRange, RunLogs, StoredLines, ring_tail
from skyward_core.store.state_folder import pool_path
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.log_buffer import join_lines
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.rank_metrics import MetricStore
from skyward_core.views.stdout_stderr_order import PIECE_BYTES, Place, merge_streams
from skyward_core.views.sweep_trials import TrialTable

POLL_INTERVAL = 0.05  # seconds between two looks at log files
MERGE_CHUNK_BYTES = 16 << 10  # bytes of each file that are in memory at once where all ranks' files are read together
QUIET_SECONDS = 0.3  # seconds without anything new after which a log has been read


class OutputChunk(NamedTuple):
    """A piece of what a worker printed; the bytes of one ``file`` are in order. ``at``: when, by its node's clock."""

    rank: int
    file: str
    stream: str
    data: bytes
    at: float | None = None


def run_view(ledger: Ledger, row: RunRow) -> RunView:
    """A run as the ledger has it, with its outcomes and without its logs.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    view = RunView(row.run, ledger.pool(row.token).name, row.function, row.kind, row.total, row.opened_at)
    view.nodes = row.nodes or ()
    view.state, view.ended_at, view.root_cause = row.state, row.ended_at, row.root_cause
    for outcome, _ in ledger.outcomes(row.run):
        view.tasks[outcome.index] = TaskView(outcome.index, outcome.rank, outcome.node, outcome.kind, outcome=outcome)
        view.counts[outcome.kind] = view.counts.get(outcome.kind, 0) + 1
    with suppress(OSError):  # they are beside what the run is
        fill_last_metrics(view, pool_path(ledger.pool(row.token).key))
    return view


def result_pickles(ledger: Ledger, run: RunView) -> dict[int, Path]:
    """The files that have the values of a run's ranks, or tasks, that have returned, as far as these are kept here.

    Raises:
        UsageError: they are not: they were given to the script that ran it, or are on its nodes.
        LedgerError: the ledger cannot be read.
    """
    row = ledger.run(run.id)
    folder = pool_path(ledger.pool(row.token).key) / "results" if row is not None else None
    returned = [out.index for out in run.outcomes() if out.kind == "returned"]
    paths = {index: folder / f"{run.id}.{index}.pickle" for index in returned} if folder is not None else {}
    missing = [index for index, path in paths.items() if not path.is_file()]
    if missing or not paths:
        raise UsageError(
            f"the values of run {run.id} are not all kept here: they were given to who ran it, or wait on its nodes; "
            ".csv, .json and .parquet have what is known of them"
        )
    return paths


def installed_packages(ledger: Ledger, row: RunRow) -> dict[int, str]:
    """What the nodes of a run's pool had when it ended, node by node, as ``Image(lock=...)`` takes it.

    None of other machines where nobody asked for packages.

    Raises:
        LedgerError, OSError: it cannot be read.
    """
    return pool_folder.read_lock(ledger.pool(row.token).key, row.ended_at)


def rank_output(ledger: Ledger, run: str) -> Iterator[OutputChunk]:
    """What the ranks of a run have printed, as far as it is here; rank by rank."""
    found = RunLogs(ledger, run)
    for rank in sorted(found.ranges):
        for part in found.ranges[rank]:
            yield from _pieces(found, part)


def merged_output(ledger: Ledger, run: str) -> Iterator[OutputChunk]:
    """The same for all ranks together, in the order of their clocks."""
    found = RunLogs(ledger, run)
    ranks = [_with_times(found, found.ranges[rank]) for rank in sorted(found.ranges)]
    return (piece for _, piece in heapq.merge(*ranks, key=itemgetter(0)))


def _with_times(found: RunLogs, parts: list[LogRange]) -> Iterator[tuple[float, OutputChunk]]:
    """A rank's pieces in its own order, each with the latest time that is known by then."""
    latest = 0.0
    for part in parts:
        for piece in _pieces(found, part, MERGE_CHUNK_BYTES):
            latest = max(latest, piece.at or 0.0)
            yield latest, piece


def follow_output(ledger: Ledger, run: str, ended: Future[Any] | None) -> Iterator[OutputChunk]:
    """What the ranks of a running run print: from where those of runs before it ended, as it comes here.

    Args:
        ended: done when nothing comes any more, whose error then is raised; None to end when nothing has come for a
            moment.
    """
    seen: dict[str, Place] = {}
    quiet = 0.0
    while True:
        over = quiet >= QUIET_SECONDS if ended is None else ended.done()
        found = RunLogs(ledger, run)
        came = False
        for part in itertools.chain.from_iterable(found.ranges.values()):
            at = seen.get(part.stem, (0, 0))
            start = max(at[0], part.start[0]), max(at[1], part.start[1])
            yield from _pieces(found, part._replace(start=start))
            seen[part.stem] = end = max(start[0], part.end[0]), max(start[1], part.end[1])
            came |= start != end
        if over:
            break
        quiet = 0.0 if came else quiet + POLL_INTERVAL
        time.sleep(POLL_INTERVAL)
    if ended is not None:
        ended.result()


def _pieces(found: RunLogs, part: LogRange, size: int = PIECE_BYTES) -> Iterator[OutputChunk]:
    for piece in merge_streams(found.folder, *part, size):
        yield OutputChunk(parse_rank(part.stem), f"{part.stem}.{piece.stream}", piece.stream, piece.data, piece.at)


MAX_COSTED_POOLS = 10_000  # pools that are looked at, at most


@dataclass(frozen=True)
class PoolCost:
    """One pool's.

    Attributes:
        pool, key: its name, and what no other one has.
        provider: whose machines they were.
        functions: what ran there, each once.
        since: when it was made, Unix time.
        dollars: what its machines cost in the time that was asked about; None where nobody knows.
        goes_on: whether they still do.
    """

    pool: str
    key: str
    provider: str
    functions: Sequence[str]
    since: float
    dollars: float | None
    goes_on: bool


@dataclass
class Spending:
    """Of all pools.

    Attributes:
        pools: those that cost something, or of which nobody knows, the last one first.
        by_function: what ran -> dollars; of a pool with several, all of them together.
        by_day: local date, as "2026-11-23" -> dollars.
    """

    pools: list[PoolCost] = field(default_factory=list)
    by_function: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_day: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def dollars(self) -> float:
        """All told, as far as is known."""
        return sum(each.dollars or 0.0 for each in self.pools)


def costs(since: float) -> Spending:
    """What pools have cost from then until now.

    Args:
        since: Unix time.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    told = Spending()
    with closing(Ledger()) as ledger:
        for row in [*ledger.live_pools(), *ledger.ended_pools(since, MAX_COSTED_POOLS)]:
            _add_costs(told, ledger, row, since)
    return told


def _add_costs(told: Spending, ledger: Ledger, row: PoolRow, since: float) -> None:
    bills = list(bills_of_pool(ledger, row))
    if not bills and (not row.spec.get("rents") or _has_no_machine(row)):
        return
    names = tuple(dict.fromkeys(run.function for run in ledger.runs(row.token)))
    days: defaultdict[str, float] = defaultdict(float)
    for bill in bills:
        for day, dollars in _daily_costs(bill, since):
            days[day] += dollars
    total = sum(days.values()) if bills else None
    provider = row.spec.get("provider", "")
    told.pools.append(PoolCost(row.name, row.key, provider, names, row.created_at, total, row.ended_at is None))
    told.by_function[", ".join(names)] += total or 0.0
    for day, dollars in days.items():
        told.by_day[day] += dollars


def _has_no_machine(row: PoolRow) -> bool:
    """Whether it ended before it had a machine, as a start does that is refused."""
    receipt = row.receipt
    return receipt is not None and receipt.get("created") == 0 and not receipt.get("unaccounted")


def bills_of_pool(ledger: Ledger, row: PoolRow) -> Iterator[Bill]:
    """What each of a pool's machines has cost, as far as that is known."""
    if row.receipt is not None and row.ended_at is not None:
        for each in row.receipt.get("bills", ()):
            yield Bill(**each)
    else:
        machines = [*ledger.machines(row.token), *ledger.replaced_machines(row.token)]
        try:
            price = hourly_price(providers.provider_from_json(row.provider))
        except SkywardError:  # its package is not here any more
            price = None
        yield from make_bills(row, machines, {}, price)


def _daily_costs(bill: Bill, since: float) -> Iterator[tuple[str, float]]:
    """What a machine cost on each day of this machine's calendar."""
    at = max(bill.since, since)
    while at < bill.until:
        local = time.localtime(at)
        midnight = time.mktime((local.tm_year, local.tm_mon, local.tm_mday + 1, 0, 0, 0, 0, 0, -1))
        end = min(midnight, bill.until)
        yield time.strftime("%Y-%m-%d", local), bill.hourly * (end - at) / 3600
        at = end


EVERY = 10_000  # runs that are looked at, at most: the newest
RECENT = 30 * 86400.0  # seconds after which a failure is old news
_COUNTED = {"broadcast": "rank", "sweep": "trial"}  # what a run of a kind has as many of as its total says
FAILED = ("failed", "lost")  # how runs, and pools, end that went wrong
COLUMNS = ("when", "pool", "function", "outcome", "took", "cost")
"""What they can be sorted by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One of them; all texts may be shown.

    Attributes:
        run: its id; "" stands for a pool that had none.
        pool, key: the pool's name, and what no other one has.
        provider: whose machines it had.
        function: what ran.
        script: the script's name; "" where nobody kept that, as of runs that a script dispatched itself.
        arguments: texts, as they were given.
        ranks: how many ranks, or tasks, it had.
        counted: what these are: a rank, a trial, a task.
        state: how it ended, or "running"; of a pool without a run, how it is with that.
        opened_at, ended_at: Unix time; None for what goes on.
        error: the root cause in words, or "".
        dollars: what its pool's machines cost while it went on; None where nobody knows.
        is_up: whether its pool is.
        figures: of failures, what the machine of the root cause was at before it, in words and by name; None where
            nobody knows.
    """

    run: str
    pool: str
    key: str
    provider: str
    function: str
    script: str = ""
    arguments: tuple[str, ...] = ()
    ranks: int = 0
    counted: str = "rank"
    state: str
    opened_at: float
    ended_at: float | None
    error: str = ""
    dollars: float | None = 0.0
    is_up: bool = False
    figures: dict[str, Any] | None = None

    @property
    def figures_note(self) -> str:
        """The former in words, or ""."""
        return "" if self.figures is None else f"n{self.figures['node']}: {', '.join(self.figures['words'])}"

    @property
    def has_failed(self) -> bool:
        return self.state in FAILED

    @property
    def note(self) -> str:
        """What tells it from others: its failure, else its arguments."""
        return self.error or " ".join(self.arguments)

    def seconds(self, now: float) -> float:
        """How long it took, or has taken so far."""
        return max(0.0, (now if self.ended_at is None else self.ended_at) - self.opened_at)

    def unmatched_words(self, words: Iterable[str]) -> tuple[str, ...]:
        """Those of some words, in small letters, that are in nothing of it."""
        texts = (
            self.run,
            self.pool,
            self.provider,
            self.function,
            self.script,
            self.state,
            *self.arguments,
            self.error,
        )
        text = "\n".join(texts).casefold()
        return tuple(word for word in words if word not in text)


@dataclass(frozen=True, slots=True)
class RunSearch:
    """Which are wanted.

    Attributes:
        words: all of them have to be in it, in small or capital letters: in its id, pool, provider, function, script,
            arguments, outcome or error.
        failed: only those that failed or were lost.
        since: Unix time at which it had not begun yet.
    """

    words: Sequence[str] = ()
    failed: bool = False
    since: float = 0.0

    def matches(self, run: PastRun) -> bool:
        return self.matches_filters(run) and not run.unmatched_words(word.casefold() for word in self.words)

    def matches_filters(self, run: PastRun) -> bool:
        """Whether it is wanted but for the words."""
        return run.has_failed or not self.failed


def past_runs(
    ledger: Ledger,
    search: RunSearch,
    launches: dict[str, LaunchSummary],
    seen: Mapping[str, RunView],
) -> list[PastRun]:
    """Those that are wanted, of the newest 10,000, newest first; pools that had no run stand among them.

    Args:
        launches: what runs were launched with, as far as that was read before; gets the rest.
        seen: those of pools that are watched, by id: of what only looks at a pool the ledger hears nothing.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    pools = _PoolCache(ledger, launches)
    rows = ledger.latest_runs(search.since, EVERY)
    found = [pools.past_run(_with_seen_end(row, seen.get(row.run))) for row in rows]
    found += [pools.pool_without_run(row) for row in ledger.pools_without_runs(search.since, EVERY)]
    return sorted(filter(search.matches, found), key=lambda each: -each.opened_at)


def past_run(ledger: Ledger, row: RunRow) -> PastRun:
    """One of them.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    return _PoolCache(ledger, {}).past_run(row)


def sorted_runs(runs: Sequence[PastRun], by: str, now: float, *, falling: bool) -> list[PastRun]:
    """Runs by one of ``COLUMNS``; what is equal stays as it stood."""
    keys: dict[str, Callable[[PastRun], Any]] = {
        "when": lambda run: run.opened_at,
        "pool": lambda run: run.pool,
        "function": lambda run: run.function,
        "outcome": lambda run: run.state,
        "took": lambda run: run.seconds(now),
        "cost": lambda run: -1.0 if run.dollars is None else run.dollars,
    }
    return sorted(runs, key=keys[by], reverse=falling)


def failures(ledger: Ledger, seen: Mapping[str, RunView]) -> list[PastRun]:
    """Return the runs of the last 30 days that failed or were lost, and are not dismissed; newest first.

    Args:
        seen: Runs of watched pools, by id. Their metrics are written down a few seconds later.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    known, pools = set(pool_folder.read_dismissed()), _PoolCache(ledger, {})
    rows = ledger.failed_runs(time.time() - RECENT, EVERY)
    found = ((row, pools.past_run(row)) for row in rows if row.run not in known)
    return [_with_failure_metrics(ledger, row, run, seen.get(row.run)) for row, run in found if run.has_failed]


def _with_failure_metrics(ledger: Ledger, row: RunRow, run: PastRun, view: RunView | None) -> PastRun:
    """Return the run with the metrics of the machine of its root cause, from the view or from files."""
    told = view.cause_metrics if view is not None else None
    if told is None and row.root_cause is not None and has_metrics(pool_path(run.key)):
        told = run_view(ledger, row).cause_metrics
    return run if told is None else replace(run, figures=told.to_json())


def _with_seen_end(row: RunRow, view: RunView | None) -> RunRow:
    """The same as it was seen to end, where nobody has written that down yet."""
    if row.state != "running" or view is None or view.state == "running":
        return row
    return replace(row, state=view.state, ended_at=view.ended_at, root_cause=view.root_cause)


@dataclass(slots=True)
class _PoolCache:
    """What several runs of one pool have in common is read once."""

    ledger: Ledger
    launches: dict[str, LaunchSummary]
    rows: dict[str, tuple[PoolRow, list[Bill]]] = field(default_factory=dict)

    def past_run(self, row: RunRow) -> PastRun:
        if row.token not in self.rows:
            pool = self.ledger.pool(row.token)
            self.rows[row.token] = pool, list(bills_of_pool(self.ledger, pool))
        pool, bills = self.rows[row.token]
        cause = row.root_cause
        error = (
            ""
            if cause is None
            else f"{cause.rank_prefix.replace('rank ', 'r')}{cause.type}: {cause.message}".rstrip(": ")
        )
        told = self.launches.get(row.run) or _load_launch_summary(pool.key, row.run)
        if told.script:  # what nobody kept may be on its way
            self.launches[row.run] = told
        end = time.time() if row.ended_at is None else row.ended_at
        return PastRun(
            run=row.run, pool=sanitize_line(pool.name), key=pool.key, provider=_provider(pool),
            function=sanitize_line(row.function),
            script=told.script, arguments=told.arguments, ranks=row.total,
            counted=_COUNTED.get(row.kind, "task"), state=row.state,
            opened_at=row.opened_at, ended_at=row.ended_at, error=sanitize_line(error),
            dollars=_dollars(pool, bills, row.opened_at, end), is_up=pool.ended_at is None,
        )  # fmt: skip

    def pool_without_run(self, pool: PoolRow) -> PastRun:
        bills = bills_of_pool(self.ledger, pool)
        return PastRun(
            run="", pool=sanitize_line(pool.name), key=pool.key, provider=_provider(pool), function="",
            state=pool.state,
            opened_at=pool.created_at, ended_at=pool.ended_at, is_up=pool.ended_at is None,
            dollars=_dollars(pool, bills, 0.0, time.time()),
        )  # fmt: skip


def _provider(pool: PoolRow) -> str:
    return sanitize_line(str(pool.spec.get("provider") or pool.provider.get("provider", "")))


def _dollars(pool: PoolRow, bills: Iterable[Bill], since: float, until: float) -> float | None:
    """What a pool's machines cost between two times."""
    parts = [each.hourly * max(0.0, min(each.until, until) - max(each.since, since)) / 3600 for each in bills]
    return sum(parts) if parts or not pool.spec.get("rents") else None


class LaunchSummary(NamedTuple):
    """The name of the script that a run was launched with, and its arguments."""

    script: str = ""
    arguments: tuple[str, ...] = ()


def _gang_arguments(pool: str, run: str) -> list[str]:
    """Of one of a sweep by gangs: its own arguments."""
    sheet = pool_folder.read_trials(pool, run)
    rows = {} if sheet is None else {each: row for row, each in sheet.runs.items()}
    if sheet is None or run not in rows:
        return []
    pairs = zip(sheet.names, sheet.rows[rows[run]], strict=True)
    return [f"{name}={text}" for name, text in pairs]


def _load_launch_summary(pool: str, run: str) -> LaunchSummary:
    """As far as that is kept and can be read."""
    try:
        told = pool_folder.read_launch(pool, run) or {}
        if "job" in told:
            variables = tuple(sanitize_line(f"{name}={text}") for name, text in dict(told["job"]["env"]).items())
            return LaunchSummary(sanitize_line(Path(str(told["job"]["path"])).name), variables)
        if "command" in told:
            return LaunchSummary("", tuple(sanitize_line(str(word)) for word in told["command"]["words"]))
        asked = dict(told["request"])
        words = asked.get("arguments") or asked.get("script_args") or ()
        if any(map(asked.get, WAYS)):
            words = _gang_arguments(pool, run) or words
        return LaunchSummary(
            sanitize_line(Path(str(asked["script"])).name), tuple(sanitize_line(str(word)) for word in words)
        )
    except (OSError, KeyError, TypeError, ValueError):
        return LaunchSummary()


MAX_LINES = 60  # of a log, at most
SHORT_LOG_BYTES = 256 << 10  # bytes of a log that is read whole, so that both streams are in their true order
TAIL_BYTES = 16 << 10  # bytes that are read of a longer one
METRIC_TAIL_BYTES = 1 << 20  # bytes of a rank's numbers that are read, from their end
MAX_METRIC_RANKS = 8  # of whose numbers


class RunPreviewData(NamedTuple):
    """What there is to see.

    Attributes:
        view: the run with its outcomes; None where nothing is known.
        book: its numbers over time.
        rank: whose lines they are: of a run that failed the one that it failed by; None for none.
        lines: those that it printed last.
        trials: of a sweep, its table; None for any other run.
    """

    view: RunView | None = None
    book: MetricStore = MetricStore()
    rank: int | None = None
    lines: Sequence[str] = ()
    trials: TrialTable | None = None


def load_preview(ledger: Ledger, run: str) -> RunPreviewData:
    """Look at a run by its id, as far as it is kept here.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    row = ledger.run(run)
    if row is None:
        return RunPreviewData()
    key = ledger.pool(row.token).key
    view, folder = run_view(ledger, row), pool_path(key) / "logs"
    rank, lines = None, []
    with suppress(OSError, SkywardError):  # what was pruned is not there any more
        logs = RunLogs(ledger, run)
        cause = None if row.root_cause is None else row.root_cause.rank
        rank = cause if cause in logs.ranges else min(logs.ranges, default=None)
        lines = [] if rank is None else last_lines(logs, rank)
    metrics = MetricStore()
    with suppress(OSError):
        metrics = load_metrics(folder, run)
    return RunPreviewData(view, metrics, rank, lines, _trial_table(ledger, key, view, metrics))


def _trial_table(ledger: Ledger, pool: str, run: RunView, metrics: MetricStore) -> TrialTable | None:
    """The table of a sweep; of one by gangs each run is looked at by itself."""
    if run.kind != "sweep":
        return None
    with suppress(UsageError, NoTrials):
        return trial_table_source(ledger, pool, run, {}).table(run.id, run.tasks, metrics)
    return None


def last_lines(logs: RunLogs, rank: int) -> list[str]:
    """What a rank printed last in a run."""
    parts = logs.ranges[rank]
    if sum(sum(part.end) - sum(part.start) for part in parts) <= SHORT_LOG_BYTES:
        return list(deque((line.text for line in logs.lines(rank)), MAX_LINES))
    # Which came when is not looked up: whatever of the two has more to tell.
    ends = [_read_tail(logs.folder, parts[-1], stream) for stream in (0, 1)]
    return max(ends, key=len)


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


def load_metrics(
    folder: Path, run: str, most: int = METRIC_TAIL_BYTES, ranks: int | None = MAX_METRIC_RANKS
) -> MetricStore:
    """The numbers of one run, from the files of its pool.

    Args:
        most: bytes that are read of each rank's, from their end.
        ranks: of how many; None for all.
    """
    metrics, needle = MetricStore(), f'"{run}"'.encode()
    files = [path for path in (log_files(folder) if folder.is_dir() else ()) if path.suffix == METRICS]
    for path in files[:ranks]:
        with open(path, "rb") as source:
            source.seek(max(0, path.stat().st_size - most))
            for line in source:
                if needle in line:
                    metrics.feed(path.name, parse_rank(path.name), line)
    return metrics


STEP_SECONDS = 0.2  # seconds of one step
MAX_SEARCH_BYTES = 1 << 30  # bytes of one run's logs that are looked through
MAX_MATCH_CHARS = 300  # characters of a line that are told
CONTEXT_CHARS = 40  # of them that stand before the first word, where the line is longer
_COLOR = re.compile("\x1b\\[[0-9;:]*m")


class _SearchCancelled(Exception):
    """Nobody wants to know any more."""


@dataclass(frozen=True, slots=True)
class LineMatch:
    """Where some words stand together in what a run printed, or gave; all texts may be shown.

    Attributes:
        rank: whose line it is: of the ranks that printed such a line the first.
        number: of that line among all that the rank printed in the run, from 0; None where it is of a result or an
            error, and no line has the words.
        line: it, or the part of it that has the first word.
        words: in small letters, in the order in which they stand there.
        lines: how many there are.
        whole: whether all of the run was looked through, so that there are no others.
    """

    rank: int
    number: int | None
    line: str
    words: tuple[str, ...]
    lines: int = 1
    whole: bool = False

    @property
    def location_text(self) -> str:
        """In words: "r3 line 1,205, and 12 more lines"."""
        place = f"r{self.rank} result" if self.number is None else f"r{self.rank} line {self.number + 1:,}"
        more = self.lines - 1
        return f"{place}, and {more:,} more{'' if self.whole else ' so far'}" if more else place

    @property
    def note(self) -> str:
        return f"{self.location_text}: {self.line}"


class LogSearch:
    """Looks through runs for the words that the ledger does not have of them. For one thread at a time.

    Args:
        runs: newest first.
        words: all of them have to stand in one line, in small or capital letters, but for those that a run has in its
            id, pool, function, arguments or error. A run that has them all there is not looked through.

    Attributes:
        runs: how many are to be looked through.
        searched: number of runs that have been searched.
        unread: how many of these could not be read.
        done: whether nothing is left to do.
    """

    def __init__(self, ledger: Ledger, runs: Sequence[PastRun], words: Sequence[str]) -> None:
        folded = list(dict.fromkeys(word.casefold() for word in words))
        missing = ((run, run.unmatched_words(folded)) for run in runs if run.run)
        wanted = [(run, those) for run, those in missing if those]
        self.runs, self.searched, self.unread, self.done = len(wanted), 0, 0, not wanted
        self._cancelled = False
        self._matches = self._search_runs(ledger, wanted)

    def cancel(self) -> None:
        """Have a step that goes on in another thread end at its next piece, or row of the ledger, and none follow."""
        self._cancelled = True

    def step(self, seconds: float = STEP_SECONDS) -> dict[str, LineMatch]:
        """Look on for so long; at least one piece. Gives what has been found, or has grown, by the run's id.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        end = time.monotonic() + seconds
        found: dict[str, LineMatch] = {}
        with suppress(_SearchCancelled):
            while not (self._cancelled or self.done):
                piece = next(self._matches, None)
                if piece is None:
                    self.done = True
                elif piece[1] is not None:
                    found[piece[0]] = piece[1]
                if time.monotonic() >= end:
                    break
        return found

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise _SearchCancelled

    def _search_runs(
        self, ledger: Ledger, runs: Sequence[tuple[PastRun, Sequence[str]]]
    ) -> Iterator[tuple[str, LineMatch | None]]:
        for run, words in runs:
            try:
                for found in search_run(ledger, run.run, run.key, words, self._check_cancelled):
                    yield run.run, found
            except (OSError, UsageError):  # pruned or forgotten meanwhile, or no file of ours any more
                self.unread += 1
            self.searched += 1


def search_run(
    ledger: Ledger, run: str, pool: str, words: Sequence[str], check: Callable[[], None] = lambda: None
) -> Iterator[LineMatch | None]:
    """Look through a run for lines that have all of some words; what is found so far, after each piece.

    Args:
        pool: its key.
        words: in small letters.
        check: called while the ledger is read; what it raises ends the search.

    Raises:
        UsageError: no such run.
        OSError: its files cannot be read.
        LedgerError: the ledger cannot be read.
    """
    found: LineMatch | None = None
    read = 0
    for rank, batch in _iter_batches(ledger, run, pool, check):
        if places := matching_lines(batch.texts, words):
            here = _make_match(rank, batch.number + places[0], batch.texts[places[0]], words)
            found = replace(found or here, lines=(found.lines if found else 0) + len(places))
        yield found
        if (read := read + batch.size) >= MAX_SEARCH_BYTES:
            break
    if found is None:
        given = []
        for outcome, _ in ledger.iter_outcomes(run):
            check()
            given += [
                _make_match(outcome.rank, None, text, words)
                for text in _outcome_lines(outcome)
                if matching_lines([text], words)
            ]
        found = replace(given[0], lines=len(given)) if given else None
    yield None if found is None else replace(found, whole=read < MAX_SEARCH_BYTES)


def _iter_batches(ledger: Ledger, run: str, pool: str, check: Callable[[], None]) -> Iterator[tuple[int, LineBatch]]:
    """What is kept of what its ranks printed; where the pool has no folder any more none is made."""
    if (pool_path(pool) / "logs").is_dir():
        logs = RunLogs(ledger, run, check)
        for rank in sorted(logs.ranges):
            for batch in logs.batches(rank):
                yield rank, batch


def matching_lines(texts: Sequence[str], words: Sequence[str]) -> list[int]:
    """Which of some lines have all of the words, which are in small letters; colours are looked through."""
    text = join_lines(texts)
    if "\x1b" in text:
        text = _COLOR.sub("", text)
    text = text.casefold()
    if not all(word in text for word in words):
        return []
    return [at for at, line in enumerate(text.split("\n")) if all(word in line for word in words)]


def _outcome_lines(outcome: Outcome) -> Iterator[str]:
    """What a rank gave, and what it failed by, a line each."""
    if outcome.summary is not None:
        yield sanitize_line(outcome.summary.text)
    if outcome.error is not None:
        yield sanitize_line(f"{outcome.error.type}: {outcome.error.message}")


def _make_match(rank: int, number: int | None, line: str, words: Sequence[str]) -> LineMatch:
    text = sanitize_line(line)
    places = {word: text.casefold().find(word) for word in words}
    first = max(0, min(places.values()) - CONTEXT_CHARS) if len(text) > MAX_MATCH_CHARS else 0
    shown = f"{'… ' if first else ''}{text[first : first + MAX_MATCH_CHARS].strip()}"
    return LineMatch(rank, number, shown, tuple(sorted(places, key=lambda word: places[word])))


__all__ = [
    "PoolRow", "Receipt", "RetainedResults", "RunLogs", "RunRow", "StoredLines", "prune_clones", "prune_environments",
    "prune_pools", "ring_tail",
]  # fmt: skip
