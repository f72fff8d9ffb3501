"""Rank logs, painted straight from a ring of lines.

Textual's own log widgets style every line that arrives; this one only paints what is on the screen, when the
screen's pump asks, so that a flood costs no more than a trickle. It overrides ``render_lines``: borders and
padding belong to its parent.
"""

from __future__ import annotations

import asyncio
import math
import re
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.geometry import Region
from textual.message import Message
from textual.reactive import var
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from skyward_core.front.history import StoredLines, tail_of
from skyward_core.model.errors import SkywardError
from skyward_core.views.collapsed import CollapsedRing
from skyward_core.views.logs import Line, LogRing, Ring

from ..actions import bindings
from ..hints import words_of
from ..sgr import CELL_LIMIT, Parsed, parse
from ..styles import beside
from ..words import count
from .file_search import search_earlier
from .log_window import LogWindow, Matcher

_PREFIX = re.compile(r"r\d{3,}\| ")
_LABEL = re.compile(r"(?:(x\d+ *)|[xr]\d[^|]*)\| ")  # who said a collapsed line; all of them, first
_PREFIX_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green")
_SIDEWAYS = 16  # cells per step
_AGAIN = 2.0  # seconds between two looks into the files for what is missing
_NO_TIME = " " * len("12:00:01.23 ")

Files = Callable[[], StoredLines]  # reads what the files hold now; may take long, and raise


class LogPane(Widget, can_focus=True):
    """A window onto a :class:`~skyward_core.views.logs.LogRing`, and onto the files of what the ring has let go of.

    The reader's place is an absolute line number and a row within it (``top``), or None while following the
    newest line. The files are opened when somebody goes, or looks for something, beyond the ring.
    """

    BINDINGS = bindings("log")
    ALLOW_SELECT = True
    DEFAULT_CSS = beside(__file__)

    wrap: var[bool] = var(False)
    times: var[bool] = var(False)
    empty_text: var[str] = var("")

    class Moved(Message):
        """What the title should say has changed."""

        ALLOW_SELECTOR_MATCH: ClassVar[set[str]] = set()

        def __init__(self, pane: LogPane) -> None:
            super().__init__()
            self.pane = pane

    @dataclass
    class GivenUp(Message):
        """A filter or a search would take for ever on a line, and is none any more.

        Attributes:
            text: it.
        """

        ALLOW_SELECTOR_MATCH: ClassVar[set[str]] = set()

        text: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.window = LogWindow(LogRing(1))
        self.top: tuple[int, int] | None = None
        self.current_hit: int | None = None
        self.merged = False
        self.gap_hint = ""  # what to do about lines that are not here
        self.trouble = ""  # why the files could not be read
        self._files: Files | None = None
        self._filter: Matcher | None = None
        self._only: tuple[int, ...] | None = None
        self._opening = False
        self._goal: int | None = None  # the number of a line that is to be in view once the files are read
        self._looked_at = -math.inf  # when a gap made us look into the files
        self._left = 0
        self._painted_version = -1
        self._cache: dict[int, tuple[str, list[Strip]]] = {}
        self._rows: list[Strip] = []
        self._shown: list[tuple[int, int]] = []  # line number and row within it, for every painted row

    # What it shows

    def show(
        self, ring: Ring, *, merged: bool = False, files: Files | None = None, goal: int | None = None
    ) -> None:
        """Look at another ring, and at a line of the files by its number; the filter and the search stay."""
        if ring is self.window.ring:
            return
        old = self.window
        self.window, self._files, self.trouble, self._looked_at = LogWindow(ring), files, "", -math.inf
        self.window.set_filter(old.filter.matcher if old.filter else None)
        self.window.set_search(old.search.matcher if old.search else None)
        self.top, self.merged, self.current_hit, self._goal = None, merged, None, goal
        if not ring.end or old.filter or old.search:
            self._look_into_files()
        self._repaint()

    @property
    def is_reading(self) -> bool:
        """Whether files are being read, or searched."""
        return self._opening

    @property
    def _lags(self) -> bool:
        """Whether there may be lines before the ring's that the files have and we do not."""
        stored = self.window.stored
        return self._files is not None and (stored is None or stored.count < self.window.oldest)

    def _look_into_files(self, then: Callable[[], None] | None = None) -> None:
        """Have what the files hold besides the ring, search it, and do something then."""
        if self._files is not None and not self._opening:
            self._opening = True
            self.run_worker(self._open_files(self.window, self._files, then), group="files")
            self.post_message(self.Moved(self))

    async def _open_files(self, window: LogWindow, files: Files, then: Callable[[], None] | None) -> None:
        try:
            if self._lags:
                end, tail = tail_of(window.ring)
                stored = await asyncio.to_thread(files)
                base = await asyncio.to_thread(stored.base_of, end, tail)
                if window is not self.window:
                    return
                self.trouble = ""
                self._renumber(window.open_files(stored, base))
                goal, self._goal = self._goal, None
                self._go_to_hit(goal)
            if then is not None:
                then()
            self._repaint()
            await self._search_files(window)
        except (SkywardError, OSError) as error:
            self.trouble = words_of(error)
        finally:
            self._opening = False
            self._repaint()
            if self._goal is not None and window is not self.window:
                self._look_into_files()  # another ring came meanwhile

    async def _search_files(self, window: LogWindow) -> None:
        """The newest lines first, and what is found there is shown before the others are looked at."""
        for hits in filter(None, (window.filter, window.search)):
            async for numbers in search_earlier(window, hits):
                if window is not self.window:
                    break
                if hits is window.search and self.current_hit is None:
                    self._go_to_hit(window.find(self._last_number(), backwards=True))
                if numbers:
                    self._repaint()
        self._give_up()

    def _renumber(self, shift: int) -> None:
        if self.top is not None:
            self.top = (self.top[0] + shift, self.top[1])
        if self.current_hit is not None:
            self.current_hit += shift
        self._shown = [(number + shift, row) for number, row in self._shown]

    def pump(self) -> bool:
        """Called a few times a second: paint if new lines show. Returns whether anything is new."""
        version = self.window.ring.version
        if version == self._painted_version:
            return False
        self._painted_version = version
        self.window.update()
        self._give_up()
        if (self.following or self._changes) and self.is_on_screen:
            self.refresh()
        return True

    @property
    def following(self) -> bool:
        return self.top is None

    @property
    def _changes(self) -> bool:
        """Whether lines that are there may still change: the labels of collapsed ones grow."""
        return isinstance(self.window.ring, CollapsedRing)

    @property
    def behind(self) -> int:
        """Lines below the last one on the screen."""
        if self.top is None:
            return 0
        return self.window.newer(self._shown[-1][0] if self._shown else self.top[0])

    @property
    def hit_count(self) -> int:
        return len(self.window.search.numbers) if self.window.search else 0

    def visible_text(self) -> str:
        """The lines on the screen, whole, as plain text."""
        numbers = sorted({number for number, _ in self._shown})
        return "\n".join(
            parse(line.text).plain for number in numbers for line in self.window.raw(number, number + 1)
        )

    @property
    def time_shown(self) -> float | None:
        """When the topmost line on the screen was printed, as far as anybody knows."""
        top = self.top or (self._shown[0] if self._shown else None)
        return None if top is None else self.window.time_of(top[0])

    # Searching and filtering

    def set_filter(self, matcher: Matcher | None) -> None:
        """Show only what matches; the ranks that :meth:`set_only` names stay the only ones."""
        self._filter = matcher
        shown = matcher if self._only is None else Matcher.of_ranks(self._only, matcher)
        self.window.set_filter(shown)
        self._give_up()
        if self.window.filter is not None:
            self._look_into_files()
        self._repaint()

    @property
    def filter_text(self) -> str:
        """What is filtered by, as it was typed; "" for nothing."""
        return "" if self._filter is None else self._filter.text

    def set_only(self, ranks: tuple[int, ...] | None) -> None:
        """Of merged lines show those of some ranks only; None shows all."""
        if ranks != self._only:
            self._only = ranks
            self.set_filter(self._filter)

    def set_search(self, matcher: Matcher | None) -> None:
        """Search for something; goes to the newest hit above the end, where there is one."""
        self.window.set_search(matcher)
        self._give_up()
        self.current_hit = None
        if self.window.search is not None:
            self._go_to_hit(self.window.find(self._last_number(), backwards=True))
            self._look_into_files()
        self._repaint()

    def _give_up(self) -> None:
        """Say of what was given up that it was."""
        if self.window.endless:
            self.post_message(self.GivenUp(self.window.endless))
            self.window.endless = ""
            if self.window.filter is None and self._filter is not None:
                self._filter = None
                self.set_filter(None)

    def action_next_hit(self) -> None:
        start = self._shown[0][0] if self.current_hit is None and self._shown else (self.current_hit or 0) + 1
        self._go_to_hit(self.window.find(start))

    def action_previous_hit(self) -> None:
        start = self._last_number() if self.current_hit is None else self.current_hit - 1
        self._go_to_hit(self.window.find(start, backwards=True))

    def _last_number(self) -> int:
        return self._shown[-1][0] if self._shown else self.window.end

    def _go_to_hit(self, number: int | None) -> None:
        if number is None:
            return
        self.current_hit = number
        if not self._is_shown(number):
            self._stop_above(number, self.size.height // 2)
        elif self.following:
            self.action_pause()
        self._repaint()

    # Moving

    def bring_up(self, number: int) -> None:
        """Have a line in view, with what came after it; where it follows and that is on the screen, nothing moves."""
        if not self.following or self.window.end - number > self.size.height:
            self._stop_above(number, 1)

    def _is_shown(self, number: int) -> bool:
        return any(shown == number for shown, _ in self._shown)

    def _stop_above(self, number: int, rows: int) -> None:
        above = self.window.before(number, rows)
        self._stop_at((above[0].number if above else number, 0))

    def action_follow(self) -> None:
        self.top = None
        self.window.release()
        self._repaint()

    def action_pause(self) -> None:
        if self.top is None:
            self._stop_at(self._shown[0] if self._shown else (self.window.end, 0))

    def action_toggle_pause(self) -> None:
        if self.following:
            self.action_pause()
        else:
            self.action_follow()

    def action_move(self, rows: int) -> None:
        if rows < 0:
            self._up(-rows)
        elif self.top is not None:
            self._down(self.top, rows)

    def action_page(self, pages: float) -> None:
        self.action_move(int(pages * max(1, self.size.height - 1)))

    def action_start(self) -> None:
        self._to_start()
        if self._lags:
            self._look_into_files(self._to_start)

    def go_to_time(self, at: float) -> None:
        """Have the first line at the top that was printed at a time or later (Unix time); files are read for that
        where the ring has let go of it. Where nothing was printed since, the last line is at the top."""
        self._to_time(at)
        oldest = self.window.time_of(self.window.first)
        if self._lags and (oldest is None or at < oldest):
            self._look_into_files(partial(self._to_time, at))

    def _to_time(self, at: float) -> None:
        number = self.window.since(at)
        if not self.window.after(number, 1):
            last = self.window.before(self.window.end, 1)
            number = last[0].number if last else number
        self._stop_at((number, 0))

    def _to_start(self) -> None:
        first = self.window.after(self.window.first, 1)
        self._stop_at((first[0].number if first else self.window.first, 0))

    def action_sideways(self, steps: int) -> None:
        if not self.wrap:
            self._left = min(max(0, self._left + steps * _SIDEWAYS), CELL_LIMIT)
            self._repaint()

    def _up(self, rows: int, *, look: bool = True) -> None:
        if self.top is None and not self._is_full:
            return
        number, row = self.top or self._shown[0]
        while rows > row:
            above = self.window.before(number, 1)
            if not above:
                if look and self._lags:
                    self._look_into_files(partial(self._up, rows - row, look=False))
                row = rows = 0
                break
            rows -= row + 1
            number = above[0].number
            row = len(self._strips(above[0])) - 1
        self._stop_at((number, row - rows))

    def _down(self, top: tuple[int, int], rows: int) -> None:
        """Move down; reaching the end means to follow again."""
        row = top[1] + rows
        for line in self.window.after(top[0], rows + 1):
            height = len(self._strips(line))
            if row < height:
                if self._reaches_end(line.number, row):
                    break
                self.top = (line.number, row)
                self._repaint()
                return
            row -= height
        self.action_follow()

    def _reaches_end(self, number: int, row: int) -> bool:
        if self.window.newer(number) >= self.size.height:
            return False
        lines = self.window.after(number, self.size.height + 1)
        return sum(len(self._strips(line)) for line in lines) - row <= self.size.height

    @property
    def _is_full(self) -> bool:
        return len(self._shown) >= self.size.height > 0

    def _stop_at(self, top: tuple[int, int]) -> None:
        if self.top is None:
            self.window.hold()
        self.top = top
        self._repaint()

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-3)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(3)

    # Painting

    def watch_wrap(self) -> None:
        self._left = 0
        if self.top is not None:
            self.top = (self.top[0], 0)
        self._repaint()

    def watch_times(self) -> None:
        self._repaint()

    def watch_empty_text(self) -> None:
        self.refresh()

    def _on_resize(self, event: events.Resize) -> None:
        self._cache.clear()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._cache.clear()

    def selection_updated(self, selection: Selection | None) -> None:
        if selection is not None:
            self.action_pause()
        self._repaint()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(strip.text.rstrip() for strip in self._rows)), "\n"

    def _repaint(self) -> None:
        self._cache.clear()
        self.refresh()
        self.post_message(self.Moved(self))

    def render_lines(self, crop: Region) -> list[Strip]:
        if not self.is_attached:  # taken away, and painted once more
            return [Strip.blank(crop.width)] * crop.height
        width, height = self.size
        base = self.rich_style
        self._rows = self._paint(width, height, base)
        background = self.background_colors[1]
        filters = self.get_line_filters()
        selection = self.text_selection
        painted = []
        for y in range(crop.y, crop.bottom):
            strip = self._rows[y] if y < len(self._rows) else Strip.blank(width, base)
            if selection is not None and (span := selection.get_span(y)) is not None:
                strip = self._selected(strip, span)
            strip = strip.apply_offsets(0, y).extend_cell_length(width, base).crop(crop.x, crop.right)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            painted.append(strip)
        return painted

    def _paint(self, width: int, height: int, base: Style) -> list[Strip]:
        if not width or not height:
            return []
        if len(self._cache) > 8 * height + 256:
            self._cache.clear()
        rows: list[tuple[tuple[int, int], Strip]] = []
        if self.top is None:
            pending = [] if self.window.filter else self.window.ring.pending()
            lines = self.window.before(self.window.end, height)
            tail = [
                ((self.window.end, i), self._cut(parse(text), base, False)[0])
                for i, text in enumerate(pending)
            ]
            rows = [*self._rows_of(lines, base), *tail][-height:]
        else:
            first, skip = self.top
            rows = self._rows_of(self.window.after(first, height + 1), base)[skip : skip + height]
        self._shown = [place for place, _ in rows]
        if not rows and self.empty_text:
            said = textwrap.wrap(self.empty_text, max(20, width - 1))[:height]
            return [Strip([Segment(f" {line}", base + Style(dim=True))]) for line in said]
        return [strip for _, strip in rows]

    def _rows_of(self, lines: list[Line], base: Style) -> list[tuple[tuple[int, int], Strip]]:
        """Lines as rows. Where lines are missing between them, or before the oldest, a row says how many."""
        rows: list[tuple[tuple[int, int], Strip]] = []
        expected = 0 if lines and lines[0].number == self.window.first else None
        for line in lines:
            if self.window.filter is None and expected is not None and line.number > expected:
                rows.append(((line.number, 0), self._gap(line.number - expected, base)))
            rows += [((line.number, i), strip) for i, strip in enumerate(self._strips(line, base))]
            expected = line.number + 1
        return rows

    def _gap(self, missing: int, base: Style) -> Strip:
        if not self._opening and time.monotonic() - self._looked_at > _AGAIN:
            self._looked_at = time.monotonic()
            self.call_later(self._look_into_files)
        why = "being read …" if self._opening else self.trouble or self.gap_hint or "not held here"
        text = f"⋯ {count(missing, 'line')} before this: {why}"
        return Strip([Segment(text, base + Style(dim=True, italic=True))], cell_len(text)).crop(
            0, max(1, self.size.width)
        )

    def _strips(self, line: Line, base: Style | None = None) -> list[Strip]:
        """The rows of one line, from the cache where its text is still the same."""
        cached = self._cache.get(line.number)
        if cached is not None and cached[0] is line.text:
            return cached[1]
        base = base or self.rich_style
        if line.about.stream == "err":
            base += self._error_style
        head = self._time_of(line) if self.times else None
        strips = self._cut(parse(line.text), base, line.number == self.current_hit, head)
        self._cache[line.number] = (line.text, strips)
        return strips

    @property
    def _error_style(self) -> Style:
        """What a rank wrote to its standard error: another colour, and slanted where there are none."""
        return Style(color=Color.parse(self.app.theme_variables["warning"]).rich_color, italic=True)

    def _time_of(self, line: Line) -> Segment:
        at = line.about.at
        shown = (
            _NO_TIME
            if at is None
            else f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at * 100) % 100:02d} "
        )
        return Segment(shown, self.rich_style + Style(dim=True))

    def _cut(self, parsed: Parsed, base: Style, is_current: bool, head: Segment | None = None) -> list[Strip]:
        """Style one line and cut it into rows of the pane's width; ``head`` comes before it."""
        segments = self._segments(parsed, base, is_current)
        if head is not None:
            segments.insert(0, head)
        strip = Strip(segments, cell_len(parsed.plain) + (head.cell_length if head else 0))
        width = max(1, self.size.width)
        if not self.wrap:
            return [strip.crop(self._left, self._left + width)]
        if strip.cell_length <= width:
            return [strip]
        return list(strip.divide([*range(width, strip.cell_length, width), strip.cell_length]))

    def _segments(self, parsed: Parsed, base: Style, is_current: bool) -> list[Segment]:
        text, layers = parsed.plain, list(parsed.spans)
        if self._changes and (label := _LABEL.match(text)):
            layers.append((0, label.end(), Style(color="cyan" if label[1] else "yellow")))
        elif self.merged and (prefix := _PREFIX.match(text)):
            color = _PREFIX_COLORS[int(prefix[0][1:-2]) % len(_PREFIX_COLORS)]
            layers.append((0, prefix.end(), Style(color=color)))
        if self.window.search is not None and (spans := self.window.search.matcher.spans(text)):
            mark = self._hit_style(is_current)
            layers += [(a, b, mark) for a, b in spans]
        if not layers:
            return [Segment(text, base)] if text else []
        edges = sorted({0, len(text), *(a for a, _, _ in layers), *(b for _, b, _ in layers)})
        segments = []
        for start, stop in pairwise(edges):
            style = base
            for low, high, layer in layers:
                if low <= start and stop <= high:
                    style += layer
            segments.append(Segment(text[start:stop], style))
        return segments

    def _hit_style(self, is_current: bool) -> Style:
        variables = self.app.theme_variables
        back = Color.parse(variables["warning" if is_current else "warning-darken-3"])
        return Style(
            bgcolor=back.rich_color, color=back.get_contrast_text(1).rich_color, underline=is_current
        )

    def _selected(self, strip: Strip, span: tuple[int, int]) -> Strip:
        start, stop = span
        length = strip.cell_length
        stop = length if stop == -1 else min(stop, length)
        if start >= stop:
            return strip
        style = self.selection_style
        parts = [*strip.divide([start, stop, length])] if stop < length else [*strip.divide([start, length])]
        parts[1] = Strip([Segment(text, (old or Style()) + style) for text, old, _ in parts[1]], stop - start)
        return Strip.join(parts)
