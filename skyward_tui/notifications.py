"""Notifications to a user who is not watching: the rules for them, the bell, OSC 9, and the user's own command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.text.number_time_and_run_state_format import duration, failure
from skyward_tui.text.text_width_tables_and_ascii import clip, one_line

if TYPE_CHECKING:
    from skyward_core.client.user_settings_and_app_state import NotifySettings
    from skyward_core.views.pool_view import PoolView, RunView

MOST_CELLS = 200  # maximum cells of a notification that the terminal shows (OSC 9)


def message(notification: Notification) -> str:
    """Return the notification as one line of printable text."""
    about = f"{notification.what} ({notification.run})" if notification.run else notification.what
    match notification.kind:
        case "budget":
            text = f"pool {notification.pool} has reached its budget. Raise the budget, or tear the pool down"
        case "breakpoint":
            text = f"{about} of pool {notification.pool} waits at a breakpoint: skyward-tui debug {notification.pool}"
        case "hostkey":
            text = f"the key of {notification.what} is unknown. Accept or reject it"
        case "alert":
            text = f"{about} on {notification.pool}: {notification.detail}"
        case "lost":
            text = f"{about} on {notification.pool} is lost: its outcome is unknown"
        case _:
            took = "" if notification.seconds is None else f" after {duration(notification.seconds, precise=True)}"
            detail = f": {notification.detail}" if notification.detail else ""
            text = f"{about} on {notification.pool} {notification.kind}{took}{detail}"
    return sanitize_line(text)


def environment_variables(notification: Notification) -> dict[str, str]:
    """Return the environment variables that describe the notification to the user's command."""
    return {
        "SKYWARD_POOL": sanitize_line(notification.pool),
        "SKYWARD_RUN": sanitize_line(notification.run),
        "SKYWARD_OUTCOME": notification.kind,
        "SKYWARD_MESSAGE": message(notification),
    }


def is_worth_notifying(notification: Notification, *, looks: bool, untouched: float, after: float) -> bool:
    """Check whether to notify the user of an event, depending on whether the user is watching the app.

    Args:
        notification: The notification.
        looks: Whether the terminal has the focus, as far as known.
        untouched: Seconds since the user last pressed a key.
        after: Seconds; even a user with the focus on the terminal is notified of an event that took this long.
    """
    took = untouched if notification.seconds is None or notification.kind == "cancelled" else notification.seconds
    return not looks or took >= after


def osc9(text: str, environment: Mapping[str, str]) -> str:
    """Return the OSC 9 sequence that makes a terminal show a notification.

    tmux forwards the sequence if its option ``allow-passthrough`` is set.
    """
    # End the sequence with ST, because a terminal that does not support OSC 9 would ring at BEL. The text begins with
    # "skyward:", because a leading digit would select another OSC 9 command.
    asked = f"\x1b]9;{clip(f'skyward: {sanitize_line(text)}', MOST_CELLS)}\x1b\\"
    return "\x1bPtmux;" + asked.replace("\x1b", "\x1b\x1b") + "\x1b\\" if environment.get("TMUX") else asked


class Notifier:
    """Sender of notifications, in all ways that the settings enable.

    Args:
        ways: Settings of notifications.
        write: Writes control sequences to the terminal.
        failed: Called once, from any thread, with an error of the user's command.
    """

    def __init__(self, ways: NotifySettings, write: Callable[[str], object], failed: Callable[[str], object]) -> None:
        self.ways = ways
        self._write = write
        self._failed = failed
        self._has_failed = False

    def notify_unless_seen(self, notification: Notification, looks: bool, untouched: float) -> None:
        """Notify the user unless they are watching the app; see :func:`is_worth_notifying`. Returns at once."""
        if not is_worth_notifying(notification, looks=looks, untouched=untouched, after=self.ways.after):
            return
        calls = osc9(message(notification), os.environ) if self.ways.terminal and _shows_notifications() else ""
        if calls := calls + ("\a" if self.ways.bell else ""):
            self._write(calls)
        if self.ways.command:
            from skyward_core.client.notification_command_process import run_command

            run_command(self.ways.command, environment_variables(notification), self._command_failed)

    def _command_failed(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._failed(f"the command of [notify], {self.ways.command[0]}, does not work: {reason}")


def _shows_notifications() -> bool:
    """Check whether the terminal may support OSC 9. The Linux console does not, and would print the sequence."""
    return os.environ.get("TERM", "") not in ("", "dumb", "linux")


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
        # (pool key, run ID) of the runs that were running at the last check
        self._running: set[tuple[str, str]] = set()
        self._starting: set[str] = set()
        self._asked: dict[str, float | None] = {}  # by pool key: deadline of the question about the pool's budget
        self._stopped: dict[str, set[int]] = {}  # by pool key: ranks that wait at a breakpoint

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
            if run.state == "running" and not pool.is_over:
                self._running.add(key)
            elif key in self._running:
                self._running.discard(key)
                # no notification for a run in the state "left", which continues without this client
                if run.state not in ("running", "left"):
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
        what = failure(cause.outcome, cause.type, one_line(cause.message))
        detail = f"{cause.rank_prefix}{cause.outcome}: {what}".rstrip(": ")
    return Notification(kind, pool, run.id, run.function, detail, (run.ended_at or now) - run.opened_at)
