"""Screen with leftovers: resources of ended pools that cloud accounts still hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Static

from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.dialogs.confirmations import ConfirmedWork
from skyward_tui.screens.base_screen import ListScreen
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.number_time_and_run_state_format import ago, count, duration
from skyward_tui.text.state_styles import state_style
from skyward_tui.text.teardown_and_leftovers import (
    LeftoverRow,
    deletion_lines,
    leftover_cells,
    leftover_rows,
    leftovers_amount,
    row_detail,
)
from skyward_tui.text.text_width_tables_and_ascii import clip
from skyward_tui.ui.actions import Action, bindings
from skyward_tui.ui.session_futures import wait_shielded
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.ui.time_refresh_rules import idle_token
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Panel
from skyward_tui.widgets.virtual_list import CursorList, Part

if TYPE_CHECKING:
    from skyward_core.client.leftover_cleanup import JudgedLeftover, LeftoverScan
    from skyward_core.client.session import Session


_ROOMY = 120  # cells; a narrower list leaves out some columns


class LeftoverList(CursorList[LeftoverRow]):
    """Rows: the resources by pool, then other ledgers, then accounts that could not be scanned."""

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
    """Screen with leftovers. Scans when the screen opens, and deletes only after confirmation.

    Args:
        known: Result of an earlier scan, shown until the new scan is complete.
    """

    SCOPE = "leftovers"
    BINDINGS = bindings("leftovers")
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self, known: LeftoverScan | None = None) -> None:
        super().__init__(LeftoverList())
        self._found = known
        self._failed = ""
        self._scan_started_at: float | None = None
        self._scanned_at: float | None = None
        self._everywhere = False
        self._ledgers: tuple[str, ...] = ()  # IDs of other ledgers whose resources the user has asked to list

    def body(self) -> ComposeResult:
        yield Panel(self.listed, title="account inventory")
        yield Panel(Static(id="detail"), id="thing", title="details")

    def on_mount(self) -> None:
        self.action_again()

    def time_token(self, now: float) -> object:
        is_scanning = self._scan_started_at is not None
        return id(self._found), self._failed, int(now) if is_scanning else super().time_token(now)

    def tick(self, now: float) -> None:
        self.query_one(Breadcrumbs).update_trail(["pools", "leftovers"], self._status(now))
        self.listed.update(self._found, self._note(), now)
        chosen = self.listed.chosen
        self.query_one("#detail", Static).update(Content(row_detail(chosen, now) if chosen else ""))
        super().tick(now)

    def _status(self, now: float) -> list[Content]:
        parts = []
        if self._scan_started_at is not None:
            parts.append(
                Content.styled(f"◌ scanning accounts … {duration(now - self._scan_started_at)}", "$text-warning")
            )
        if self._found is not None and self._found.removable:
            parts.append(Content.styled(f"! {leftovers_amount(self._found.removable)} left", "$text-error"))
        if self._found is not None and self._found.unknown:
            parts.append(Content.styled(f"! {len(self._found.unknown)} unchecked", "$text-warning"))
        if self._scanned_at is not None and self._scan_started_at is None:
            parts.append(Content.styled(f"scanned {ago(now - self._scanned_at)}", "$muted"))
        parts.append(Content.styled("all regions" if self._everywhere else "regions used before", "$muted"))
        return parts

    def _note(self) -> str:
        """Return the text that an empty list shows."""
        if self._failed:
            return f"✗ {self._failed}"
        if self._scan_started_at is not None:
            return "scanning the accounts …"
        where = "in any region" if self._everywhere else "in the default region or in regions used before"
        return f"No cloud resources from this machine {where}."

    @work(group="look", exclusive=True)
    async def action_again(self) -> None:
        from skyward_core.client.leftover_cleanup import scannable_providers

        self._scan_started_at = self.app.clock()
        try:
            session = self.app.required_session
            # Scan the accounts of all providers, with default settings. The ledger does not limit the scan, because it
            # may be lost.
            providers = dict.fromkeys(await asyncio.to_thread(scannable_providers), ())
            self._found = await wait_shielded(
                session.scan_leftovers(providers, everywhere=self._everywhere, ledgers=self._ledgers)
            )
        except (SkywardError, OSError) as error:
            self._failed = format_error(error)
        else:
            self._failed = ""
            self._scanned_at = self.app.clock()
        # Do not clear the start time in a ``finally`` block, because a scan that a newer scan has cancelled would clear
        # the start time of the newer scan.
        self._scan_started_at = None

    def _rescan(self) -> None:
        if self.has_widgets:
            self.action_again()

    # Actions of the leftovers screen

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
        """Return the key of the pool that a row's resource belongs to; "" if the app cannot open this pool."""
        found = row.found
        return found.pool if found is not None and found.pool and self.app.find_pool(found.pool) else ""

    def _deletable_of_pool(self, row: LeftoverRow) -> list[JudgedLeftover]:
        """Return all deletable leftovers of a row's pool."""
        if row.found is None or self._found is None:
            return []
        pool = attrgetter("thing.pool", "thing.token", "thing.ledger")  # identifies a pool
        return [each for each in self._found.removable if pool(each) == pool(row.found)]

    def action_open(self) -> None:
        if (chosen := self.listed.chosen) is None:
            return
        if chosen.ledger:
            self._ledgers = tuple(dict.fromkeys((*self._ledgers, chosen.ledger)))
            self.flash(f"scanning resources of ledger {chosen.ledger}, too …")
            self.action_again()
        elif pool := self._pool_of(chosen):
            self.app.show_pool(pool)

    def action_everywhere(self) -> None:
        self._everywhere = not self._everywhere
        self.action_again()

    def action_end(self) -> None:
        if (chosen := self.listed.chosen) is not None:
            self._ask_to_delete(self._deletable_of_pool(chosen))

    def action_end_all(self) -> None:
        if self._found is not None:
            self._ask_to_delete(self._found.removable)

    def _ask_to_delete(self, found: list[JudgedLeftover]) -> None:
        if found and self._found is not None:
            self.app.push_screen(DeleteLeftoversScreen(self._found.select(found), self._rescan))


class DeleteLeftoversScreen(ConfirmedWork[None]):
    """Dialog that confirms a deletion and shows its progress.

    Closing the dialog does not stop a deletion that has started.

    Args:
        scan: Leftovers to delete.
        ended: Called after the deletion.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "delete_leftovers")
    CONFIRMS = "#end"

    def __init__(self, scan: LeftoverScan, ended: Callable[[], None]) -> None:
        super().__init__()
        self.heading = f"Delete {leftovers_amount(scan.removable)}?"
        self._found = scan
        self._on_deleted = ended
        self._started_at = 0.0

    def body(self) -> ComposeResult:
        yield self.facts(Content("\n".join(deletion_lines(self._found.removable, self.app.clock()))))
        yield Static(self._question(), id="ask")

    def buttons(self) -> Iterable[Button]:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Delete", id="end", variant="error", compact=True)

    def _question(self) -> Content:
        parts = [("\nUnfetched results on these machines are lost.", "$text-warning")]
        others = {(each.thing.ledger, each.thing.owner) for each in self._found.removable if not each.thing.ours}
        for ledger, owner in sorted(others):
            parts.append((f"\n! pools of {owner} (ledger {ledger}) may still use these resources", "$text-warning"))
        return Content.assemble(*parts)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "end":
            self.confirm()
        else:
            self.action_close()

    def action_close(self) -> None:
        if not self.has_started:
            self.app.flash("nothing was deleted")
        self.dismiss()

    def confirm(self) -> None:
        if not self.has_started and (session := self.app.session) is not None:
            self._started_at = self.app.clock()
            self.start("Deleting", self._delete(session))

    def show_progress(self) -> None:
        elapsed = duration(self.app.clock() - self._started_at)
        text = (
            f"deleting {leftovers_amount(self._found.removable)} … {elapsed}\n\nWaiting for the account's confirmation."
        )
        self.show_facts(Content(text))

    async def _delete(self, session: Session) -> None:
        try:
            remains = await wait_shielded(session.remove_leftovers(self._found))
        except (SkywardError, OSError) as error:
            remains = [format_error(error)]
        deleted = f"deleted and verified: {count(len(self._found.removable), 'resource')}"
        if remains:
            self.app.flash(f"not deleted: {remains[0]}", "error")
        else:
            self.app.flash(deleted, "done")
        self._on_deleted()
        self.app.scan_leftovers()
        if not self.has_widgets:
            return
        self.progress_timer.stop()
        self.finish("Some leftovers may remain" if remains else "All deleted", gone=not remains)
        lines = [(f"✗ not deleted: {sanitize_line(each)}\n", "$text-error") for each in remains]
        self.show_facts(Content.assemble(*(lines or [(f"✓ {deleted}", "$text-success")])))

    def on_mount(self) -> None:
        self.call_after_refresh(self.fit_to_screen)
