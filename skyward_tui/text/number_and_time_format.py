"""Formatting of numbers, times and prices, and of tables as text."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from skyward_core.views.pool_view import NodeView, PoolView, RunView

NO_RUN = "nothing: the file has no run commands"
BROKEN_OFF = "start incomplete"
"""Text for the state "unfinished" of a pool."""
START_FAILED = "start failed"
"""Text for an ended pool that did not start."""
LAST_MINUTES = 600.0  # seconds; shorter remaining times are shown to the second
PATH_CELLS = 8  # minimum cells of a path; a shorter part would not be recognizable


def duration(seconds: float) -> str:
    """Format seconds: ``41`` -> ``0:41``; ``3725`` -> ``1:02:05``; days as ``2d 03:00``."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02d}:{minute:02d}"
    if hours:
        return f"{hours}:{minute:02d}:{second:02d}"
    return f"{minute}:{second:02d}"


def time_left(seconds: float) -> str:
    """Format remaining seconds: below ten minutes to the second, above as :func:`age`."""
    return duration(seconds) if seconds < LAST_MINUTES else age(seconds)


def age(seconds: float) -> str:
    """Format an age that needs no seconds: ``<1m``, ``41m``, ``2h 05m``, ``3d 04h``."""
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes}m" if minutes > 0 else "<1m"
    hours = minutes // 60
    return f"{hours}h {minutes % 60:02d}m" if hours < 24 else f"{hours // 24}d {hours % 24:02d}h"


def precise_duration(seconds: float) -> str:
    """Format seconds like :func:`duration`, but more precisely below a minute."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def failure(kind: str, type: str, message: str) -> str:
    """Format the failure of a rank. The type is included only if an exception was raised."""
    return f"{type}: {message}".rstrip(": ") if kind == "raised" or not message else message


def clock(at: float) -> str:
    """Format a Unix time as local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def ago(seconds: float) -> str:
    """Format elapsed seconds in one unit, such as ``5h ago``. The format is distinct from times of day and ages."""
    for unit, name in ((365 * 86_400, "y"), (86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{int(seconds // unit)}{name} ago"
    return "now"


def money(amount: float) -> str:
    return f"${amount:,.2f}"


class HasPrice(Protocol):
    """Object with a price in dollars per hour, which may be unknown."""

    @property
    def price_hourly(self) -> float: ...
    @property
    def has_unknown_price(self) -> bool: ...


def hourly(of: HasPrice) -> str:
    """Format an hourly price; "" if the machine is free, and "$?/h" if it is rented at an unknown price."""
    if of.has_unknown_price:
        return "$?/h"
    return f"{money(of.price_hourly)}/h" if of.price_hourly else ""


def number(value: float) -> str:
    """Format a number with four significant digits. Integers are shown completely."""
    if not isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3e}"


def count(many: int, one: str) -> str:
    """Format a count with its noun: ``1 node``, ``4 nodes``."""
    return f"{many:,} {one if many == 1 else one + 's'}"


def count_range(least: int, most: int, one: str) -> str:
    """Format a range with its noun: ``2 to 8 nodes``; ``4 nodes`` if both ends are equal."""
    return count(most, one) if least == most else f"{least:,} to {count(most, one)}"


def preemption_text(node: NodeView, now: float) -> str:
    """Return a text about the preemption notice of a node, such as ``preempted in 1:42 (terminate)``; "" if there is
    none."""
    if node.notice == "rebalance":
        return "may soon be preempted"
    if not node.is_preempted:
        return ""
    remaining = 0.0 if node.notice_ends_at is None else node.notice_ends_at - now
    return f"preempted {f'in {duration(remaining)}' if remaining >= 1 else 'now'} ({node.notice})"


MAX_NAMED = 8  # ranks that a text names


def saving_text(saving: Mapping[int, float], now: float) -> str:
    """Return which ranks handle SIGTERM and when they are killed, such as ``ranks 0, 3 still save: killed in 0:24``.

    Args:
        saving: Unix time when each rank is killed.
        now: Unix time.
    """
    ranks = sorted(saving)
    named = ", ".join(map(str, ranks[:MAX_NAMED])) + (" …" if len(ranks) > MAX_NAMED else "")
    verb = f"rank {named} still saves" if len(ranks) == 1 else f"ranks {named} still save"
    return f"{verb}: killed in {duration(max(0.0, max(saving.values()) - now))}"


def next_preempted(nodes: Iterable[NodeView]) -> NodeView | None:
    """Return the node with the most urgent preemption notice; None if there is none."""
    noticed = (node for node in nodes if node.is_preempted or node.notice == "rebalance")
    return min(noticed, key=lambda node: (not node.is_preempted, node.notice_ends_at or 0.0), default=None)


def run_status(pool: PoolView, run: RunView) -> tuple[str, str]:
    """Return the state of a run for display, and a remark: its progress, or its place in the queue."""
    if run.state == "running" and run.id in (queued := pool.queued_runs()):
        return "queued", f"place {queued.index(run.id) + 1} of {len(queued)}"
    # The numbers of an ended pool are unknown until the pool is opened.
    return run.state, f"{run.ended:,}/{run.total:,}" if run.counts or run.state == "running" else ""


def clip(text: str, width: int) -> str:
    """Cut a text to a number of cells. A shortened text ends with an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…" if width > 0 else ""


def fit_width(text: str, cells: int) -> str:
    """Cut or pad a text to a number of cells. A negative number aligns the text to the right.

    Format strings count characters instead of cells, so they would misalign columns with wide characters.
    """
    shown = clip(text, abs(cells))
    room = " " * (abs(cells) - cell_len(shown))
    return f"{room}{shown}" if cells < 0 else f"{shown}{room}"


def clip_parts(text: str, width: int) -> str:
    """Cut a text to a number of cells. Parts, which are separated by two blanks, are kept or dropped as a whole."""
    shown = ""
    for part in text.split("  "):
        longer = f"{shown}  {part}" if shown else part
        if cell_len(longer) > width:
            break
        shown = longer
    return shown or clip(text, width)


def clip_start(text: str, width: int) -> str:
    """Cut a text to a number of cells at its beginning, because the end of a path matters most."""
    if cell_len(text) <= width:
        return text
    kept = text
    while kept and cell_len(kept) > width - 1:
        kept = kept[1:]
    return f"…{kept}" if width > 0 else ""


def clip_path(text: str, width: int) -> str:
    """Cut a text to a number of cells. If the last word is a path, cut the beginning of the path."""
    words, _, path = text.rpartition(" ")
    room = width - cell_len(words) - 1
    if "/" in path and words and room >= PATH_CELLS:
        return f"{words} {clip_start(path, room)}"
    return clip_start(text, width) if "/" in path and not words else clip(text, width)


def one_line(text: str) -> str:
    """Return the first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


class Columns:
    """Alignment of lines that are printed one by one. A column is as wide as its widest cell so far.

    Args:
        widths: Initial widths of the first columns.
    """

    def __init__(self, *widths: int) -> None:
        self._widths = list(widths)

    def line(self, cells: Sequence[str]) -> str:
        """Return the next line. The width of the last cell is not limited."""
        known = [*self._widths, *[0] * len(cells)]
        self._widths = [max(width, cell_len(cell)) for width, cell in zip(known, cells, strict=False)]
        return "  ".join(fit_width(cell, width) for cell, width in zip(cells, self._widths, strict=True)).rstrip()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns. The width of the last column is not limited."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(fit_width(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def plain_ascii(text: str) -> str:
    """Return a text in ASCII with the same number of cells. Letters lose their accents, and unknown characters become
    "?"."""
    plain = text.translate(_ASCII_MAP)
    cells = cell_len(text)
    return plain if len(plain) == cells else set_cell_size(plain, cells)


class _AsciiMap(dict[int, str]):
    def __missing__(self, code: int) -> str:
        found = self[code] = _closest_ascii(chr(code))
        return found


def _closest_ascii(char: str) -> str:
    code = ord(char)
    if code < 0x7F:
        return char
    if 0x2500 <= code < 0x2580:
        return "-" if "HORIZONTAL" in (name := unicodedata.name(char)) and "VERTICAL" not in name else "|"
    if 0x2800 <= code < 0x2900:
        return _braille_ascii(code)
    letters = "".join(each for each in unicodedata.normalize("NFKD", char) if " " <= each <= "~")
    cells = cell_len(char)
    return letters[:cells].ljust(cells) if letters else "?" * cells


def _braille_ascii(code: int) -> str:
    """Return the ASCII character for a Braille cell: a bar for a full column, otherwise a sign at the middle height of
    the dots."""
    rows = [row for row, dots in enumerate((0x09, 0x12, 0x24, 0xC0)) if code & dots]
    if not rows:
        return " "
    return "|" if rows[0] == 0 and rows[-1] == 3 else "''---.."[rows[0] + rows[-1]]


# The signs of states must stay distinct. Their meaning is clear from the word next to each.
_SIGNS = {
    "✓": "+", "✗": "x", "●": "*", "○": "o", "◌": ".", "◍": "%", "⊘": "/", "·": "-", "◔": ":", "◑": ";", "◕": "#",
    "▶": ">", "▼": "v", "■": "#", "□": "_", "›": ">", "←": "<", "→": ">", "↑": "^", "↓": "v", "↵": "/", "⇥": ">",
    "…": "~", "⋯": "~", "–": "-", "—": "-", "×": "x", "±": "~", "°": "o", "†": "+", "•": "*", "▸": ">", "▾": "v",
    "▁": "_", "▂": ".", "▃": ",", "▄": "-", "▅": "~", "▆": "=", "▇": "*", "█": "#", "▀": '"', "▔": "-",
    "‖": "=", "▲": "^", "◆": "*",
    "▌": "|", "▐": "|", "▏": "|", "▎": "|", "▍": "|", "▋": "|", "▊": "|", "▉": "|", "▕": "|",
    "░": ".", "▒": ":", "▓": "%", "▗": ".", "▖": ".", "▘": "'", "▝": "'",
}  # fmt: skip
_CORNERS = "┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╭╮╯╰"
_ASCII_MAP = _AsciiMap({ord(char): sign for char, sign in _SIGNS.items()} | dict.fromkeys(map(ord, _CORNERS), "+"))
