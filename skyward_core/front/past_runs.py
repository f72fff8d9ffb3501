"""Every run that the ledger remembers, found by words: what ran, with which arguments, and what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..store import dismissed, kept_launches, kept_trials
from ..store.home import pool_path
from ..store.kept_figures import are_kept
from ..store.ledger import Ledger
from ..store.ledger_rows import Bill, PoolRow, RunRow
from ..views.views import RunView
from ..wire.safe_text import field as safe
from .costs import bills_of_pool
from .gangs_asked import WAYS
from .history import run_view
from .session_part import SessionPart

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

    def lacks(self, words: Iterable[str]) -> tuple[str, ...]:
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

    def wants(self, run: PastRun) -> bool:
        return self.takes(run) and not run.lacks(word.casefold() for word in self.words)

    def takes(self, run: PastRun) -> bool:
        """Whether it is wanted but for the words."""
        return run.has_failed or not self.failed


def past_runs(
    ledger: Ledger,
    search: RunSearch,
    launches: dict[str, Launched],
    seen: Mapping[str, RunView],
) -> list[PastRun]:
    """Those that are wanted, of the newest 10,000, newest first; pools that had no run stand among them.

    Args:
        launches: what runs were launched with, as far as that was read before; gets the rest.
        seen: those of pools that are watched, by id: of what only looks at a pool the ledger hears nothing.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    pools = _Pools(ledger, launches)
    rows = ledger.latest_runs(search.since, EVERY)
    found = [pools.run(_as_it_ended(row, seen.get(row.run))) for row in rows]
    found += [pools.without_run(row) for row in ledger.pools_without_runs(search.since, EVERY)]
    return sorted(filter(search.wants, found), key=lambda each: -each.opened_at)


def past_run(ledger: Ledger, row: RunRow) -> PastRun:
    """One of them.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    return _Pools(ledger, {}).run(row)


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


def failures(ledger: Ledger) -> list[PastRun]:
    """Runs of the last 30 days that failed, or were lost, and that nobody has dismissed; newest first.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    known, pools = set(dismissed.dismissed()), _Pools(ledger, {})
    rows = ledger.failed_runs(time.time() - RECENT, EVERY)
    found = ((row, pools.run(row)) for row in rows if row.run not in known)
    return [_with_figures(ledger, row, run) for row, run in found if run.has_failed]


def _with_figures(ledger: Ledger, row: RunRow, run: PastRun) -> PastRun:
    """With what its machine was at, where that was kept, which takes reading files."""
    if row.root_cause is None or not are_kept(pool_path(run.key)):
        return run
    told = run_view(ledger, row).cause_figures
    return run if told is None else replace(run, figures=told.to_json())


def _as_it_ended(row: RunRow, view: RunView | None) -> RunRow:
    """The same as it was seen to end, where nobody has written that down yet."""
    if row.state != "running" or view is None or view.state == "running":
        return row
    return replace(row, state=view.state, ended_at=view.ended_at, root_cause=view.root_cause)


def _as_seen(run: PastRun, view: RunView | None) -> PastRun:
    """The same with what its machine was at, as far as that was seen: it is written down a few seconds later."""
    told = view.cause_figures if view is not None else None
    return run if told is None else replace(run, figures=told.to_json())


class PastRuns(SessionPart):
    """The part of a session that tells of them."""

    ledger: Ledger
    _launches: dict[str, Launched]  # what runs were launched with, which never changes

    def past_runs(self, search: RunSearch) -> Future[list[PastRun]]:
        """See :func:`past_runs`; the future raises what that raises."""

        async def work() -> list[PastRun]:
            return await asyncio.to_thread(past_runs, self.ledger, search, self._launches, self._runs_seen())

        return self._submit(work())

    def failures(self) -> Future[list[PastRun]]:
        """See :func:`failures`; the future raises what that raises."""

        async def work() -> list[PastRun]:
            found = await asyncio.to_thread(failures, self.ledger)
            views = self._runs_seen()
            return [_as_seen(run, views.get(run.run)) for run in found]

        return self._submit(work())

    def _runs_seen(self) -> dict[str, RunView]:
        return {run.id: run for pool in self.pools() for run in list(pool.runs.values())}

    def dismiss(self, runs: Sequence[str]) -> Future[None]:
        """Tell of some failures no more.

        Raises (through the future):
            OSError: that cannot be written down.
        """

        async def work() -> None:
            await asyncio.to_thread(dismissed.dismiss, runs)

        return self._submit(work())


@dataclass(slots=True)
class _Pools:
    """What several runs of one pool have in common is read once."""

    ledger: Ledger
    launches: dict[str, Launched]
    rows: dict[str, tuple[PoolRow, list[Bill]]] = field(default_factory=dict)

    def run(self, row: RunRow) -> PastRun:
        if row.token not in self.rows:
            pool = self.ledger.pool(row.token)
            self.rows[row.token] = pool, list(bills_of_pool(self.ledger, pool))
        pool, bills = self.rows[row.token]
        cause = row.root_cause
        error = (
            ""
            if cause is None
            else f"{cause.who.replace('rank ', 'r')}{cause.type}: {cause.message}".rstrip(": ")
        )
        told = self.launches.get(row.run) or _launched(pool.key, row.run)
        if told.script:  # what nobody kept may be on its way
            self.launches[row.run] = told
        end = time.time() if row.ended_at is None else row.ended_at
        return PastRun(
            run=row.run, pool=safe(pool.name), key=pool.key, provider=_provider(pool), function=safe(row.function),
            script=told.script, arguments=told.arguments, ranks=row.total,
            counted=_COUNTED.get(row.kind, "task"), state=row.state,
            opened_at=row.opened_at, ended_at=row.ended_at, error=safe(error),
            dollars=_dollars(pool, bills, row.opened_at, end), is_up=pool.ended_at is None,
        )  # fmt: skip

    def without_run(self, pool: PoolRow) -> PastRun:
        bills = bills_of_pool(self.ledger, pool)
        return PastRun(
            run="", pool=safe(pool.name), key=pool.key, provider=_provider(pool), function="", state=pool.state,
            opened_at=pool.created_at, ended_at=pool.ended_at, is_up=pool.ended_at is None,
            dollars=_dollars(pool, bills, 0.0, time.time()),
        )  # fmt: skip


def _provider(pool: PoolRow) -> str:
    return safe(str(pool.spec.get("provider") or pool.provider.get("provider", "")))


def _dollars(pool: PoolRow, bills: Iterable[Bill], since: float, until: float) -> float | None:
    """What a pool's machines cost between two times."""
    parts = [each.hourly * max(0.0, min(each.until, until) - max(each.since, since)) / 3600 for each in bills]
    return sum(parts) if parts or not pool.spec.get("rents") else None


class Launched(NamedTuple):
    """The name of the script that a run was launched with, and its arguments."""

    script: str = ""
    arguments: tuple[str, ...] = ()


def _combination(pool: str, run: str) -> list[str]:
    """Of one of a sweep by gangs: its own arguments."""
    sheet = kept_trials.kept(pool, run)
    rows = {} if sheet is None else {each: row for row, each in sheet.runs.items()}
    if sheet is None or run not in rows:
        return []
    pairs = zip(sheet.names, sheet.rows[rows[run]], strict=True)
    return [f"{name}={text}" for name, text in pairs]


def _launched(pool: str, run: str) -> Launched:
    """As far as that is kept and can be read."""
    try:
        told = kept_launches.kept(pool, run) or {}
        if "job" in told:
            variables = tuple(safe(f"{name}={text}") for name, text in dict(told["job"]["env"]).items())
            return Launched(safe(Path(str(told["job"]["path"])).name), variables)
        if "command" in told:
            return Launched("", tuple(safe(str(word)) for word in told["command"]["words"]))
        asked = dict(told["request"])
        words = asked.get("arguments") or asked.get("script_args") or ()
        if any(map(asked.get, WAYS)):
            words = _combination(pool, run) or words
        return Launched(safe(Path(str(asked["script"])).name), tuple(safe(str(word)) for word in words))
    except (OSError, KeyError, TypeError, ValueError):
        return Launched()
