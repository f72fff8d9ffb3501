"""What cloud accounts hold that was made for pools: the accounts say it, whatever the ledger remembers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from skyward_core.model.errors import SkywardError

from ..actions import Action, bindings
from ..app_face import settled
from ..hints import words_of
from ..leftovers import amount_of, detail_of_row
from ..styles import beside
from ..widgets.chrome import Crumbs, Panel
from ..widgets.leftover_list import LeftoverList
from ..words import ago, duration
from .base import BaseScreen

if TYPE_CHECKING:
    from skyward_core.front.sweeping import Found, Sweep

    from ..leftovers import LeftoverRow


class SweepScreen(BaseScreen[None]):
    """It looks when it opens, and changes nothing until somebody says so.

    Args:
        known: what the app has found before; shown until the accounts have answered.
    """

    SCOPE = "sweep"
    BINDINGS = bindings("sweep")
    DEFAULT_CSS = beside(__file__)

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
            parts.append(
                Content.styled(f"◌ asking accounts … {duration(now - self._looking_since)}", "$text-warning")
            )
        if self._sweep is not None and self._sweep.left:
            parts.append(Content.styled(f"! {amount_of(self._sweep.left)} left", "$text-error"))
        if self._sweep is not None and self._sweep.unknown:
            parts.append(Content.styled(f"! {len(self._sweep.unknown)} not known", "$text-warning"))
        if self._looked_at is not None and self._looking_since is None:
            parts.append(Content.styled(f"looked {ago(now - self._looked_at)}", "$muted"))
        parts.append(
            Content.styled("all regions" if self._everywhere else "regions that pools were in", "$muted")
        )
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
            self._sweep = await settled(
                session.sweep(asked, everywhere=self._everywhere, ledgers=self._ledgers)
            )
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
        from ..dialogs.end_left import EndLeftScreen

        if found and self._sweep is not None:
            self.app.push_screen(EndLeftScreen(self._sweep.of(found), self._look_again))

    def action_back(self) -> None:
        self.dismiss(None)


def _everybody() -> dict[str, tuple[str, ...]]:
    """Every provider that has accounts, as it is by its name: the ledger may be lost."""
    from skyward_core.front.sweeping import sweepers

    return dict.fromkeys(sweepers(), ())
