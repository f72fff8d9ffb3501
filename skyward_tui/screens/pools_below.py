"""What stands below a short list of pools: the runs of late, read from the ledger when some began or ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from skyward_core.model.errors import SkywardError

from ..actions import first_key
from ..app_face import settled
from ..widgets.chrome import Panel

if TYPE_CHECKING:
    from skyward_core.front.past_runs import PastRun
    from skyward_core.views.views import PoolView

    from ..widgets.recent_runs import RecentRuns
    from .base import BaseScreen

_AROUND, _HEAD = 2, 3  # rows of the screen, and of a list, that are none of its own
_LEAST = 6  # rows that are worth it
_LEAST_LIST = 8  # rows of the list, however few pools there are
LOOK = 2.0  # seconds between two looks at the ledger


class PoolsBelow:
    """Nothing is read, nor loaded, before there is room for it.

    Args:
        screen: that of the pools.
    """

    def __init__(self, screen: BaseScreen[None]) -> None:
        self._screen = screen
        self._widget: RecentRuns | None = None
        self._runs: Sequence[PastRun] = ()
        self._read_at: float | None = None
        self._seen: object = None  # what went on when the ledger was read
        self._reads = False
        self._rows = 0  # of the list

    def show(self, pools: Sequence[PoolView], now: float, *, roomy: bool) -> None:
        """Show the runs, where the list leaves room for them.

        Args:
            roomy: whether the screen is wide enough.
        """
        wanted = max(_LEAST_LIST, len(pools) + _HEAD)
        there = roomy and self._screen.size.height - _AROUND - wanted >= _LEAST
        if there:
            self._read_if_due(pools)
        there = there and bool(self._runs)
        self._screen.set_class(there, "-below")
        if not there:
            if self._rows:
                self._rows = 0
                self._screen.query_one("#pools").styles.height = None
            return
        from ..widgets.recent_runs import RecentRuns

        if self._widget is None:
            self._widget = RecentRuns()
            panel = Panel(self._widget, id="recent")
            key = first_key("pools.history", self._screen.app.keys)
            panel.border_title = Content.assemble("recent runs", (f"  {key} shows all", "$muted"))
            self._screen.query_one("#left").mount(panel)
        if wanted != self._rows:
            self._rows = wanted
            self._screen.query_one("#pools").styles.height = wanted
        self._widget.update(self._runs, now)

    def _read_if_due(self, pools: Sequence[PoolView]) -> None:
        going = len(pools), [(run.id, run.state) for pool in pools for run in list(pool.runs.values())]
        due = self._read_at is None or time.monotonic() - self._read_at > LOOK
        if due and not self._reads and going != self._seen and self._screen.app.session is not None:
            self._seen, self._reads = going, True
            self._screen.run_worker(self._read(), group="recent")

    async def _read(self) -> None:
        from skyward_core.front.past_runs import RunSearch

        session = self._screen.app.session
        try:
            if session is not None:
                self._runs = [run for run in await settled(session.past_runs(RunSearch())) if run.run]
        except (SkywardError, OSError):
            self._runs = ()  # the list of past runs says why
        finally:
            self._reads, self._read_at = False, time.monotonic()
        screen = self._screen
        # Of an app that ends, the screen loses its list before it goes.
        if screen.app.is_running and screen.is_attached and screen.is_current:
            screen.pulse(screen.app.clock())
