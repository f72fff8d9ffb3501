"""Panel with the nodes of a pool: startup phases, messages and job steps."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from textual import events
from textual.content import Content

from skyward_core.views.job_file_steps import StepOnNode, failure_lines, steps_by_node, steps_of_job
from skyward_core.views.pool_view import PHASES, NodeView, PoolView, RunView
from skyward_tui.panels.panel import RunPanel, RunSelection
from skyward_tui.text.error_hint_text import format_detail
from skyward_tui.text.hardware_and_offer_cells import usage_summary
from skyward_tui.text.number_time_and_run_state_format import clock, duration, preemption_text
from skyward_tui.text.rank_states_from_views import is_absent, link_note
from skyward_tui.text.state_styles import FAILURES, node_style, state_style
from skyward_tui.text.text_width_tables_and_ascii import clip, clip_parts
from skyward_tui.ui.time_refresh_rules import refresh_token
from skyward_tui.widgets.virtual_list import CURSOR_STYLE, VirtualList

_PHASE_ORDER = PHASES[:-1]
ROOMY = 90  # cells; a row narrower than this shows the startup phase or the job steps, not both
_NO_MESSAGES = "no startup messages of this node are saved on this machine"
MAX_DETAIL_LINES = 12  # maximum lines of a node's messages if the user has expanded the node
_LEAST = 3
_MOST_OF_POOL = 3  # maximum lines with the state of the pool itself
_LABEL = 5  # width in cells of the column with the names of nodes


class PhaseBoard(VirtualList[NodeView]):
    """List of nodes with a cursor. If not all nodes fit, those that need attention come first."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[tuple[int, Content]] = []  # for each line of the list: index of the node, and text
        self._order: list[int] = []  # indices of the nodes in the order of the list
        self._chosen = -1  # index of the node under the cursor
        self._open: set[int] = set()  # indices of the nodes whose messages the user has expanded
        self._pool: tuple[PoolView, float, RunView | None, bool] | None = None
        self.is_summary = False  # whether one line stands for all nodes
        self._head: list[Content] = []
        self._state: object = None
        self._steps: Mapping[int, Sequence[StepOnNode]] = {}

    def update(self, pool: PoolView, now: float, run: RunView | None = None, seldom: bool = False) -> bool:
        """Show a pool; return whether anything changed.

        Args:
            run: Selected run; if it is a job, its steps are shown beside each node.
            seldom: Whether one line may stand for all nodes if no node has problems.
        """
        job = "" if run is None else run.job
        measured = pool.machines.version if seldom and pool.machines is not None else 0
        state = (pool.version, job, pool.logs.version if job else 0, refresh_token([pool], now), self.size, seldom)
        if (*state, measured) == self._state:
            return False
        self._state, self._pool = (*state, measured), (pool, now, run, seldom)
        job_steps = steps_of_job(pool, run)
        self._steps = steps_by_node(job_steps, now)
        bad = pool.shown_state in ("failed", "degraded", "unreachable", "unfinished", "unstarted")
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
        self.is_summary = seldom and bool(nodes) and not self._head and all(map(self._is_quiet, nodes))
        if self.is_summary:
            use = "" if pool.machines is None else usage_summary(pool.machines)
            mark = state_style("ready")
            text = use or f"all nodes ready for {duration(now - max(node.since for node in nodes))}"
            text = clip_parts(text, self.size.width - 4)
            self._rows = [(self._chosen, Content.assemble((f" {mark.glyph} ", mark.style), text))]
        else:
            self._rows = [row for node in nodes for row in self._rows_of(node, pool, now)]
        self.refresh_if_changed()
        return True

    def _pool_detail(self, pool: PoolView) -> list[str]:
        """Return the lines with the pool's state. They are wrapped if the nodes leave enough rows."""
        lines = format_detail(pool).splitlines()[:_MOST_OF_POOL]
        wrapped = [part for line in lines for part in textwrap.wrap(line, max(20, self.size.width - 2))]
        wrapped = wrapped[:_MOST_OF_POOL]
        return wrapped if len(wrapped) + len(pool.nodes) <= self.size.height else lines

    def _rows_of(self, node: NodeView, pool: PoolView, now: float) -> Iterator[tuple[int, Content]]:
        yield node.index, self._node(node, pool, now)
        if node.index in self._open:
            room = max(_LEAST, self.size.height - len(self._head) - 1)
            most = min(MAX_DETAIL_LINES, room)  # show only the newest messages, as many as fit
            no_messages = _NO_MESSAGES if node.phase == "ready" else "no messages yet"
            for at, _, line in node.details[-most:] or [(node.since, "", no_messages)]:
                yield node.index, Content.styled(f"      {clock(at)}  {line}", "$muted")

    def action_step(self, rows: int) -> None:
        if self._order:
            place = self._order.index(self._chosen) + rows
            self._chosen = self._order[min(max(0, place), len(self._order) - 1)]
            self.refresh_if_changed()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self._order) if end else -len(self._order))

    def action_open(self) -> None:
        """Show or hide the messages of the node under the cursor."""
        self._open ^= {self._chosen}
        self._update_again()

    def _update_again(self) -> None:
        self._state = None
        if self._pool is not None:
            self.update(*self._pool)

    def on_click(self, event: events.Click) -> None:
        row = self.top + event.y - len(self._head)
        if 0 <= row < len(self._rows):
            self._chosen = self._rows[row][0]
            self.action_open()

    def required_range(self) -> range:
        rows = [row for row, (node, _) in enumerate(self._rows) if node == self._chosen]
        return range(rows[0], rows[-1] + 1) if rows and self.has_focus else super().required_range()

    def _is_quiet(self, node: NodeView) -> bool:
        """Check whether a node is ready and has no problems."""
        problems = any(step.late or step.state in FAILURES for step in self._steps.get(node.index, ()))
        return node.phase == "ready" and not (link_note(node) or node.notice or problems)

    def head(self, width: int) -> list[Content]:
        return self._head

    def row_count(self, width: int) -> int:
        return len(self._rows)

    def row(self, index: int, width: int) -> Content:
        node, row = self._rows[index]
        here = node == self._chosen and (not index or self._rows[index - 1][0] != node)
        return row.stylize(CURSOR_STYLE, 0, _LABEL) if here and self.has_focus else row

    def _node(self, node: NodeView, pool: PoolView, now: float) -> Content:
        absent = is_absent(pool, node)
        mark = node_style("absent" if absent else node.phase)
        time = "" if absent else duration(now - node.since)
        reached = len(_PHASE_ORDER) if node.phase == "gone" else _PHASE_ORDER.index(node.phase) + 1
        style = mark.style
        parts = [(f" n{node.index:<3}", "bold")]
        # Only a ready node executes a job step, so a row that is too narrow for both shows the step instead of the
        # phase.
        if node.phase != "ready" or not self._steps.get(node.index) or self.size.width >= ROOMY:
            parts += [
                ("■" * reached, style),
                ("□" * (len(_PHASE_ORDER) - reached), "$muted"),
                (f" {mark.text:<11}", mark.style),
                (f"{time:>6}", "$muted"),
            ]
        if node.retry_at is not None and node.retry_at > now:
            parts.append((f"  retry {duration(node.retry_at - now)}", "$text-warning"))
        if notice := preemption_text(node, now):
            parts.append((f"  ! {notice}", "$text-error" if node.is_preempted else "$text-warning"))
        if note := link_note(node):
            parts.append((f"  ! {note}", "$text-error"))
        elif steps := self._steps.get(node.index):
            parts += _steps(steps)
        elif detail := node.detail or node.address:
            parts.append((f"  {clip(detail, 160)}", "$muted"))
        return Content.assemble(*parts)


def _steps(steps: Sequence[StepOnNode]) -> Iterator[tuple[str, str]]:
    """Yield the job steps of a node with their durations, the newest step first."""
    for step in reversed(steps):
        mark = state_style(step.state)
        time = "" if step.seconds is None else f" {duration(step.seconds, precise=step.state != 'running')}"
        style = "$muted" if step.state in ("returned", "collateral") else mark.style
        yield f"  {mark.glyph} {clip(step.name, 20)}{time}", style
        if step.late:
            yield " ! other nodes wait for this node", "$text-warning"


class NodesPanel(RunPanel[PhaseBoard]):
    """Nodes and their startup phases."""

    MAIN = PhaseBoard
    FITS_ROWS = True

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        trains = run is not None and bool(pool.metrics.ranks(run.id))
        changed = self.main.update(pool, now, run, trains and not self.has_class("-active"))
        if changed:
            ready = sum(node.phase == "ready" for node in pool.nodes)
            self.set_titles(Content(f"{self.heading}  {ready:,}/{len(pool.nodes):,} ready"))
        return changed
