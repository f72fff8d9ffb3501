"""A few lines that tell how a run is now, below all that has been printed: drawn anew there, and gone in the end. The
scrollback keeps what was said and the summary.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from rich.cells import cell_len

from skyward_core.views.logs import prefix_of
from skyward_core.views.metrics import numbers_line
from skyward_core.views.views import PoolView, RunView
from skyward_core.wire.safe_text import RESET, field

from ..sgr import plain
from ..words import clip, count, duration, hourly, money
from .console import Console, wants_color
from .report import COLORS, GLYPHS

PERIOD = 0.25  # seconds between two drawings, however much comes
_ORDER = ("raised", "exited", "lost", "collateral", "running", "waiting", "returned")
Row = tuple[str, int | None]  # a line, and the SGR code it may be coloured with


def rows(pool: PoolView, run: RunView | None, said: str, now: float) -> list[Row]:
    """How a pool and a run of it are, in lines.

    Args:
        said: what a rank printed last, with the rank.
        now: Unix time in seconds.
    """
    where = f"pool {pool.name} {pool.state}  {pool.nodes_ready}/{count(len(pool.nodes), 'node')}"
    if pool.price_hourly or pool.rents:
        where += f"  {hourly(pool)} spent {money(pool.spent(now))}"
    if run is None:
        phases = Counter(node.phase for node in pool.nodes)
        at = "  ".join(f"{many} {phase}" for phase, many in phases.items())
        return [(f"◌ {where}  {duration(now - pool.created_at)}", 1), *([(f"  {at}", None)] if at else [])]
    states: Counter[str] = Counter(task.state for task in list(run.tasks.values()))
    states["waiting"] += max(0, run.total - len(run.tasks))
    tally = "  ".join(f"{GLYPHS.get(s, '◌')} {states[s]:,} {s}" for s in _ORDER if states[s])
    bad = next((COLORS[state] for state in _ORDER[:3] if states[state]), None)
    ended = f"{run.ended:,}/{run.total:,} ended  {duration(now - run.opened_at)}"
    found: list[Row] = [(f"● {run.function} ({run.id})  {ended}  {where}", 1), (f"  {tally}", bad)]
    if ranks := pool.metrics.ranks(run.id):
        found.append((f"  {prefix_of(ranks[0])}{numbers_line(pool.metrics.latest(run.id, ranks[0]))}", None))
    if said:
        found.append((f"  {said}", 2))
    return found


class LiveBlock:
    """Draws them on standard error, a terminal.

    Args:
        console: takes them away wherever it prints something.
        look: what to tell now; called on the thread that draws.
    """

    def __init__(self, console: Console, look: Callable[[str], Sequence[Row]]) -> None:
        self._look = look
        self._shown: list[str] = []
        self._drawn_at = 0.0
        self._said = ""
        self._open = True
        console.share_terminal(self.erase)

    def hear(self, rank: int, data: bytes) -> None:
        """A rank has printed something, which is told by its last line alone."""
        lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            self._said = f"{prefix_of(rank)}{field(plain(lines[-1]))}"

    def draw(self) -> None:
        """Draw them, where they have changed and were not drawn just now."""
        now = time.monotonic()
        if not self._open or (self._shown and now - self._drawn_at < PERIOD):
            return
        columns, height = shutil.get_terminal_size()
        found = [(clip(text, columns - 1), code) for text, code in self._look(self._said)][: height - 1]
        texts = [text for text, _ in found]
        self._drawn_at = now
        if texts == self._shown:
            return
        colored = wants_color(sys.stderr)
        drawn = "".join(
            f"\x1b[{code}m{text}{RESET}\n" if colored and code is not None else f"{text}\n"
            for text, code in found
        )
        self._write(self._away() + drawn)  # at once: there is no time at which nothing is there
        self._shown = texts

    def erase(self) -> None:
        """Take them away: something is about to be printed."""
        if self._shown:
            self._write(self._away())
            self._shown = []

    def _away(self) -> str:
        if not self._shown:
            return ""
        # A terminal that has become narrower since shows a line in several.
        columns = shutil.get_terminal_size().columns
        lines = sum(max(1, -(-cell_len(text) // columns)) for text in self._shown)
        return f"\x1b[{lines}F\x1b[J"

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def open(self) -> None:
        """Draw again from now on, of what comes next."""
        self._open, self._said = True, ""

    def close(self) -> None:
        """Take them away until there is something else to tell of."""
        self._open = False
        self.erase()
