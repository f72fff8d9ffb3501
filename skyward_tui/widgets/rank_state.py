"""What every rank of a pool is doing, from the views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from textual.content import Content

from skyward_core.views.pool_view import NodeView, PoolView, RunView, TaskView
from skyward_core.views.rank_metrics import format_metrics
from skyward_tui.text.ansi_colours import plain
from skyward_tui.text.number_and_time_format import clip, clock, count, duration, preemption_text
from skyward_tui.text.run_tables import task_note
from skyward_tui.ui.themes import state_style

SHADE_STYLE = "$text-accent"
FAILURES = ("raised", "exited", "lost")
STARTUP_TEXTS = {
    "starting": "its Python starts",
    "importing": "loads the function and what it imports",
    "joining": "waits for the other ranks to join",
    "paused": "is at a breakpoint",
}


@dataclass(frozen=True, slots=True)
class RankState:
    """``state``: a word that ``themes.state_style`` knows; ``seconds``: how long in it; ``said``: what
    there is to say of it, or else its ``numbers``;
    ``quiet``: for how long it was not heard, where that is longer than usual;
    ``shade`` and ``figure``: what it has of the figure that ranks are shown by, where that is not their state."""

    rank: int
    node: int
    state: str
    seconds: float | None
    text: str
    numbers: Mapping[str, float] | None = None
    quiet: float | None = None
    shade: str = ""
    figure: str = ""

    @property
    def note(self) -> str:
        """What stands beside it. Of a grid one has room for that, so it is made for whoever shows it."""
        return self.text or format_metrics(self.numbers or {})

    @property
    def glyph(self) -> tuple[str, str]:
        """What one cell shows of it, and the style: its shade, unless it has failed."""
        mark = state_style(self.state)
        return (mark.glyph, mark.style) if not self.shade or self.state in FAILURES else (self.shade, SHADE_STYLE)


def rank_states(pool: PoolView, run: RunView | None, now: float, ranks: range | None = None) -> list[RankState]:
    """One state per rank, in rank order.

    Args:
        ranks: of which; of all without it.
    """
    ranks = range(pool.world_size) if ranks is None else ranks
    newest: dict[int, TaskView] = {}
    for task in list(run.tasks.values()) if run else []:
        other = newest.get(task.rank)
        if task.rank in ranks and (other is None or (task.began_at or 0.0) >= (other.began_at or 0.0)):
            newest[task.rank] = task
    per_node = pool.ranks_per_node
    return [_state(rank, pool.nodes[rank // per_node], newest.get(rank), pool, run, now) for rank in ranks]


def _state(
    rank: int, node: NodeView, task: TaskView | None, pool: PoolView, run: RunView | None, now: float
) -> RankState:
    if (task is None or task.outcome is None) and (before := _before(pool, run, rank)) and node.phase == "ready":
        phase, since = before
        return RankState(rank, node.index, phase, now - since, link_note(node) or STARTUP_TEXTS[phase])
    if task is None:
        return RankState(rank, node.index, *_without_task(node, run, now))
    if task.outcome is not None:
        return RankState(rank, node.index, task.state, task.outcome.seconds, task_note(task))
    phase, since = pool.rank_phases.get(rank, ("", 0.0))
    began = task.began_at if task.began_at is None or phase != "running" else max(task.began_at, since)
    seconds = None if began is None else now - began
    said = link_note(node) or preemption_text(node, now)
    numbers = None if said or run is None else pool.metrics.latest(run.id, rank)
    if not said and not numbers:
        said = task_note(task) or last_line(run, pool, rank)
    if run is None or began is None or task.state != "running":
        return RankState(rank, node.index, task.state, seconds, said, numbers)
    quiet = pool.activity.unusual_silence(run.id, rank, began, now)
    if quiet is not None and node.link_up is not False:
        said = ": ".join(filter(None, (f"quiet for {duration(quiet)}", said or format_metrics(numbers or {}))))
    return RankState(rank, node.index, task.state, seconds, said, numbers, quiet)


def _without_task(node: NodeView, run: RunView | None, now: float) -> tuple[str, float | None, str]:
    note = link_note(node)
    if node.phase == "gone":
        return "gone", None, ""
    if node.phase != "ready":
        left = 0.0 if node.retry_at is None else node.retry_at - now
        again = f"; tried again in {duration(left)}" if left > 0 else ""
        return "starting", None, note or f"node {node.index}: {node.phase} {node.detail}".rstrip() + again
    expected = run is not None and run.state == "running" and run.kind == "broadcast"
    expected = expected and run is not None and (not run.nodes or node.index in run.nodes)
    return "waiting" if expected else "idle", None, note


def _before(pool: PoolView, run: RunView | None, rank: int) -> tuple[str, float] | None:
    """What a rank is at that runs no function yet, or stands still in it. A worker that is started ahead is nobody's
    wait."""
    phase, since = pool.rank_phases.get(rank, ("", 0.0))
    waited_for = run is not None and run.state == "running"
    return (phase, since) if phase in STARTUP_TEXTS and (waited_for or phase != "starting") else None


def tally_parts(states: Sequence[RankState]) -> Iterator[tuple[str, str]]:
    """Yield how many ranks are in which state, failures first, with the style of each."""
    counts = Counter(state.state for state in states)
    for name in sorted(counts, key=lambda name: (name not in FAILURES, -counts[name])):
        mark = state_style(name)
        yield f"{mark.glyph} {counts[name]:,} {mark.word}  ", mark.style


def find_paused(pool: PoolView) -> list[int]:
    """The ranks that stand still at breakpoints."""
    return sorted(rank for rank, (phase, _) in pool.rank_phases.items() if phase == "paused")


def no_output_reason(states: Sequence[RankState], run: RunView) -> str:
    """Why ranks have printed nothing so far, in a run."""
    if run.state != "running":
        return "nothing was printed in this run"
    busy = [state for state in states if state.state in STARTUP_TEXTS and state.seconds is not None]
    if not busy:
        return "nothing printed yet"
    said = [
        f"{count(len(ranks), 'rank')} {phase} for {duration(max(state.seconds or 0.0 for state in ranks))}"
        for phase in STARTUP_TEXTS
        if (ranks := [state for state in busy if state.state == phase])
    ]
    return f"nothing printed yet: {', '.join(said)}"


def link_note(node: NodeView) -> str:
    """``link down since 12:00:01`` where it is."""
    if node.link_up is not False or node.phase == "gone":
        return ""
    detail = f" ({node.link_detail})" if node.link_detail else ""
    return f"link down since {clock(node.link_since)}{detail}"


def last_lines(pool: PoolView, run: RunView, rank: int | None, most: int) -> list[str]:
    """Return the newest lines that a rank, or with None all ranks, printed in a run."""
    if most <= 0 or not pool.logs.has(run.id):
        return []
    buffers = pool.logs.for_run(run.id)
    ring = buffers.merged if rank is None else buffers.ranks.get(rank)
    return [] if ring is None else [plain(text).rstrip() for text in ring.last(most)]


def block_room(rows: list[Content], height: int) -> int:
    """Return how many lines :func:`append_block` can append to rows."""
    return height - len(rows) - (2 if rows else 1)


def append_block(rows: list[Content], title: str, lines: Iterable[str], width: int) -> None:
    """Append lines under a title, apart from the rows above, if there are any."""
    if shown := [Content(clip(text, width)) for text in lines]:
        rows += [*([Content("")] if rows else []), Content.styled(title, "$muted"), *shown]


def last_line(run: RunView | None, pool: PoolView, rank: int) -> str:
    """The newest thing that a rank printed in a run."""
    held = run is not None and pool.logs.has(run.id)
    ring = pool.logs.for_run(run.id).ranks.get(rank) if run is not None and held else None
    if ring is None:
        return ""
    lines = ring.pending() or ring.lines(ring.end - 1, ring.end)
    return plain(lines[-1]).strip() if lines else ""
