"""Formatting of numbers, times, prices and states of runs and nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from skyward_core.util.number_size_and_time_format import ago as ago
from skyward_core.util.number_size_and_time_format import duration as duration
from skyward_core.util.number_size_and_time_format import number as number

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_plan import LaunchPlan
    from skyward_core.views.pool_view import NodeView, PoolView, RunView
    from skyward_core.views.rank_metrics_and_progress import Progress

NO_RUN = "nothing: the file has no run commands"
# Text for the state "unfinished" of a pool.
BROKEN_OFF = "start incomplete"
# Text for an ended pool that did not start.
START_FAILED = "start failed"
LAST_MINUTES = 600.0  # seconds; a remaining time below this limit is redrawn every second


def failure(kind: str, type: str, message: str) -> str:
    """Format the failure of a rank. The type is included only if an exception was raised."""
    return f"{type}: {message}".rstrip(": ") if kind == "raised" or not message else message


def clock(at: float) -> str:
    """Format a Unix time as local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def date_time(at: float) -> str:
    """Format a Unix time as local date and time of day."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def money(amount: float) -> str:
    return f"${amount:,.2f}"


def hourly(of: PoolView | LaunchPlan) -> str:
    """Format an hourly price; "" if the machine is free, and "$?/h" if it is rented at an unknown price."""
    if of.has_unknown_price:
        return "$?/h"
    return f"{money(of.price_hourly)}/h" if of.price_hourly else ""


def metric_text(name: str, value: float | None) -> str:
    """Format a metric and a run's value of it; None if the value is not finite."""
    return f"{name} {'nan' if value is None else number(value)}"


def count(many: int, one: str) -> str:
    """Format a count with its noun: ``1 node``, ``4 nodes``."""
    return f"{many:,} {one if many == 1 else one + 's'}"


def count_range(least: int, most: int, one: str) -> str:
    """Format a range with its noun: ``2 to 8 nodes``; ``4 nodes`` if both ends are equal."""
    return count(most, one) if least == most else f"{least:,} to {count(most, one)}"


def preemption_text(node: NodeView, now: float) -> str:
    """Return a text about the preemption notice of a node, such as ``preempted in 1:42 (terminate)``; "" if there is
    none."""
    if node.notice == "rebalance":
        return "may soon be preempted"
    if not node.is_preempted:
        return ""
    remaining = 0.0 if node.notice_ends_at is None else node.notice_ends_at - now
    return f"preempted {f'in {duration(remaining)}' if remaining >= 1 else 'now'} ({node.notice})"


MAX_NAMED = 8  # maximum number of ranks that a text names


def saving_text(saving: Mapping[int, float], now: float) -> str:
    """Return which ranks handle SIGTERM and when they are killed, such as ``ranks 0, 3 still save: killed in 0:24``.

    Args:
        saving: Unix time when each rank is killed.
        now: Unix time.
    """
    ranks = sorted(saving)
    named = ", ".join(map(str, ranks[:MAX_NAMED])) + (" …" if len(ranks) > MAX_NAMED else "")
    verb = f"rank {named} still saves" if len(ranks) == 1 else f"ranks {named} still save"
    return f"{verb}: killed in {duration(max(0.0, max(saving.values()) - now))}"


def next_preempted(nodes: Iterable[NodeView]) -> NodeView | None:
    """Return the node with the most urgent preemption notice; None if there is none."""
    noticed = (node for node in nodes if node.is_preempted or node.notice == "rebalance")
    return min(noticed, key=lambda node: (not node.is_preempted, node.notice_ends_at or 0.0), default=None)


def run_status(pool: PoolView, run: RunView, now: float | None = None, *, unit: bool = False) -> tuple[str, str]:
    """Return the state of a run for display, and a remark: its progress, or its place in the queue.

    Args:
        unit: Whether to name the unit of the numbers, such as ``1/4 ranks ended``.
    """
    if run.state == "running" and run.id in (queued := pool.queued_runs()):
        return "queued", f"place {queued.index(run.id) + 1} of {len(queued)}"
    if (at := run.restart_at) is not None:
        pause = at - (time.time() if now is None else now)
        return "restarting", f"attempt {run.attempt}" + (f" in {pause:.0f} s" if pause >= 1 else "")
    # An ended pool whose screen was not opened has no counts of ranks, so show only the state.
    if not run.counts and run.state != "running":
        return run.state, ""
    ended = f"{run.ended:,}/{run.total:,}"
    if unit:
        named = count(run.total, "rank" if run.kind == "broadcast" else "task")
        ended = named if run.state == "running" and not run.ended else f"{run.ended:,}/{named}"
        ended += " ended" if run.state == "running" and run.ended else ""
    return run.state, " · ".join(filter(None, (ended, run_progress(pool, run, now))))


def run_progress(pool: PoolView, run: RunView, now: float | None = None) -> str:
    """Return the progress of the slowest rank of a running run; "" if the progress is unknown."""
    found = pool.metrics.progress(run.id) if run.state == "running" else None
    return "" if found is None else progress_text(found, time.time() if now is None else now)


def progress_text(progress: Progress, now: float) -> str:
    """Format a progress as ``34 % · 0:48 left · 3.1 it/s``, without unknown parts."""
    parts = [f"{int(progress.fraction * 100)} %"]
    if (left := progress.seconds_left(now)) is not None and progress.rate:
        parts.append(f"{duration(left)} left")
        if progress.is_step:
            parts.append(rate_text(progress.rate))
    return " · ".join(parts)


def rate_text(rate: float) -> str:
    """Format steps per second: ``3.1 it/s``, ``2.5 s/it``."""
    return f"{number(round(rate, 1))} it/s" if rate >= 1 else f"{number(round(1 / rate, 1))} s/it"
