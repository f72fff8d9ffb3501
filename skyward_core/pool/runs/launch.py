"""How a client's runs get to a pool's nodes: at once, or when the nodes and the ranks that they need are there."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ...model.errors import PoolError
from ...tasks.payload import Task
from ...views import events as ev
from ..links.blobs import Blobs
from ..links.link import Link
from ..links.spread import Parcel
from .run import Run

if TYPE_CHECKING:
    from ..pool import Pool


class Launch:
    """Sends the runs of one pool, as one client dispatches them, on their way."""

    def __init__(self, pool: Pool, blobs: Blobs) -> None:
        self._pool = pool
        self._blobs = blobs

    def open(
        self, kind: str, tasks: Sequence[Task], *, consumed: bool = False, future: Future[Run] | None = None
    ) -> Run:
        """Dispatch a run: "broadcast" (one task to every rank), "single", or "gather".

        Args:
            consumed: a reader takes a generator's values one by one.
            future: set when the run has ended.

        Raises:
            PoolGone: the pool has ended.
        """
        pool = self._pool
        if pool.ending is not None:
            _discard(tasks)
            raise pool.ending.error()
        total = len(pool.links) * pool.ranks_per_node if kind == "broadcast" else len(tasks)
        run = Run(pool, secrets.token_hex(5), kind, tasks, total, future)
        run.consumed = consumed
        pool.runs[run.id] = run
        whole = not pool.replacements.under_way and not any(link.gone for link in pool.links)
        large = any(blob.path for task in tasks for blob in (task.fn, task.args))
        if whole and not large:
            # The calls leave first, the records are written while the nodes work: should we die between the two,
            # the agents still know the run, and whoever comes next enters it.
            self._start(run)
        self._record(run)
        pool.catch_up()
        if not whole and self._must_wait(run):
            run.hold()
            pool.spawn(self._start_when_whole(run))
        elif not whole or large:
            self._start_on_what_is_there(run)
        return run

    async def start_gang(self, run: Run) -> None:
        """Hand a broadcast to the nodes, with a gang formed anew where it is not whole."""
        gang = self._pool.gang
        if gang is None:
            raise PoolError(f"pool {self._pool.name} is not up")
        try:
            await self._when_reached([run], lambda: gang.start(run.send_gang))
        except OSError as error:
            self._fail(run, f"the gang could not be formed: {error}")

    def _record(self, run: Run) -> None:
        pool, now = self._pool, time.time()
        pool.records.opened(run.id, run.name, run.kind, run.total, now)
        pool.emit(
            ev.RunOpened(
                pool=pool.name, run=run.id, function=run.name, kind=run.kind, total=run.total, at=now
            )
        )

    # -- in a pool that lacks nodes ----------------------------------------------------------------------

    def _must_wait(self, run: Run) -> bool:
        """Whether a run needs nodes that are gone and that may come back."""
        pool = self._pool
        gone = [link.node for link in pool.links if link.gone]
        if not all(pool.replacements.hope_for(node) for node in gone):
            return False
        return run.kind == "broadcast" or len(gone) == len(pool.links)

    async def _start_when_whole(self, run: Run) -> None:
        await self._pool.replacements.settled()
        if run.release():
            self._start_on_what_is_there(run)

    def _start_on_what_is_there(self, run: Run) -> None:
        """Start a run, or refuse it, in a pool that may lack nodes."""
        pool = self._pool
        gone = [link.node for link in pool.links if link.gone]
        if run.kind == "broadcast" and gone and (pool.spec_options.fail_fast or not pool.alone):
            why = pool.replacements.why_not(gone[0])
            self._refuse(run, f"node {gone[0]} of the pool is gone" + (f": {why}" if why else ""))
        elif any(blob.path for task in run.tasks for blob in (task.fn, task.args)):
            pool.spawn(self._upload_and_start(run))
        else:
            self._start(run)

    # -- to the nodes ------------------------------------------------------------------------------------

    async def _upload_and_start(self, run: Run) -> None:
        blobs = {blob.hash: blob for task in run.tasks for blob in (task.fn, task.args)}
        parcels = [Parcel(b.hash, b.path, b.size) for b in blobs.values() if b.path is not None]
        try:
            await self._blobs.bring(run.id, parcels)
        except OSError as error:
            self._fail(run, f"its arguments could not be sent to the nodes: {error}")
            return
        finally:
            _discard(run.tasks)
        self._start(run)

    def _start(self, run: Run) -> None:
        gang = self._pool.gang
        if run.kind == "broadcast":
            if gang is None or not gang.start_now(run.send_gang):
                self._pool.spawn(self.start_gang(run))
        elif gang is not None and not gang.whole:
            self._pool.spawn(self._feed_whole(run))
        else:
            run.feed()

    async def _feed_whole(self, run: Run) -> None:
        pool = self._pool
        try:
            if not pool.alone:
                if any(link.gone for link in pool.links) and not await pool.startup.has_plugins():
                    run.feed()  # no contexts are to be entered, so there is no need of a gang
                    return
                await pool.replacements.settled()
            if pool.gang is not None:
                await self._when_reached([run], pool.gang.ensure)
        except OSError as error:
            self._fail(run, f"the gang could not be formed: {error}")
            return
        run.feed()

    async def mend_gang(self) -> None:
        """A gang broke: tasks that wait on nodes for the plugins' contexts need a new one to go on."""
        pool = self._pool
        tasks = [run for run in pool.runs.values() if run.kind != "broadcast"]
        if pool.gang is None or not tasks or pool.replacements.under_way:  # its end is a new gang
            return
        try:
            await self._when_reached(tasks, pool.gang.ensure)
        except OSError as error:
            why = f"the gang broke, and could not be formed anew: {error}"
            pool.complain(why)
            for link in pool.links:
                if link.up and not link.epoch:  # its agent waits for that with what it was asked
                    for run in tasks:
                        for index in run.calls_on(link):
                            self._end(run, index, link, "lost", "PoolError", why)

    async def _when_reached(self, runs: Sequence[Run], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what runs that still go on need the nodes for, once more after each time that a link was down for it
        and has come up again.

        Raises:
            ConnectionError: it cannot be done, and no link is on its way up.
        """
        links = self._pool.links
        while any(run.state == "running" for run in runs):
            connections = [link.welcome for link in links]
            try:
                return await work()
            except ConnectionError:
                same = all(link.welcome is had for link, had in zip(links, connections, strict=True))
                if same and not self._links_return:
                    raise
            while self._links_return and any(run.state == "running" for run in runs):
                await asyncio.sleep(0.02)

    @property
    def _links_return(self) -> bool:
        """Whether a link is down, and may come up again."""
        return not self._pool.leaving and any(not link.up and not link.gone for link in self._pool.links)

    # -- not to be started -------------------------------------------------------------------------------

    def _refuse(self, run: Run, why: str) -> None:
        """A broadcast lacks nodes for good."""
        for rank in range(run.total):
            kind = "lost" if self._pool.link_of(rank).gone else "collateral"
            self._end(run, rank, self._pool.link_of(rank), kind, "NodeLost", why)

    def _fail(self, run: Run, why: str) -> None:
        for index in range(run.total):
            link = self._pool.link_of(index if run.kind == "broadcast" else 0)
            self._end(run, index, link, "lost", "PoolError", why)

    def _end(self, run: Run, index: int, link: Link, kind: str, error: str, why: str) -> None:
        """End a call that no node has got, or that the one which has it does not begin."""
        rank = index if run.kind == "broadcast" else link.node * self._pool.ranks_per_node
        header = {
            "i": index, "rank": rank, "node": link.node, "kind": kind, "begun": False,
            "error": {"type": error, "message": why},
        }  # fmt: skip
        run._where[index] = link
        run.on_outcome(link, header, b"")


def _discard(tasks: Sequence[Task]) -> None:
    """Remove the files of large arguments, once they have been sent or are not to be."""
    for task in tasks:
        for blob in (task.fn, task.args):
            if blob.path is not None:
                blob.path.unlink(missing_ok=True)
