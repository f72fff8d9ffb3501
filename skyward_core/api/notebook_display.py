"""A notebook in place of a script: what it is called, and a line of a cell's output that tells how a pool comes up."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.pool.event_log import EventPublisher
    from skyward_core.views.events import Event
    from skyward_core.views.pool_view import PoolView

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
