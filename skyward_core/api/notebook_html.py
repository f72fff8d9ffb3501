"""Pools, runs and trials as a notebook shows them: compact HTML.

Text of ranks and hosts comes from views, without what a terminal acts on; here it becomes text of HTML, all of it.
"""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.views.pool_view import PoolView, RunView

ROWS = 64  # of a table; notebooks are kept, and opened again
_WIDE = 160  # characters of a cell

_ORDER = ("raised", "exited", "lost", "collateral", "running", "waiting", "returned")


def pool_html(view: PoolView) -> str:
    """A pool: what it is, its nodes, its latest runs."""
    what = [f"{view.nodes_ready} of {len(view.nodes)} nodes ready", f"{view.world_size} ranks", view.provider]
    if view.price_hourly:
        what.append(f"${view.price_hourly:,.2f} an hour, ${view.spent(time.time()):,.2f} so far")
    head = _head("pool", view.name, view.state, what)
    nodes = [(f"n{node.index}", node.phase, node.address, _first(node.detail)) for node in list(view.nodes)[:ROWS]]
    runs = sorted(list(view.runs.values()), key=lambda run: run.opened_at)[-5:]
    rows = [(run.id, run.function, run.state, _tally(run)) for run in reversed(runs)]
    return _box(
        head,
        _table(("node", "state", "address", ""), nodes),
        _table(("run", "function", "state", "ranks"), rows),
    )


def run_html(run: RunView) -> str:
    """A run: how its ranks are, and what of it failed first."""
    seconds = (run.ended_at or time.time()) - run.opened_at
    parts = [_head("run", f"{run.function} ({run.id})", run.state, [_tally(run), f"{seconds:.1f} s"])]
    if (cause := run.root_cause) is not None:
        parts.append(_line(f"{cause.rank_prefix}{cause.outcome}: {cause.type}: {_first(cause.message)}"))
    if run.total > 1:
        tasks = sorted(list(run.tasks.values()), key=lambda task: task.index)[:ROWS]
        rows = []
        for task in tasks:
            out = task.outcome
            said = (
                ""
                if out is None
                else out.error.message
                if out.error is not None
                else out.summary.text
                if out.summary is not None
                else ""
            )
            rows.append((f"r{task.rank:03d}", task.state, _first(said)))
        parts.append(_table(("rank", "state", ""), rows))
    return _box(*parts)


def unseen_html(kind: str, name: str, state: str) -> str:
    """A pool, or a run of one, that this process does not see, or not any more."""
    return _box(_head(kind, name, state, []))


def table_html(head: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts below a line."""
    more = [f"and {len(rows) - ROWS:,} more"] if len(rows) > ROWS else []
    return _box(_line(head), _table(columns, rows[:ROWS]), *map(_line, more))


def _tally(run: RunView) -> str:
    states: list[str] = [task.state for task in list(run.tasks.values())]
    counts = {state: states.count(state) for state in _ORDER}
    counts["waiting"] += max(0, run.total - len(states))
    return ", ".join(f"{many:,} {state}" for state, many in counts.items() if many)


def _first(text: str) -> str:
    return text.partition("\n")[0]


def _cell(text: str) -> str:
    shown = sanitize_line(text)
    return html.escape(shown if len(shown) <= _WIDE else f"{shown[:_WIDE]}…")


def _line(text: str) -> str:
    return f"<div>{_cell(text)}</div>"


def _head(kind: str, name: str, state: str, more: Iterable[str]) -> str:
    said = "".join(f" · {_cell(each)}" for each in more if each)
    return f"<div>{kind} <b>{_cell(name)}</b> {_cell(state)}{said}</div>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{_cell(each)}</th>" for each in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(each)}</td>' for each in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _box(*parts: str) -> str:
    return f'<div class="skyward">{"".join(parts)}</div>'
