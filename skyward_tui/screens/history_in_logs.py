"""The words that the history is searched by, looked for in what its runs printed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from skyward_core.model.errors import SkywardError

from ..hints import words_of
from ..words import count

if TYPE_CHECKING:
    from textual.timer import Timer

    from skyward_core.front.line_search import FoundInLogs, LogSearch
    from skyward_core.front.past_runs import PastRun

    from .base import BaseScreen

TYPED = 0.3  # seconds after the last letter in which nothing is looked for


class HistoryInLogs:
    """Looks step by step, as long as somebody looks at the screen.

    Args:
        screen: the history.

    Attributes:
        found: where the words are in what runs printed, by the run.
        changes: how often that has changed.
    """

    def __init__(self, screen: BaseScreen[None]) -> None:
        self._screen = screen
        self.found: Mapping[str, FoundInLogs] = {}
        self.changes = 0
        self._search: LogSearch | None = None
        self._stepping: LogSearch | None = None  # the one of which a step goes on just now
        self._typing: Timer | None = None  # until nobody has typed for a moment

    @property
    def goes_on(self) -> bool:
        """Whether something is still to be looked through."""
        return self._search is not None and not self._search.done

    def look_soon(self, look: Callable[[], None]) -> None:
        """Drop the results, and search for the new words once the user has stopped typing."""
        self.drop()
        if self._typing is not None:
            self._typing.stop()
        self._typing = self._screen.set_timer(TYPED, look)

    def look(self, runs: Sequence[PastRun], words: Sequence[str]) -> None:
        """Look for the words in what all runs printed, from the newest on."""
        self.drop()
        session = self._screen.app.session
        if session is not None and words and runs:
            self._search = session.search_logs(runs, words)
            self.go_on()

    def drop(self) -> None:
        if self._search is not None:
            self._search.cancel()
        self._search, self.found = None, {}
        self.changes += 1

    def go_on(self) -> None:
        """Go on where somebody looks at the screen again."""
        search = self._search
        if search is not None and search is not self._stepping:
            self._stepping = search
            self._screen.run_worker(self._step_on(search), group="logs")

    async def _step_on(self, search: LogSearch) -> None:
        screen = self._screen
        try:
            while search is self._search and not search.done and screen.is_current:
                found = await asyncio.to_thread(search.step)
                if search is self._search and screen.is_attached:
                    if found:
                        self.found = {**self.found, **found}
                        self.changes += 1
                    screen.pulse(screen.app.clock())
        except SkywardError as error:
            self.drop()
            screen.flash(words_of(error), "error")
        finally:
            if search is self._stepping:
                self._stepping = None

    def progress(self) -> list[Content]:
        """How far logs have been looked through, until they all are; and what nobody could read."""
        search, parts = self._search, list[Content]()
        if search is None:
            return parts
        if not search.done:
            text = f"looking in logs: {search.looked:,} of {search.runs:,}"
            parts.append(Content.styled(text, "$muted"))
        if search.unread:
            parts.append(Content.styled(f"{count(search.unread, 'log')} not readable", "$text-warning"))
        return parts
