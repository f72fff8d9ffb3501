"""Rules for notifying a user who is not watching: a run has ended, or a pool waits for an answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from skyward_core.views.pool_view import PoolView, RunView

# Outcome of a run or of a pool's start, or kind of a question to the user.
NotificationKind = Literal["done", "failed", "cancelled", "lost", "budget", "breakpoint", "hostkey", "alert"]


class Notification(NamedTuple):
    """A notification for the user.

    Attributes:
        kind: Kind of the notification.
        pool: Name of the pool.
        run: Id of the run; "" if the notification concerns the pool.
        what: Subject: a function's name or a rank.
        detail: Further text; may be empty.
        seconds: Duration of the run or start. None for questions to the user.
    """

    kind: NotificationKind
    pool: str
    run: str = ""
    what: str = ""
    detail: str = ""
    seconds: float | None = None


class NotificationWatch:
    """Detection of new notifications by repeated checks. Runs that ended before the first check are not reported."""

    def __init__(self) -> None:
        self._running: set[tuple[str, str]] = set()  # pools and runs that are expected to end
        self._starting: set[str] = set()
        self._asked: dict[str, float | None] = {}  # pool -> deadline of the question about its budget
        self._stopped: dict[str, set[int]] = {}  # pool -> ranks that wait at a breakpoint

    def check(self, pools: Iterable[PoolView], now: float) -> list[Notification]:
        """Return the new notifications since the last check. Checking ended pools costs almost nothing."""
        found: list[Notification] = []
        for pool in pools:
            followed = pool.key in self._starting or any(key == pool.key for key, _ in self._running)
            if pool.is_over and not followed:
                continue
            found += self._start_notifications(pool, now)
            found += self._run_notifications(pool, now)
            found += self._pause_notifications(pool)
        return found

    def _start_notifications(self, pool: PoolView, now: float) -> Iterable[Notification]:
        if pool.state == "starting":
            self._starting.add(pool.key)
        elif pool.key in self._starting:
            self._starting.discard(pool.key)
            if pool.state in ("failed", "unfinished") or (pool.is_over and pool.detail):
                seconds = now - pool.created_at
                yield Notification("failed", pool.name, what="the start", detail=pool.detail, seconds=seconds)

    def _run_notifications(self, pool: PoolView, now: float) -> Iterable[Notification]:
        for run in list(pool.runs.values()):
            key = pool.key, run.id
            if run.state == "running":
                if not pool.is_over:
                    self._running.add(key)
                else:
                    self._running.discard(key)
            elif key in self._running:
                self._running.discard(key)
                if run.state != "left":  # otherwise the run continues without this client
                    yield run_notification(run, pool.name, now)

    def _pause_notifications(self, pool: PoolView) -> Iterable[Notification]:
        asked = pool.budget_state == "asked" and pool.is_live
        if asked and self._asked.get(pool.key, 0.0) != pool.budget_ends_at:
            self._asked[pool.key] = pool.budget_ends_at
            yield Notification("budget", pool.name, detail=pool.name)
        stopped = {rank for rank, (phase, _) in pool.rank_phases.items() if phase == "paused"}
        new = stopped - self._stopped.get(pool.key, set())
        if stopped or pool.key in self._stopped:
            self._stopped[pool.key] = stopped
        if new:
            more = f" (+{len(new) - 1:,} more)" if len(new) > 1 else ""
            yield Notification("breakpoint", pool.name, what=f"rank {min(new)}{more}")


def run_notification(run: RunView, pool: str, now: float) -> Notification:
    """Return the notification for the end of a run."""
    kind: NotificationKind = run.state if run.state in ("done", "cancelled", "lost") else "failed"
    returned = run.counts.get("returned", 0)
    detail = f"{returned:,}/{run.total:,} returned"
    if run.root_cause is not None and kind == "failed":
        cause = run.root_cause
        first = next((line.strip() for line in cause.message.splitlines() if line.strip()), "")
        what = f"{cause.type}: {first}".rstrip(": ") if cause.outcome == "raised" else first
        detail = f"{cause.rank_prefix}{cause.outcome}: {what}".rstrip(": ")
    return Notification(kind, pool, run.id, run.function, detail, (run.ended_at or now) - run.opened_at)
