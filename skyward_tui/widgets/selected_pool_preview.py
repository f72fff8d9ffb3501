"""Preview of the selected pool."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widget import Widget

from skyward_core.views.pool_view import NodeView, PoolView, RunView
from skyward_tui.text.error_hint_text import format_detail
from skyward_tui.text.number_time_and_run_state_format import (
    ago,
    count,
    duration,
    failure,
    hourly,
    money,
    next_preempted,
    preemption_text,
    run_status,
)
from skyward_tui.text.rank_states_from_views import RankState, last_lines, no_output_reason, rank_states, tally_parts
from skyward_tui.text.state_styles import append_block, node_style, state_style
from skyward_tui.text.text_width_tables_and_ascii import one_line
from skyward_tui.ui.actions import first_key
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.ui.time_refresh_rules import refresh_token
from skyward_tui.widgets.virtual_list import Part

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp


REFRESH_SECONDS = 0.5  # seconds; minimum interval between updates of the preview of a busy pool
_WRAPPED = 4  # maximum lines over which one status text is wrapped
_NODES = 4  # maximum rows for nodes that are not ready
_STRIP = 4  # maximum rows with one cell per rank


class PoolPreview(Widget, can_focus=False):
    """Preview of one pool. Uses only the pool's view, and sends no requests."""

    DEFAULT_CSS = read_style_sheet(__file__)
    app: SkywardApp

    def __init__(self) -> None:
        super().__init__()
        self._seen: object = None
        self._updated_at = 0.0
        self._content = Content("")

    def update(self, pool: PoolView, run: RunView | None, now: float) -> None:
        """Show a pool. Updates at most twice a second, and repaints only if the content has changed.

        Args:
            now: Unix time in seconds.
        """
        missing = "the run is starting" if self.app.is_launching(pool.key) else "no run on this pool yet"
        before, seen = self._seen, (pool.key, self.size, pool.changes, refresh_token([pool], now), missing)
        is_other = not isinstance(before, tuple) or before[:2] != seen[:2]
        if seen == before or (not is_other and monotonic() - self._updated_at < REFRESH_SECONDS):
            return
        self._seen, self._updated_at = seen, monotonic()
        content = Content("\n").join(self._lines(pool, run, now, missing))
        if not content.is_same(self._content):
            self._content = content
            self.refresh()

    def render(self) -> Content:
        return self._content

    def _lines(self, pool: PoolView, run: RunView | None, now: float, missing: str) -> list[Content]:
        width, height = self.size
        states = [] if pool.is_over else rank_states(pool, run, now)
        lines = [
            Content.styled(each, style)
            for text, style in _status_parts(pool, run, states, now, first_key("pools.open", self.app.keys), missing)
            for each in textwrap.wrap(text, max(20, width))[:_WRAPPED]
        ]
        if states:
            lines += [Content(""), *_strip(states, width)]
        if run is not None:
            rank = _shown_rank(pool, run)
            printed = last_lines(pool, run, rank, height - len(lines) - 2)
            append_block(lines, "last lines" if rank is None else f"last lines of rank {rank}", printed, width)
        return lines[:height]


def _status_parts(
    pool: PoolView, run: RunView | None, states: Sequence[RankState], now: float, key: str, missing: str
) -> Iterator[Part]:
    """Yield texts about the pool's state, pending work and problems, the most important first. ``key`` opens the
    pool; ``missing`` is the text for a pool without a run."""
    if costs := _money(pool, now):
        yield costs, "$muted"
    if pool.is_over:
        since = "" if pool.ended_at is None else f" {ago(now - pool.ended_at)}"
        if pool.start_error:
            mark = state_style(pool.shown_state)
            yield f"{mark.text}: {one_line(pool.detail)}", mark.style
        yield f"ended{since} · {key}: {'messages of its nodes' if run is None else 'logs and results'}", "$muted"
    elif pool.state != "up":
        mark = state_style(pool.shown_state)
        yield one_line(f"{mark.text}: {format_detail(pool)}") if pool.detail else mark.text, mark.style
        yield from _nodes([node for node in pool.nodes if node.phase != "ready"], now)
    if (node := next_preempted(pool.nodes)) is not None:
        yield f"! n{node.index} {preemption_text(node, now)}", "$text-warning"
    if run is None:
        if pool.state == "up":
            yield missing, "$muted"
        return
    yield from _run(pool, run, states, now)


def _money(pool: PoolView, now: float) -> str:
    """Return a text with the price, the costs so far and the remaining lease."""
    if pool.is_over:
        return ""
    price = hourly(pool)
    parts = [f"{price}, {money(pool.spent(now))} spent" if pool.price_hourly else price]
    if (lease_left := pool.lease_left(now)) is not None:
        parts.append(f"idle, shuts down in {duration(lease_left)}")
    return "  ".join(filter(None, parts))


def _run(pool: PoolView, run: RunView, states: Sequence[RankState], now: float) -> Iterator[Part]:
    state, remark = run_status(pool, run, now)
    mark = state_style(state)
    lasted = (run.ended_at or now) - run.opened_at
    time = duration(lasted, precise=True) if run.ended_at is not None else duration(lasted)
    yield f"{f'{mark.text} {run.function} {remark}'.rstrip()}, {time}", mark.style
    if (cause := run.root_cause) is not None:
        text = failure(cause.outcome, cause.type, one_line(cause.message))
        yield f"{cause.rank_prefix}{cause.outcome}, {text}", "$text-error"
    if run.state != "running" or pool.is_over:
        return
    if quiet := [state for state in states if state.quiet is not None]:
        longest = max(quiet, key=lambda state: state.quiet or 0.0)
        yield f"rank {longest.rank}: no output for {duration(longest.quiet or 0.0)}", "$text-warning"
    if not (pool.logs.has(run.id) and pool.logs.for_run(run.id).merged.end):
        yield no_output_reason(pool, states, run, now), "$muted"


def _nodes(nodes: Sequence[NodeView], now: float) -> Iterator[Part]:
    for node in nodes[:_NODES]:
        mark = node_style(node.phase)
        delay = 0.0 if node.retry_at is None else node.retry_at - now
        retry = f", retry in {duration(delay)}" if delay > 0 else ""
        yield f"n{node.index} {mark.text} {one_line(node.detail)}".rstrip() + retry, "$muted"
    if len(nodes) > _NODES:
        yield f"and {count(len(nodes) - _NODES, 'other node')}", "$muted"


def _strip(states: Sequence[RankState], width: int) -> list[Content]:
    """Return rows with the number of ranks in each state, and with a cell for each rank."""
    tally = [(f"{count(len(states), 'rank')}: ", "$muted"), *tally_parts(states)]
    rows = [states[at : at + width] for at in range(0, len(states), max(1, width))]
    shown = [
        Content.assemble(*((state_style(state.state).glyph, state_style(state.state).style) for state in row))
        for row in rows[:_STRIP]
    ]
    hidden = len(states) - sum(map(len, rows[:_STRIP]))
    more = [Content.styled(f"+{hidden:,} ranks", "$muted")] if hidden else []
    return [Content.assemble(*tally), *shown, *more]


def _shown_rank(pool: PoolView, run: RunView) -> int | None:
    """Return the rank whose lines are shown: the root cause of a failure, or the only rank. None means all ranks."""
    ranks = list(pool.logs.for_run(run.id).ranks) if pool.logs.has(run.id) else []
    cause = None if run.root_cause is None else run.root_cause.rank
    return cause if cause in ranks else ranks[0] if len(ranks) == 1 else None
