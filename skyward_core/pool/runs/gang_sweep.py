"""Sweep by gangs: each combination of arguments is a run on all ranks of some nodes.

As many runs as fit into the pool are active at the same time. The client starts each run, because only the client has
the arguments. It queues no further runs in advance, so that other clients' runs need not wait for the whole sweep.
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

from skyward_core.model.errors import PoolError, UsageError, convert_errors
from skyward_core.pool.runs.scheduler import new_run_id
from skyward_core.store import sweep_trial_files
from skyward_core.store.ledger_rows import process_mark
from skyward_core.tasks.pickled_calls_and_blobs import Task, delete_files
from skyward_core.util.content_hash import BLOB_PREFIX

if TYPE_CHECKING:
    from skyward_core.pool.pool_context import PoolContext
    from skyward_core.pool.runs.run import Run
    from skyward_core.views.sweep_argument_combinations import TrialSheet

CANNOT_SAVE = "cannot save the list of combinations"


def check_node_count(nodes: int, has: int, pool: str) -> None:
    """Check that gangs of a number of nodes fit into a pool.

    Args:
        nodes: Nodes per gang; 0 for all.
        has: Nodes of the pool.
        pool: Name of the pool.

    Raises:
        UsageError: If a gang has more nodes than the pool.
    """
    if nodes > has:
        plural = "" if has == 1 else "s"
        raise UsageError(
            f"Cannot start the sweep: each combination needs {nodes} nodes, but pool {pool} has {has} node{plural}."
        )


async def begin_sweep(
    context: PoolContext, tasks: Sequence[Task], sheet: TrialSheet, nodes: int,
    ended: Callable[[int, Run], None] = lambda place, run: None,
    keep: Callable[[str], None] = lambda run: None,
) -> GangSweep:  # fmt: skip
    """Start a sweep by gangs on a pool, after saving its combinations. Return when the first run is open.

    Args:
        context: The pool.
        tasks: Tasks of the combinations.
        sheet: Describes the combinations.
        nodes: Nodes per run; 0 for all.
        ended: Called for each ended run with the index of its combination and the run.
        keep: Saves further data of a run before its start. Called with the run's id, in a thread.

    Returns:
        The sweep.

    Raises:
        PoolError: If the combinations cannot be saved. In this case no run has started.
        UsageError: If the pool has fewer nodes than a gang needs.
    """
    check_node_count(nodes, len(context.links), context.name)
    key, folder = context.row.key, context.archive.folder
    ids = [new_run_id() for _ in tasks]
    begun = replace(sheet, gang=True, nodes=nodes).with_client(process_mark(), ids)
    with convert_errors(f"Sweep not started: {CANNOT_SAVE}"):
        await asyncio.to_thread(sweep_trial_files.save_trials, key, begun.name, begun)

    def prepared(place: int) -> Task:
        with convert_errors(f"Combinations {place} and later not started: {CANNOT_SAVE}"):
            sweep_trial_files.save_sweep_part(key, ids[place], begun.name)
            keep(ids[place])
            return copy_function_file(tasks[place], folder)

    def finish() -> None:
        delete_files(tasks)
        sweep_trial_files.mark_sweep_finished(key, begun.name)

    sweep = GangSweep(context, ids, nodes, prepared, ended)
    sweep.start(finish)
    await sweep.first_run
    return sweep


class GangSweep:
    """A sweep by gangs. Runs on the pool's loop.

    Args:
        context: The pool.
        ids: Ids of the runs, in order of their starts.
        nodes: Nodes per run; 0 for all.
        prepared: Returns the task of a run, given the index of its combination. Called in a thread just before the
            start. An exception ends the sweep: active runs continue, and no further run starts.
        ended: Called for each ended run with the index of its combination and the run.

    Attributes:
        ids: Ids of all runs.
        begun_ids: Ids of the started runs.
        cancelled: Whether a user stopped the sweep or one of its runs.
        first_run: Future of the first run; done when the run is open.
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
        """Number of runs that fit into the pool at once."""
        return max(1, len(self._context.links) // self._nodes) if self._nodes else 1

    def start(self, on_end: Callable[[], None] = lambda: None) -> None:
        """Start the sweep.

        Args:
            on_end: Called in a thread after the end of the sweep, even if the sweep failed.
        """
        self._work = asyncio.create_task(self._run(on_end))

    async def wait(self) -> None:
        """Wait for the end of all runs.

        Raises:
            SkywardError: The reason why runs were not started, unless the sweep was cancelled.
        """
        if self._work is not None:
            await asyncio.shield(self._work)
        if self._failure is not None:
            raise self._failure

    def cancel(self, how: str = "cancel", grace: float | None = None) -> None:
        """Stop the active runs, as ``Run.cancel`` does. Start no further runs."""
        self.cancelled = self._stopped = True
        for _, run in self._active.values():
            run.cancel("the sweep was cancelled", how, grace)

    async def _run(self, on_end: Callable[[], None]) -> None:
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
                self.first_run.exception()  # mark the exception as retrieved, because callers need not await the future
            with suppress(OSError):  # if the end cannot be saved, a later client waits until this process has exited
                await asyncio.to_thread(on_end)

    def _report_unstarted(self) -> None:
        """Record runs that were not started because the pool ended or this client detached."""
        if not self._pending or self.cancelled or self._failure is not None:
            return
        ending, many = self._context.external_end, len(self._pending)
        pool, total = self._context.name, len(self.ids)
        message = f"{many:,} of {total:,} combinations not started: this client detached from pool {pool}"
        self._fail(PoolError(message) if ending is None else ending.error())

    async def _fill(self) -> None:
        """Start runs until as many are active as fit into the pool."""
        while self._can_begin and len(self._active) < self.max_parallel:
            place = self._pending[0]
            try:
                task = await asyncio.to_thread(self._prepared, place)
                if not self._can_begin:  # the sweep or the pool may have ended while the thread prepared the task
                    delete_files([task])
                    return
                task = replace(task, nodes=self._nodes or None)
                run = self._context.scheduler.open("broadcast", [task], run_id=self.ids[place])
            except Exception as error:  # noqa: BLE001  reported by wait(); active runs continue
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
        """Report an ended run. Stop the sweep if a user cancelled the run or this client detached from it."""
        if run.state == "cancelled" and not self._context.leaving:
            self.cancel()  # stop the whole sweep, because a user who stops one of its runs wants this
        elif run.state not in ("done", "failed", "cancelled"):
            self._fail(run.error())
        self._ended(place, run)

    def _fail(self, error: BaseException) -> None:
        self._stopped = True
        self._failure = self._failure or error


def copy_function_file(task: Task, folder: Path) -> Task:
    """Return a task with its own copy of the function's file, because each upload deletes the uploaded file.

    Raises:
        OSError: If the copy cannot be written.
    """
    if task.fn.path is None:
        return task
    handle, name = tempfile.mkstemp(prefix=BLOB_PREFIX, dir=folder)
    os.close(handle)
    shutil.copyfile(task.fn.path, name)
    return replace(task, fn=replace(task.fn, path=Path(name)))


def _raise_over(place: int) -> Task:
    raise PoolError("the sweep has ended")
