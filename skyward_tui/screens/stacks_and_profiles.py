"""Screen with the stacks of all ranks, and with profiles of single ranks."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from time import monotonic

from textual import work
from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.widgets import Static
from textual.widgets.option_list import Option

from skyward_core.model.errors import SkywardError
from skyward_core.model.thread_stacks import StackFrame, Stacks
from skyward_core.util.safe_file_access import current_folder
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import PoolView, RunView
from skyward_core.views.stack_groups_and_profiles import (
    SIGNAL,
    StackGroup,
    as_text,
    calling_frame,
    describe_location,
    format_ranges,
    frame_line,
    group_stacks,
    is_library,
    merge_stacks,
    parse_profile,
    profile_table,
    short_file,
    summarize_collectives,
    thread_lines,
)
from skyward_tui.dialogs.basic_dialogs import ChoiceScreen
from skyward_tui.screens.base_screen import BaseScreen
from skyward_tui.source_lookup_and_editor import SourceFile, find_source, source_folders
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.number_time_and_run_state_format import ago, clock, count, duration
from skyward_tui.text.rank_states_from_views import RankState, last_line, rank_states
from skyward_tui.text.state_styles import state_style
from skyward_tui.text.text_width_tables_and_ascii import clip, fit_width
from skyward_tui.ui.actions import Action, bindings, with_keys
from skyward_tui.ui.session_futures import flash_errors, wait_shielded
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.ui.time_refresh_rules import refresh_token
from skyward_tui.widgets.form_fields import OptionRows
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Panel
from skyward_tui.widgets.source_view import CodePosition, StackCode
from skyward_tui.widgets.virtual_list import VirtualList

_MAX_POSITION_CELLS = 34  # maximum width in cells of the column with source positions (``train.py:12``)


@dataclass(frozen=True, slots=True)
class StackRank:
    """Row of the list of ranks.

    Attributes:
        where: Source position of the rank's innermost frame.
        line: Last printed line.
        chosen: Whether the rank is in the selected group.
        late: Whether the rank is outside the collective that other ranks wait in.
    """

    state: RankState
    where: str
    line: str
    chosen: bool
    late: bool


class StackRankList(VirtualList[StackRank], can_focus=False):
    """List of ranks: first those of the selected group, then the others."""

    def update(self, rows: list[StackRank]) -> None:
        if rows != self.rows:
            if [row.state.rank for row in rows] != [row.state.rank for row in self.rows]:
                self.top = 0
            self.refresh(layout=len(rows) != len(self.rows))
            self.rows = rows

    def get_content_height(self, *_: object) -> int:
        return len(self.rows) + 1

    def head(self, width: int) -> list[Content]:
        more = len(self.rows) + 1 - self.size.height
        names = f" {'rank':<6}{'node':<6}{'state':<14}{'time':>7}  {self._pad_position('where')}"
        hidden = f"last line  (+{count(more, 'rank')} below)" if more > 0 else "last line"
        return [Content.styled(clip(f"{names}{self._quiet_column('quiet')}{hidden}", width), "$muted")]

    def row(self, index: int, width: int) -> Content:
        each = self.rows[index]
        state = each.state
        mark = state_style(state.state)
        time = "" if state.seconds is None else duration(state.seconds)
        quiet = "" if state.quiet is None else duration(state.quiet)
        made = Content.assemble(
            (f" r{state.rank:<5}n{state.node:<5}", "bold" if each.chosen else "$muted"),
            (f"{mark.text:<14}", mark.style),
            f"{time:>7}  ",
            (self._pad_position(each.where), "$text-warning" if each.late else ""),
            (self._quiet_column(quiet), "$text-warning"),
        )
        return Content.assemble(made, (clip(each.line, width - made.cell_length), "$muted"))

    def _pad_position(self, text: str) -> str:
        widest = min(_MAX_POSITION_CELLS, max((len(row.where) for row in self.rows), default=0))
        return f"{fit_width(text, widest)}  "

    def _quiet_column(self, text: str) -> str:
        """Return the cell that states for how long a rank has been quiet. The column is left out ("") if no rank is
        quiet.
        """
        return f"{text:>7}  " if any(row.state.quiet is not None for row in self.rows) else ""


PROFILE_SECONDS = 10.0  # seconds that a profile takes
REFRESH_SECONDS = 0.5  # seconds; minimum interval between two updates of the list of ranks
_NAMED = 14  # width in cells of the text that names the ranks of a group


class StacksScreen(BaseScreen[int | None]):
    """Stacks grouped by source position. Returns the rank whose log the user wants to open, or None.

    Args:
        pool: Key of the pool.
        run: ID of the run; "" for all ranks of the pool.
    """

    SCOPE = "stacks"
    BINDINGS = bindings("stacks")
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self, pool: str, run: str = "") -> None:
        super().__init__()
        self._pool, self._run, self._folders = pool, run, (str(current_folder()),)
        self._stacks: Stacks | None = None
        self._groups: list[StackGroup] = []
        self._sources: dict[tuple[str, int], SourceFile | None] = {}
        self._failure = ""
        self._busy = False
        # version of the ranks at the last update of the list, and monotonic time of this update
        self._shown: tuple[object, float] = (None, 0.0)
        self._listed, self._board = OptionRows(compact=True), StackRankList(id="ranks")
        self._all_threads = False

    def body(self) -> ComposeResult:
        yield Static(id="verdict")
        yield Panel(self._listed, id="groups", title="ranks")
        with Container(id="detail"):
            yield Panel(VerticalScroll(Static(id="stack")), id="frames")
            yield Panel(StackCode(id="code"), id="source", title="source")
        yield Panel(self._board, id="each", title="each rank")

    def on_mount(self) -> None:
        self._listed.focus()
        self.action_again()
        self.tick(self.app.clock())

    def tick(self, now: float) -> None:
        view, run = self._view, self._run_view
        name = view.name if view is not None else self._pool.partition(".")[0]
        trail = ["pools", name, *([run.function] if run is not None else ()), "stacks"]
        self.query_one(Breadcrumbs).update_trail(trail, [Content.styled(self._state(now), "$muted")])
        self._show_ranks(now)
        super().tick(now)

    @property
    def _view(self) -> PoolView | None:
        return self.app.find_pool(self._pool)

    @property
    def _run_view(self) -> RunView | None:
        return None if self._view is None else self._view.runs.get(self._run)

    @property
    def _group(self) -> StackGroup | None:
        """Group of ranks with equal stacks that the user has selected."""
        place = self._listed.highlighted
        return self._groups[place] if place is not None and place < len(self._groups) else None

    def time_token(self, now: float) -> object:
        view = self._view
        return super().time_token(now) if view is None else refresh_token([view], now)

    def _state(self, now: float) -> str:
        if self._busy or self._stacks is None:
            return "reading stacks" if self._busy else ""
        since = now - self._stacks.at
        return f"read at {clock(self._stacks.at)}" + (f", {ago(since)}" if since >= 60 else "")

    def is_hint_worthy(self, action: Action) -> bool:
        return action.id != "stacks.signal" or (self._stacks is not None and bool(self._stacks.askable))

    def action_again(self) -> None:
        self._start_read(signal=False)

    def _start_read(self, *, signal: bool) -> None:
        if not self._busy:
            self._busy = True
            self._show_verdict()
            self.run_worker(self._read_stacks(signal=signal), group="stacks")

    async def _read_stacks(self, *, signal: bool) -> None:
        before = self._stacks
        ranks = before.askable if signal and before is not None else None
        try:
            session = self.app.required_session
            stacks = await wait_shielded(session.stacks(self._pool, self._run, ranks, signal=signal))
        except (SkywardError, OSError) as error:
            self._failure = format_error(error)
        else:
            self._failure = ""
            self._stacks = stacks if before is None or ranks is None else merge_stacks(before, stacks)
            self._sources = await self._read_sources(self._stacks)
        finally:  # runs even after an internal error, so that the screen does not stay busy forever
            self._busy = False
            if self.has_widgets:
                self._show()

    async def _read_sources(self, stacks: Stacks) -> dict[tuple[str, int], SourceFile | None]:
        """Return the source files of the positions of all groups."""
        folders = await source_folders(self.app, self._run_view)
        frames = [frame for group in group_stacks(stacks) if (frame := calling_frame(group.frames))]
        sources = await asyncio.to_thread(lambda: [find_source(frame, folders) for frame in frames])
        return {(frame.file, frame.line): each for frame, each in zip(frames, sources, strict=True)}

    @work
    async def action_signal(self) -> None:
        if self._stacks is None or not (ranks := self._stacks.askable):
            return self.flash("no rank has a stack that only a signal can read")
        named = f"{count(len(ranks), 'rank')} ({format_ranges(ranks)})"
        text = f"{named} cannot be read: {self._unreadable_reason(ranks)}. {SIGNAL}."
        choices = [("keep", "Cancel", False), ("send-signal", "Send signal", True)]
        question = ChoiceScreen("Get stacks by signal?", text, choices, escape="keep")
        if await self.app.push_screen_wait(question) == "send-signal":
            self._start_read(signal=True)

    def _unreadable_reason(self, ranks: list[int]) -> str:
        found = self._stacks.ranks if self._stacks is not None else ()
        return sanitize_line(next((each.why for each in found if each.rank in ranks), ""))

    # Display of stacks and ranks

    def _show(self) -> None:
        listed = self._listed
        chosen = listed.highlighted or 0
        self._groups = group_stacks(self._stacks) if self._stacks is not None else []
        listed.clear_options()
        listed.add_options([Option(self._row(group), id=str(place)) for place, group in enumerate(self._groups)])
        if self._groups:
            listed.highlighted = min(chosen, len(self._groups) - 1)
        self._show_verdict()
        self._show_stack()
        self.tick(self.app.clock())

    def _show_verdict(self) -> None:
        lines: list[Content] = []
        if self._failure:
            lines.append(Content.styled(f"cannot read stacks: {self._failure}", "$text-error"))
        if self._stacks is None:
            lines += [Content.styled("reading the stacks of all ranks …", "$muted")] if self._busy else []
        else:
            summary = summarize_collectives(self._stacks)
            lines += [Content.styled(line, "bold") for line in summary]
            if not summary and len(self._stacks.unknown) < len(self._stacks.ranks):
                lines.append(Content.styled("no rank is in a known collective", "$muted"))
            if ranks := self._stacks.askable:
                named = f"rank {format_ranges(ranks)}" if len(ranks) == 1 else f"ranks {format_ranges(ranks)}"
                text = f"{named}: {self._unreadable_reason(ranks)}; {{stacks.signal}}: get stacks by signal instead"
                lines.append(Content.styled(with_keys(text, self.app.keys), "$text-warning"))
        self.query_one("#verdict", Static).update(Content("\n").join(lines))

    def _row(self, group: StackGroup) -> Content:
        style = "$text-warning" if group.collective is None and group.frames else ""
        many = f" ({len(group.stacks)})" if len(group.stacks) > 1 else ""
        return Content.assemble(
            (f" {group.ranks + many:<{_NAMED}} ", "bold"),
            (sanitize_line(describe_location(group)), style if group.frames else "$muted"),
        )

    def _show_stack(self) -> None:
        """Show the stacks and the source code of the selected group, then those of the other groups."""
        if (group := self._group) is None:
            return
        lines = self._frames(group)
        for other in self._groups:
            if other is not group and other.frames:
                lines += [Content(""), Content.styled(self._title(other), "$muted"), *self._frames(other)]
        self.query_one("#frames", Panel).set_titles(Content(self._title(group)))
        self.query_one("#stack", Static).update(Content("\n").join(lines))
        self.query_one("#frames VerticalScroll", VerticalScroll).scroll_home(animate=False)
        others = [each for each in self._groups if each is not group and calling_frame(each.frames)]
        self.query_one(StackCode).update([self._code_position(each) for each in (group, *others)])
        self._shown = (None, 0.0)
        self._show_ranks(self.app.clock())

    def _code_position(self, group: StackGroup) -> CodePosition:
        ranks = f"{'rank' if len(group.stacks) == 1 else 'ranks'} {group.ranks}"
        if (frame := calling_frame(group.frames)) is None:
            missing = sanitize_line(group.state_text) or "no user code on the stack"
            return CodePosition(Content.styled(ranks, "bold"), None, missing)
        place = f"{short_file(frame.file, self._folders)}:{frame.line}"
        head = Content.assemble((ranks, "bold"), "  ", (place, "$text-accent"))
        source, run = self._sources.get((frame.file, frame.line)), self._run_view
        if source is not None and run is not None and source.changed_at > run.opened_at:
            head = Content.assemble(head, ("  ! file changed since the run began", "$text-warning"))
        return CodePosition(head, source, "the file is not on this machine")

    def _show_ranks(self, now: float) -> None:
        """List all ranks: first the selected group, then small groups, whose ranks are probably late."""
        view, run = self._view, self._run_view
        if view is None or not self._groups:
            return
        shown, at = self._shown
        version = (view.changes, refresh_token([view], now))
        if shown == version or (shown is not None and monotonic() - at < REFRESH_SECONDS):
            return
        self._shown = (version, monotonic())
        states = {state.rank: state for state in rank_states(view, run, now)}
        chosen = self._listed.highlighted
        most = max(len(group.stacks) for group in self._groups)
        by_size = sorted(enumerate(self._groups), key=lambda each: (each[0] != chosen, len(each[1].stacks)))
        rows: dict[int, StackRank] = {}
        for place, group in by_size:
            late = group.collective is None and bool(group.frames) and len(group.stacks) < most
            for stack in group.stacks:
                if (state := states.get(stack.rank)) is not None and stack.rank not in rows:
                    line = last_line(run, view, stack.rank)
                    rows[stack.rank] = StackRank(
                        state, sanitize_line(describe_location(group)), line, place == chosen, late
                    )
        self._board.update(list(rows.values()))

    @staticmethod
    def _title(group: StackGroup) -> str:
        ranks = "rank" if len(group.stacks) == 1 else "ranks"
        return f"{ranks} {group.ranks}" + (": innermost call first" if group.frames else "")

    def _frames(self, group: StackGroup) -> list[Content]:
        if not group.frames:
            return [Content.styled(sanitize_line(group.state_text), "$muted")]
        if self._all_threads:
            return [Content(line) for line in thread_lines(group, self._folders)]
        return [self._line(frame) for frame in group.frames]

    def _line(self, frame: StackFrame) -> Content:
        name, gap, place = frame_line(frame, self._folders).partition("  ")
        if is_library(frame.file):
            return Content.styled(f"{name}{gap}{place}", "$muted")
        return Content.assemble((name, "bold"), gap, (place, "$text-accent"))

    def on_option_list_option_highlighted(self) -> None:
        self._show_stack()

    def on_option_list_option_selected(self) -> None:
        self.action_log()

    # Actions of the stacks screen

    def action_threads(self) -> None:
        self._all_threads = not self._all_threads
        self._show_stack()

    def action_log(self) -> None:
        if self._group is not None:
            self.dismiss(self._group.stacks[0].rank)

    @work(exclusive=True, group="profile")
    async def action_profile(self) -> None:
        from skyward_tui.file_export import profile_files

        if self._group is None:
            return
        rank = self._group.stacks[0].rank
        self.flash(f"profiling rank {rank} for {PROFILE_SECONDS:g} s …")
        with flash_errors(self.app):
            future = self.app.required_session.profile(self._pool, rank, PROFILE_SECONDS)
            profile = parse_profile(await wait_shielded(future))
            rows = profile_table(profile) if profile.samples else [("the rank was idle in all samples", "", "")]
            lines = [f"{itself:>7}  {total:>10}  {line}" for itself, total, line in rows]
            if self.has_widgets:
                self.query_one("#frames", Panel).set_titles(Content(f"rank {rank}: profile"))
                self.query_one("#stack", Static).update(Content("\n").join(map(Content, lines)))
            await self.save_files(profile_files(profile, f"{self._pool.partition('.')[0]}-{self._run}-r{rank}"))

    def _text(self) -> str:
        stacks = self._stacks
        return "" if stacks is None else "\n".join(as_text(stacks, self._folders, threads=self._all_threads))

    def action_copy(self) -> None:
        if text := self._text():
            self.app.copy(text, "stacks")

    @work(group="save")
    async def action_save(self) -> None:
        if self._stacks is not None:
            at = time.strftime("%H%M%S", time.localtime(self._stacks.at))
            await self.save_files({f"{self._pool.partition('.')[0]}-stacks-{at}.txt": [self._text() + "\n"]})
