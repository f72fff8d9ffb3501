"""Leftovers: resources of ours that cloud accounts still hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Static

from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.dialogs.dialog import TypedConfirmation
from skyward_tui.screens.base_screen import ListScreen
from skyward_tui.text.error_hints import format_error
from skyward_tui.text.number_and_time_format import ago, clip, count, duration
from skyward_tui.text.receipts_and_leftovers import (
    LeftoverRow,
    deletion_lines,
    leftover_cells,
    leftover_rows,
    leftovers_amount,
    row_detail,
)
from skyward_tui.ui.actions import Action, bindings
from skyward_tui.ui.refresh_and_repaint import idle_token
from skyward_tui.ui.session_futures import wait_shielded
from skyward_tui.ui.themes import read_style_sheet, state_style
from skyward_tui.widgets.header_and_hints import Breadcrumbs, Panel
from skyward_tui.widgets.virtual_list import CursorList, Part

if TYPE_CHECKING:
    from skyward_core.client.leftover_cleanup import JudgedLeftover, LeftoverScan
    from skyward_core.client.session_interface import SessionInterface


_ROOMY = 120  # columns from which every fact of a thing is shown


class LeftoverList(CursorList[LeftoverRow]):
    """Things by pool, then what others made, then places that could not be looked at."""

    TITLES = MappingProxyType({"STATE": "  STATE"})

    def __init__(self) -> None:
        super().__init__(id="list")
        self._now = 0.0
        self._state: object = None

    def row_id(self, row: LeftoverRow) -> str:
        return row.id

    def update(self, scan: LeftoverScan | None, note: str, now: float) -> None:
        state = (id(scan), note, idle_token(now), self.size)
        if state != self._state:
            self._state, self.note, self._now = state, note, now
            self.set_rows([] if scan is None else leftover_rows(scan))
            self.refresh()

    def columns(self, width: int) -> Sequence[tuple[str, int | None]]:
        pools = [len(row.found.thing.pool) for row in self.rows if row.found is not None]
        name = max(4, min(max(pools, default=4), 24 if width >= _ROOMY else 14))
        if width >= _ROOMY:
            return [
                ("POOL", name), ("WHAT", 15), ("ID", 26), ("WHERE", 15),
                ("AGE", -10), ("COST", -10), ("SO FAR", -11), ("EXPIRES", -14), ("STATE", None),
            ]  # fmt: skip
        return [("POOL", name), ("WHAT", 15), ("WHERE", 15), ("AGE", -9), ("COST", -10), ("STATE", None)]

    def parts(self, row: LeftoverRow, width: int) -> Iterator[Part]:
        yield " ", ""
        if row.found is None:
            yield clip(row.text, width - 2), "$muted" if row.ledger else "$text-warning"
            return
        state = state_style(row.found.verdict)
        words = f"  {state.text}{row.text if width >= _ROOMY else ''}"
        cells = {name: (text, "") for name, text in leftover_cells(row.found, self._now).items()}
        yield from self.cells({**cells, "STATE": (words, state.style)}, width)


class LeftoversScreen(ListScreen[LeftoverList]):
    """It looks when it opens, and changes nothing until somebody says so.

    Args:
        known: what the app has found before; shown until the accounts have answered.
    """

    SCOPE = "leftovers"
    BINDINGS = bindings("leftovers")
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self, known: LeftoverScan | None = None) -> None:
        super().__init__(LeftoverList())
        self._found = known
        self._failed = ""
        self._looking_since: float | None = None
        self._looked_at: float | None = None
        self._everywhere = False
        self._ledgers: tuple[str, ...] = ()  # those of others that are meant, too

    def body(self) -> ComposeResult:
        yield Panel(self.listed, title="what accounts hold")
        yield Panel(Static(id="detail"), id="thing", title="chosen")

    def on_mount(self) -> None:
        self._scan()

    def time_token(self, now: float) -> object:
        looks = self._looking_since is not None
        return id(self._found), self._failed, int(now) if looks else super().time_token(now)

    def tick(self, now: float) -> None:
        self.query_one(Breadcrumbs).update_trail(["pools", "what is left"], self._status(now))
        self.listed.update(self._found, self._note(), now)
        chosen = self.listed.chosen
        self.query_one("#detail", Static).update(Content(row_detail(chosen, now) if chosen else ""))
        super().tick(now)

    def _status(self, now: float) -> list[Content]:
        parts = []
        if self._looking_since is not None:
            parts.append(Content.styled(f"◌ asking accounts … {duration(now - self._looking_since)}", "$text-warning"))
        if self._found is not None and self._found.removable:
            parts.append(Content.styled(f"! {leftovers_amount(self._found.removable)} left", "$text-error"))
        if self._found is not None and self._found.unknown:
            parts.append(Content.styled(f"! {len(self._found.unknown)} not known", "$text-warning"))
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
    async def _scan(self) -> None:
        from skyward_core.client.leftover_cleanup import scannable_providers

        session = self.app.session
        if session is None:
            return
        self._looking_since = self.app.clock()
        try:
            # Every provider that has accounts, as it is by its name: the ledger may be lost.
            asked = dict.fromkeys(await asyncio.to_thread(scannable_providers), ())
            self._found = await wait_shielded(
                session.scan_leftovers(asked, everywhere=self._everywhere, ledgers=self._ledgers)
            )
        except (SkywardError, OSError) as error:
            self._failed = format_error(error)
        else:
            self._failed = ""
            self._looked_at = self.app.clock()
        self._looking_since = None  # who is broken off has one after it that looks

    def _rescan(self) -> None:
        if self.is_attached:
            self._scan()

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen = self.listed.chosen
        match action:
            case "open":
                return chosen is not None and (chosen.ledger != "" or self._pool_of(chosen) != "")
            case "end":
                return chosen is not None and bool(self._deletable_of_pool(chosen))
            case "end_all":
                return self._found is not None and bool(self._found.removable)
        return True

    def is_hint_worthy(self, action: Action) -> bool:
        if action.call == "end_all":
            pools = {(each.thing.pool, each.thing.token) for each in self._found.removable} if self._found else ()
            return len(pools) > 1
        return action.call != "everywhere" or not self._everywhere

    def _pool_of(self, row: LeftoverRow) -> str:
        """The key of the pool that can be opened for a row, or ""."""
        found = row.found
        return found.pool if found is not None and found.pool and self.app.find_pool(found.pool) else ""

    def _deletable_of_pool(self, row: LeftoverRow) -> list[JudgedLeftover]:
        """All that nobody needs of the pool of what is chosen."""
        if row.found is None or self._found is None:
            return []
        of = row.found.thing
        return [
            each
            for each in self._found.removable
            if (each.thing.pool, each.thing.token, each.thing.ledger) == (of.pool, of.token, of.ledger)
        ]

    def action_open(self) -> None:
        if (chosen := self.listed.chosen) is None:
            return
        if chosen.ledger:
            self._ledgers = tuple(dict.fromkeys((*self._ledgers, chosen.ledger)))
            self.flash(f"looking at what ledger {chosen.ledger} made, too …")
            self._scan()
        elif pool := self._pool_of(chosen):
            self.app.show_pool(pool)

    def action_again(self) -> None:
        self._scan()

    def action_everywhere(self) -> None:
        self._everywhere = not self._everywhere
        self._scan()

    def action_end(self) -> None:
        if (chosen := self.listed.chosen) is not None:
            self._ask_to_delete(self._deletable_of_pool(chosen))

    def action_end_all(self) -> None:
        if self._found is not None:
            self._ask_to_delete(self._found.removable)

    def _ask_to_delete(self, found: list[JudgedLeftover]) -> None:
        if found and self._found is not None:
            self.app.push_screen(DeleteLeftoversScreen(self._found.select(found), self._rescan))


class DeleteLeftoversScreen(TypedConfirmation[None]):
    """Where a machine is among it, a word must be typed; else the focus is on Cancel. Closing it stops nothing that
    has begun.

    Args:
        scan: what is to be ended.
        ended: called once that is over.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "end_left")
    CONFIRMS = "#end"

    def __init__(self, scan: LeftoverScan, ended: Callable[[], None]) -> None:
        super().__init__()
        self.heading = f"End {leftovers_amount(scan.removable)}?"
        self._found = scan
        self._on_deleted = ended
        self._started_at = 0.0
        if any(each.thing.is_machine for each in scan.removable):
            names = {each.thing.pool for each in scan.removable}
            name = names.pop() if len(names) == 1 else ""
            # A name is a tag, which may be anything.
            self.word = name.strip() if name.isascii() and name.isprintable() else ""
            self.word = self.word or str(len(scan.removable))

    def body(self) -> ComposeResult:
        yield self.facts(Content("\n".join(deletion_lines(self._found.removable, self.app.clock()))))
        yield Static(self._question(), id="ask")
        yield from self.field()

    def buttons(self) -> Iterable[Button]:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("End it", id="end", variant="error", compact=True, disabled=bool(self.word))

    def _question(self, refused: str = "") -> Content:
        parts = [("\nWhat nobody has fetched from there goes with it.", "$text-warning")]
        others = {(each.thing.ledger, each.thing.owner) for each in self._found.removable if not each.thing.ours}
        for ledger, owner in sorted(others):
            said = f"\n! of ledger {ledger} ({owner}): whether it is in use there cannot be told from here"
            parts.append((said, "$text-warning"))
        if self.word:
            what = "how many things" if self.word == str(len(self._found.removable)) else "the pool's name"
            parts += [(f"\n\nType {what}, ", ""), (self.word, "bold $text-accent"), (", to end it:", "")]
        if refused:
            parts.append((f"\n✗ nothing was ended: {refused}", "$text-error"))
        return Content.assemble(*parts)

    def reject(self, said: str) -> None:
        self.query_one("#ask", Static).update(self._question(said))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "end":
            self.confirm()
        else:
            self.action_close()

    def action_close(self) -> None:
        if not self.has_started:
            self.app.flash("nothing was ended")
        self.dismiss()

    # Ending

    def confirm(self) -> None:
        if not self.has_started and (session := self.app.session) is not None:
            self._started_at = self.app.clock()
            self.start("Ending", self._delete(session))

    def show_progress(self) -> None:
        took = duration(self.app.clock() - self._started_at)
        said = f"ending {leftovers_amount(self._found.removable)} … {took}\n\nUntil the account says that it is gone."
        self.show_facts(Content(said))

    async def _delete(self, session: SessionInterface) -> None:
        try:
            remains = await wait_shielded(session.remove_leftovers(self._found))
        except (SkywardError, OSError) as error:
            remains = [format_error(error)]
        many = count(len(self._found.removable), "thing")
        if remains:
            self.app.flash(f"still there: {remains[0]}", "error")
        else:
            self.app.flash(f"ended, and verified gone: {many}", "done")
        self._on_deleted()
        self.app.scan_leftovers()
        if not self.is_attached:
            return
        self.progress_timer.stop()
        self.finish("Something may be left" if remains else "Ended, nothing of it left", gone=not remains)
        lines = [(f"✗ still there: {sanitize_line(each)}\n", "$text-error") for each in remains]
        self.show_facts(Content.assemble(*(lines or [(f"✓ ended, and verified gone: {many}", "$text-success")])))

    def on_mount(self) -> None:
        self.call_after_refresh(self.fit_to_screen)
