"""Runs of one task, as app and command line launch them, and what they were launched with."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ..model.errors import UsageError
from ..pool.runs.launch import new_id
from ..store.ledger import Ledger
from ..tasks.task import Task
from ..views.views import RunView
from .session_part import SessionPart

if TYPE_CHECKING:
    from .kept_commands import KeptShell
    from .launch_request import LaunchRequest
    from .launches import KeptLaunch


class Launching(SessionPart):
    """The part of a session that launches them."""

    ledger: Ledger

    def launch(
        self,
        pool: str,
        task: Task,
        *,
        one: bool = False,
        stays: bool = False,
        request: LaunchRequest | KeptShell | None = None,
        joined: bool = False,
    ) -> Future[RunView]:
        """See :meth:`.base.Front.launch`."""

        async def work() -> RunView:
            found = await self._ours(pool)
            id = new_id()
            if request is not None:
                from .launches import keep_before

                keep_before(found.view.key, id, request, joined=joined)
            try:
                run = found.launch.open("single" if one else "broadcast", [task], run_id=id, stays=stays)
            except BaseException:
                if request is not None:
                    from .launches import forget

                    forget(found.view.key, id)
                raise
            return found.view.runs[run.id]

        return self._submit(work())

    def keep_launch(self, pool: str, run: str, request: LaunchRequest, *, joined: bool) -> Future[None]:
        """Keep all of what a run was launched with, the state of its script's repository too.

        Args:
            pool: its key.
            joined: whether the pool was up before.

        Raises (through the future):
            OSError: it cannot be written.
        """

        async def work() -> None:
            from .launches import keep, state_of

            source = await asyncio.to_thread(state_of, request)
            await asyncio.to_thread(keep, pool, run, request, joined=joined, source=source)

        return self._submit(work())

    def kept_launch(self, run: str) -> Future[KeptLaunch | KeptShell]:
        """What a run was launched with, or the job that it was a step of.

        Raises (through the future):
            UsageError: nothing is kept of it.
            LedgerError: the ledger cannot be read.
        """

        async def work() -> KeptLaunch | KeptShell:
            from .launches import any_kept

            if (row := self.ledger.run(run)) is None:
                raise UsageError(f"the ledger has no run {run}")
            return await asyncio.to_thread(any_kept, self.ledger, row)

        return self._submit(work())
