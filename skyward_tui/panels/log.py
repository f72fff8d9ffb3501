"""What the ranks print: a log pane, whether it follows, and the line for find and filter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input

from skyward_core.front.history import StoredLines
from skyward_core.model.errors import UsageError
from skyward_core.views.collapsed import CollapsedRing
from skyward_core.views.logs import LogRing, Ring
from skyward_core.views.views import PoolView, RunView

from ..actions import first_key, with_keys
from ..hints import detail_of
from ..styles import beside
from ..theme import look as look_of
from ..widgets.cause_lines import CauseLines
from ..widgets.log_pane import Files, LogPane
from ..widgets.log_window import Matcher
from ..widgets.rank_state import link_note, nothing_yet, rank_states
from ..words import count, one_line
from .base import Chosen, RunPanel, Saved
from .table import Row

_GAP = "{run.previous_rank} and {run.next_rank} show each rank from its first line, {run.save} saves all"
_TALL = 24  # rows from which more of a traceback has room
_NEAR_END = 400  # lines in which a traceback is looked for
_TRACEBACK = "Traceback (most recent call last)"


class LogPanel(RunPanel):
    """A log pane with its title and a prompt below it."""

    DEFAULT_CSS = beside(__file__)

    def __init__(self, row: Row, show: Callable[[], None]) -> None:
        pane = LogPane(id="pane")
        super().__init__(row, show, pane)
        self.pane = pane
        self.cause = CauseLines()
        self.prompt = Input(compact=True, id="prompt", select_on_focus=True)
        self._subject = ""
        self._asking = ""
        self._silence: object = None
        self._folded: CollapsedRing | None = None

    def compose(self) -> ComposeResult:
        yield self.pane
        yield self.cause
        yield self.prompt

    def on_mount(self) -> None:
        self.pane.can_focus = True
        self.prompt.cursor_blink = False

    # What it shows

    def look(self, pool: PoolView, run: RunView | None, now: float, chosen: Chosen) -> bool:
        pane, merged = self.pane, chosen.merged
        book = pool.logs if run is None else pool.logs.of(run.id)
        ring: Ring = book.merged if merged else book.rank(chosen.rank)
        if merged and chosen.collapsed:
            ring = self._collapsed(book.merged, pool.world_size)
        else:
            self._folded = None
        pane.gap_hint = with_keys(_GAP, self.app.keys) if merged else ""
        pane.show(ring, merged=merged, files=None if run is None else self._files_of(run, chosen))
        changed = pane.pump()
        rank = None if merged else chosen.rank
        self.cause.show(run, rank, first_key("run.errors", self.app.keys), short=self.size.height < _TALL)
        self._subject = self._subject_of(pool, chosen)
        self.describe()
        if not ring.end or pane.window.filter is not None:
            self._explain_silence(pool, run, now, chosen)
        return changed

    @property
    def at_rest(self) -> bool:
        """Whether nobody has moved in it, or looks for something."""
        pane = self.pane
        searched = pane.window.search is not None or pane.window.filter is not None
        return pane.following and not searched and not self.has_class("-asking")

    def lead(self) -> bool:
        """Have the newest traceback that the rank printed in view; whether there is one near the end."""
        ring = self.pane.window.ring
        begin = max(ring.first, ring.end - _NEAR_END)
        lines = ring.lines(begin, ring.end)
        found = [number for number, text in enumerate(lines, begin) if text.startswith(_TRACEBACK)]
        if found:
            self.pane.bring_up(found[-1])
        return bool(found)

    def _collapsed(self, merged: LogRing, world: int) -> CollapsedRing:
        """The merged lines folded, as far as they have come."""
        if self._folded is None or self._folded.source is not merged:
            self._folded = CollapsedRing(merged)
        self._folded.update(world)
        return self._folded

    def _subject_of(self, pool: PoolView, chosen: Chosen) -> str:
        subject = f"{self.heading}  all ranks{', collapsed' if chosen.collapsed else ''}"
        if not chosen.merged:
            node = pool.nodes[chosen.rank // pool.ranks_per_node] if pool.nodes else None
            subject = f"{self.heading}  rank {chosen.rank}"
            if node is not None and (note := link_note(node)):
                subject += f"  ! {note}"
        if not pool.is_live:
            subject += f"  pool {look_of(pool.state).word}"
        return subject

    def _files_of(self, run: RunView, chosen: Chosen) -> Files | None:
        """What reads the rank's lines in that run from the files; all ranks merged are not in one."""
        session = self.app.session
        if session is None or chosen.merged:
            return None
        return lambda: StoredLines.of(session.run_logs(run.id), chosen.rank, whole=run.state != "running")

    def _explain_silence(self, pool: PoolView, run: RunView | None, now: float, chosen: Chosen) -> None:
        """Say why there is no line to see."""
        if run is None:
            self._silence = None
            self.pane.empty_text = one_line(detail_of(pool)) or with_keys(self.row.empty, self.app.keys)
            return
        state = (pool.version, run.id, run.version, run.state, int(now), chosen)
        if state != self._silence:
            self._silence = state
            ranks = range(pool.world_size)
            asked = ranks if chosen.merged else ranks[chosen.rank : chosen.rank + 1]
            self.pane.empty_text = nothing_yet(rank_states(pool, run, now, asked), run)

    def describe(self) -> None:
        """Bring the title up to date."""
        pane = self.pane
        state = "FOLLOW" if pane.following else _paused(pane.behind)
        style = "$text-success" if pane.following else "$text-warning"
        wrap = "  wrap" if pane.wrap else ""
        reading = "  reading files …" if pane.is_reading else ""
        title = Content.assemble(self._subject, "  ", (state, style), wrap, reading)
        parts = []
        if pane.window.filter is not None:
            hits = pane.window.filter
            parts.append(f"&{hits.matcher.text} {count(len(hits.numbers), 'line')}")
        if pane.window.search is not None:
            parts.append(f"/{pane.window.search.matcher.text} {count(pane.hit_count, 'hit')}")
        if parts and (begin := _searched_from(pane)):
            parts.append(f"in the last {count(pane.window.end - begin, 'line')} only")
        self.retitle(title, Content("  ".join(parts)))

    def kept(self) -> Mapping[str, str | bool]:
        filtered = self.pane.window.filter
        text = "" if filtered is None else filtered.matcher.text
        return {"wrap": self.pane.wrap, "times": self.pane.times, "filter": text}

    def restore(self, kept: Mapping[str, str | bool]) -> None:
        self.pane.wrap, self.pane.times = kept.get("wrap") is True, kept.get("times") is True
        if matcher := Matcher.parse(str(kept.get("filter", "")), invertible=True):
            self.pane.set_filter(matcher)
            self.app.flash(f"the log is filtered as you left it: {matcher.text}")

    # What is searched for

    @property
    def context(self) -> str:
        return "run.prompt" if self.screen.focused is self.prompt else super().context

    def action_find(self) -> None:
        self._ask("find")

    def action_filter(self) -> None:
        self._ask("filter")

    def _ask(self, what: str) -> None:
        self.show()
        # What was hidden can take the focus only once it is displayed.
        self.screen.call_after_refresh(self._open, what)

    def _open(self, what: str) -> None:
        """Open the prompt: "find" or "filter"."""
        self._asking = what
        hits = self.pane.window.search if what == "find" else self.pane.window.filter
        self.prompt.placeholder = (
            "find: text or regular expression" if what == "find" else "show only (! inverts)"
        )
        self.prompt.value = "" if hits is None else hits.matcher.text
        self.add_class("-asking")
        self.prompt.focus()

    def close_one(self) -> bool:
        """Close the prompt, else drop the search, else the filter."""
        if self.has_class("-asking"):
            self._close()
        elif self.pane.window.search is not None:
            self.pane.set_search(None)
        elif self.pane.window.filter is not None:
            self.pane.set_filter(None)
        else:
            return False
        self.describe()
        return True

    def _close(self) -> None:
        self.remove_class("-asking")
        self.pane.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self._asking == "find":
            self.pane.set_search(Matcher.parse(event.value))
        else:
            self.pane.set_filter(Matcher.parse(event.value, invertible=True))
        self._close()

    def action_next_hit(self, step: int) -> None:
        if self.pane.window.search is None:
            self.app.flash("nothing searched yet: / finds")
        elif not self.pane.hit_count:
            self.app.flash("no line matches", "error")
        elif step > 0:
            self.pane.action_next_hit()
        else:
            self.pane.action_previous_hit()

    # How it is shown

    def action_follow(self) -> None:
        self.pane.action_follow()

    def action_pause(self) -> None:
        self.pane.action_toggle_pause()

    def action_wrap(self) -> None:
        self.pane.action_wrap()

    def action_times(self) -> None:
        self.pane.times = not self.pane.times

    def on_log_pane_moved(self) -> None:
        self.describe()

    # What is taken out of it

    def copied(self) -> tuple[str, str] | None:
        return self.pane.visible_text(), "log lines"

    async def saved(self, run: RunView | None, chosen: Chosen) -> Saved:
        from ..saving import log_lines

        ring = self.pane.window.ring
        lines: Iterable[str] = (f"{line}\n" for line in ring.lines(0, ring.end))
        remark = f" (the last {count(ring.end - ring.first, 'line')})" if ring.first else ""
        session = self.app.session
        if run is not None and session is not None:
            with suppress(UsageError):  # the ledger has not heard of it yet; then the ring has it all
                found = await asyncio.to_thread(session.run_logs, run.id)
                lines, remark = log_lines(found, None if chosen.merged else chosen.rank), ""
        return Saved({"all.log" if chosen.merged else f"r{chosen.rank:03d}.log": lines}, remark)


def _searched_from(pane: LogPane) -> int:
    """Number of the line before which nothing was looked at, as neither the ring nor files have it, or not yet."""
    return max(hits.begin for hits in (pane.window.filter, pane.window.search) if hits is not None)


def _paused(behind: int) -> str:
    return f"PAUSED +{count(behind, 'line')}, f follows" if behind else "PAUSED, f follows"
