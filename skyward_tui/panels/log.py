"""Panel with the logs of ranks side by side, an input for search and filter, and the last failure."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, time, timedelta
from functools import partial

from textual import events, work
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Input, Static

from skyward_core.client.log_search import LineMatch
from skyward_core.client.run_history import MergedLines, StoredLines
from skyward_core.model.errors import UsageError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome
from skyward_core.model.spec_field_checks import duration
from skyward_core.views.log_buffers_and_rank_activity import Ring
from skyward_core.views.log_collapsing import CollapsedRing
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.stack_groups_and_profiles import format_ranges
from skyward_tui.panels.log_pane import Files, LogPane
from skyward_tui.panels.log_viewport_and_matching import NEAR, Matcher
from skyward_tui.panels.panel import BORDER, PanelExport, RunPanel, RunSelection
from skyward_tui.panels.rank_states_and_heat_map import RankChosen
from skyward_tui.source_lookup_and_editor import open_in_editor
from skyward_tui.text.error_hint_text import format_detail
from skyward_tui.text.number_time_and_run_state_format import count, failure
from skyward_tui.text.rank_states_from_views import link_note, no_output_reason, rank_states
from skyward_tui.text.state_styles import FAILURES, state_style
from skyward_tui.text.text_width_tables_and_ascii import one_line
from skyward_tui.ui.actions import Action, first_key, with_keys
from skyward_tui.ui.run_screen_panel_list_and_layout import PanelSpec
from skyward_tui.ui.suspend_for_programs import open_pager
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.screen_frame_and_replay_line import Chrome, TextLine


def parse_time(text: str, newest: float) -> float | None:
    """Parse a time as a Unix time in seconds; return None if it is invalid.

    Args:
        text: ``12:30``, ``12:30:05``, ``2026-11-24 12:30``, or ``-5m``: an offset before the newest line, in s, m, h or
            d.
        newest: Unix time of the newest line. A time without a date means the latest such time before the newest line,
            in local time.
    """
    text = text.strip()
    last = datetime.fromtimestamp(newest)
    try:
        if text.startswith("-"):
            return newest - duration(text[1:] if text[-1].isalpha() else f"{text[1:]}s")
        if not re.match(r"\d\d?:", text):
            return datetime.fromisoformat(text).timestamp()
        at = datetime.combine(last, time.fromisoformat(f"0{text}" if text[1] == ":" else text))
    except ValueError:  # a part of the time is out of range, for example hour 25
        return None
    return (at - timedelta(days=at.timestamp() > newest)).timestamp()


ROWS, ROWS_SHORT = 10, 5  # number of traceback lines above the panels, on tall and on short screens
# parts of a traceback that are left out, in this order, if the traceback is too long: marks below code, frames of
# installed libraries, and the title
_LESS_USEFUL = (r"(?m)^ +[~^]+\n", r'(?m)^  File ".*/lib/python3.*\n(    .*\n)*', r"Traceback .*\n")


class CauseLines(Static):
    """Box above all panels with the failure of the selected rank: its error, and the last lines of its traceback."""

    DEFAULT_CSS = read_style_sheet(__file__, "cause_lines")

    def __init__(self) -> None:
        super().__init__()
        self._shown: object = ()
        self.text = ""  # the whole traceback of the shown failure; "" while this widget is hidden
        self.display = False

    def show(self, run: RunView | None, rank: int, key: str, *, short: bool) -> None:
        """Show the failure of a rank; hide this widget if the rank has not failed.

        Args:
            rank: The rank.
            key: Displayed name of the key that shows all errors.
            short: Whether to show fewer lines.
        """
        outcome = None if run is None or not any(map(run.counts.get, FAILURES)) else _failed_outcome(run, rank)
        shown = (outcome, key, short, run and run.version)
        if shown == self._shown:
            return
        self._shown = shown
        self.display = outcome is not None
        self.text = ""
        if outcome is None or run is None:
            return
        error, cause = outcome.error or ErrorInfo(state_style(outcome.kind).word, ""), run.root_cause
        self.text = error.traceback
        lines = _shorten_traceback(error.traceback.strip(), ROWS_SHORT if short else ROWS)
        head = f"{state_style(outcome.kind).glyph} {failure(outcome.kind, error.type, one_line(error.message))}"
        stopped = [each.rank for each in run.outcomes() if each.kind == "collateral"]
        more = f"  stopped because of this failure: r{format_ranges(stopped)}" if stopped and not short else ""
        content = [Content.assemble((head, "bold $text-error"), (f"  ({key}: details){more}", "$muted"))]
        self.update(Content("\n").join([*content, *(Content.styled(line, "$text-error") for line in lines)]))
        is_cause = cause is not None and cause.rank == rank
        self.border_title = f"{'root cause: ' if is_cause else ''}rank {rank} on n{outcome.node}"


def _shorten_traceback(text: str, rows: int) -> list[str]:
    """Return the most useful lines of a traceback: the frames of the user's code, and the error."""
    for pattern in _LESS_USEFUL:
        if text.count("\n") >= rows:
            text = re.sub(pattern, "", text)
    return text.splitlines()[-rows:]


def _failed_outcome(run: RunView, rank: int) -> Outcome | None:
    """Return the outcome of the rank's latest call, if the call failed."""
    tasks = [task for task in list(run.tasks.values()) if task.rank == rank and task.outcome is not None]
    outcome = max(tasks, key=lambda task: task.began_at or 0.0).outcome if tasks else None
    return outcome if outcome is not None and outcome.kind in FAILURES else None


MAX_LOGS = 4  # maximum number of logs side by side
# minimum width in cells of each of two logs side by side; in a narrower panel, the logs are below each other
MIN_COLUMN_WIDTH = 32


class LogColumn(Vertical):
    """Column with the log of one rank, below a head line."""

    def __init__(self, rank: int, *, id: str | None = None) -> None:
        super().__init__()
        self.rank = rank
        # state of the run for which ``_explain_empty`` last wrote its text; avoids needless updates
        self.explained: object = None
        self.pane = LogPane(id=id)
        self._head = Chrome(classes="log-head")

    def compose(self) -> ComposeResult:
        yield self._head
        yield self.pane

    def on_mount(self) -> None:
        self.pane.can_focus = True

    def head(self, text: Content) -> None:
        """Set the head line, which is shown only if there are several logs."""
        self._head.show_line(text)


class LogPanes(Container):
    """Up to four logs of ranks. Keys apply to one of them, the current log.

    Attributes:
        columns: The logs from left to right, then downwards.
        current: The log that keys apply to.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "log_panes")

    def __init__(self) -> None:
        self.columns = [LogColumn(0, id="pane")]
        self.current = self.columns[0]
        super().__init__()

    def compose(self) -> ComposeResult:
        yield from self.columns

    @property
    def ranks(self) -> Sequence[int]:
        """Ranks of the logs, in display order."""
        return [column.rank for column in self.columns]

    @property
    def has_several(self) -> bool:
        return len(self.columns) > 1

    def select_rank(self, rank: int) -> None:
        """Make the log of a rank current. If no column shows the rank, switch the current column to it."""
        column_of_rank = next((column for column in self.columns if column.rank == rank), None)
        if column_of_rank is not None and column_of_rank is not self.current:
            had_focus = self.current.pane.has_focus
            self.current = column_of_rank
            if had_focus:
                column_of_rank.pane.focus()
        self.current.rank = rank
        for column in self.columns:
            column.set_class(column is self.current, "-current")

    def add_rank(self, rank: int) -> LogColumn:
        """Add a column with the log of another rank."""
        column = LogColumn(rank)
        column.pane.wrap, column.pane.times = self.current.pane.wrap, self.current.pane.times
        self.columns.append(column)
        self.mount(column)
        self._arrange()
        return column

    def remove_rank(self, rank: int) -> None:
        """Remove the column of a rank, unless it is the only one."""
        removed = next((column for column in self.columns if column.rank == rank), None)
        if removed is None or not self.has_several:
            return
        had_focus = removed.pane.has_focus
        place = self.columns.index(removed)
        self.columns.remove(removed)
        if removed is self.current:
            self.current = self.columns[max(0, place - 1)]
        if had_focus:
            self.current.pane.focus()
        removed.remove()
        self._arrange()

    def set_single(self, alone: bool) -> None:
        """Show only the current log, or all logs."""
        for column in self.columns:
            column.display = column is self.current or not alone
        self._arrange(1 if alone else len(self.columns))

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    def _arrange(self, shown: int | None = None) -> None:
        shown_count = shown or sum(column.display for column in self.columns) or 1
        across = next(
            (n for n in (shown_count, 2) if shown_count % n == 0 and self.size.width // n >= MIN_COLUMN_WIDTH), 1
        )
        for place, column in enumerate(column for column in self.columns if column.display):
            column.set_class(place % across > 0, "-right")
        if self.styles.grid_size_columns != across:
            self.styles.grid_size_columns = across
        self.set_class(shown_count > 1, "-several")


TYPING_SECONDS = 0.1  # seconds after the last typed character until the log shows the matches
_GAP = "{run.previous_rank} and {run.next_rank} show each rank from its first line, {run.save} saves all"
_TALL = 30  # minimum rows of a tall screen; on a lower screen, the box with the failure shows fewer lines
_NEAR_END = 400  # number of lines at the end of a log that are searched for the newest traceback
_MAX_NAMED_RANKS = 6  # maximum number of failed ranks that the panel's title names
_TRACEBACK = "Traceback (most recent call last)"


class LogPanel(RunPanel[LogPane]):
    """Logs with a title, an input below, and keys that apply to the current log."""

    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self, row: PanelSpec, show: Callable[[], None]) -> None:
        self.panes = LogPanes()
        super().__init__(row, show, self.pane)
        self._aligned = False
        self._merged = False
        self._world = 0
        self._run: RunView | None = None
        # log line that a search has found and the panel must scroll to; None after the user has selected another log
        self._sought: LineMatch | None = None
        self.cause = CauseLines()
        self.prompt = TextLine(compact=True, id="prompt", select_on_focus=True)
        self._subject = ""
        self._is_over = False  # whether the run has ended, so that its log gets no more lines
        # kind of the open input ("" for none); text of the search before the input was opened
        self._asking = self._searched = ""
        self._typing: Timer | None = None  # timer that starts the search as soon as the user pauses typing
        self._folded: CollapsedRing | None = None
        # whether the log followed its newest line before the user chose a time in another panel
        self._was_following: bool | None = None

    def compose(self) -> ComposeResult:
        yield self.panes
        yield self.prompt

    def above(self) -> Iterable[Widget]:
        return [self.cause]

    @property
    def preferred_rows(self) -> int | None:
        if self.pane.wrap or (self.panes.has_several and not self._merged):
            return None
        window = self.pane.window
        lines = window.count_newer(-1) + len(window.ring.pending())
        # an empty log explains in up to three rows why it is empty
        return (lines or 3) + self.has_class("-asking") + BORDER

    @property
    def pane(self) -> LogPane:
        """The current log."""
        return self.panes.current.pane

    def update_view(self, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection) -> bool:
        if run is not None and self._run is not None and run.id != self._run.id:
            for column in self.panes.columns[1:]:
                self.panes.remove_rank(column.rank)
        self._merged, self._world, self._run = chosen.merged, pool.world_size, run
        if self._sought is not None and (chosen.merged or chosen.rank != self._sought.rank):
            self._sought = None
        self.panes.select_rank(chosen.rank)
        self.panes.set_single(chosen.merged)
        self.main = self.pane
        if chosen.merged:
            changed = self._show_merged(pool, run, chosen)
        else:
            self._folded = None
            # Update every column: ``any`` with a generator instead of a list would stop after the first changed column.
            changed = any([self._show_rank(column, pool, run) for column in self.panes.columns])
        cause = None if run is None else run.root_cause
        rank = chosen.rank if cause is None or not chosen.merged else cause.rank
        self.cause.show(run, rank, first_key("run.errors", self.app.keys), short=self.app.size.height < _TALL)
        self._subject = self._subject_of(pool, run, chosen)
        self._is_over = run is not None and run.state != "running"
        self.update_titles()
        for column in [self.panes.current] if chosen.merged else self.panes.columns:
            if not column.pane.window.ring.end or column.pane.window.filter is not None:
                self._explain_empty(column, pool, run, now, chosen)
        return changed

    def _show_merged(self, pool: PoolView, run: RunView | None, chosen: RunSelection) -> bool:
        book = pool.logs if run is None else pool.logs.for_run(run.id)
        ring: Ring = book.merged
        if not chosen.collapsed:
            self._folded = None
        else:
            if self._folded is None or self._folded.source is not book.merged:
                self._folded = CollapsedRing(book.merged)
            self._folded.update(pool.world_size)
            ring = self._folded
        self.pane.gap_hint = with_keys(_GAP, self.app.keys) if chosen.collapsed else ""
        self.pane.set_ranks(failed_ranks(run) if chosen.failed else None)
        files = None if run is None or chosen.collapsed else self._merged_lines(run, book.merged)
        self.pane.show(ring, merged=True, files=files)
        return self.pane.repaint_if_changed()

    def _show_rank(self, column: LogColumn, pool: PoolView, run: RunView | None) -> bool:
        book = pool.logs if run is None else pool.logs.for_run(run.id)
        column.pane.gap_hint = ""
        column.pane.set_ranks(None)
        files = None if run is None else self._stored_lines(run, column.rank)
        sought = self._sought if self._sought is not None and self._sought.rank == column.rank else None
        column.pane.show(book.rank(column.rank), files=files, goal=None if sought is None else sought.number)
        return column.pane.repaint_if_changed()

    @property
    def is_untouched(self) -> bool:
        """Whether the log is in its initial state: it follows its newest line, without a search, a filter or other logs
        beside it.
        """
        pane = self.pane
        searched = pane.window.search is not None or pane.window.filter is not None
        alone = not self.panes.has_several
        return alone and pane.is_following and not searched and not self.has_class("-asking")

    def scroll_to_failure(self) -> bool:
        """Scroll to the newest traceback near the end of the log; return whether there is one."""
        ring = self.pane.window.ring
        begin = max(ring.first, ring.end - _NEAR_END)
        lines = ring.lines(begin, ring.end)
        found = [number for number, text in enumerate(lines, begin) if text.startswith(_TRACEBACK)]
        if found:
            self.pane.scroll_to_line(found[-1])
        return bool(found)

    def scroll_to_match(self, found: LineMatch) -> None:
        if found.number is not None:
            self._sought = found
            self.pane.set_filter(None)
            self.pane.set_search(Matcher.parse(".*".join(map(re.escape, found.words))))

    def _subject_of(self, pool: PoolView, run: RunView | None, chosen: RunSelection) -> str:
        if chosen.merged:
            subject = f"{self.heading}  all ranks{', collapsed' if chosen.collapsed else ''}"
            if chosen.failed:
                ranks = [f"r{rank}" for rank in failed_ranks(run)]
                named = " ".join(ranks[:_MAX_NAMED_RANKS]) + (" …" if len(ranks) > _MAX_NAMED_RANKS else "")
                subject = f"{self.heading}  ranks with errors: {named or 'none yet'}"
        else:
            node = pool.nodes[chosen.rank // pool.ranks_per_node] if pool.nodes else None
            subject = f"{self.heading}  rank {chosen.rank}"
            if node is not None and (note := link_note(node)):
                subject += f"  ! {note}"
            if self.panes.has_several:
                subject += f"  · {len(self.panes.columns)} ranks side by side"
                subject += ", aligned by time" if self._aligned else ""
        if not pool.is_live:
            subject += f"  pool {state_style(pool.shown_state).word}"
        return subject

    def _stored_lines(self, run: RunView, rank: int) -> Files:
        """Return a function that reads the saved log lines of a rank in a run from files."""
        session = self.app.required_session
        return lambda: StoredLines.for_rank(session.run_logs(run.id), rank, whole=run.state != "running")

    def _merged_lines(self, run: RunView, ring: Ring) -> Files:
        """Return a function that reads the saved log lines of all ranks from files, except for those in the ring."""
        session = self.app.required_session
        return lambda: MergedLines(ring, partial(session.run_logs, run.id), whole=run.state != "running")

    def _explain_empty(
        self, column: LogColumn, pool: PoolView, run: RunView | None, now: float, chosen: RunSelection
    ) -> None:
        """Show in an empty log why it has no lines."""
        if run is None:
            column.explained = None
            reason = one_line(format_detail(pool))
            empty = "the run is starting" if self.app.is_launching(pool.key) else self.row.empty
            hint = empty if not reason else " ({run.again}: change the launch)" if pool.start_error else ""
            hint = with_keys(hint, self.app.keys, lambda action: self.screen.check_action(action, ()) is True)
            column.pane.empty_text = f"{reason}{hint}"
            return
        state = (pool.version, run.id, run.version, run.state, int(now), chosen, column.rank)
        if state != column.explained:
            column.explained = state
            ranks = range(pool.world_size)
            shown = ranks if chosen.merged else ranks[column.rank : column.rank + 1]
            column.pane.empty_text = no_output_reason(pool, rank_states(pool, run, now, shown), run, now)

    def update_titles(self) -> None:
        pane = self.pane
        wrap = "  wrap" if pane.wrap else ""
        reading = "  reading files …" if pane.is_reading else ""
        title = Content.assemble(self._subject, "  ", _mode_text(pane, is_over=self._is_over), wrap, reading).rstrip()
        self.set_titles(title, Content(_search_text(pane)))
        if self.panes.has_several and not self._merged:
            for column in self.panes.columns:
                search = f"  {_search_text(column.pane)}".rstrip()
                mode = _mode_text(column.pane, is_over=self._is_over)
                column.head(Content.assemble(f" rank {column.rank}  ", mode, search))

    def saved_state(self) -> Mapping[str, str | bool]:
        pane = self.pane
        return {"wrap": pane.wrap, "times": pane.times, "filter": pane.filter_text, "aligned": self._aligned}

    def restore(self, saved: Mapping[str, str | bool]) -> None:
        self.pane.wrap, self.pane.times = saved.get("wrap") is True, saved.get("times") is True
        self._aligned = saved.get("aligned") is True
        if matcher := Matcher.parse(str(saved.get("filter", "")), invertible=True):
            self.pane.set_filter(matcher)
            self.app.flash(f"restored the log filter: {matcher.text}")

    # Columns of logs

    def shows_beside(self, rank: int) -> bool:
        return self.panes.has_several and not self._merged and rank in self.panes.ranks

    def action_beside(self) -> None:
        """Add a column with the log of the next rank."""
        shown = self.panes.ranks
        after = (rank % self._world for rank in range(shown[-1] + 1, shown[-1] + self._world))
        if (rank := next((rank for rank in after if rank not in shown), None)) is None:
            return self.app.flash("no other rank to show")
        return self._add_column(rank)

    @work(group="ask", exclusive=True)
    async def action_pick_beside(self) -> None:
        last = self._world - 1
        question = f"Rank to show beside rank {self.panes.current.rank} (0-{last}; hides a shown rank)"
        if (answer := await self.app.ask(question)) is None:
            return
        if not answer.isdecimal() or int(answer) >= self._world:
            return self.app.flash(f"rank {answer} does not exist. Enter 0 to {last}", "error")
        if (rank := int(answer)) not in self.panes.ranks:
            return self._add_column(rank)
        if not self.panes.has_several:
            return self.app.flash(f"rank {rank} is already shown")
        return self._remove_column(rank)

    def _add_column(self, rank: int) -> None:
        if len(self.panes.columns) == MAX_LOGS:
            return self.app.flash(with_keys(f"at most {MAX_LOGS} logs fit ({{run.back}}: close one)", self.app.keys))
        self.show()
        pane = self.panes.add_rank(rank).pane
        self.post_message(RankChosen(rank, False))
        self.screen.call_after_refresh(pane.focus)

    def _remove_column(self, rank: int) -> None:
        self.panes.remove_rank(rank)
        self.post_message(RankChosen(self.panes.current.rank, False))

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        for column in self.panes.columns if self.panes.has_several and not self._merged else ():
            if event.widget is column.pane and column is not self.panes.current:
                self.post_message(RankChosen(column.rank, False))

    def action_align(self) -> None:
        self._aligned = not self._aligned
        if self._aligned:
            if not self.panes.has_several:
                self.app.flash(with_keys("only one log is shown ({run.beside}: add another)", self.app.keys))
            self._align()

    def _align(self) -> None:
        """Scroll all other logs to the time of the current one."""
        pane = self.pane
        at = pane.top_line_time
        for column in self.panes.columns if self._aligned and not self._merged else ():
            if column.pane is pane:
                continue
            if pane.is_following:
                if not column.pane.is_following:
                    column.pane.action_follow()
            elif at is not None:
                column.pane.go_to_time(at)

    def show_instant(self, at: float | None) -> None:
        pane = self.pane
        if at is not None:
            self._was_following = pane.is_following if self._was_following is None else self._was_following
            pane.go_to_time(at)
        elif self._was_following is not None:
            if self._was_following and not pane.is_following:
                pane.action_follow()
            self._was_following = None

    # Editor and pager

    def action_editor(self) -> None:
        self.run_worker(open_in_editor(self.app, self._run, self._path_candidates()), group="editor", exclusive=True)

    @work(group="editor", exclusive=True)
    async def action_pager(self) -> None:
        rank = None if self._merged else self.panes.current.rank
        lines, _ = await self._export_lines(self.pane, self._run, rank)
        await open_pager(self.app, "all.log" if rank is None else f"r{rank:03d}.log", lines)

    def _path_candidates(self) -> list[str]:
        """Return the lines in which to look for a file name with a line number.

        These are the selected lines. Without a selection, the line of the current search match. Without a match, the
        visible lines and the traceback above the panels.
        """
        pane = self.pane
        if selected := self.screen.get_selected_text():
            return selected.splitlines()
        if pane.current_hit is not None and (hit := pane.window.unfiltered(pane.current_hit, pane.current_hit + 1)):
            return [line.text for line in hit]
        return [*pane.visible_text().splitlines(), *self.cause.text.splitlines()]

    # Scrolling to a time

    @work(group="ask", exclusive=True)
    async def action_time(self) -> None:
        answer = await self.app.ask("Go to a time (12:30, 12:30:05; -5m before the newest line)")
        if answer is None:
            return
        pane = self.pane
        near = reversed(pane.window.lines_before(pane.window.end, NEAR))
        newest = next((line.about.at for line in near if line.about.at), None)
        if newest is None:
            return self.app.flash("these lines have no timestamps")
        at = parse_time(answer, newest)
        if at is None:
            return self.app.flash(f"invalid time {answer}. Enter 12:30, 12:30:05 or -5m", "error")
        self.show()
        pane.go_to_time(at)

    # Search and filter

    @property
    def context(self) -> str:
        return "run.prompt" if self.screen.focused is self.prompt else super().context

    def action_find(self) -> None:
        self._show_prompt("find")

    def action_filter(self) -> None:
        self._show_prompt("filter")

    def _show_prompt(self, what: str) -> None:
        self.show()
        # Textual cannot focus the input while it is hidden, so open the input after the next refresh.
        self.screen.call_after_refresh(self._open_prompt, what)

    def _open_prompt(self, what: str) -> None:
        self._asking, self._searched = what, self._search
        searched = self._searched
        self.prompt.placeholder = "find: text or regular expression" if what == "find" else "lines to show (! inverts)"
        self.prompt.value = searched if what == "find" else self.pane.filter_text
        self.add_class("-asking")
        self.prompt.focus()

    def close_one(self) -> bool:
        """Close the input. If no input is open, end the search, the filter, or the display of one of several logs.
        Return whether anything was closed.
        """
        if self.has_class("-asking"):
            if self._asking == "find":
                self._find(self._searched)
            self._close_prompt()
        elif self.pane.window.search is not None:
            self.pane.set_search(None)
        elif self.pane.filter_text:
            self.pane.set_filter(None)
        elif self.panes.has_several and not self._merged:
            self._remove_column(self.panes.current.rank)
        else:
            return False
        self.update_titles()
        return True

    @property
    def _search(self) -> str:
        """Text of the search; "" without a search."""
        return "" if self.pane.window.search is None else self.pane.window.search.matcher.text

    def _find(self, text: str) -> None:
        if text != self._search:
            self.pane.set_search(Matcher.parse(text))
            self.update_titles()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show matches while the user types."""
        event.stop()
        if self._typing is not None:
            self._typing.stop()
        if self._asking == "find" and self.has_class("-asking"):
            self._typing = self.set_timer(TYPING_SECONDS, partial(self._find, event.value))

    def _close_prompt(self) -> None:
        if self._typing is not None:
            self._typing.stop()
        self.remove_class("-asking")
        self.pane.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._asking == "find":
            self._find(event.value)
        else:
            self.pane.set_filter(Matcher.parse(event.value, invertible=True))
        self._close_prompt()

    def offers(self, action: str) -> bool:
        return action != "run.next_hit" or bool(self.pane.hit_count)

    def hint_label(self, action: Action) -> str:
        return f"{action.label} {self.pane.hit_place}" if action.id == "run.next_hit" else action.label

    def action_next_hit(self, step: int) -> None:
        if self.pane.window.search is None:
            self.app.flash(with_keys("no search yet ({run.find}: find)", self.app.keys))
        elif not self.pane.hit_count:
            self.app.flash("no line matches", "error")
        else:
            self.pane.step_hit(step)

    # Titles of the panel and its logs

    def action_follow(self) -> None:
        self.pane.action_follow()

    def action_pause(self) -> None:
        self.pane.action_toggle_pause()

    def action_wrap(self) -> None:
        self._toggle("wrap")

    def action_times(self) -> None:
        self._toggle("times")

    def _toggle(self, name: str) -> None:
        value = not getattr(self.pane, name)
        for column in self.panes.columns:
            setattr(column.pane, name, value)

    def on_log_pane_status_changed(self, event: LogPane.StatusChanged) -> None:
        self.update_titles()
        if self._aligned and event.pane is self.pane:
            self._align()

    def on_log_pane_search_aborted(self, event: LogPane.SearchAborted) -> None:
        self.app.flash(f"search stopped: {event.text} is too slow (excessive backtracking)", "error")
        self.update_titles()

    # Export of logs

    def clipboard_text(self) -> tuple[str, str] | None:
        return self.pane.visible_text(), "log lines"

    async def exported_files(self, run: RunView | None, chosen: RunSelection) -> PanelExport:
        if chosen.merged:
            lines, remark = await self._export_lines(self.pane, run, None)
            return PanelExport({"all.log": lines}, remark)
        files: dict[str, Iterable[str]] = {}
        remarks: list[str] = []
        for column in self.panes.columns:
            lines, remark = await self._export_lines(column.pane, run, column.rank)
            files[f"r{column.rank:03d}.log"] = lines
            remarks.append(remark)
        return PanelExport(files, next(filter(None, remarks), ""))

    async def _export_lines(self, pane: LogPane, run: RunView | None, rank: int | None) -> tuple[Iterable[str], str]:
        """Return the lines of a rank, or of all ranks if ``rank`` is None, and a note for the user."""
        from skyward_tui.file_export import log_lines

        ring = pane.window.ring
        remark = f" (the last {count(ring.end - ring.first, 'line')})" if ring.first else ""
        session = self.app.session
        if run is not None and session is not None:
            # if the ledger does not list the run yet, all lines of the run are still in memory
            with suppress(UsageError):
                return log_lines(await asyncio.to_thread(session.run_logs, run.id), rank), ""
        return (f"{line}\n" for line in ring.lines(0, ring.end)), remark


def failed_ranks(run: RunView | None) -> tuple[int, ...]:
    """Return the ranks of a run that failed on their own, not because of another rank."""
    if run is None:
        return ()
    return tuple(sorted({outcome.rank for outcome in run.outcomes() if outcome.kind in FAILURES}))


def _mode_text(pane: LogPane, *, is_over: bool) -> tuple[str, str]:
    """Return a text that states whether a log follows its end, and the style of the text."""
    if is_over:
        return "" if pane.is_following else "(f: to the end)", "$muted"
    if pane.is_following:
        return "FOLLOW", "$text-success"
    behind = f" +{count(pane.lines_behind, 'line')}" if pane.lines_behind else ""
    return f"PAUSED{behind} (f: follow)", "$text-warning"


def _search_text(pane: LogPane) -> str:
    """Return the filter and the search of a log with their numbers of matches."""
    parts = []
    if pane.window.filter is not None:
        text = f"&{pane.filter_text} " if pane.filter_text else ""
        parts.append(f"{text}{count(len(pane.window.filter.numbers), 'line')}")
    if pane.window.search is not None:
        parts.append(f"/{pane.window.search.matcher.text} {pane.hit_place}")
    # If the search does not start at line 0, earlier lines are not searched yet or no longer exist.
    begin = max((hits.begin for hits in (pane.window.filter, pane.window.search) if hits is not None), default=0)
    if parts and begin:
        done, share = pane.window.end - begin, f"{100 - 100 * begin // pane.window.end} %"
        parts.append(f"searching {share}" if pane.is_reading else f"searched the last {count(done, 'line')}")
    return "  ".join(parts)
