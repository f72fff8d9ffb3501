"""Every past run: filtered, sorted, opened again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input

from skyward_core.front.past_runs import RunSearch
from skyward_core.model.errors import SkywardError

from ..actions import bindings, first_key, with_keys
from ..app_face import settled
from ..hints import words_of
from ..styles import beside
from ..widgets.chrome import Crumbs, Panel
from ..widgets.run_list import PastRunList
from ..widgets.run_look import RunLook
from ..widgets.text_line import TextLine
from ..words import count
from .base import BaseScreen
from .history_in_logs import HistoryInLogs

if TYPE_CHECKING:
    from skyward_core.front.past_looks import PastLook
    from skyward_core.front.past_runs import PastRun

    from ..kept_state import KeptScreen

_NO_RUN = "There has been no run yet: {pools.new} on the list of pools launches a script."
RESTS = 0.15  # seconds for which the cursor stays on a run before that is read
LOOKS = 64  # runs of which what was read is kept
_AROUND = 2  # rows of the screen that are neither the list's nor those below it
_HEAD = 3  # rows of a list that are no runs
_LEAST = 8  # rows that are worth showing of what the cursor is on
_TALL, _WIDE, _PART = 30, 100, 0.45  # where both have their part, however long the list is
LOOK = 2.0  # seconds between two looks at the ledger, where runs begin and end


class HistoryScreen(BaseScreen[None]):
    """Reads the ledger when it opens, and again when a run has begun or ended.

    Args:
        inbox: show the failures of late that nobody has dismissed, of all pools.
    """

    SCOPE = "history"
    BINDINGS = bindings("history")
    DEFAULT_CSS = beside(__file__)

    def __init__(self, *, inbox: bool = False) -> None:
        super().__init__()
        self._inbox = inbox
        self._runs: list[PastRun] = []
        self._search = RunSearch()
        self._failed = ""
        self._read_at: float | None = None
        self._shown: object = None
        self._seen: object = None  # what went on when the ledger was read
        self._in_logs = HistoryInLogs(self)
        self._looks: dict[str, PastLook] = {}  # of runs, as far as they were read
        self._stands_on: tuple[PastRun | None, float] = (
            None,
            0.0,
        )  # the run under the cursor, and since when
        self._reads = ""  # the run that is read just now
        self._shared: tuple[bool, int | None] = (
            False,
            None,
        )  # whether that is shown, and the list's height then

    def body(self) -> ComposeResult:
        panel = Panel(PastRunList(), id="runs")
        panel.border_title = self._title
        yield panel
        self._look = RunLook()
        chosen = Panel(self._look, id="look")
        chosen.border_title = "chosen"
        yield chosen
        words = TextLine(
            id="words", compact=True, placeholder="words: pool, function, script, argument, error, log"
        )
        words.cursor_blink = False
        yield words

    def on_mount(self) -> None:
        self.query_one(PastRunList).focus()
        self._read()
        self.pulse(self.app.clock())

    @property
    def _title(self) -> str:
        return "failures" if self._inbox else "history"

    @property
    def place(self) -> KeptScreen:
        return {"screen": self.SCOPE, "inbox": self._inbox}

    @property
    def context(self) -> str:
        return "history.words" if isinstance(self.focused, Input) else self.SCOPE

    def shown_time(self, now: float) -> object:
        """What goes on is timed; and what has begun or ended is read a moment later."""
        going = any(run.ended_at is None for run in self._runs) or self._going() != self._seen
        return int(now) if going else super().shown_time(now)

    def pulse(self, now: float) -> None:
        listed = self.query_one(PastRunList)
        if self._read_at is not None and now - self._read_at > LOOK and self._going() != self._seen:
            self._read()
        logs = self._in_logs
        state = id(self._runs), self._search, self._failed, self._read_at, logs.changes, logs.goes_on
        if state != self._shown:
            self._shown = state
            listed.update(list(filter(self._wants, self._runs)), self._note(), now, logs.found)
        else:
            listed.tick(now)
        self._share(len(listed.rows))
        self.query_one(Crumbs).show(["pools", self._title], self._status(len(listed.rows)))
        self._show_look(listed.chosen, now)
        super().pulse(now)

    def _wants(self, run: PastRun) -> bool:
        return self._search.wants(run) or (run.run in self._in_logs.found and self._search.takes(run))

    def _share(self, runs: int) -> None:
        """The list has the rows that it needs, what the cursor is on the rest: where there is room for both."""
        room, wanted = self.size.height - _AROUND, runs + _HEAD
        roomy = self.size.height >= _TALL and self.size.width >= _WIDE
        most = max(wanted if wanted + _LEAST <= room else 0, int(room * _PART) if roomy else 0)
        there = bool(runs and most)
        height = max(_HEAD + 1, min(wanted, most)) if there else None
        if (there, height) != self._shared:
            self._shared = there, height
            self.query_one("#look").display = there
            self.query_one("#runs").styles.height = height

    def _show_look(self, chosen: PastRun | None, now: float) -> None:
        """Below the list, where there is room; it is read once the cursor rests."""
        if not self.query_one("#look").display:
            return
        seen = self._looks.get(chosen.run) if chosen is not None else None
        self._look.update(
            chosen, seen, now, self._in_logs.found.get(chosen.run) if chosen is not None else None
        )
        if chosen != self._stands_on[0]:
            self._stands_on = chosen, time.monotonic()
            self.set_timer(RESTS, self._read_look)

    def _read_look(self) -> None:
        chosen, since = self._stands_on
        if chosen is None or not chosen.run or time.monotonic() - since < RESTS:
            return
        if chosen.run != self._reads and (chosen.run not in self._looks or chosen.ended_at is None):
            self._reads = chosen.run
            self.run_worker(self._look_at(chosen.run), group="look", exclusive=True)

    async def _look_at(self, run: str) -> None:
        session = self.app.session
        if session is None:
            return
        try:
            seen = await settled(session.look_at_run(run))
        except (SkywardError, OSError) as error:
            return self.flash(words_of(error), "error")
        finally:
            self._reads = ""
        self._looks = {**dict(list(self._looks.items())[-LOOKS:]), run: seen}
        if self.is_attached:
            self.pulse(self.app.clock())
        return None

    def _status(self, shown: int) -> list[Content]:
        parts = [Content.styled(f"{shown:,} of {count(len(self._runs), 'run')}", "$muted")]
        if failed := sum(run.has_failed for run in self._runs):
            parts.insert(0, Content.styled(f"✗ {failed:,} failed", "$text-error"))
        if self._search.failed:
            parts.append(Content.styled("only failures", "$text-warning"))
        if self._search.words:
            parts.append(Content.styled(f"with: {' '.join(self._search.words)}", "$text-warning"))
        return parts + self._in_logs.progress()

    def _going(self) -> object:
        """Another value where a run has begun or ended, as far as the app knows."""
        pools = self.app.pools()
        runs = [(run.id, run.state) for pool in pools if not pool.is_over for run in pool.runs.values()]
        return len(pools), runs

    def _note(self) -> str:
        if self._failed:
            return f"✗ {self._failed}"
        if self._read_at is None:
            return "reading the ledger …"
        if self._in_logs.goes_on:
            return "no run is like that so far: what they printed is looked through …"
        if self._runs:
            return "no run is like that: other words, or none, show more"
        if self._inbox:
            return "No run has failed of which you have not said that you know."
        return with_keys(_NO_RUN, self.app.keys)

    @work(group="history", exclusive=True)
    async def _read(self, *, again: bool = False) -> None:
        session = self.app.session
        if session is None:
            self._failed = self.app.session_error
            return
        self._seen = self._going()
        try:
            asked = session.failures() if self._inbox else session.past_runs(RunSearch())
            self._runs, self._failed = await settled(asked), ""
        except SkywardError as error:
            self._failed = words_of(error)
        self._read_at = self.app.clock()
        if again:
            self._look_in_logs()
        if self.is_attached:
            self.pulse(self.app.clock())

    # Finding

    def action_find(self) -> None:
        words = self.query_one("#words", Input)
        self.add_class("-finding")
        words.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._search = RunSearch(tuple(event.value.split()), self._search.failed)
        self._in_logs.look_soon(self._look_in_logs)
        self.pulse(self.app.clock())

    def _look_in_logs(self) -> None:
        self._in_logs.look(self._runs, self._search.words)

    def on_screen_resume(self) -> None:
        self._in_logs.go_on()

    def on_unmount(self) -> None:
        self._in_logs.drop()

    def on_input_submitted(self) -> None:
        self.query_one(PastRunList).focus()
        if not self._search.words:
            self.remove_class("-finding")

    def action_failed(self) -> None:
        self._search = RunSearch(self._search.words, not self._search.failed)
        self.pulse(self.app.clock())

    def action_turn(self) -> None:
        self.query_one(PastRunList).turn()

    # Acting

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("dismiss_chosen", "dismiss_all") and not self._inbox:
            return False
        if action == "failed" and self._inbox:
            return False
        if action in ("find", "failed", "compare", "turn") and not self._runs:
            return False
        if action in ("open", "mark", "dismiss_chosen", "dismiss_all"):
            return self.is_mounted and self.query_one(PastRunList).chosen is not None
        return True

    def action_mark(self) -> None:
        self.query_one(PastRunList).mark()

    def action_compare(self) -> None:
        marked = self.query_one(PastRunList).marked
        if len(marked) < 2:
            return self.flash(
                f"mark two runs with {first_key('history.mark', self.app.keys)}, then compare them"
            )
        self.app.show_comparison(*marked)
        return None

    def on_past_run_list_past_run_opened(self, event: PastRunList.PastRunOpened) -> None:
        self.app.show_run(event.run.key, event.run.run, self._in_logs.found.get(event.run.run))

    def action_dismiss_chosen(self) -> None:
        if (chosen := self.query_one(PastRunList).chosen) is not None:
            self._dismiss([chosen.run])

    def action_dismiss_all(self) -> None:
        self._dismiss([run.run for run in self.query_one(PastRunList).rows])

    @work(group="dismiss")
    async def _dismiss(self, runs: list[str]) -> None:
        session = self.app.session
        if session is None:
            return
        try:
            await settled(session.dismiss(runs))
        except (SkywardError, OSError) as error:
            return self.flash(f"could not dismiss it: {words_of(error)}", "error")
        self._read()
        self.app.look_for_failures()
        return None

    def action_open(self) -> None:
        self.query_one(PastRunList).action_open()

    def action_again(self) -> None:
        self._read(again=True)
        self.flash("reading the ledger …")

    def action_back(self) -> None:
        """The words first, then the screen."""
        if self.has_class("-finding"):
            self.remove_class("-finding")
            self.query_one("#words", Input).value = ""
            self.query_one(PastRunList).focus()
        else:
            self.dismiss(None)
