"""Display in notebooks: a line for a pool that starts; pools, runs and trials as compact HTML; the notebook's name."""

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
    from skyward_core.pool.event_log import EventPublisher
    from skyward_core.views.events import Event
    from skyward_core.views.pool_view import PoolView, RunView

REDRAW_SECONDS = 0.25  # seconds between two drawings, however much happens
TICK = 1.0  # seconds after which the line is drawn anew, for the time that it tells
_SUFFIX = ".ipynb"


def default_pool_name() -> str:
    """What a pool without a name is called after: the script of this process, or the notebook, where it is known.

    VS Code tells it by a variable of the notebook, Jupyter's server by one of the kernel's environment.
    """
    if not is_notebook():
        return sys.argv[0] if sys.argv else ""
    names = vars(sys.modules["__main__"])
    for said in (names.get("__vsc_ipynb_file__"), os.environ.get("JPY_SESSION_NAME")):
        if isinstance(said, str) and said.endswith(_SUFFIX):
            return said
    return "notebook"


def is_notebook() -> bool:
    """Whether cells run here: this process is a kernel."""
    return getattr(_shell(), "kernel", None) is not None


def _shell() -> Any:
    ipython = sys.modules.get("IPython")  # loaded by what runs the cells, and never by us
    return None if ipython is None else ipython.get_ipython()


class StartupProgress:
    """Shows in one line of a cell's output how a pool comes up, drawn anew as that changes.

    Attributes:
        stop: have it hear of the pool no more; called on the loop's thread.
    """

    def __init__(self) -> None:
        self._events: SimpleQueue[object] = SimpleQueue()
        self._view: PoolView | None = None
        self._handle: Any = None
        self._drawn_line = ""
        self.stop: Callable[[], None] = lambda: None
        self._began = time.monotonic()

    def follow(self, view: PoolView, news: EventPublisher) -> None:
        """Show this pool; called on the loop's thread."""
        self._view = view
        self.stop = news.subscribe(self._on_event, None)

    def _on_event(self, event: Event) -> None:
        self._events.put(event)

    def wait(self, work: Future[None]) -> None:
        """Draw until the work is done."""
        work.add_done_callback(self._events.put)
        while not work.done():
            self._draw()
            end = time.monotonic() + REDRAW_SECONDS
            try:
                self._events.get(timeout=TICK)
                while (left := end - time.monotonic()) > 0 and not work.done():
                    self._events.get(timeout=left)
            except Empty:
                pass  # nothing more has happened, but time
        self._draw()

    def _draw(self) -> None:
        if self._view is None:
            return
        line = format_progress(self._view, time.monotonic() - self._began)
        if line == self._drawn_line:
            return
        import html  # no script needs it

        self._drawn_line = line
        data = {"text/plain": line, "text/html": f"<div>{html.escape(line)}</div>"}
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def format_progress(view: PoolView, seconds: float) -> str:
    """How far a pool has come, in a line.

    Args:
        seconds: since when it comes up.
    """
    said = f"pool {view.name} {view.state}: {view.nodes_ready} of {len(view.nodes)} nodes ready, {seconds:.0f} s"
    behind = [node for node in view.nodes if node.phase != "ready"]
    if behind and view.state == "starting":
        slowest = behind[0]
        said += f"; n{slowest.index} {slowest.phase}"
        said += f": {slowest.detail}" if slowest.detail else ""
    elif view.detail and view.state != "up":
        said += f": {view.detail}"
    return sanitize_line(said)[:160]


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
    import html  # scripts do not need it

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
