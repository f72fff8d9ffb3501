"""A sweep by gangs: each combination of arguments is a run on every rank of some nodes, as many side by side as fit.

The client begins them, for only it has their arguments. It has no more of them under way, or waiting for nodes, than
the pool has room for: so what others send meanwhile waits for those, and not for the whole sweep.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.pool.runs.scheduler import new_run_id
from skyward_core.store import pool_folder
from skyward_core.tasks.task_and_blob_values import Task, delete_files
from skyward_core.util.content_hash import BLOB_PREFIX

if TYPE_CHECKING:
    from skyward_core.pool.pool_context import PoolContext
    from skyward_core.pool.runs.run import Run
    from skyward_core.views.pool_view import TrialSheet

CANNOT_SAVE = "for what the combinations are cannot be written down"


def check_node_count(nodes: int, has: int, pool: str) -> None:
    """See whether gangs of so many nodes fit into a pool; 0 stands for all of them.

    Raises:
        UsageError: they do not.
    """
    if nodes > has:
        of_pool = f"pool {pool} has {has} node" + ("s" if has != 1 else "")
        raise UsageError(f"each combination is to run on {nodes} nodes, and {of_pool}: nothing was begun")


def gang_nodes(ranks: int, each: int, pool: str) -> int:
    """Return how many nodes a gang of so many ranks has. A gang has all ranks of its nodes.

    Args:
        each: Ranks of each node; 0 if the pool is not up, and its GPUs decide.

    Raises:
        UsageError: No number of nodes has so many ranks.
    """
    if not each:
        raise UsageError(
            f"each combination is to run on {ranks} ranks, and how many a node of pool {pool} has is known once it is "
            "up: say how many nodes each has instead, or use a pool that is up"
        )
    if ranks % each:
        low = ranks - ranks % each
        fit = f"{low} or {low + each}" if low else f"{each}"
        raise UsageError(
            f"each combination is to run on {ranks} ranks, and a gang has all ranks of its nodes: each node of pool "
            f"{pool} has {each}. Take {fit} ranks, or leave the number out: one rank each"
        )
    return ranks // each


async def begin_sweep(
    context: PoolContext, tasks: Sequence[Task], sheet: TrialSheet, nodes: int,
    ended: Callable[[int, Run], None] = lambda place, run: None,
    keep: Callable[[str], None] = lambda run: None,
) -> GangSweep:  # fmt: skip
    """Begin a sweep by gangs on a pool; done when its first run is opened. What its combinations are is on disk then.

    Args:
        tasks: those of the sheet's tasks.
        sheet: says which combinations they are.
        nodes: of each run; 0 for all.
        ended: told of each run that has ended, with its place.
        keep: keeps more of a run before that begins; called in a thread, with its id.

    Raises:
        PoolError: nothing can be written; then nothing has begun.
        UsageError: the pool has fewer nodes.
    """
    check_node_count(nodes, len(context.links), context.name)
    key, folder = context.row.key, context.archive.folder
    ids = [new_run_id() for _ in tasks]
    begun = replace(sheet, gang=True, nodes=nodes).with_client(os.getpid(), ids)
    try:
        await asyncio.to_thread(pool_folder.save_trials, key, begun.name, begun)
    except OSError as error:
        raise PoolError(f"nothing was begun, {CANNOT_SAVE}: {error}") from error

    def prepared(place: int) -> Task:
        try:
            pool_folder.save_sweep_part(key, ids[place], begun.name)
            keep(ids[place])
            return copy_function_file(tasks[place], folder)
        except OSError as error:
            raise PoolError(f"combination {place} and those after it were not begun, {CANNOT_SAVE}: {error}") from error

    def over() -> None:
        delete_files(tasks)
        pool_folder.mark_sweep_finished(key, begun.name)

    sweep = GangSweep(context, ids, nodes, prepared, ended)
    sweep.start(over)
    await sweep.first_run
    return sweep


class GangSweep:
    """One, on the pool's loop.

    Args:
        ids: what its runs are called, in the order in which they begin.
        nodes: of each; 0 for all.
        prepared: gives the task of a run, by its place; called in a thread just before that begins. What it raises ends
            the sweep: what is under way goes on, and nothing more is begun.
        ended: told of each run that has ended, with its place.

    Attributes:
        ids: what its runs are called.
        begun_ids: ids of the runs that have begun.
        cancelled: whether somebody has stopped it, or one of its runs.
        first_run: done when the first of them is opened.
    """

    def __init__(
        self, context: PoolContext, ids: Sequence[str], nodes: int,
        prepared: Callable[[int], Task], ended: Callable[[int, Run], None] = lambda place, run: None,
    ) -> None:  # fmt: skip
        self._context = context
        self.ids = ids
        self._nodes = nodes
        self._prepared = prepared
        self._ended = ended
        self._pending = deque(range(len(ids)))
        self._active: dict[asyncio.Future[Run], tuple[int, Run]] = {}
        self._failure: BaseException | None = None
        self._stopped = False
        self._work: asyncio.Task[None] | None = None
        self.begun_ids: list[str] = []
        self.cancelled = False
        self.first_run: asyncio.Future[Run] = asyncio.get_running_loop().create_future()

    @property
    def max_parallel(self) -> int:
        """How many of its runs the pool has room for."""
        return max(1, len(self._context.links) // self._nodes) if self._nodes else 1

    def start(self, over: Callable[[], None] = lambda: None) -> None:
        """Begin.

        Args:
            over: called in a thread once it is, however it went.
        """
        self._work = asyncio.create_task(self._run(over))

    async def wait(self) -> None:
        """Wait for the end of all of its runs.

        Raises:
            SkywardError: why the others were not begun, where that is not that somebody cancelled it.
        """
        if self._work is not None:
            await asyncio.shield(self._work)
        if self._failure is not None:
            raise self._failure

    def cancel(self) -> None:
        """Stop what still runs, and begin nothing more."""
        self.cancelled = self._stopped = True
        for _, run in self._active.values():
            run.cancel("the sweep was cancelled")

    async def _run(self, over: Callable[[], None]) -> None:
        try:
            while self._pending or self._active:
                await self._fill()
                if not self._active:
                    break
                done, _ = await asyncio.wait(self._active, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    self._on_run_end(*self._active.pop(each))
            self._report_unstarted()
        finally:
            self._stopped, self._prepared = True, _raise_over
            if not self.first_run.done():
                self.first_run.set_exception(self._failure or PoolError("the sweep was cancelled before it began"))
                self.first_run.exception()  # whoever has asked for it is told; nobody need
            with suppress(OSError):  # who goes on with it then waits for the end of this process
                await asyncio.to_thread(over)

    def _report_unstarted(self) -> None:
        """That some did not begin is told, also where the pool ended, or was left, between two of them."""
        if not self._pending or self.cancelled or self._failure is not None:
            return
        ending, many = self._context.external_end, len(self._pending)
        said = f"this client left pool {self._context.name}: {many:,} of {len(self.ids):,} combinations did not begin"
        self._fail(PoolError(said) if ending is None else ending.error())

    async def _fill(self) -> None:
        """Begin as many as there is room for."""
        while self._can_begin and len(self._active) < self.max_parallel:
            place = self._pending[0]
            try:
                task = await asyncio.to_thread(self._prepared, place)
                if not self._can_begin:  # since then
                    delete_files([task])
                    return
                task = replace(task, nodes=self._nodes or None)
                run = self._context.scheduler.open("broadcast", [task], run_id=self.ids[place])
            except Exception as error:  # noqa: BLE001  told to who waits for the sweep; what is under way goes on
                self._fail(error)
                return
            self._pending.popleft()
            self.begun_ids.append(run.id)
            self._active[asyncio.wrap_future(run.future)] = place, run
            if not self.first_run.done():
                self.first_run.set_result(run)

    @property
    def _can_begin(self) -> bool:
        return bool(self._pending) and not (self._stopped or self._context.leaving or self._context.external_end)

    def _on_run_end(self, place: int, run: Run) -> None:
        """A run of it is over, or has been left to the pool."""
        if run.state == "cancelled" and not self._context.leaving:
            self.cancel()  # whoever stops one has had enough of all
        elif run.state not in ("done", "failed", "cancelled"):
            self._fail(run.error())
        self._ended(place, run)

    def _fail(self, error: BaseException) -> None:
        self._stopped = True
        self._failure = self._failure or error


def copy_function_file(task: Task, folder: Path) -> Task:
    """A task of which the next run has the function, too: files are removed once they are on their way.

    Raises:
        OSError: it cannot be written.
    """
    if task.fn.path is None:
        return task
    handle, name = tempfile.mkstemp(prefix=BLOB_PREFIX, dir=folder)
    os.close(handle)
    shutil.copyfile(task.fn.path, name)
    return replace(task, fn=replace(task.fn, path=Path(name)))


def _raise_over(place: int) -> Task:
    raise PoolError("the sweep is over")
