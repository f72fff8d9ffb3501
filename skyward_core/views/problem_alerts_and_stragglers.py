"""Rules that find problems of a run: non-finite metrics, stalls, stragglers, plateaus, machine faults.

Each check uses only data that the views update incrementally, never a whole history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, get_args

from skyward_core.model.metric_definitions_series_and_export import describe_throttling
from skyward_core.model.outcomes_states_and_alerts import Alert as Alert
from skyward_core.model.outcomes_states_and_alerts import AlertKind
from skyward_core.util.number_size_and_time_format import number
from skyward_core.views.machine_metrics import MachineMetrics, describe_xid, memory_share, slowdown_bits
from skyward_core.views.outliers_and_bands import find_outliers, median

if TYPE_CHECKING:
    from skyward_core.views.pool_view import PoolView, RunView
    from skyward_core.views.rank_metrics_and_progress import SeriesDiagnostics

KINDS: tuple[AlertKind, ...] = get_args(AlertKind)
REPEAT_SECONDS = 300.0  # seconds within which a problem that returns does not count as new
MIN_LAG = 0.1  # share of all ranks' median by which a rank must be worse to lag


class LagTracker:
    """Tracker of the times at which ranks of one run began to lag.

    A stretch is a group of successive values of a metric. Each stretch is evaluated once.
    """

    def __init__(self) -> None:
        # (metric, rank) -> start of the last evaluated stretch, start of the lag, start of the last lagging stretch
        self._weighed: dict[tuple[str, int], tuple[float, float, float]] = {}

    def lag_start(self, name: str, rank: int, diagnostics: Mapping[int, SeriesDiagnostics]) -> float:
        """Return the time since which a rank lags: the start of its first lagging stretch.

        Each stretch is compared with the other ranks' paces at that time, so that all observers get the same result. A
        pause of less than ``REPEAT_SECONDS`` does not end the lag.
        """
        own = diagnostics[rank]
        weighed, since, last = self._weighed.get((name, rank), (-inf, 0.0, -inf))
        others = [(other, each.paces) for other, each in diagnostics.items() if other != rank and each.paces]
        for began, pace in own.paces[bisect_right(own.paces, weighed, key=itemgetter(0)) :]:
            values = {rank: pace}
            for other, paces in others:
                if place := bisect_right(paces, began, key=itemgetter(0)):
                    values[other] = paces[place - 1][1]
            if rank in _lagging_ranks(values, diagnostics):
                since = began if began - last >= REPEAT_SECONDS else since
                last = began
            weighed = began
        self._weighed[name, rank] = weighed, since, last
        newest = own.paces[-1][0] if own.next_at is None else own.next_at
        return since if newest - last < REPEAT_SECONDS else newest


def find_alerts(pool: PoolView, run: RunView, now: float, lags: LagTracker | None = None) -> list[Alert]:
    """Return all problems of a run, worst first. For an ended run, return only problems of non-finite metrics.

    Args:
        pool: The pool.
        run: The run.
        now: Unix time in seconds.
        lags: Tracker of the run, if the caller checks repeatedly.
    """
    found = [*_non_finite_alerts(pool, run)]
    if run.state == "running":
        found += _stall_alerts(pool, run, now)
        found += _straggler_alerts(pool, run, lags or LagTracker())
        found += [*_plateau_alerts(pool, run), *_restart_alerts(run)]
        if pool.machines is not None:
            found += _machine_alerts(pool.machines, run.opened_at, now)
    return sort_alerts(found)


def sort_alerts(alerts: Iterable[Alert]) -> list[Alert]:
    """Sort alerts by kind, worst first, and by age."""
    return sorted(alerts, key=lambda alert: (KINDS.index(alert.kind), alert.since))


def _non_finite_alerts(pool: PoolView, run: RunView) -> Iterator[Alert]:
    for rank, name, diagnostics in pool.metrics.diagnostics(run.id):
        if (at := diagnostics.bad_at) is not None:
            step = diagnostics.bad_step
            place = f"value {diagnostics.bad_place + 1:,}" if step is None or step - step else f"step {step:,.0f}"
            yield Alert("nan", rank, None, None, name, at, f"{name} is {diagnostics.non_finite_label} from {place} on")


def _plateau_alerts(pool: PoolView, run: RunView) -> Iterator[Alert]:
    for rank, name, diagnostics in pool.metrics.diagnostics(run.id):
        if (since := diagnostics.rests_since) is not None:
            yield Alert("plateau", rank, None, None, name, since, f"{name} no longer improves")


def _restart_alerts(run: RunView) -> Iterator[Alert]:
    """Yield an alert if a run has nearly used up the restarts that its last failure's cause allows."""
    last = run.ended_attempts[-1] if run.ended_attempts else None
    if last is not None and last.restarts and last.left is not None and last.left <= 1:
        words = "the last restart" if last.left == 0 else "one restart left"
        yield Alert("restarts", None, None, None, "", last.at, f"{words}: {last.reason}")


def _stall_alerts(pool: PoolView, run: RunView, now: float) -> Iterator[Alert]:
    for task in list(run.tasks.values()):
        if task.state != "running" or task.began_at is None:
            continue
        if task.node < len(pool.nodes) and pool.nodes[task.node].link_up is False:
            continue  # Ignore the silence of ranks while the connection to their node is lost.
        quiet = pool.activity.unusual_silence(run.id, task.rank, task.began_at, now)
        if quiet is not None:
            yield Alert("stall", task.rank, None, None, "", now - quiet, "no output for longer than usual")


def _straggler_alerts(pool: PoolView, run: RunView, lags: LagTracker) -> Iterator[Alert]:
    """Yield an alert for each rank whose recent pace is far worse than that of all others."""
    paces: dict[str, dict[int, float]] = {}
    series: dict[str, dict[int, SeriesDiagnostics]] = {}
    for rank, name, diagnostics in pool.metrics.diagnostics(run.id):
        if diagnostics.kind in ("time", "rate") and (pace := diagnostics.recent_median()) is not None:
            paces.setdefault(name, {})[rank] = pace
            series.setdefault(name, {})[rank] = diagnostics
    for name, values in paces.items():
        for rank in _lagging_ranks(values, series[name]):
            words = f"{name} {number(values[rank])}, others ~{number(median(values.values()))}"
            yield Alert("straggler", rank, None, None, name, lags.lag_start(name, rank, series[name]), words)


def _lagging_ranks(values: Mapping[int, float], diagnostics: Mapping[int, SeriesDiagnostics]) -> list[int]:
    """Return the ranks whose pace is far worse than the pace of all other ranks."""
    middle, found = median(values.values()), []
    for rank in find_outliers(values):
        worse = values[rank] - middle if diagnostics[rank].kind == "time" else middle - values[rank]
        if worse > MIN_LAG * abs(middle):
            found.append(rank)
    return found


def _machine_alerts(metrics: MachineMetrics, began: float, now: float) -> Iterator[Alert]:
    for node, machine in metrics.nodes.items():
        if not machine.is_fresh(now):
            continue
        for gpu, track in [(None, machine.host), *enumerate(list(machine.gpus))]:
            # Ignore GPU errors from before the run: the driver reports an error forever, even after it was fixed.
            xid_since = track.xid_at if track.xid and track.xid_at >= began else None
            if (since := min(filter(None, (track.lost_since, xid_since)), default=None)) is not None:
                reasons = [describe_xid(track.xid)] if xid_since is not None else []
                reasons += ["lost by the driver"] if track.lost_since is not None else []
                yield Alert("gpu", None, node, gpu, "", since, ", ".join(reasons))
            if (since := track.full_since) is not None:
                name = "memory_used" if gpu is None else "mem_used"
                part = f"{100 * memory_share(track.latest):.0f} %"
                yield Alert("memory", None, node, gpu, name, since, f"memory {part} full")
            if (since := track.slowed_since) is not None:
                reason = f"slowed: {describe_throttling(slowdown_bits(track.latest))}"
                yield Alert("throttled", None, node, gpu, "throttle", since, reason)


def alerts_cache_key(pool: PoolView, run: RunView, now: float) -> tuple[object, ...]:
    """Return a key that changes whenever alerts may change. During a run it changes each second, because of stalls."""
    machines = pool.machines.version if pool.machines is not None else 0
    return run.id, run.version, pool.metrics.version, machines, int(now) if run.state == "running" else None


class AlertWatch:
    """Watch over one run that checks it repeatedly, and distinguishes new problems from persisting ones.

    A problem that returns within ``REPEAT_SECONDS`` is not new.
    """

    def __init__(self) -> None:
        self._run = ""
        self._lags = LagTracker()
        # problem -> first and last time at which it was found
        self._lasting: dict[tuple[object, ...], tuple[float, float]] = {}

    def check(self, pool: PoolView, run: RunView, now: float) -> tuple[list[Alert], list[Alert]]:
        """Check the run. Return all its problems, worst first, and those that are new since the last check."""
        if run.id != self._run:
            self._run, self._lasting, self._lags = run.id, {}, LagTracker()
        found, new = [], []
        for alert in find_alerts(pool, run, now, self._lags):
            since, seen = self._lasting.get(alert.key, (alert.since, -REPEAT_SECONDS))
            if now - seen >= REPEAT_SECONDS:
                since = alert.since
                new.append(alert)
            # Use a straggler's start time as it is: it depends only on the times of the metrics, not on the time of the
            # check.
            since = alert.since if alert.kind == "straggler" else min(since, alert.since)
            self._lasting[alert.key] = since, now
            found.append(Alert(alert.kind, alert.rank, alert.node, alert.gpu, alert.name, since, alert.words))
        self._lasting = {
            key: (since, seen) for key, (since, seen) in self._lasting.items() if now - seen < REPEAT_SECONDS
        }
        return sort_alerts(found), new
