"""What accounts still hold (today "sweep")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Static

from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import field
from skyward_tui.dialogs.dialog import TypedWord
from skyward_tui.screens.base_screen import BaseScreen
from skyward_tui.text.error_hints import words_of
from skyward_tui.text.number_format import ago, clip, count, duration, fit
from skyward_tui.text.receipts_and_leftovers import (
    LeftoverRow,
    amount_of,
    cells_of,
    detail_of_row,
    list_of,
    named,
)
from skyward_tui.ui.actions import Action, bindings
from skyward_tui.ui.app_interface import settled
from skyward_tui.ui.refresh_timer import at_rest
from skyward_tui.ui.style_sheets import beside
from skyward_tui.ui.themes import look
from skyward_tui.widgets.header_and_hints import Crumbs, Panel
from skyward_tui.widgets.virtual_list import Roll

if TYPE_CHECKING:
    from skyward_core.client.leftover_cleanup import Found, Sweep
    from skyward_tui.text.receipts_and_leftovers import LeftoverRow


_ROOMY = 120  # columns from which every fact of a thing is shown


class LeftoverList(Roll):
    """Things by pool, then what others made, then places that could not be looked at."""

    @dataclass
    class LeftoverOpened(Message):
        """Enter was pressed."""

    def __init__(self) -> None:
        super().__init__(id="list")
        self.rows: list[LeftoverRow] = []
        self.cursor = 0
        self._note = ""
        self._now = 0.0
        self._state: object = None

    @property
    def chosen(self) -> LeftoverRow | None:
        return self.rows[self.cursor] if self.rows else None

    def update(self, sweep: Sweep | None, note: str, now: float) -> None:
        state = (id(sweep), note, at_rest(now), self.size)
        if state == self._state:
            return
        chosen = self.chosen.id if self.chosen else ""
        self._state, self._note, self._now = state, note, now
        self.rows = [] if sweep is None else list_of(sweep)
        places = [index for index, row in enumerate(self.rows) if row.id == chosen]
        self.cursor = places[0] if places else min(self.cursor, max(0, len(self.rows) - 1))
        self.refresh()

    def shown(self) -> list[Content]:
        return super().shown() if self.rows else [self.blank(self._note)]

    def _columns(self, width: int) -> list[tuple[str, int]]:
        """Name and width of each that fits; below 0 is right-aligned, 0 takes what is left."""
        pools = [len(row.found.thing.pool) for row in self.rows if row.found is not None]
        name = max(4, min(max(pools, default=4), 24 if width >= _ROOMY else 14))
        if width >= _ROOMY:
            return [
                ("POOL", name), ("WHAT", 15), ("ID", 26), ("WHERE", 15),
                ("AGE", -10), ("COST", -9), ("SO FAR", -10), ("EXPIRES", -13), ("STATE", 0),
            ]  # fmt: skip
        return [("POOL", name), ("WHAT", 15), ("WHERE", 15), ("AGE", -9), ("COST", -9), ("STATE", 0)]

    def head(self, width: int) -> list[Content]:
        cells = {name: name for name, _ in self._columns(width)}
        return [Content.styled(clip("  " + self._line(cells, width), width), "$muted")]

    def _line(self, cells: dict[str, str], width: int) -> str:
        parts = []
        for name, room in self._columns(width):
            text = cells.get(name, "")
            shown = fit(text, room) if room else f" {text}"
            parts.append(f"{shown} " if room < 0 else shown)
        return " ".join(parts)

    def row_count(self, width: int) -> int:
        return len(self.rows)

    def keep_in_view(self) -> range:
        return range(self.cursor, self.cursor + 1)

    def row(self, index: int, width: int) -> Content:
        row = self.rows[index]
        here = index == self.cursor
        mark = ("▶ " if here else "  ", "$text-accent")
        if row.found is None:
            style = "$muted" if row.ledger else "$text-warning"
            line = Content.assemble(mark, (clip(row.text, width - 2), style))
        else:
            cells = cells_of(row.found, self._now)
            state = look(row.found.verdict)
            cells["STATE"] = ""
            words = f"{state.text}{row.text if width >= _ROOMY else ''}"
            line = Content.assemble(mark, self._line(cells, width), (words, state.style))
        if here:
            line = line.pad_right(max(0, width - line.cell_length)).stylize_before("on $block-cursor-background")
        return line

    def action_step(self, rows: int) -> None:
        self.cursor = min(max(0, self.cursor + rows), max(0, len(self.rows) - 1))
        self.refresh()

    def action_edge(self, end: int) -> None:
        self.action_step(len(self.rows) if end else -len(self.rows))

    def action_open(self) -> None:
        self.post_message(self.LeftoverOpened())


class SweepScreen(BaseScreen[None]):
    """It looks when it opens, and changes nothing until somebody says so.

    Args:
        known: what the app has found before; shown until the accounts have answered.
    """

    SCOPE = "sweep"
    BINDINGS = bindings("sweep")
    DEFAULT_CSS = beside(__file__, "sweep")

    def __init__(self, known: Sweep | None = None) -> None:
        super().__init__()
        self._sweep = known
        self._failed = ""
        self._looking_since: float | None = None
        self._looked_at: float | None = None
        self._everywhere = False
        self._ledgers: tuple[str, ...] = ()  # those of others that are meant, too

    def body(self) -> ComposeResult:
        panel = Panel(LeftoverList())
        panel.border_title = "what accounts hold"
        yield panel
        detail = Panel(Static(id="detail"), id="thing")
        detail.border_title = "chosen"
        yield detail

    def on_mount(self) -> None:
        self.query_one(LeftoverList).focus()
        self._look()
        self.pulse(self.app.clock())

    def shown_time(self, now: float) -> object:
        looks = self._looking_since is not None
        return id(self._sweep), self._failed, int(now) if looks else super().shown_time(now)

    def pulse(self, now: float) -> None:
        self.query_one(Crumbs).show(["pools", "what is left"], self._status(now))
        listed = self.query_one(LeftoverList)
        listed.update(self._sweep, self._note(), now)
        chosen = listed.chosen
        self.query_one("#detail", Static).update(Content(detail_of_row(chosen, now) if chosen else ""))
        super().pulse(now)

    def _status(self, now: float) -> list[Content]:
        parts = []
        if self._looking_since is not None:
            parts.append(Content.styled(f"◌ asking accounts … {duration(now - self._looking_since)}", "$text-warning"))
        if self._sweep is not None and self._sweep.left:
            parts.append(Content.styled(f"! {amount_of(self._sweep.left)} left", "$text-error"))
        if self._sweep is not None and self._sweep.unknown:
            parts.append(Content.styled(f"! {len(self._sweep.unknown)} not known", "$text-warning"))
        if self._looked_at is not None and self._looking_since is None:
            parts.append(Content.styled(f"looked {ago(now - self._looked_at)}", "$muted"))
        parts.append(Content.styled("all regions" if self._everywhere else "regions that pools were in", "$muted"))
        return parts

    def _note(self) -> str:
        """What stands there where nothing is listed."""
        if self._failed:
            return f"✗ {self._failed}"
        if self._looking_since is not None:
            return "asking the accounts what is there …"
        if self.app.session is None:
            return self.app.session_error or "reading the ledger …"
        where = "in all regions" if self._everywhere else "where pools have been, nor in the usual region"
        return f"Nothing that was made from here is there {where}."

    # Looking

    @work(group="look", exclusive=True)
    async def _look(self) -> None:
        session = self.app.session
        if session is None:
            return
        self._looking_since = self.app.clock()
        try:
            asked = await asyncio.to_thread(_everybody)
            self._sweep = await settled(session.sweep(asked, everywhere=self._everywhere, ledgers=self._ledgers))
        except (SkywardError, OSError) as error:
            self._failed = words_of(error)
        else:
            self._failed = ""
            self._looked_at = self.app.clock()
        self._looking_since = None  # who is broken off has one after it that looks

    def _look_again(self) -> None:
        if self.is_attached:
            self._look()

    # Actions

    @property
    def _chosen(self) -> LeftoverRow | None:
        return self.query_one(LeftoverList).chosen if self.is_mounted else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen = self._chosen
        match action:
            case "open":
                return chosen is not None and (chosen.ledger != "" or self._pool_of(chosen) != "")
            case "end":
                return chosen is not None and bool(self._with(chosen))
            case "end_all":
                return self._sweep is not None and bool(self._sweep.left)
        return True

    def is_useful(self, action: Action) -> bool:
        if action.call == "end_all":
            pools = {(each.thing.pool, each.thing.token) for each in self._sweep.left} if self._sweep else ()
            return len(pools) > 1
        return action.call != "everywhere" or not self._everywhere

    def _pool_of(self, row: LeftoverRow) -> str:
        """The key of the pool that can be opened for a row, or ""."""
        found = row.found
        return found.pool if found is not None and found.pool and self.app.find_pool(found.pool) else ""

    def _with(self, row: LeftoverRow) -> list[Found]:
        """All that nobody needs of the pool of what is chosen."""
        if row.found is None or self._sweep is None:
            return []
        of = row.found.thing
        return [
            each
            for each in self._sweep.left
            if (each.thing.pool, each.thing.token, each.thing.ledger) == (of.pool, of.token, of.ledger)
        ]

    def on_leftover_list_leftover_opened(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        if (chosen := self._chosen) is None:
            return
        if chosen.ledger:
            self._ledgers = tuple(dict.fromkeys((*self._ledgers, chosen.ledger)))
            self.flash(f"looking at what ledger {chosen.ledger} made, too …")
            self._look()
        elif pool := self._pool_of(chosen):
            self.app.show_pool(pool)

    def action_again(self) -> None:
        self._look()

    def action_everywhere(self) -> None:
        self._everywhere = not self._everywhere
        self._look()

    def action_end(self) -> None:
        if (chosen := self._chosen) is not None:
            self._ask_to_end(self._with(chosen))

    def action_end_all(self) -> None:
        if self._sweep is not None:
            self._ask_to_end(self._sweep.left)

    def _ask_to_end(self, found: list[Found]) -> None:
        pass

        if found and self._sweep is not None:
            self.app.push_screen(EndLeftScreen(self._sweep.of(found), self._look_again))

    def action_back(self) -> None:
        self.dismiss(None)


def _everybody() -> dict[str, tuple[str, ...]]:
    """Every provider that has accounts, as it is by its name: the ledger may be lost."""
    from skyward_core.client.leftover_cleanup import sweepers

    return dict.fromkeys(sweepers(), ())


class EndLeftScreen(TypedWord[None]):
    """Where a machine is among it, a word must be typed; else the focus is on Cancel. Closing it stops nothing that
    has begun.

    Args:
        sweep: what is to be ended.
        ended: called once that is over.
    """

    DEFAULT_CSS = beside(__file__, "end_left")
    CONFIRMS = "#end"

    def __init__(self, sweep: Sweep, ended: Callable[[], None]) -> None:
        super().__init__()
        self.heading = f"End {amount_of(sweep.left)}?"
        self._sweep = sweep
        self._ended = ended
        self._began: float | None = None
        self._word = ""
        if any(each.thing.is_machine for each in sweep.left):
            names = {each.thing.pool for each in sweep.left}
            name = names.pop() if len(names) == 1 else ""
            # A name is a tag, which may be anything.
            self._word = name if name.isascii() and name.isprintable() and name.strip() else ""
            self._word = self._word.strip() or str(len(sweep.left))

    def body(self) -> ComposeResult:
        yield self.facts(Content("\n".join(named(self._sweep.left, self.app.clock()))))
        yield Static(self._question(), id="ask")
        yield from self.field()

    @property
    def word(self) -> str:
        return self._word

    def buttons(self) -> Iterable[Button]:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("End it", id="end", variant="error", compact=True, disabled=bool(self._word))

    def _question(self, refused: str = "") -> Content:
        parts = [("\nWhat nobody has fetched from there goes with it.", "$text-warning")]
        others = {(each.thing.ledger, each.thing.owner) for each in self._sweep.left if not each.thing.ours}
        for ledger, owner in sorted(others):
            said = f"\n! of ledger {ledger} ({owner}): whether it is in use there cannot be told from here"
            parts.append((said, "$text-warning"))
        if self._word:
            what = "how many things" if self._word == str(len(self._sweep.left)) else "the pool's name"
            parts += [(f"\n\nType {what}, ", ""), (self._word, "bold $text-accent"), (", to end it:", "")]
        if refused:
            parts.append((f"\n✗ nothing was ended: {refused}", "$text-error"))
        return Content.assemble(*parts)

    def confirmed(self) -> None:
        self._begin()

    def refused(self, said: str) -> None:
        self.query_one("#ask", Static).update(self._question(said))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "end":
            self._begin()
        else:
            self.action_close()

    def action_close(self) -> None:
        if self._began is None:
            self.app.flash("nothing was ended")
        self.dismiss()

    # Ending

    def _begin(self) -> None:
        if self._began is not None or self.app.session is None:
            return
        self._began = self.app.clock()
        self.box.border_title = "Ending"
        for away in self.query("#answer, #ask, #end"):
            away.add_class("hidden")
        close = self.query_one("#cancel", Button)
        close.label = "Hide"
        close.focus()
        # The app's worker and not this screen's: it goes on when the screen is closed.
        self.app.run_worker(self._end(), name="end left", exclusive=False)
        self._timer = self.set_interval(0.2, self._show_progress)
        self._show_progress()

    def _show_progress(self) -> None:
        took = duration(self.app.clock() - (self._began or 0.0))
        said = f"ending {amount_of(self._sweep.left)} … {took}\n\nUntil the account says that it is gone."
        self.show(Content(said))

    async def _end(self) -> None:
        session = self.app.session
        if session is None:
            return
        try:
            remains = await settled(session.end_left(self._sweep))
        except (SkywardError, OSError) as error:
            remains = [words_of(error)]
        many = count(len(self._sweep.left), "thing")
        if remains:
            self.app.flash(f"still there: {remains[0]}", "error")
        else:
            self.app.flash(f"ended, and verified gone: {many}", "done")
        self._ended()
        self.app.look_for_leftovers()
        if not self.is_attached:
            return
        self._timer.stop()
        self.box.border_title = "Something may be left" if remains else "Ended, nothing of it left"
        self.box.set_class(not remains, "-gone")
        lines = [(f"✗ still there: {field(each)}\n", "$text-error") for each in remains]
        self.show(Content.assemble(*(lines or [(f"✓ ended, and verified gone: {many}", "$text-success")])))
        self.query_one("#cancel", Button).label = "Close"

    def on_mount(self) -> None:
        self.call_after_refresh(self.fit)
