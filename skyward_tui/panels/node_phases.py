"""Nodes and the phases of their start."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from textual import events
from textual.content import Content

from skyward_core.views.job_steps import StepOnNode, failure_lines, steps_by_node, steps_of_job
from skyward_core.views.pool_view import PHASES, NodeView, PoolView, RunView
from skyward_tui.panels.panel import RunPanel, RunSelection
from skyward_tui.text.error_hints import format_detail
from skyward_tui.text.number_and_time_format import age, clip, clock, duration, precise_duration, preemption_text
from skyward_tui.ui.refresh_and_repaint import refresh_token
from skyward_tui.ui.themes import node_style, state_style
from skyward_tui.widgets.rank_state import FAILURES, link_note
from skyward_tui.widgets.virtual_list import VirtualList

_PHASE_ORDER = PHASES[:-1]
ROOMY = 90  # cells in which a node's way, and its steps, have room
_NOTHING_HERE = "nothing was said of its way, or only where the pool was started"
MAX_DETAIL_LINES = 12  # lines that were said of a node, below it, at most
_LEAST = 3
_MOST_OF_POOL = 3  # lines that are said of all of it
_CURSOR = "$block-cursor-foreground on $block-cursor-background bold"
_LABEL = 5  # cells of a node's name


class PhaseBoard(VirtualList[NodeView]):
    """One row per node, with a cursor; the ones that are not ready come first where there are many."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[tuple[int, Content]] = []  # each with the index of the node that it is about
        self._order: list[int] = []  # in the order in which they stand here
        self._chosen = -1  # the node under the cursor
        self._open: set[int] = set()  # nodes of which there stands what was said
        self._pool: tuple[PoolView, float, RunView | None] | None = None
        self._head: list[Content] = []
        self._state: object = None
        self._steps: Mapping[int, Sequence[StepOnNode]] = {}

    def update(self, pool: PoolView, now: float, run: RunView | None = None) -> bool:
        """Look at a pool; returns whether anything is new.

        Args:
            run: that is looked at; of a job, its steps stand beside each node.
        """
        job = "" if run is None else run.job
        state = (pool.version, job, pool.logs.version if job else 0, refresh_token([pool], now), self.size)
        if state == self._state:
            return False
        self._state, self._pool = state, (pool, now, run)
        job_steps = steps_of_job(pool, run)
        self._steps = steps_by_node(job_steps, now)
        bad = pool.state in ("failed", "degraded", "unreachable", "unfinished")
        style = "$text-error" if bad else "$muted"
        self._head = [Content.styled(f" {line}", style) for line in self._pool_detail(pool)]
        for number, line in enumerate(failure_lines(pool, job_steps)):
            self._head.append(Content.styled(f" {line}", "$muted" if number else "$text-error"))
        nodes = pool.nodes
        if len(nodes) > self.size.height:
            nodes = sorted(nodes, key=lambda node: (self._is_quiet(node), node.index))
        self._order = [node.index for node in nodes]
        if self._chosen not in self._order:
            self._chosen = self._order[0] if self._order else -1
        self._rows = [row for node in nodes for row in self._rows_of(node, now)]
        self.refresh_if_changed()
        return True

    def _pool_detail(self, pool: PoolView) -> list[str]:
        """What is said of the pool as a whole: all of it, where its nodes leave room for that."""
        lines = format_detail(pool).splitlines()[:_MOST_OF_POOL]
        whole = [part for line in lines for part in textwrap.wrap(line, max(20, self.size.width - 2))]
        has_room = len(whole[:_MOST_OF_POOL]) + len(pool.nodes) <= self.size.height
        return whole[:_MOST_OF_POOL] if has_room else lines

    def _rows_of(self, node: NodeView, now: float) -> Iterator[tuple[int, Content]]:
        yield node.index, self._node(node, now)
        if node.index in self._open:
            room = max(_LEAST, self.size.height - len(self._head) - 1)
            most = min(MAX_DETAIL_LINES, room)  # the last one stays in sight
            nothing = _NOTHING_HERE if node.phase == "ready" else "nothing was said of it so far"
            for at, _, line in node.said[-most:] or [(node.since, "", nothing)]:
                yield node.index, Content.styled(f"      {clock(at)}  {line}", "$muted")

    def _force_update(self) -> None:
        self._state = None
        if self._pool is not None:
            self.update(*self._pool)

    def action_step(self, rows: int) -> None:
        if self._order:
            place = self._order.index(self._chosen) + rows
            self._chosen = self._order[min(max(0, place), len(self._order) - 1)]
            self.refresh_if_changed()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self._order) if end else -len(self._order))

    def action_open(self) -> None:
        """Show what was said of the node under the cursor, or no more."""
        self._open ^= {self._chosen}
        self._force_update()

    def on_click(self, event: events.Click) -> None:
        row = self.top + event.y - len(self._head)
        if 0 <= row < len(self._rows):
            self._chosen = self._rows[row][0]
            self.action_open()

    def on_focus(self) -> None:
        self.refresh_if_changed()

    def on_blur(self) -> None:
        self.refresh_if_changed()

    def required_range(self) -> range:
        rows = [row for row, (node, _) in enumerate(self._rows) if node == self._chosen]
        return range(rows[0], rows[-1] + 1) if rows and self.has_focus else super().required_range()

    def _is_quiet(self, node: NodeView) -> bool:
        """Whether nobody need look at a node first."""
        steps = self._steps.get(node.index, ())
        problems = any(step.late or step.state in FAILURES for step in steps)
        return node.phase == "ready" and not (link_note(node) or node.notice or problems)

    def head(self, width: int) -> list[Content]:
        return self._head

    def row_count(self, width: int) -> int:
        return len(self._rows)

    def row(self, index: int, width: int) -> Content:
        node, row = self._rows[index]
        here = node == self._chosen and (not index or self._rows[index - 1][0] != node)
        return row.stylize(_CURSOR, 0, _LABEL) if here and self.has_focus else row

    def _node(self, node: NodeView, now: float) -> Content:
        mark = node_style(node.phase)
        reached = len(_PHASE_ORDER) if node.phase == "gone" else _PHASE_ORDER.index(node.phase) + 1
        style = "$muted" if node.phase == "gone" else mark.style
        parts = [(f" n{node.index:<3}", "bold")]
        # Who is at a job's step is ready; where there is little room, the step is worth more.
        if node.phase != "ready" or not self._steps.get(node.index) or self.size.width >= ROOMY:
            parts += [
                ("■" * reached, style),
                ("□" * (len(_PHASE_ORDER) - reached), "$muted"),
                (f" {mark.text:<11}", mark.style),
                (f"{_phase_time(node, now):>6}", "$muted"),
            ]
        if node.retry_at is not None and node.retry_at > now:
            parts.append((f"  retry {duration(node.retry_at - now)}", "$text-warning"))
        if said := preemption_text(node, now):
            parts.append((f"  ! {said}", "$text-error" if node.is_preempted else "$text-warning"))
        if note := link_note(node):
            parts.append((f"  ! {note}", "$text-error"))
        elif steps := self._steps.get(node.index):
            parts += _steps(steps)
        elif said := node.detail or node.address:
            parts.append((f"  {clip(said, 160)}", "$muted"))
        return Content.assemble(*parts)


def _steps(steps: Sequence[StepOnNode]) -> Iterator[tuple[str, str]]:
    """The steps of a job on a node, the newest first, which is never cut off, with the time in each."""
    for step in reversed(steps):
        mark = state_style(step.state)
        lasts = duration if step.state == "running" else precise_duration
        time = "" if step.seconds is None else f" {lasts(step.seconds)}"
        style = "$muted" if step.state in ("returned", "collateral") else mark.style
        yield f"  {mark.glyph} {clip(step.name, 20)}{time}", style
        if step.late:
            yield " ! others wait for it", "$text-warning"


def _phase_time(node: NodeView, now: float) -> str:
    """How long it has been where it is: by the second while it is on its way."""
    return (age if node.phase in ("ready", "gone") else duration)(now - node.since)


class NodesPanel(RunPanel[PhaseBoard]):
    """The nodes, phase by phase."""

    MAIN = PhaseBoard
    FITS_ROWS = True

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        return self.main.update(pool, now, run)
