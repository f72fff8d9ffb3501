"""States of ranks for display, computed from views, and notes about ranks, nodes and their output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from skyward_core.views.metric_kinds_and_order import TOTAL_NAMES, classify_metric
from skyward_core.views.rank_metrics_and_progress import format_metrics
from skyward_tui.text.ansi_colours import plain
from skyward_tui.text.number_time_and_run_state_format import clock, count, duration, preemption_text
from skyward_tui.text.queue_trial_and_comparison_rows import queue_reason, task_note
from skyward_tui.text.state_styles import FAILURES, state_style

if TYPE_CHECKING:
    from skyward_core.views.pool_view import NodeView, PoolView, RunView, TaskView

SHADE_STYLE = "$text-accent"
ENDED = (*FAILURES, "returned", "collateral", "gone", "absent")
TROUBLED = (*FAILURES, "paused", "saving")
SILENT_SECONDS = 30.0  # seconds; if a rank has printed nothing for longer, the row of the rank shows for how long
STARTUP_TEXTS = {
    "starting": "starting Python",
    "importing": "importing",
    "joining": "waiting for the other ranks",
    "paused": "at a breakpoint",
    "saving": "handles SIGTERM",
}


class RankState(NamedTuple):
    """State of one rank for display.

    Attributes:
        state: Name of the state for :func:`state_style`.
        seconds: Seconds in this state.
        text: Note; if empty, ``numbers`` are shown.
        numbers: Latest metrics by name.
        quiet: Seconds without output, if unusually long for this rank; otherwise None.
        shade, figure: Glyph of the rank in the heat map and text of its value, if ranks are coloured by a metric.
        silent: Seconds without output; None if less than ``SILENT_SECONDS``.
        use: Utilization and memory use of the rank's GPUs, formatted.
        progress: Completed part, from 0 to 1; None if unknown.
        alert: Kind and text of the worst alert about the rank; empty without one.
    """

    rank: int
    node: int
    state: str
    seconds: float | None
    text: str
    numbers: Mapping[str, float] | None = None
    quiet: float | None = None
    shade: str = ""
    figure: str = ""
    silent: float | None = None
    use: str = ""
    progress: float | None = None
    alert: tuple[str, str] = ("", "")

    @property
    def note(self) -> str:
        """Text beside the rank. It is formatted on demand, because a grid shows only one such text."""
        if self.alert[0]:
            return f"{state_style(self.alert[0]).word}: {self.alert[1]}"
        return self.text or format_metrics(self.ordered_numbers)

    @property
    def ordered_numbers(self) -> Mapping[str, float]:
        """Latest metrics by name, without totals: losses first, steps and epochs last."""
        named = {name: value for name, value in (self.numbers or {}).items() if name not in TOTAL_NAMES}
        return dict(sorted(named.items(), key=lambda each: _metric_order(each[0])))

    @property
    def has_ended(self) -> bool:
        """Whether the state is final: the call has ended, or the node is gone or was never ready."""
        return self.state in ENDED

    @property
    def is_troubled(self) -> bool:
        """Whether the rank needs the user's attention, for example because it failed or has an alert."""
        return self.state in TROUBLED or self.quiet is not None or bool(self.alert[0])

    @property
    def glyph(self) -> tuple[str, str]:
        """Glyph and style of the rank's cell in the mosaic: the shade of the heat map, unless the rank has failed."""
        mark = state_style(self.state)
        if self.alert[0] and not self.shade:
            return "!", "$text-warning"
        return (mark.glyph, mark.style) if not self.shade or self.state in FAILURES else (self.shade, SHADE_STYLE)


def rank_states(pool: PoolView, run: RunView | None, now: float, ranks: range | None = None) -> list[RankState]:
    """Return the states of ranks, in rank order.

    Args:
        ranks: Ranks to include; all by default.
    """
    ranks = range(pool.world_size) if ranks is None else ranks
    newest: dict[int, TaskView] = {}
    for task in list(run.tasks.values()) if run else []:
        other = newest.get(task.rank)
        if task.rank in ranks and (other is None or (task.began_at or 0.0) >= (other.began_at or 0.0)):
            newest[task.rank] = task
    per_node = pool.ranks_per_node
    progress = {} if run is None or run.state != "running" else pool.metrics.progress_by_rank(run.id)
    states = [_state(rank, pool.nodes[rank // per_node], newest.get(rank), pool, run, now) for rank in ranks]
    return [each._replace(progress=progress[each.rank].fraction) if each.rank in progress else each for each in states]


def _state(
    rank: int, node: NodeView, task: TaskView | None, pool: PoolView, run: RunView | None, now: float
) -> RankState:
    startup = _startup_phase(pool, run, rank) if task is None or task.outcome is None else None
    if startup and node.phase == "ready":
        phase, since = startup
        text = link_note(node) or STARTUP_TEXTS[phase]
        if phase == "saving" and (until := pool.saving.get(rank)) is not None:
            text += f", killed in {duration(max(0.0, until - now))}"
        return RankState(rank, node.index, phase, now - since, text)
    if task is None:
        return RankState(rank, node.index, *_without_task(node, pool, run, now))
    if task.outcome is not None:
        return RankState(rank, node.index, task.state, task.outcome.seconds, task_note(task))
    phase, since = pool.rank_phases.get(rank, ("", 0.0))
    began = task.began_at if task.began_at is None or phase != "running" else max(task.began_at, since)
    seconds = None if began is None else now - began
    text = link_note(node) or preemption_text(node, now)
    numbers = None if text or run is None else pool.metrics.latest(run.id, rank)
    if not text and not numbers:
        text = task_note(task) or last_line(run, pool, rank)
    silent = 0.0
    if run is not None and began is not None and task.state == "running":
        silent = pool.activity.silence(run.id, rank, began, now)
    if run is None or began is None or silent < SILENT_SECONDS:  # a shorter silence is never unusual
        return RankState(rank, node.index, task.state, seconds, text, numbers)
    quiet = pool.activity.unusual_silence(run.id, rank, began, now)
    if quiet is not None and node.link_up is not False:
        last = text or format_metrics(numbers or {})
        text = f"no output for {duration(quiet)}" + (f" · last: {last}" if last else "")
    return RankState(rank, node.index, task.state, seconds, text, numbers, quiet, silent=silent)


def _metric_order(name: str) -> int:
    return (
        0 if classify_metric(name) == "loss" else 2 if name.lower() in ("step", "global_step", "epoch", "iter") else 1
    )


def _without_task(node: NodeView, pool: PoolView, run: RunView | None, now: float) -> tuple[str, float | None, str]:
    note = link_note(node)
    if node.phase == "gone":
        return "gone", None, ""
    if is_absent(pool, node):
        return "absent", None, ""
    if node.phase != "ready":
        delay = 0.0 if node.retry_at is None else node.retry_at - now
        retry = f", retry in {duration(delay)}" if delay > 0 else ""
        return "starting", None, note or (node.detail or node.phase) + retry
    if run is None or run.state != "running" or run.kind != "broadcast" or (run.nodes and node.index not in run.nodes):
        return "idle", None, note
    return "waiting", None, note


def _startup_phase(pool: PoolView, run: RunView | None, rank: int) -> tuple[str, float] | None:
    """Return the startup phase of a rank, or "paused", and the time when it began.

    Workers that are started in advance are ignored, because no run waits for them.
    """
    phase, since = pool.rank_phases.get(rank, ("", 0.0))
    is_awaited = run is not None and run.state == "running"
    return (phase, since) if phase in STARTUP_TEXTS and (is_awaited or phase != "starting") else None


def is_absent(pool: PoolView, node: NodeView) -> bool:
    """Check whether the pool ended before the node was ready."""
    return pool.is_over and node.phase not in ("ready", "gone")


def tally_parts(states: Sequence[RankState]) -> Iterator[tuple[str, str]]:
    """Yield a text with the number of ranks for each state, and the style of the state. Failures come first."""
    counts = Counter(state.state for state in states)
    for name in sorted(counts, key=lambda name: (name not in FAILURES, -counts[name])):
        mark = state_style(name)
        yield f"{mark.glyph} {counts[name]:,} {mark.word}  ", mark.style


def find_paused(pool: PoolView) -> list[int]:
    """Return the ranks of a pool that wait at a breakpoint."""
    return sorted(rank for rank, (phase, _) in pool.rank_phases.items() if phase == "paused")


def no_output_reason(pool: PoolView, states: Sequence[RankState], run: RunView, now: float) -> str:
    """Return the reason why a run has no output."""
    if run.state != "running":
        return "this run printed nothing"
    if queued := queue_reason(pool, run, now):
        return queued
    busy = [state for state in states if state.state in STARTUP_TEXTS and state.seconds is not None]
    if not busy:
        return "nothing printed yet"
    phases = [
        f"{count(len(ranks), 'rank')} {phase} for {duration(max(state.seconds or 0.0 for state in ranks))}"
        for phase in STARTUP_TEXTS
        if (ranks := [state for state in busy if state.state == phase])
    ]
    return f"nothing printed yet: {', '.join(phases)}"


def link_note(node: NodeView) -> str:
    """Return ``link down since 12:00:01`` if the link to the node is down, otherwise ""."""
    if node.link_up is not False or node.phase == "gone":
        return ""
    detail = f" ({node.link_detail})" if node.link_detail else ""
    return f"link down since {clock(node.link_since)}{detail}"


def last_lines(pool: PoolView, run: RunView, rank: int | None, most: int) -> list[str]:
    """Return the newest lines that a rank, or all ranks (None), printed in a run."""
    if most <= 0 or not pool.logs.has(run.id):
        return []
    buffers = pool.logs.for_run(run.id)
    ring = buffers.merged if rank is None else buffers.ranks.get(rank)
    return [] if ring is None else [plain(text).rstrip() for text in ring.last(most)]


def last_line(run: RunView | None, pool: PoolView, rank: int) -> str:
    """Return the last line that a rank printed in a run, or ""."""
    lines = last_lines(pool, run, rank, 1) if run is not None else []
    return lines[0].strip() if lines else ""
