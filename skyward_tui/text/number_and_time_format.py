"""Numbers, times and prices in the format that users read, and tables of text."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from skyward_core.views.pool_view import NodeView

NO_RUN = "nothing: the file has no run"
BROKEN_OFF = "start broken off"
"""The state "unfinished" of a pool."""
LAST_MINUTES = 600.0  # seconds before an end in which each second counts
PATH_CELLS = 8  # of a path: fewer say nothing


def duration(seconds: float) -> str:
    """``41`` -> ``0:41``; ``3725`` -> ``1:02:05``; days as ``2d 03:00``."""
    whole = max(0, int(seconds))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02d}:{minute:02d}"
    if hours:
        return f"{hours}:{minute:02d}:{second:02d}"
    return f"{minute}:{second:02d}"


def time_left(seconds: float) -> str:
    """How long until something: by the second in the last minutes, before that as :func:`age`."""
    return duration(seconds) if seconds < LAST_MINUTES else age(seconds)


def age(seconds: float) -> str:
    """How old something is that is at rest: ``<1m``, ``41m``, ``2h 05m``, ``3d 04h``."""
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes}m" if minutes > 0 else "<1m"
    hours = minutes // 60
    return f"{hours}h {minutes % 60:02d}m" if hours < 24 else f"{hours // 24}d {hours % 24:02d}h"


def precise_duration(seconds: float) -> str:
    """How long something ran, finer than :func:`duration` below a minute."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def failure(kind: str, type: str, message: str) -> str:
    """What a rank died of. Only one that raised has an exception to name; of others, the message says it all."""
    return f"{type}: {message}".rstrip(": ") if kind == "raised" or not message else message


def clock(at: float) -> str:
    """A Unix time as the wall clock showed it."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def ago(seconds: float) -> str:
    """How long ago something was: ``5h ago``, in one unit, for no clock time or age looks like that."""
    for unit, name in ((365 * 86_400, "y"), (86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{int(seconds // unit)}{name} ago"
    return "now"


def money(amount: float) -> str:
    return f"${amount:,.2f}"


class HasPrice(Protocol):
    """What may cost money: dollars an hour, and whether it does although nobody says how much."""

    @property
    def price_hourly(self) -> float: ...
    @property
    def has_unknown_price(self) -> bool: ...


def hourly(of: HasPrice) -> str:
    """What it costs; what is rented at an unknown price is not shown as free. "" of what costs nothing."""
    if of.has_unknown_price:
        return "$?/h"
    return f"{money(of.price_hourly)}/h" if of.price_hourly else ""


def number(value: float) -> str:
    """Six significant digits at most, integers as they are."""
    if not isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3e}"


def count(many: int, one: str) -> str:
    """``1 node``, ``4 nodes``."""
    return f"{many:,} {one if many == 1 else one + 's'}"


def count_range(least: int, most: int, one: str) -> str:
    """``2 to 8 nodes``; where both are the same, ``4 nodes``."""
    return count(most, one) if least == most else f"{least:,} to {count(most, one)}"


def preemption_text(node: NodeView, now: float) -> str:
    """``taken back in 1:42 (terminate)`` where its machine is about to go; that it may be, where that is all."""
    if node.notice == "rebalance":
        return "may soon be taken back"
    if not node.is_preempted:
        return ""
    left = 0.0 if node.notice_ends_at is None else node.notice_ends_at - now
    return f"taken back {f'in {duration(left)}' if left >= 1 else 'now'} ({node.notice})"


def next_preempted(nodes: Iterable[NodeView]) -> NodeView | None:
    """Of nodes whose machines are to be taken back, or may be, the one that goes first."""
    noticed = (node for node in nodes if node.is_preempted or node.notice == "rebalance")
    return min(noticed, key=lambda node: (not node.is_preempted, node.notice_ends_at or 0.0), default=None)


def clip(text: str, width: int) -> str:
    """Cut to a number of cells, with an ellipsis where something went."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…" if width > 0 else ""


def fit_width(text: str, cells: int) -> str:
    """In exactly so many cells, cut or padded; on their right where the number is below 0.

    A format string's width counts letters, and would set what stands behind a name in Chinese out of its column.
    """
    shown = clip(text, abs(cells))
    room = " " * (abs(cells) - cell_len(shown))
    return f"{room}{shown}" if cells < 0 else f"{shown}{room}"


def clip_parts(text: str, width: int) -> str:
    """Cut to a number of cells between parts, which stand two blanks apart: no part says something else."""
    shown = ""
    for part in text.split("  "):
        longer = f"{shown}  {part}" if shown else part
        if cell_len(longer) > width:
            break
        shown = longer
    return shown or clip(text, width)


def clip_start(text: str, width: int) -> str:
    """Cut to a number of cells from its end, where a path says most."""
    if cell_len(text) <= width:
        return text
    kept = text
    while kept and cell_len(kept) > width - 1:
        kept = kept[1:]
    return f"…{kept}" if width > 0 else ""


def clip_path(text: str, width: int) -> str:
    """Cut to a number of cells: of a path as its last word, the beginning goes first."""
    said, _, path = text.rpartition(" ")
    room = width - cell_len(said) - 1
    if "/" in path and said and room >= PATH_CELLS:
        return f"{said} {clip_start(path, room)}"
    return clip_start(text, width) if "/" in path and not said else clip(text, width)


def one_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


class Columns:
    """Alignment of lines that are printed one by one: a column is as wide as its widest cell so far.

    Args:
        widths: what is known of it ahead.
    """

    def __init__(self, *widths: int) -> None:
        self._widths = list(widths)

    def line(self, cells: Sequence[str]) -> str:
        """Return the next line; its last cell may be as long as it likes."""
        known = [*self._widths, *[0] * len(cells)]
        self._widths = [max(width, cell_len(cell)) for width, cell in zip(known, cells, strict=False)]
        return "  ".join(fit_width(cell, width) for cell, width in zip(cells, self._widths, strict=True)).rstrip()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; the last column may be as long as it likes."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(fit_width(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def plain_ascii(text: str) -> str:
    """A text in ASCII, in as many cells; a letter loses its accent, what has no likeness is a question mark."""
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
    """By the rows in which a cell of a chart has dots: upright where a line goes all the way through it, else at the
    height of its middle."""
    rows = [row for row, dots in enumerate((0x09, 0x12, 0x24, 0xC0)) if code & dots]
    if not rows:
        return " "
    return "|" if rows[0] == 0 and rows[-1] == 3 else "''---.."[rows[0] + rows[-1]]


# Signs of states stay apart from one another; the word beside each says the same.
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
