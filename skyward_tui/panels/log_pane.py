"""Scrollable pane of log lines: scrolling, wrapping, and painting of matches.

Textual's log widgets style every line that arrives. This pane styles only visible lines, at the screen's update
interval, so that fast output costs no more than slow output. The pane overrides ``render_lines``, so its parent widget
must draw borders and padding.
"""

from __future__ import annotations

import asyncio
import math
import re
import textwrap
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.color import Color
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive, var
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget
from textual.worker import Worker

from skyward_core.client.run_history import StoredLines, ring_tail
from skyward_core.model.errors import SkywardError
from skyward_core.views.log_buffers_and_rank_activity import Line, LogRing, Ring
from skyward_core.views.log_collapsing import CollapsedRing
from skyward_tui.panels.log_viewport_and_matching import LogViewport, Matcher, search_earlier
from skyward_tui.text.ansi_colours import CELL_LIMIT, ParsedLine, parse
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.number_time_and_run_state_format import count
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.themes import read_style_sheet

_PREFIX = re.compile(r"r\d{3,}\| ")
# Label at the start of a collapsed line: the ranks, or ``xN`` (group 1) if all N ranks printed the line.
_LABEL = re.compile(r"(?:(x\d+ *)|[xr]\d[^|]*)\| ")
_PREFIX_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green")
_SIDEWAYS = 16  # cells by which one key press scrolls sideways
_RELOAD_SECONDS = 2.0  # seconds between two attempts to read missing log lines from the files
_NO_TIME = " " * len("12:00:01.23 ")

# Function that opens the files with earlier log lines. May block, and may raise an exception.
Files = Callable[[], StoredLines]


class LogPane(Widget, can_focus=True):
    """View of a :class:`~skyward_core.views.log_buffers_and_rank_activity.LogRing`, and of the files with older lines.

    The scroll position (``top``) is a line number and a row within the line, or None while following the newest line.
    The files are opened only if the user scrolls or searches beyond the lines in the ring.
    """

    BINDINGS = bindings("log")
    DEFAULT_CSS = read_style_sheet(__file__)

    wrap: var[bool] = var(False)
    times: var[bool] = var(False)
    empty_text: reactive[str] = reactive("")

    @dataclass
    class StatusChanged(Message):
        """Message that the status of the pane has changed, so that the panel must update its title."""

        pane: LogPane

    @dataclass
    class SearchAborted(Message):
        """Message that a filter or search was dropped because it was too slow.

        Attributes:
            text: The filter or search.
        """

        text: str

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.window = LogViewport(LogRing(1))
        self.top: tuple[int, int] | None = None
        self.current_hit: int | None = None
        self.merged = False
        self.gap_hint = ""  # advice to the user that is painted in place of missing lines
        self.trouble = ""  # text of the error that occurred while the files were read; "" without an error
        self._files: Files | None = None
        self._filter: Matcher | None = None
        self._only: tuple[int, ...] | None = None
        self._opening = False  # whether the files are being read; a search of the lines that were read may follow
        self._reader: Worker[None] | None = None  # worker that reads the files, and then searches their lines
        self._goal: int | None = None  # number of the line to scroll to once the files are read
        self._gap_checked_at = -math.inf  # monotonic time at which missing lines were last read from the files
        self._left = 0
        self._painted_version = -1
        self._cache: dict[int, tuple[str, list[Strip]]] = {}
        self._rows: list[Strip] = []
        # for each painted row of the pane: the number of its log line, and the row's index within the wrapped line
        self._painted_rows: list[tuple[int, int]] = []

    def show(self, ring: Ring, *, merged: bool = False, files: Files | None = None, goal: int | None = None) -> None:
        """Show the lines of another ring buffer, with the current filter and search.

        Args:
            merged: Whether lines begin with their rank.
            files: Opens the files with earlier lines.
            goal: Number of a line in the files to scroll to.
        """
        if ring is self.window.ring:
            return
        old = self.window
        self.window, self._files, self.trouble, self._gap_checked_at = LogViewport(ring), files, "", -math.inf
        self.window.set_filter(old.filter.matcher if old.filter else None)
        self.window.set_search(old.search.matcher if old.search else None)
        self.top, self.merged, self.current_hit, self._goal = None, merged, None, goal
        if self._needs_files:
            self._load_files()
        self._repaint()

    @property
    def is_reading(self) -> bool:
        """Whether files are being read or searched."""
        return self._reader is not None and not self._reader.is_finished

    @property
    def _is_missing_lines(self) -> bool:
        """Whether the files may contain lines that are not loaded."""
        stored = self.window.stored
        return self._files is not None and (stored is None or stored.count < self.window.oldest)

    @property
    def _needs_files(self) -> bool:
        window = self.window
        return bool(window.filter or window.search or self._goal is not None or not window.ring.end)

    def _load_files(self, then: Callable[[], None] | None = None) -> None:
        """Read the files with earlier lines, call ``then``, and apply filter and search to these lines.

        Stops searches for earlier filters and searches.
        """
        if self._files is not None and not self._opening:
            self._opening = True
            loading = self._open_and_search(self.window, self._files, then)
            self._reader = self.run_worker(loading, group="files", exclusive=True)
            self.post_message(self.StatusChanged(self))

    async def _open_and_search(self, window: LogViewport, files: Files, then: Callable[[], None] | None) -> None:
        try:
            await self._open_files(window, files, then)
            self._repaint()
            await self._search_files(window)
        except (SkywardError, OSError) as error:
            self.trouble = format_error(error)
        self._repaint()

    async def _open_files(self, window: LogViewport, files: Files, then: Callable[[], None] | None) -> None:
        try:
            if self._is_missing_lines:
                end, tail = ring_tail(window.ring)
                stored = await asyncio.to_thread(files)
                base = await asyncio.to_thread(stored.find_ring_offset, end, tail)
                if window is not self.window:
                    return
                self.trouble = ""
                self._shift_lines(window.open_files(stored, base))
                goal, self._goal = self._goal, None
                self._go_to_hit(goal)
            if then is not None:
                then()
        finally:
            self._opening = False
            if window is not self.window and self._needs_files:
                # during the read, the pane has switched to another log, whose files must be read as well
                self.call_later(self._load_files)

    async def _search_files(self, window: LogViewport) -> None:
        """Apply filter and search to the lines in the files, slice by slice, and show the matches after each slice."""
        for hits in filter(None, (window.filter, window.search)):
            async for numbers in search_earlier(window, hits):
                if window is not self.window:
                    break
                if hits is window.search and self.current_hit is None:
                    self._go_to_hit(window.find_match(self._last_number(), backwards=True))
                self._repaint() if numbers else self.post_message(self.StatusChanged(self))
        self._report_aborted()

    def _shift_lines(self, shift: int) -> None:
        if self.top is not None:
            self.top = (self.top[0] + shift, self.top[1])
        if self.current_hit is not None:
            self.current_hit += shift
        self._painted_rows = [(number + shift, row) for number, row in self._painted_rows]

    def repaint_if_changed(self) -> bool:
        """Repaint if the visible lines have changed. Return whether there are new lines."""
        version = self.window.ring.version
        if version == self._painted_version:
            return False
        self._painted_version = version
        self.window.update()
        self._report_aborted()
        if (self.is_following or self._has_changing_lines) and self.is_on_screen:
            self.refresh()
        return True

    @property
    def is_following(self) -> bool:
        return self.top is None

    @property
    def _has_changing_lines(self) -> bool:
        """Whether lines may still change, such as the labels of collapsed lines."""
        return isinstance(self.window.ring, CollapsedRing)

    @property
    def lines_behind(self) -> int:
        """Number of lines below the last visible line."""
        if self.top is None:
            return 0
        return self.window.count_newer(self._painted_rows[-1][0] if self._painted_rows else self.top[0])

    @property
    def hit_count(self) -> int:
        return len(self.window.search.numbers) if self.window.search else 0

    @property
    def hit_place(self) -> str:
        """Place of the current hit among all hits, such as ``3/11``; without a current hit, the number of hits."""
        if self.window.search is None or self.current_hit is None:
            return count(self.hit_count, "hit")
        return f"{bisect_right(self.window.search.numbers, self.current_hit):,}/{self.hit_count:,}"

    def visible_text(self) -> str:
        """Return the visible lines, unwrapped, as plain text."""
        numbers = sorted({number for number, _ in self._painted_rows})
        return "\n".join(
            parse(line.text).plain for number in numbers for line in self.window.unfiltered(number, number + 1)
        )

    @property
    def top_line_time(self) -> float | None:
        """Unix time of the topmost visible line; None if unknown."""
        top = self.top or (self._painted_rows[0] if self._painted_rows else None)
        return None if top is None else self.window.time_of(top[0])

    # Search and filter

    def set_filter(self, matcher: Matcher | None) -> None:
        """Show only lines that match, among the lines of the ranks given to :meth:`set_ranks`."""
        self._filter = matcher
        self.window.set_filter(matcher if self._only is None else Matcher.for_ranks(self._only, matcher))
        self._report_aborted()
        self._update_search()
        self._repaint()

    @property
    def filter_text(self) -> str:
        """Filter as the user typed it; "" without a filter."""
        return "" if self._filter is None else self._filter.text

    def set_ranks(self, ranks: tuple[int, ...] | None) -> None:
        """Show only the lines of some ranks in merged logs; None shows all ranks."""
        if ranks != self._only:
            self._only = ranks
            self.set_filter(self._filter)

    def set_search(self, matcher: Matcher | None) -> None:
        """Start a search, and scroll to the newest match."""
        self.window.set_search(matcher)
        self._report_aborted()
        self.current_hit = None
        self._go_to_hit(self.window.find_match(self._last_number(), backwards=True))
        self._update_search()
        self._repaint()

    def _update_search(self) -> None:
        """Apply changes of filter and search to the files. Without a filter and a search, stop searching."""
        if self.window.filter or self.window.search:
            self._load_files()
        elif self._reader is not None and not self._opening:
            self._reader.cancel()

    def _report_aborted(self) -> None:
        """Post :class:`SearchAborted` if a filter or search was dropped because it was too slow."""
        if self.window.timed_out_text:
            self.post_message(self.SearchAborted(self.window.timed_out_text))
            self.window.timed_out_text = ""
            if self.window.filter is None and self._filter is not None:
                self._filter = None
                self.set_filter(None)

    def step_hit(self, step: int) -> None:
        """Go to the next match. If the step is negative, go to the previous match."""
        if self.window.search and self.window.search.begin and not self.is_reading:
            self._load_files()
        if self.current_hit is not None:
            start = self.current_hit + (1 if step > 0 else -1)
        elif step > 0:
            start = self._painted_rows[0][0] if self._painted_rows else 1
        else:
            start = self._last_number()
        self._go_to_hit(self.window.find_match(start, backwards=step < 0))

    def _last_number(self) -> int:
        return self._painted_rows[-1][0] if self._painted_rows else self.window.end

    def _go_to_hit(self, number: int | None) -> None:
        if number is None:
            return
        self.current_hit = number
        if all(shown != number for shown, _ in self._painted_rows):
            self._stop_above(number, self.size.height // 2)
        elif self.is_following:
            self.action_pause()
        self._repaint()

    # Scrolling

    def scroll_to_line(self, number: int) -> None:
        """Scroll so that a line is the first visible one. If the pane follows the log and the line is visible, do
        nothing."""
        if not self.is_following or self.window.end - number > self.size.height:
            self._stop_above(number, 1)

    def _stop_above(self, number: int, rows: int) -> None:
        above = self.window.lines_before(number, rows)
        self._stop_at((above[0].number if above else number, 0))

    def action_follow(self) -> None:
        self.top = None
        self.window.unfreeze()
        self._repaint()

    def action_pause(self) -> None:
        if self.top is None:
            self._stop_at(self._painted_rows[0] if self._painted_rows else (self.window.end, 0))

    def action_toggle_pause(self) -> None:
        if self.is_following:
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
        if self._is_missing_lines:
            self._load_files(self._to_start)

    def go_to_time(self, at: float) -> None:
        """Scroll to the first line printed at or after a Unix time; if there is none, to the last line."""
        self._to_time(at)
        oldest = self.window.time_of(self.window.first)
        if self._is_missing_lines and (oldest is None or at < oldest):
            self._load_files(partial(self._to_time, at))

    def _to_time(self, at: float) -> None:
        number = self.window.first_since(at)
        if not self.window.lines_after(number, 1):
            last = self.window.lines_before(self.window.end, 1)
            number = last[0].number if last else number
        self._stop_at((number, 0))

    def _to_start(self) -> None:
        first = self.window.lines_after(self.window.first, 1)
        self._stop_at((first[0].number if first else self.window.first, 0))

    def action_sideways(self, steps: int) -> None:
        if not self.wrap:
            self._left = min(max(0, self._left + steps * _SIDEWAYS), CELL_LIMIT)
            self._repaint()

    def _up(self, rows: int, *, load: bool = True) -> None:
        if self.top is None and not len(self._painted_rows) >= self.size.height > 0:
            return
        number, row = self.top or self._painted_rows[0]
        while rows > row:
            above = self.window.lines_before(number, 1)
            if not above:
                if load and self._is_missing_lines:
                    self._load_files(partial(self._up, rows - row, load=False))
                row = rows = 0
                break
            rows -= row + 1
            number = above[0].number
            row = len(self._strips(above[0])) - 1
        self._stop_at((number, row - rows))

    def _down(self, top: tuple[int, int], rows: int) -> None:
        """Scroll down. At the end of the log, follow the log again."""
        row = top[1] + rows
        for line in self.window.lines_after(top[0], rows + 1):
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
        if self.window.count_newer(number) >= self.size.height:
            return False
        lines = self.window.lines_after(number, self.size.height + 1)
        return sum(len(self._strips(line)) for line in lines) - row <= self.size.height

    def _stop_at(self, top: tuple[int, int]) -> None:
        if self.top is None:
            self.window.freeze()
        self.top = top
        self._repaint()

    def _on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-3)

    def _on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(3)

    # Painting of lines

    def watch_wrap(self) -> None:
        self._left = 0
        if self.top is not None:
            self.top = (self.top[0], 0)
        self._repaint()

    def watch_times(self) -> None:
        self._repaint()

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
        self.post_message(self.StatusChanged(self))

    def render_lines(self, crop: Region) -> list[Strip]:
        if not self.is_attached:  # Textual may paint a widget once more after the removal of the widget
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
            lines = self.window.lines_before(self.window.end, height)
            tail = [((self.window.end, i), self._cut(parse(text), base, False)[0]) for i, text in enumerate(pending)]
            rows = [*self._rows_of(lines, base), *tail][-height:]
        else:
            first, skip = self.top
            rows = self._rows_of(self.window.lines_after(first, height + 1), base)[skip : skip + height]
        self._painted_rows = [place for place, _ in rows]
        if not rows and self.empty_text:
            wrapped = textwrap.wrap(self.empty_text, max(20, width - 1))[:height]
            return [Strip([Segment(f" {line}", base + Style(dim=True))]) for line in wrapped]
        return [strip for _, strip in rows]

    def _rows_of(self, lines: list[Line], base: Style) -> list[tuple[tuple[int, int], Strip]]:
        """Return the rows of the given lines, each with its line number and its row in the line. Mark missing lines."""
        rows: list[tuple[tuple[int, int], Strip]] = []
        expected = 0 if lines and lines[0].number == self.window.first else None
        for line in lines:
            if self.window.filter is None and expected is not None and line.number > expected:
                rows.append(((line.number, 0), self._gap(line.number - expected, base)))
            rows += [((line.number, i), strip) for i, strip in enumerate(self._strips(line, base))]
            expected = line.number + 1
        return rows

    def _gap(self, missing: int, base: Style) -> Strip:
        if not self.is_reading and time.monotonic() - self._gap_checked_at > _RELOAD_SECONDS:
            self._gap_checked_at = time.monotonic()
            self.call_later(self._load_files)
        reason = "being read …" if self.is_reading else self.trouble or self.gap_hint or "not available"
        text = f"⋯ {count(missing, 'line')} omitted: {reason}"
        return Strip([Segment(text, base + Style(dim=True, italic=True))], cell_len(text)).crop(
            0, max(1, self.size.width)
        )

    def _strips(self, line: Line, base: Style | None = None) -> list[Strip]:
        """Return the rows of one line, which may be wrapped. The rows are cached as long as the line's text does not
        change.
        """
        cached = self._cache.get(line.number)
        if cached is not None and cached[0] is line.text:
            return cached[1]
        base = base or self.rich_style
        if line.about.stream == "err":  # standard error is also italic, because some terminals show no colours
            base += Style(color=Color.parse(self.app.theme_variables["warning"]).rich_color, italic=True)
        head = self._time_of(line) if self.times else None
        strips = self._cut(parse(line.text), base, line.number == self.current_hit, head)
        self._cache[line.number] = (line.text, strips)
        return strips

    def _time_of(self, line: Line) -> Segment:
        at = line.about.at
        clock = "" if at is None else f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at * 100) % 100:02d} "
        return Segment(clock or _NO_TIME, self.rich_style + Style(dim=True))

    def _cut(self, parsed: ParsedLine, base: Style, is_current: bool, head: Segment | None = None) -> list[Strip]:
        """Style one line, put ``head`` before it, and split it into rows of the pane's width."""
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

    def _segments(self, parsed: ParsedLine, base: Style, is_current: bool) -> list[Segment]:
        text, layers = parsed.plain, list(parsed.spans)
        if self._has_changing_lines and (label := _LABEL.match(text)):
            layers.append((0, label.end(), Style(color="cyan" if label[1] else "yellow")))
        elif self.merged and (prefix := _PREFIX.match(text)):
            color = _PREFIX_COLORS[int(prefix[0][1:-2]) % len(_PREFIX_COLORS)]
            layers.append((0, prefix.end(), Style(color=color)))
        if self.window.search is not None and (spans := self.window.search.matcher.spans(text)):
            back = Color.parse(self.app.theme_variables["warning" if is_current else "warning-darken-3"])
            mark = Style(bgcolor=back.rich_color, color=back.get_contrast_text(1).rich_color, underline=is_current)
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
