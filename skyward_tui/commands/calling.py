"""The person who has started a run and looks elsewhere is called when it ends, as in the app."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from skyward_core.front import settings
from skyward_core.views.notifications import Notification, of_run

from ..notifications import Notifier
from .console import Console

if TYPE_CHECKING:
    from skyward_core.views.views import RunView


class Caller:
    """Calls the person about one run; what of their settings cannot be used is said at once."""

    def __init__(self, console: Console) -> None:
        own = settings.own_settings()
        for said in own.refused:
            if "notify" in said:
                console.note(said)
        self._notifier = Notifier(own.notify, _ring, console.note)
        self._began = time.monotonic()

    def run_ended(self, run: RunView, pool: str) -> None:
        """A run has ended; returns at once."""
        self._tell(of_run(run, pool, time.time()))

    def start_failed(self, pool: str, why: str) -> None:
        """There is no pool, and so no run; returns at once."""
        self._tell(Notification("failed", pool, what="the start", detail=why))

    def settle(self) -> None:
        """Wait for the person's command, which has a limit and ends with us."""
        if self._notifier.ways.command:
            from skyward_core.front.notify_command import settle

            settle()

    def _tell(self, told: Notification) -> None:
        # Who has waited for a pool's start has waited, however short the run was.
        waited = time.monotonic() - self._began
        self._notifier.tell_unless_seen(told._replace(seconds=waited), True, waited)


def _ring(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()
