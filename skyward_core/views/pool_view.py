"""State of pools and runs for screens, updated by events, and the curves of their metrics.

One thread, which runs the pools, writes views. Other threads may read them. Fields are replaced, never modified in
part. Each change increases ``version``, so that screens repaint only new data.

Text comes from ranks, hosts and files. Views make it safe for terminals (``util.terminal_safe_text``). Programs get the
original values from separate fields.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, singledispatch
from itertools import islice
from math import fsum, hypot, sqrt
from typing import TYPE_CHECKING, Any, Literal, get_args

from skyward_core.model import outcomes_states_and_alerts as states
from skyward_core.model.errors import Hint
from skyward_core.model.metric_definitions_series_and_export import (
    GPU_METRIC_DEFINITIONS,
    NODE_METRIC_DEFINITIONS,
    Curve,
    Curves,
)
from skyward_core.util.light_dataclass import Value
from skyward_core.util.terminal_safe_text import sanitize_json, sanitize_line, sanitize_paragraph
from skyward_core.views import events
from skyward_core.views.log_buffers_and_rank_activity import LogBuffers, PoolActivity
from skyward_core.views.outliers_and_bands import Trace
from skyward_core.views.rank_metrics_and_progress import MetricStore
from skyward_core.views.sweep_argument_combinations import TrialSheet

if TYPE_CHECKING:
    from skyward_core.views.machine_metrics import FailureMetrics, MachineMetrics


PHASES: tuple[states.NodePhase, ...] = get_args(states.NodePhase)
MAX_RUNS = 64  # number of runs of one pool in memory; the ledger contains all runs
MAX_NODE_DETAILS = 40  # number of stored details of one node, such as lines of the installer
NodeDetails = tuple[tuple[float, states.NodePhase, str], ...]
MAX_FAILURE_METRICS = 16  # maximum number of nodes per run whose metrics before a failure are stored
# kinds of outcomes of ranks that failed by themselves, not because another rank failed
FAILED = ("raised", "exited", "lost")
MAX_ATTEMPTS = 100  # maximum number of ended attempts of one run in memory
MAX_TASKS = 4096  # maximum number of outcomes of one run in memory; failures are stored beyond it


@dataclass(slots=True, eq=False, repr=False)
class NodeView(Value):
    """State of a node. ``since`` and ``link_since`` are Unix times. ``link_up`` is None before the first connection.

    ``notice``: kind of the preemption notice, or "". ``notice_at``: its Unix time. ``notice_ends_at``: Unix time of the
    preemption, if known. ``details``: the last details with their times and phases, including output of the installer.
    """

    index: int
    phase: states.NodePhase = "requested"
    since: float = 0.0
    detail: str = ""
    retry_at: float | None = None
    address: str = ""
    link_up: bool | None = None
    link_since: float = 0.0
    link_detail: str = ""
    notice: states.NoticeKind | Literal[""] = ""
    notice_at: float = 0.0
    notice_ends_at: float | None = None
    details: NodeDetails = ()

    @property
    def is_preempted(self) -> bool:
        """Whether the node's machine is about to be preempted."""
        return self.notice not in ("", "rebalance")


@dataclass(slots=True, eq=False, repr=False)
class TaskView(Value):
    """State of one rank of a broadcast, or of one task. ``state``: waiting, running, or the kind of the outcome.

    ``outcome`` and ``last_item`` are safe for terminals. ``raw_outcome`` and ``raw_last_item`` are the original values,
    for files and programs.
    """

    index: int
    rank: int
    node: int
    state: states.TaskStatus = "waiting"
    began_at: float | None = None
    outcome: states.Outcome | None = None
    items: int = 0
    last_item: states.Summary | None = None
    raw_outcome: states.Outcome | None = None
    raw_last_item: states.Summary | None = None

    def __post_init__(self) -> None:
        if self.outcome is not None:
            self.set_outcome(self.outcome)

    def set_outcome(self, outcome: states.Outcome) -> None:
        """Set the outcome of the task."""
        self.state, self.raw_outcome, self.outcome = outcome.kind, outcome, _safe_outcome(outcome)
        if outcome.items and outcome.last is not None:
            self.add_item(outcome.items - 1, outcome.last)

    def name_failed_rank(self, rank: int) -> None:
        """Show the number of the failed rank if this task was stopped because of that rank."""
        error = self.outcome.error if self.outcome is not None and self.state == "collateral" else None
        if self.outcome is not None and error is not None and error.message.endswith("another rank failed"):
            self.outcome = replace(self.outcome, error=replace(error, message=f"stopped (rank {rank} failed)"))

    def add_item(self, seq: int, item: states.Summary) -> None:
        """Add the item number ``seq`` that the task's generator yielded."""
        self.items = max(self.items, seq + 1)
        self.raw_last_item, self.last_item = item, _safe_summary(item)


@dataclass(slots=True, eq=False, repr=False)
class RunView(Value):
    """State of a run. ``state``: running, done, failed, cancelled."""

    id: str
    pool: str
    function: str
    kind: states.RunKind
    total: int
    opened_at: float
    state: states.RunStatus = "running"
    ended_at: float | None = None
    tasks: dict[int, TaskView] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    root_cause: states.RootCause | None = None
    # local path of an output file -> reason if its download failed, or ""
    outputs: dict[str, str] = field(default_factory=dict)
    nodes: tuple[int, ...] = ()  # nodes of the run; empty if it uses all nodes
    # node -> metrics of its machine before the failure of one of its ranks
    figures: dict[int, FailureMetrics] = field(default_factory=dict, compare=False)
    job: str = ""  # id of the job that contains the run as a step, or ""
    more: bool = False  # whether the job continues with another step
    ended_attempts: tuple[events.AttemptEnded, ...] = ()  # ends of the run's failed attempts, oldest first
    # Unix times at which the ranks saved the newest checkpoint that was copied completely: anywhere, and to another
    # machine or store
    checkpoint_at: float | None = None
    elsewhere_at: float | None = None
    version: int = 0

    def __post_init__(self) -> None:
        self.pool, self.function = sanitize_line(self.pool), sanitize_line(self.function)
        if self.root_cause is not None:
            self.set_end(self.state, self.ended_at, self.root_cause)

    def set_end(self, state: states.RunStatus, at: float | None, cause: states.RootCause | None) -> None:
        """Set the final state of the run and the time of its end."""
        self.state, self.ended_at = state, at
        if cause is not None:
            cause = replace(cause, type=sanitize_line(cause.type), message=sanitize_paragraph(cause.message))
            for task in self.tasks.values() if cause.rank >= 0 and cause.outcome != "collateral" else ():
                task.name_failed_rank(cause.rank)
        self.root_cause = cause

    @property
    def attempt(self) -> int:
        """Number of the current or last attempt, from 1."""
        ended = self.ended_attempts
        return ended[-1].number + ended[-1].restarts if ended else 1

    @property
    def restart_at(self) -> float | None:
        """Unix time at which the next attempt starts; None unless the run is between two attempts."""
        ended = self.ended_attempts
        return ended[-1].starts_at if self.state == "running" and not self.tasks and ended else None

    def add_ended_attempt(self, end: events.AttemptEnded) -> None:
        """Add a failed attempt. If another attempt follows, remove the outcomes of the failed attempt."""
        message, reason = sanitize_line(end.message), sanitize_line(end.reason)
        earlier = [each for each in self.ended_attempts if each.number != end.number]
        self.ended_attempts = (*earlier, replace(end, message=message, reason=reason))[-MAX_ATTEMPTS:]
        if end.restarts:
            self.tasks, self.counts, self.figures = {}, {}, {}
            self.state, self.ended_at, self.root_cause = "running", None, None
        self.version += 1

    @property
    def cause_metrics(self) -> FailureMetrics | None:
        """Metrics of the machine with the root cause, shortly before the failure; None if there are none."""
        rank = None if self.root_cause is None else self.root_cause.rank
        node = next((task.node for task in list(self.tasks.values()) if task.rank == rank), -1)
        return self.figures.get(node)

    @property
    def ended(self) -> int:
        """Number of ended ranks or tasks."""
        return sum(self.counts.values())

    def outcomes(self) -> list[states.Outcome]:
        """Return the stored outcomes by index."""
        return [t.outcome for _, t in sorted(self.tasks.items()) if t.outcome is not None]

    def aggregate(self) -> dict[str, dict[str, float]] | None:
        """Return mean, standard deviation, minimum and maximum of numeric results; see :func:`aggregate`."""
        return aggregate([o.summary for o in self.outcomes() if o.kind == "returned"])


@dataclass(slots=True, eq=False, repr=False)
class PoolView(Value):
    """State of a pool.

    ``state``: starting, connecting, up, degraded, stopping, gone, failed, unreachable, unfinished. ``key`` is unique,
    ``name`` is not. ``ended_at``: Unix time of the verified end. ``hint``: a fix, if ``detail`` is an error without
    one. ``start_error``: the reason why an ended pool did not start.
    """

    name: str
    provider: str = ""
    state: states.PoolStatus = "starting"
    detail: str = ""
    created_at: float = 0.0
    spec: dict[str, Any] = field(default_factory=dict)
    nodes: list[NodeView] = field(default_factory=list)
    runs: dict[str, RunView] = field(default_factory=dict)
    # rank -> phase of its process before its function runs, and the Unix time at which this phase began
    rank_phases: dict[int, tuple[str, float]] = field(default_factory=dict)
    # rank that handles SIGTERM itself, for example to save a checkpoint -> Unix time at which it is killed
    saving: dict[int, float] = field(default_factory=dict)
    logs: LogBuffers = field(default_factory=LogBuffers)
    metrics: MetricStore = field(default_factory=MetricStore)
    # times of the ranks' output and metrics, to detect silent ranks
    activity: PoolActivity = field(default_factory=PoolActivity, compare=False, repr=False)
    machines: MachineMetrics | None = None  # metrics of the machines; None until the first sample
    price_hourly: float = 0.0
    priced_at: float = 0.0  # Unix time from which the hourly price applies
    spent_before: float = 0.0  # US dollars spent at earlier prices
    budget: float | None = None  # budget in US dollars
    budget_state: states.BudgetStatus = "within"
    # Unix time at which the pool is torn down because of its budget, unless the user answers
    budget_ends_at: float | None = None
    ends_at: float | None = None  # Unix time at which the lease expires; see events.LeaseNews
    unfetched: dict[str, int] = field(default_factory=dict)  # run -> size of its unfetched results in bytes
    # run -> trial sheet of its sweep, in a replay
    sheets: dict[str, TrialSheet] = field(default_factory=dict, compare=False, repr=False)
    waiting: tuple[events.QueuedRun, ...] = ()  # runs that wait for nodes, in the order in which they get nodes
    receipt: dict[str, Any] | None = None
    version: int = 0
    key: str = ""
    ended_at: float | None = None
    hint: Hint | None = None
    start_error: str = ""

    def __post_init__(self) -> None:
        self.name, self.provider = sanitize_line(self.name), sanitize_line(self.provider)
        self.detail = sanitize_paragraph(self.detail)
        self.spec, self.receipt = sanitize_json(self.spec), sanitize_json(self.receipt)
        self.logs.activity = self.metrics.activity = self.activity

    @property
    def changes(self) -> int:
        """Number that changes with each event, log line or metric of the pool."""
        return self.version + self.logs.version + self.metrics.version

    @property
    def has_unknown_price(self) -> bool:
        """Whether the machines cost money but their price is unknown."""
        return bool(self.spec.get("rents")) and not self.price_hourly and self.shown_state != "unstarted"

    @property
    def nodes_ready(self) -> int:
        return sum(n.phase == "ready" for n in self.nodes)

    @property
    def ranks_per_node(self) -> int:
        count = self.spec.get("worker", {}).get("ranks_per_node", 1)
        return count if isinstance(count, int) else 1

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    @property
    def node_count(self) -> int:
        """Number of nodes. For a pool that was never reached, the requested number."""
        requested = self.spec.get("nodes", 0)
        return len(self.nodes) or (requested if isinstance(requested, int) else 0)

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return rank // self.ranks_per_node

    @property
    def only_run(self) -> str:
        """Id of the only active run, to which output without a run id is attributed; "" if there is not exactly one."""
        running = [run.id for run in self.runs.values() if run.state == "running"]
        return running[0] if len(running) == 1 else ""

    def nodes_of(self, run: RunView) -> tuple[int, ...]:
        """Return the nodes that an active run occupies."""
        if run.kind == "broadcast":
            return run.nodes or tuple(node.index for node in self.nodes)
        return tuple(sorted({task.node for task in run.tasks.values() if task.state == "running" and task.node >= 0}))

    def queued_runs(self) -> list[str]:
        """Return the ids of active runs that have not begun.

        First those whose calls wait for ranks of other runs, then those that wait for nodes.
        """
        waiting = [each.run for each in self.waiting]
        held: set[int] = set()
        behind = []
        active = [run for run in list(self.runs.values()) if run.state == "running" and run.id not in waiting]
        for run in sorted(active, key=lambda run: run.opened_at):
            nodes = self.nodes_of(run)
            if run.kind == "broadcast" and not run.tasks and held.intersection(nodes):
                behind.append(run.id)
            else:
                held.update(nodes)
        return [*behind, *waiting]

    def begun_runs(self) -> list[RunView]:
        """Return the active runs that are not queued, oldest first."""
        queued = self.queued_runs()
        return [run for run in list(self.runs.values()) if run.state == "running" and run.id not in queued]

    def current_run(self, shown: str = "", known: Container[str] = ()) -> RunView | None:
        """Return the run that a screen should show: the newest active run that has begun, or else the newest run.

        Args:
            shown: Id of the run on a screen. This run stays while it is active, and then until a later run begins.
            known: Ids of runs that were running or queued before ``shown`` ended. They do not replace ``shown``.
        """
        held = self.runs.get(shown)
        if held is not None and held.state == "running":
            return held
        begun = next((run for run in reversed(self.begun_runs()) if held is None or run.id not in known), None)
        return begun or held or next(reversed(list(self.runs.values())), None)

    @property
    def is_live(self) -> bool:
        """Whether the pool can be used or is starting."""
        return self.state not in ("gone", "failed")

    @property
    def needs_confirmation(self) -> bool:
        """Whether a teardown needs a confirmation: the pool costs money, runs something or has unfetched results."""
        runs = self.runs.values()
        costs = self.price_hourly > 0 or self.has_unknown_price
        return costs or bool(self.unfetched) or any(run.state == "running" for run in runs)

    @property
    def shown_state(self) -> str:
        """State for display: as ``state``, or "unstarted" for an ended pool that did not start."""
        return "unstarted" if self.start_error and self.is_over else self.state

    @property
    def is_over(self) -> bool:
        """Whether no resources of the pool remain. A failed pool may still have resources."""
        return self.state == "gone"

    def lease_left(self, now: float) -> float | None:
        """Return the seconds until the pool's lease expires; None if a run is active or no limit applies."""
        if self.ends_at is None or not self.is_live or any(run.state == "running" for run in self.runs.values()):
            return None
        return max(0.0, self.ends_at - now)

    def safe_until(self, run: RunView) -> float | None:
        """Return the Unix time until which the work of an active run is safe on another machine or in a store; None if
        the pool copies no checkpoints."""
        options = self.spec.get("options", {})
        copies = options.get("on_loss") == "restart" and (self.provider != "local" or options.get("checkpoint_store"))
        return run.elsewhere_at or (run.opened_at if copies else None)

    def spent(self, now: float) -> float:
        """Return the US dollars spent until a Unix time, or until the end."""
        until = now if self.ended_at is None else self.ended_at
        return self.spent_before + self.price_hourly * max(0.0, until - self.priced_at) / 3600

    def planned_cost(self) -> float | None:
        """Return the US dollars that the pool will have cost at the end of its time to live; None without one."""
        ttl = self.spec.get("options", {}).get("ttl")
        return None if ttl is None else self.spent(self.created_at + ttl)


# Keys of results that identify a rank, so that a mean over ranks is meaningless.
IDENTITIES = frozenset(
    ("rank", "global_rank", "local_rank", "node_rank", "group_rank", "node", "world_size", "process_index", "pid")
)


def aggregate(summaries: list[states.Summary | None]) -> dict[str, dict[str, float]] | None:
    """Compute statistics of numeric results, which do not depend on the order of the ranks.

    If each rank returned a number, the result is a row named ``value``. If each rank returned a dictionary, the result
    is a row for each numeric key that every rank has, except keys that identify the rank. Other results have no
    statistics (None).

    Args:
        summaries: Summaries of the results.

    Returns:
        name -> {"mean", "std" (population), "min", "max", "sum", "n"}
    """
    values = [s.json for s in summaries if s is not None and s.is_json]
    if not values or len(values) != len(summaries):
        return None
    if all(_is_number(v) for v in values):
        columns = {"value": values}
    elif all(isinstance(v, dict) for v in values):
        keys = [k for k in values[0] if k.lower() not in IDENTITIES and all(_is_number(v.get(k)) for v in values)]
        columns = {k: [v[k] for v in values] for k in keys}
    else:
        return None
    return {name: _statistics([float(v) for v in column]) for name, column in columns.items()} or None


def _is_number(value: object) -> bool:
    # Ignore NaN and integers beyond the range of floats.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _statistics(column: list[float]) -> dict[str, float]:
    # Divide before adding, and use hypot for the squares, to avoid an overflow near the largest float.
    n = len(column)
    mean = fsum(value / n for value in column)
    deviation = hypot(*(value - mean for value in column)) / sqrt(n)
    return {"mean": mean, "std": deviation, "min": min(column), "max": max(column), "sum": sum(column), "n": n}


def apply(view: PoolView, event: events.Event) -> None:
    """Update a pool's view with an event."""
    _handler(type(event))(event, view)
    view.version += 1


@singledispatch
def _apply(event: events.Event, view: PoolView) -> None:
    raise TypeError(f"unknown event {type(event).__name__}")


# Cache the function for each kind of event, because there are thousands of task events.
_handler: Callable[[Any], Callable[[events.Event, PoolView], None]] = cache(_apply.dispatch)


@_apply.register(events.PoolOpened)
def _(event: events.PoolOpened, view: PoolView) -> None:
    view.spec = sanitize_json(event.spec)
    view.provider = view.spec.get("provider", "")
    view.created_at = event.created_at
    if not view.spent_before:
        view.priced_at = event.created_at
    if view.budget is None:
        view.budget = view.spec.get("options", {}).get("budget")
    if len(view.nodes) != event.spec.get("nodes", 0):
        view.nodes = [NodeView(i, since=event.at) for i in range(event.spec.get("nodes", 0))]


@_apply.register(events.PoolState)
def _(event: events.PoolState, view: PoolView) -> None:
    view.state, view.detail, view.hint = event.state, sanitize_paragraph(event.detail), event.hint


@_apply.register(events.NodePhase)
def _(event: events.NodePhase, view: PoolView) -> None:
    node = view.nodes[event.node]
    if node.phase != event.phase:
        node.phase, node.since = event.phase, event.at
    if event.phase == "gone":
        node.notice, node.notice_ends_at = "", None
        # Forget the phases of this node's ranks, because they are no longer reported.
        first = event.node * view.ranks_per_node
        gone = range(first, first + view.ranks_per_node)
        view.rank_phases = {rank: phase for rank, phase in view.rank_phases.items() if rank not in gone}
        view.saving = {rank: until for rank, until in view.saving.items() if rank not in gone}
        _update_paused(view, event.at)
    node.detail, node.retry_at = sanitize_line(event.detail), event.retry_at
    node.details = _add_detail(node.details, event)
    node.address = sanitize_line(event.address) or node.address


def _add_detail(details: NodeDetails, event: events.NodePhase) -> NodeDetails:
    detail = sanitize_line(event.detail)
    if not detail or (details and details[-1][1:] == (event.phase, detail)):
        return details
    return (*details, (event.at, event.phase, detail))[-MAX_NODE_DETAILS:]


def restore_node_details(view: PoolView, earlier: Iterable[events.NodePhase]) -> None:
    """Add earlier details of the nodes to a view, and the times at which nodes entered their present phases."""
    details: dict[int, NodeDetails] = {}
    phases: dict[int, tuple[states.NodePhase, float]] = {}
    for event in earlier:
        details[event.node] = _add_detail(details.get(event.node, ()), event)
        if event.node not in phases or phases[event.node][0] != event.phase:
            phases[event.node] = event.phase, event.at
    for node in view.nodes:
        phase, since = phases.get(node.index, (node.phase, node.since))
        if phase == node.phase:
            node.since = min(node.since, since)
        node.details = (*details.get(node.index, ()), *node.details)[-MAX_NODE_DETAILS:]
    view.version += 1


@_apply.register(events.NodeNotice)
def _(event: events.NodeNotice, view: PoolView) -> None:
    node = view.nodes[event.node]
    if event.kind != "rebalance" or not node.is_preempted:
        node.notice, node.notice_at, node.notice_ends_at = event.kind, event.at, event.ends_at


@_apply.register(events.PriceNews)
def _(event: events.PriceNews, view: PoolView) -> None:
    hourly = max(0.0, event.hourly)
    if view.price_hourly:
        view.spent_before, view.priced_at = view.spent(event.at), event.at
    view.price_hourly = hourly


@_apply.register(events.BudgetNews)
def _(event: events.BudgetNews, view: PoolView) -> None:
    view.budget, view.budget_state, view.budget_ends_at = event.budget, event.state, event.ends_at


@_apply.register(events.NodeLink)
def _(event: events.NodeLink, view: PoolView) -> None:
    node = view.nodes[event.node]
    if node.link_up is not event.up:
        node.link_up, node.link_since = event.up, event.at
    node.link_detail = sanitize_line(event.detail)


@_apply.register(events.NodeSilence)
def _(event: events.NodeSilence, view: PoolView) -> None:
    node, witnesses = view.nodes[event.node], (f"{name} {age:.1f} s ago" for name, age in event.silences.items())
    text = f"{event.state}, last sign of life: {', '.join(witnesses)}"
    shown = events.NodePhase(pool=event.pool, node=event.node, phase=node.phase, detail=text, at=event.at)
    node.details = _add_detail(node.details, shown)


@_apply.register(events.RunOpened)
def _(event: events.RunOpened, view: PoolView) -> None:
    if event.run not in view.runs:
        run = RunView(
            event.run, event.pool, event.function, event.kind, event.total, event.at,
            job=event.job, more=event.more,
        )  # fmt: skip
        newest = next(reversed(view.runs.values()), None)
        is_newest = newest is None or newest.opened_at <= event.at
        runs = view.runs | {event.run: run}
        if not is_newest:
            # Sort the runs, because agents report earlier runs to a new client in any order.
            runs = dict(sorted(runs.items(), key=lambda each: each[1].opened_at))
        view.runs = runs
        _drop_oldest_runs(view, run, is_newest)


def _drop_oldest_runs(view: PoolView, current: RunView, is_newest: bool = False) -> None:
    """Drop the oldest runs from a view, except active runs and the run of an event.

    Args:
        view: The pool's view.
        current: Run of the event.
        is_newest: Whether older active runs may be dropped, too. While agents report earlier runs, runs that ended long
            ago still seem to be active.
    """
    spare = len(view.runs) - MAX_RUNS
    if spare <= 0:
        return
    others = (each for each in view.runs.values() if each is not current)
    ended = (each.id for each in (others if is_newest else islice(others, spare)) if each.state != "running")
    if over := set(islice(ended, spare)):
        view.runs = {run: held for run, held in view.runs.items() if run not in over}


@_apply.register(events.RunPlaced)
def _(event: events.RunPlaced, view: PoolView) -> None:
    if run := view.runs.get(event.run):
        run.nodes = tuple(node for node in event.nodes if 0 <= node < len(view.nodes))
        if run.kind == "broadcast" and view.nodes:
            # The number of ranks changes, because an attempt may have fewer nodes than an earlier one.
            run.total = len(run.nodes or view.nodes) * view.ranks_per_node
        run.job, run.more = run.job or event.job, run.more or event.more
        run.version += 1


@_apply.register(events.QueueNews)
def _(event: events.QueueNews, view: PoolView) -> None:
    view.waiting = tuple(
        replace(each, name=sanitize_line(each.name), who=sanitize_line(each.who)) for each in event.waiting
    )


@_apply.register(events.RankPhase)
def _(event: events.RankPhase, view: PoolView) -> None:
    phases = {rank: phase for rank, phase in view.rank_phases.items() if rank != event.rank}
    view.rank_phases = phases | ({event.rank: (sanitize_line(event.phase), event.at)} if event.phase else {})
    saving = {rank: until for rank, until in view.saving.items() if rank != event.rank}
    view.saving = saving | ({event.rank: event.until} if event.phase == "saving" and event.until is not None else {})
    _update_paused(view, event.at)


def _update_paused(view: PoolView, at: float) -> None:
    """Update whether any rank of the pool is paused at a breakpoint."""
    view.activity.set_paused(any(phase == "paused" for phase, _ in view.rank_phases.values()), at)


@_apply.register(events.RankBegan)
def _(event: events.RankBegan, view: PoolView) -> None:
    if run := view.runs.get(event.run):
        task = _task(run, event.index, event.rank, event.node)
        if task.outcome is None:
            task.state = "running"
            if run.kind != "map" or task.began_at is None:
                # In a map, a rank has many calls, and its first call is its start.
                task.began_at = event.at
        run.version += 1


@_apply.register(events.ItemYielded)
def _(event: events.ItemYielded, view: PoolView) -> None:
    if run := view.runs.get(event.run):
        # An item may be the first report of a task, because starts of quick calls are not reported.
        task = run.tasks.get(event.index) or _task(run, event.index, event.rank, view.node_of(event.rank))
        if task.outcome is None:
            task.state = "running"
        task.add_item(event.seq, event.summary)
        if event.summary.is_json and isinstance(event.summary.json, dict):
            view.metrics.add_values(run.id, event.rank, event.at, event.summary.json, event.seq)
        run.version += 1


@_apply.register(events.RankEnded)
def _(event: events.RankEnded, view: PoolView) -> None:
    if run := view.runs.get(event.run):
        out = event.outcome
        task = _task(run, out.index, out.rank, out.node)
        if out.kind == "lost" and not out.seconds and task.began_at is not None:
            # No agent reported the task's duration, so the task counts as running until its node was lost.
            out = replace(out, seconds=max(0.0, event.at - task.began_at))
        if task.outcome is not None:
            run.counts[task.outcome.kind] -= 1
        task.set_outcome(out)
        run.counts = run.counts | {out.kind: run.counts.get(out.kind, 0) + 1}
        run.version += 1
        if out.kind in FAILED and view.machines is not None and len(run.figures) < MAX_FAILURE_METRICS:
            from skyward_core.views.machine_metrics import capture_failure_metrics

            found = capture_failure_metrics(out.node, view.machines.nodes.get(out.node), event.at)
            if found is not None and out.node not in run.figures:
                run.figures = run.figures | {out.node: found}
        if len(run.tasks) > MAX_TASKS and out.kind == "returned":
            del run.tasks[out.index]


@_apply.register(events.AttemptEnded)
def _(event: events.AttemptEnded, view: PoolView) -> None:
    if run := view.runs.get(event.run):
        run.add_ended_attempt(event)


@_apply.register(events.RunEnded)
def _(event: events.RunEnded, view: PoolView) -> None:
    if run := view.runs.get(event.run):
        run.set_end(event.state, event.at, event.root_cause)
        run.version += 1
        _drop_oldest_runs(view, run)


@_apply.register(events.LeaseNews)
def _(event: events.LeaseNews, view: PoolView) -> None:
    view.ends_at = event.ends_at


@_apply.register(events.UnfetchedNews)
def _(event: events.UnfetchedNews, view: PoolView) -> None:
    view.unfetched = event.runs


@_apply.register(events.OutputFetched)
def _(event: events.OutputFetched, view: PoolView) -> None:
    if (run := view.runs.get(event.run)) is not None and len(run.outputs) < MAX_TASKS:
        run.outputs = run.outputs | {sanitize_line(event.target): sanitize_line(event.error)}
        run.version += 1


@_apply.register(events.CheckpointSaved)
def _(event: events.CheckpointSaved, view: PoolView) -> None:
    if (run := view.runs.get(event.run)) is not None:
        run.checkpoint_at = max(event.saved_at, run.checkpoint_at or 0.0)
        if event.place != events.THIS_MACHINE:
            run.elsewhere_at = max(event.saved_at, run.elsewhere_at or 0.0)
        run.version += 1


@_apply.register(events.PoolEnded)
def _(event: events.PoolEnded, view: PoolView) -> None:
    view.receipt = sanitize_json(event.receipt)
    view.start_error = sanitize_paragraph(str(event.receipt.get("start_error", "")))
    view.detail = view.start_error or view.detail
    view.state = "gone" if not event.receipt.get("unaccounted") else "failed"
    view.ended_at = event.at if view.state == "gone" else None
    for node in view.nodes:
        if node.phase != "gone" and node.index in event.receipt.get("gone", []):
            node.phase, node.since = "gone", event.at


def _task(run: RunView, index: int, rank: int, node: int) -> TaskView:
    task = run.tasks.get(index)
    if task is None:
        task = TaskView(index, rank, node)
        if len(run.tasks) < 512:
            run.tasks = run.tasks | {index: task}
        else:
            # Modify the large dict in place, because copying thousands of tasks for each new task is too slow. Screens
            # of large runs read only counts.
            run.tasks[index] = task
    task.rank, task.node = rank, node
    return task


_PLAIN = frozenset((int, float, bool, type(None)))


def _safe_outcome(outcome: states.Outcome) -> states.Outcome:
    error, summary = outcome.error, outcome.summary
    if error is not None:
        error = states.ErrorInfo(
            sanitize_line(error.type), sanitize_paragraph(error.message), sanitize_paragraph(error.traceback)
        )
    if summary is not None:
        summary = _safe_summary(summary)
    metrics = outcome.metrics
    if metrics is not None and not all(name.isprintable() for name in metrics):
        metrics = {sanitize_line(name): gist for name, gist in metrics.items()}
    if error == outcome.error and summary is outcome.summary and metrics is outcome.metrics:
        return outcome
    return replace(outcome, error=error, summary=summary, metrics=metrics)


def _safe_summary(summary: states.Summary) -> states.Summary:
    if type(summary.json) in _PLAIN and summary.type.isprintable() and summary.text.isprintable():
        return summary
    kind, text, json = sanitize_line(summary.type), sanitize_line(summary.text), sanitize_json(summary.json)
    if kind == summary.type and text == summary.text and json == summary.json:
        return summary  # Usually the summary is safe for terminals, so return the same object.
    return replace(summary, type=kind, text=text, json=json)


def build_curves(pool: PoolView, run: RunView | None = None, metrics: MetricStore | None = None) -> Curves:
    """Return all metrics of a run's ranks, and of the machines during the run. Without a run: only of the machines.

    Args:
        pool: The pool.
        run: The run.
        metrics: Metrics of the ranks with all values; None for those of the view.
    """
    if metrics is None or run is None or not metrics.ranks(run.id):
        metrics = pool.metrics
    found = [] if run is None else list(_rank_curves(metrics, run.id))
    notes: list[str] = []
    if pool.machines is not None:
        since, until = (0.0, None) if run is None else (run.opened_at, run.ended_at)
        found += _machine_curves(pool.machines, since, until)
        notes = [f"node {node}: {machine.why}" for node, machine in pool.machines.nodes.items() if machine.why]
    return Curves(found, notes)


def _rank_curves(metrics: MetricStore, run: str) -> Iterator[Curve]:
    for rank in metrics.ranks(run):
        for name in metrics.latest(run, rank):
            trace = metrics.trace(run, rank, name)
            yield Curve(name, rank=rank, at=trace.at, values=trace.values, origin=metrics.origin(run, name))


def _machine_curves(metrics: MachineMetrics, since: float, until: float | None) -> Iterator[Curve]:
    for node, gpu, track in metrics.tracks():
        devices = metrics.nodes[node].devices
        model = devices[gpu].model if gpu is not None and gpu < len(devices) else ""
        for name in track.names:
            at, values = _cut_trace(track.trace(name), since, until)
            known = (NODE_METRIC_DEFINITIONS if gpu is None else GPU_METRIC_DEFINITIONS).get(name)
            yield Curve(name, known.unit if known else "", None, node, gpu, model, at, values)


def _cut_trace(trace: Trace, since: float, until: float | None) -> Trace:
    start = bisect_left(trace.at, since)
    stop = len(trace.at) if until is None else bisect_right(trace.at, until)
    return Trace(trace.at[start:stop], trace.values[start:stop])
