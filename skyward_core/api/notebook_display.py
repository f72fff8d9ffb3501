"""Display in notebooks: startup progress of a pool, and pools, runs and trials as compact HTML."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.pool.event_publisher import EventPublisher
    from skyward_core.views.events import Event
    from skyward_core.views.pool_view import PoolView, RunView

REDRAW_SECONDS = 0.25  # minimum seconds between two updates of the progress line
TICK = 1.0  # seconds between updates of the elapsed time in the progress line while no event arrives


def default_pool_name() -> str:
    """Return the path from which the default pool name derives: this process's script, or the notebook if known.

    VS Code sets a variable in the notebook. The Jupyter server sets a variable in the kernel's environment.
    """
    if not is_notebook():
        return sys.argv[0] if sys.argv else ""
    names = vars(sys.modules["__main__"])
    for path in (names.get("__vsc_ipynb_file__"), os.environ.get("JPY_SESSION_NAME")):
        if isinstance(path, str) and path.endswith(".ipynb"):
            return path
    return "notebook"


def is_notebook() -> bool:
    """Check whether this process is a notebook kernel."""
    return getattr(_shell(), "kernel", None) is not None


def _shell() -> Any:
    # A notebook kernel has imported IPython already; never import it for other scripts.
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


class StartupProgress:
    """Line in a cell's output that shows the startup of a pool, updated as the pool changes.

    Attributes:
        stop: Unsubscribes from the pool's events. Call on the loop's thread.
    """

    def __init__(self) -> None:
        self._events: SimpleQueue[object] = SimpleQueue()
        self._view: PoolView | None = None
        self._handle: Any = None
        self._drawn_line = ""
        self.stop: Callable[[], None] = lambda: None
        self._began = time.monotonic()

    def follow(self, view: PoolView, news: EventPublisher) -> None:
        """Show a pool. Call on the loop's thread."""
        self._view = view
        self.stop = news.subscribe(self._on_event, None)

    def _on_event(self, event: Event) -> None:
        self._events.put(event)

    def wait(self, work: Future[None]) -> None:
        """Redraw the line until the work is done."""
        work.add_done_callback(self._events.put)
        while not work.done():
            self._draw()
            end = time.monotonic() + REDRAW_SECONDS
            try:
                self._events.get(timeout=TICK)
                while (remaining := end - time.monotonic()) > 0 and not work.done():
                    self._events.get(timeout=remaining)
            except Empty:
                pass  # no event has arrived: update the elapsed time
        self._draw()

    def _draw(self) -> None:
        if self._view is None:
            return
        line = format_progress(self._view, time.monotonic() - self._began)
        if line == self._drawn_line:
            return
        import html  # imported late, because only notebooks need this module

        self._drawn_line = line
        data = {"text/plain": line, "text/html": f"<div>{html.escape(line)}</div>"}
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def format_progress(view: PoolView, seconds: float) -> str:
    """Return the startup progress of a pool as one line.

    Args:
        view: The pool.
        seconds: Seconds since the startup began.
    """
    line = f"pool {view.name} {view.state}: {view.nodes_ready} of {len(view.nodes)} nodes ready, {seconds:.0f} s"
    behind = [node for node in view.nodes if node.phase != "ready"]
    if behind and view.state == "starting":
        slowest = behind[0]
        line += f"; n{slowest.index} {slowest.phase}"
        line += f": {slowest.detail}" if slowest.detail else ""
    elif view.detail and view.state != "up":
        line += f": {view.detail}"
    return sanitize_line(line)[:160]


ROWS = 64  # maximum rows of a table, because notebooks store their output
_WIDE = 160  # maximum characters of a table cell


_ORDER = ("raised", "exited", "lost", "collateral", "running", "waiting", "returned")


def pool_html(view: PoolView) -> str:
    """Return a pool as HTML: its description, nodes and latest runs."""
    details = [f"{view.nodes_ready} of {len(view.nodes)} nodes ready", f"{view.world_size} ranks", view.provider]
    if view.price_hourly:
        details.append(f"${view.price_hourly:,.2f} an hour, ${view.spent(time.time()):,.2f} so far")
    head = _head("pool", view.name, view.state, details)
    nodes = [(f"n{node.index}", node.phase, node.address, _first(node.detail)) for node in list(view.nodes)[:ROWS]]
    runs = sorted(list(view.runs.values()), key=lambda run: run.opened_at)[-5:]
    rows = [(run.id, run.function, run.state, _tally(run)) for run in reversed(runs)]
    tables = _table(("node", "state", "address", ""), nodes), _table(("run", "function", "state", "ranks"), rows)
    return _box(head, *tables)


def run_html(run: RunView) -> str:
    """Return a run as HTML: the state of its ranks, and its root cause."""
    seconds = (run.ended_at or time.time()) - run.opened_at
    parts = [_head("run", f"{run.function} ({run.id})", run.state, [_tally(run), f"{seconds:.1f} s"])]
    if (cause := run.root_cause) is not None:
        parts.append(_line(f"{cause.rank_prefix}{cause.outcome}: {cause.type}: {_first(cause.message)}"))
    if run.total > 1:
        tasks = sorted(list(run.tasks.values()), key=lambda task: task.index)[:ROWS]
        rows = []
        for task in tasks:
            out = task.outcome
            text = "" if out is None else out.error.message if out.error else out.summary.text if out.summary else ""
            rows.append((f"r{task.rank:03d}", task.state, _first(text)))
        parts.append(_table(("rank", "state", ""), rows))
    return _box(*parts)


def unseen_html(kind: str, name: str, state: str) -> str:
    """Return the HTML of a pool or run to which this process is not connected."""
    return _box(_head(kind, name, state, []))


def table_html(head: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a heading and a table of texts as HTML."""
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
    import html  # imported late, because only notebooks need this module

    return html.escape(shown if len(shown) <= _WIDE else f"{shown[:_WIDE]}…")


def _line(text: str) -> str:
    return f"<div>{_cell(text)}</div>"


def _head(kind: str, name: str, state: str, more: Iterable[str]) -> str:
    details = "".join(f" · {_cell(each)}" for each in more if each)
    return f"<div>{kind} <b>{_cell(name)}</b> {_cell(state)}{details}</div>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{_cell(each)}</th>" for each in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(each)}</td>' for each in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _box(*parts: str) -> str:
    return f'<div class="skyward">{"".join(parts)}</div>'
