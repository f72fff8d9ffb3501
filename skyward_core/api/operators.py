"""The operators >>, @ and &, and the values they return."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    NoReturn,
    SupportsIndex,
    TextIO,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from skyward_core.api.active_pool import PoolOperand, require_call
from skyward_core.api.older_api_methods import DeprecatedMethods
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.function import Function, PendingFunction, PendingGroup
from skyward_core.model.provider_capabilities import Rents
from skyward_core.model.run_future import RunFuture
from skyward_core.tasks.stdout_whole_lines import write_escaped
from skyward_core.transport.background_loop import background_loop, process_id, submit

if TYPE_CHECKING:
    from skyward_core.api.dask_client import DaskConnection
    from skyward_core.api.rank_output_printer import ScriptConsole
    from skyward_core.model.alert import Alert
    from skyward_core.model.metric_series import Curves
    from skyward_core.model.outcomes import RunKind
    from skyward_core.model.output_files import WrittenFile
    from skyward_core.model.thread_stacks import Stacks
    from skyward_core.plugins.plugin import Plugin
    from skyward_core.plugins.redis_dict_queue_lock import SharedState
    from skyward_core.pool.pool import Pool
    from skyward_core.pool.runs.gang_sweep import GangSweep
    from skyward_core.pool.runs.map_run import MapRun
    from skyward_core.pool.runs.run import Run
    from skyward_core.store.ledger_rows import Receipt
    from skyward_core.tasks.task_and_blob_values import Task
    from skyward_core.views.pool_view import PoolView, TrialSheet


LIST_METHODS = ("append", "clear", "copy", "extend", "insert", "pop", "remove", "reverse", "sort")


class GroupValues(tuple[Any, ...]):
    """Values in the order written. It equals a list of the same, too, and lists are added to it; it is not changed."""

    __slots__ = ()

    def __new__(cls, values: Iterable[Any] = ()) -> GroupValues:
        _register_jax_pytree()
        return super().__new__(cls, values)

    def __eq__(self, other: object) -> bool:
        return list(self) == other if isinstance(other, list) else tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return list(self) != other if isinstance(other, list) else tuple.__ne__(self, other)

    __hash__ = tuple.__hash__

    def __add__(self, other: Any) -> Any:
        return [*self, *other] if isinstance(other, list) else tuple.__add__(self, other)

    def __radd__(self, other: Any) -> Any:
        return [*other, *self] if isinstance(other, list) else tuple.__add__(other, self)

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found: Any = tuple.__getitem__(self, index)
        return GroupValues(found) if isinstance(index, slice) else found

    def __getattr__(self, name: str) -> Any:
        if name in LIST_METHODS:
            raise AttributeError(f"a group's values are a tuple, which has no {name}: make it a list, list(values)")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)  # it loads where this library is not installed


_registered_with: set[object] = set()


def _register_jax_pytree() -> None:
    """To functions over JAX's trees a class that it does not know is one leaf; a tuple's parts are leaves each."""
    trees = sys.modules.get("jax.tree_util")
    if trees in _registered_with or (register := getattr(trees, "register_pytree_node", None)) is None:
        return
    _registered_with.add(trees)
    register(GroupValues, lambda values: (tuple(values), None), lambda _, parts: GroupValues(parts))


T = TypeVar("T")


class MapOptions(TypedDict, total=False):
    """What ``map`` takes beside a function and items; it says what each is."""

    ordered: bool
    timeout: float | None


class PoolOperations(DeprecatedMethods, PoolOperand):
    """Operations of ``Compute`` and of an attached pool. Safe to use from any thread.

    Attributes:
        plugins: frameworks that are set up, in order of entry.
    """

    plugins: Sequence[Plugin] = ()

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._process = process_id()
        self._console: ScriptConsole | None = None
        self._dask: DaskConnection | None = None
        self._shared: SharedState | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pool stays with the process that made it: functions that run on ranks do without it")

    @property
    def pool(self) -> Pool:
        """The pool behind it; belongs to the background loop.

        Raises:
            PoolError: the pool is not up, or this process was forked from the one that it belongs to.
        """
        if self._pool is None:
            raise PoolError("the pool is not up: use it inside its with block")
        if self._forked:
            raise PoolError(
                f"pool {self._pool.name} belongs to process {self._process}, which this one was forked from, and "
                f"cannot be used here; sky.attach({self._pool.name!r}) gives this process a connection of its own"
            )
        return self._pool

    @property
    def working_folder(self) -> str:
        """The folder of the machine that made the pool which its ranks work in, or in copies of; "" where that is not
        known.

        Raises:
            PoolError: as ``pool``.
        """
        return str(self.pool.row.spec.get("cwd", ""))

    @property
    def _forked(self) -> bool:
        """Whether this is a forked child: it has the pool's connections, but the pool is its parent's."""
        return self._process != process_id()

    def current_nodes(self) -> int:
        """How many of its nodes are there now.

        Raises:
            PoolError: the pool is not up.
        """
        return sum(not link.gone for link in self.pool.context.links)

    @property
    def is_active(self) -> bool:
        """Whether calls can be sent to it: it is up, and this process has not left it."""
        pool = self._pool
        return pool is not None and not self._forked and pool.context.external_end is None and not pool.context.leaving

    @property
    def concurrency(self) -> int:
        """How many calls all of its nodes run at the same time.

        Raises:
            PoolError: the pool is not up.
        """
        context = self.pool.context
        return len(context.links) * context.slots_per_node

    @property
    def shared(self) -> SharedState:
        """What ranks and client share by name, with the plugin ``shared``: ``compute.shared.counter("seen").value``.

        Raises:
            UsageError: the pool has no such plugin.
            PoolError: the pool is not up.
        """
        pool = self.pool
        if self._shared is None:
            from skyward_core.plugins.built_in.shared_collections import Shared

            plugin = next((each for each in self.plugins if isinstance(each, Shared)), None)
            if plugin is None:
                from skyward_core.api.shared_state import NOT_SHARED

                raise UsageError(NOT_SHARED)
            from skyward_core.api.shared_state import connect_shared_state

            self._shared = connect_shared_state(pool, plugin)
        return self._shared

    def _close_connections(self) -> None:
        if self._dask is not None:
            self._dask.close()
            self._dask = None
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    # -- what ranks wrote --------------------------------------------------------------------------------

    def files(self, *patterns: str, run: str | None = None) -> list[WrittenFile]:
        """The files that ranks wrote in their working folder. On this machine there are none to tell of: they work in
        your own.

        Args:
            *patterns: which, such as ``"out/**"`` or ``"*.pt"``; all where none is given.
            run: id of the run during which they were written; None for all of the pool's time.

        Raises:
            UsageError: a pattern leads out of the working folder.
            PoolError: the pool is not up, a node could not be asked, or there are more files than nodes name.
        """
        pool = self.pool
        found = submit(pool.context.outputs.files(patterns, run)).result()
        if found.failures:
            node, reason = next(iter(found.failures.items()))
            raise PoolError(_safe(f"node {node} of pool {pool.name} cannot be asked for files: {reason}"))
        if found.omitted_count:
            raise PoolError(
                f"ranks of pool {pool.name} wrote {found.omitted_count:,} files more than are named at once: say which"
            )
        return found.files

    def fetch(self, *patterns: str, to: str | os.PathLike[str] | None = None, run: str | None = None) -> list[Path]:
        """Bring files that ranks wrote here: each once, whole, and over nothing that did not come from there. What was
        cut off is gone on with. On this machine there is nothing to bring.

        Args:
            *patterns: which, as ``files`` takes them.
            to: the folder that they come to; None for ``outputs/RUN``, or ``outputs/POOL`` where no run is named. With
                several nodes, what more than one of them has goes to a folder for each: ``r0``, ``r1``, by rank, or
                ``n0``, ``n1``, by node, where ranks share a node's folder.
            run: id of the run during which they were written; None for all of the pool's time.

        Returns:
            Where they are, also those that had been fetched before.

        Raises:
            UsageError: a pattern leads out of the working folder.
            PoolError: some could not be had; it names them, and the others are here.
        """
        from skyward_core.model.output_files import list_failed_files

        pool = self.pool
        haul = submit(pool.context.outputs.fetch(patterns, None if to is None else Path(to), run)).result()
        failed = [f"{names} of node {node}: {reason}" for names, node, reason in list_failed_files(haul.files)]
        if said := [*haul.notes, *failed]:
            raise PoolError(_safe(f"not all that ranks of pool {pool.name} wrote is here: {'; '.join(said)}"))
        return [each.target for each in haul.files]

    # -- the inside of ranks -----------------------------------------------------------------------------

    def stacks(self, *, run: str | None = None, signal: bool = False) -> Stacks:
        """Where every rank is just now: its Python stack, by py-spy where a node has that and the kernel allows it.
        ``skyward_core.views.stack_groups`` says which are equal, and who has not joined a collective.

        Args:
            run: id of the run that is asked about; None for the newest one.
            signal: send ranks that cannot be read a signal, at which they write their stacks down; a call that blocks
                in native code may end early with it (EINTR).

        Raises:
            PoolError: the pool is not up.
        """
        from skyward_core.pool.rank_inspection import collect_stacks  # few ask

        context = self.pool.context
        asked = next(reversed(context.view.runs), "") if run is None else run
        return submit(collect_stacks(context, asked, signal=signal)).result()

    # -- numbers -----------------------------------------------------------------------------------------

    def metrics(self, run: str | None = None) -> Curves:
        """What the pool's machines were measured at, and of a run what its ranks logged.

        Nodes measure from the first time that anybody asks, or that calls run for ten seconds; then the past is there,
        too. Waits for the next sample of each node, about a second.

        Args:
            run: id of a run, of which ranks' numbers come, and machines' of its time; None for the machines alone, of
                all the time that is kept.

        Returns:
            A curve for each name and each rank, GPU or node; its ``to_csv``, ``to_json`` and ``to_parquet`` write them
            down. What a node cannot tell is absent, and its ``notes`` say why.

        Raises:
            UsageError: the pool has had no such run.
            PoolError: the pool is not up.
        """
        pool = self.pool

        async def work() -> Curves:
            return await pool.context.metrics.start_collector().fetch_series(run)

        return submit(work()).result()

    def alerts(self, run: str) -> list[Alert]:
        """What is amiss with a run, as the app shows it: of one that goes on, all there is; of one that has ended,
        numbers that are none. Measures machines as ``metrics`` does, and waits as long.

        Args:
            run: its id.

        Returns:
            The worst first. Each has a ``kind`` ("gpu", "nan", "stall", "memory", "throttled", "straggler" or
            "plateau"), says ``who`` it is (``rank``; or ``node``, and ``gpu``), ``since`` when (Unix
            time by this machine's clock) and what, in ``words``.

        Raises:
            UsageError: the pool has had no such run.
            PoolError: the pool is not up.
        """
        pool = self.pool

        async def work() -> list[Alert]:
            from skyward_core.views.alert_rules import find_alerts

            await pool.context.metrics.start_collector().wait_for_samples()
            if (found := pool.view.runs.get(run)) is None:
                raise UsageError(f"pool {pool.name} has had no run {run}, as far as is known here")
            return find_alerts(pool.view, found, time.time())

        return submit(work()).result()

    # -- for those that build on it ----------------------------------------------------------------------

    def _archive_folder(self) -> Path:
        return self.pool.archive.folder

    def _run_html(self, run: str, state: str) -> str:
        """How a run is, as a notebook shows it.

        Args:
            state: of its future, where nothing more is known.
        """
        from skyward_core.api.notebook_display import run_html, unseen_html

        found = None if self._pool is None else self._current_view().runs.get(run)
        return unseen_html("run", run, state) if found is None else run_html(found)

    def _current_view(self) -> PoolView:
        submit(self._flush_events()).result()
        return self.pool.view

    async def _flush_events(self) -> None:
        self.pool.context.background.run_deferred()

    # -- operators ---------------------------------------------------------------------------------------

    def run_one(self, pending: PendingFunction[Any]) -> Any:
        """``pending >> compute``: run a call on one node.

        Args:
            pending: the call.

        Returns:
            Its value; for a generator function an iterator of what it yields.

        Raises:
            RunError: the call failed; its cause is the function's own exception.
            NotPicklableError: an argument cannot travel.
            Cancelled: the run was cancelled.
            PoolError: the pool is not up, or has no node left to run it.
        """
        if pending.streams:
            return self._stream(self._dispatch("single", [self._task(pending)], consumed=True))
        return self._run("single", [self._task(pending)])[0]

    def run_all(self, pending: PendingFunction[Any]) -> list[Any]:
        """``pending @ compute``: run a call on every rank.

        Args:
            pending: the call.

        Returns:
            The values in rank order; for a generator function an iterator for each rank.

        Raises:
            RunError: a rank failed; its cause is the first real failure's own exception.
            UsageError: the pool has not as many nodes as ``with_nodes`` says.
            NotPicklableError: an argument cannot travel.
            Cancelled: the run was cancelled.
            PoolError: the pool is not up, or has lost a node.
        """
        if pending.streams:
            return self._streams(self._dispatch("broadcast", [self._task(pending)], consumed=True))
        return self._run("broadcast", [self._task(pending)])

    def run_group(self, group: PendingGroup[Any]) -> Any:
        """``group >> compute``: run several calls at the same time, spread over the nodes.

        Args:
            group: the calls.

        Returns:
            A tuple of their values in the order written, of a generator function's call an iterator of what it yields,
            once all others have ended; an iterator for a group that streams.

        Raises:
            RunError: a call failed; its cause is the function's own exception.
            UsageError: the group streams, and holds a call of a generator function.
            NotPicklableError: an argument cannot travel.
            Cancelled: the run was cancelled.
            PoolError: the pool is not up, or has no node left to run them.
        """
        if not group.items:
            return iter(()) if group.stream else GroupValues()
        tasks = self._tasks(group)
        if any(task.stream for task in tasks):
            return self._mixed_values(self._dispatch("gather", tasks, consumed=True))
        if group.stream:
            return self._iter_values(self._dispatch("gather", tasks), ordered=group.ordered)
        return GroupValues(self._run("gather", tasks))

    def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]:
        """``pending > compute``: run a call on one node, and wait for nothing.

        Args:
            pending: the call.

        Returns:
            A future of its value, which also names the run, and what its ranks write. To cancel it cancels the run.

        Raises:
            UsageError: It is the call of a generator function.
            NotPicklableError: an argument cannot travel.
            PoolError: the pool is not up.
        """
        _check_no_generator(pending, ">>")
        return self._make_future(self._dispatch("single", [self._task(pending)]), lambda run: run.results()[0])

    def submit_all(self, pending: PendingFunction[Any]) -> RunFuture[list[Any]]:
        """``pending.on_all(compute)``: run a call on every rank, and wait for nothing; raises as ``submit``.

        Args:
            pending: the call.

        Returns:
            A future of the values in rank order.
        """
        _check_no_generator(pending, "@")
        return self._make_future(self._dispatch("broadcast", [self._task(pending)]), lambda run: run.results())

    def submit_group(self, group: PendingGroup[Any]) -> RunFuture[Any]:
        """``group.on(compute)``: run several calls at the same time, and wait for nothing.

        Args:
            group: the calls.

        Returns:
            A future of a tuple of their values in the order written.

        Raises:
            UsageError: the group streams, holds a call of a generator function, or has nothing in it.
            NotPicklableError: an argument cannot travel.
            PoolError: the pool is not up.
        """
        streams = group.stream or any(item.streams for item in group.items)
        if streams or not group.items:
            what = "a group that streams gives no single value" if streams else "the group is empty"
            raise UsageError(f"{what}; run it with >>")
        return self._make_future(self._dispatch("gather", self._tasks(group)), lambda run: GroupValues(run.results()))

    def _make_future(self, run: Run, values: Callable[[Run], Any]) -> RunFuture[Any]:
        """A run as a future of what it gives."""
        future: RunFuture[Any] = RunFuture(run.id, self)

        def settle(done: Future[Run]) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                self._flush_output()
                future.set_result(values(done.result()))
            except BaseException as error:  # noqa: BLE001  a future carries whatever its work raised
                future.set_exception(error)

        def forward(cancelled: Future[Any]) -> None:
            if cancelled.cancelled():
                self._cancel(run)

        # Values are unpickled here, not on the loop: user code may run in that, and may be slow.
        threading.Thread(target=lambda: settle(_wait_for(run.future)), daemon=True).start()
        future.add_done_callback(forward)
        return future

    # -- the same as the operators, by names -------------------------------------------------------------

    def run(self, pending: PendingFunction[T] | PendingGroup[T]) -> T:
        """The same as ``pending >> compute``, and raises as ``run_one`` or ``run_group``.

        Args:
            pending: the call, or a group of calls.
        """
        if isinstance(pending, Function):
            pending = require_call(pending, "compute.run")
        value: T = pending >> self
        return value

    def broadcast(self, pending: PendingFunction[T]) -> list[T]:
        """The same as ``pending @ compute``, and raises as ``run_all``.

        Args:
            pending: the call.
        """
        return require_call(pending, "compute.broadcast") @ self

    def run_async(self, pending: PendingFunction[T]) -> RunFuture[T]:
        """The same as ``pending > compute``, and raises as ``submit``.

        Args:
            pending: the call.
        """
        return require_call(pending, "compute.run_async") > self

    @property
    def dask(self) -> Any:
        """A ``distributed.Client`` of the cluster that the plugin ``dask`` makes of the pool, connected when it is
        first asked for.

        Raises:
            UsageError: the pool has no such plugin.
            RunError: the cluster could not be brought up; its cause says why.
            PoolError: distributed is not installed here, the scheduler does not answer, or the pool is not up.
        """
        return self._dask_connection().client()

    def dashboard(self) -> str:
        """Where Dask's dashboard is, on this machine's loopback, for as long as the pool is used from here.

        Raises:
            UsageError: the pool has no Dask, or it was made without a dashboard.
            PoolError: there is no way to it, or the pool is not up.
        """
        return self._dask_connection().dashboard()

    def _dask_connection(self) -> DaskConnection:
        """Return the connection to the pool's Dask cluster."""
        if self._dask is None:
            plugin: Any = next((each for each in self.plugins if each.name == "dask"), None)
            if plugin is None:
                raise UsageError("this pool has no Dask: give it plugins=[sky.plugins.dask()]")
            from skyward_core.api.dask_client import DaskConnection

            self._dask = DaskConnection(self.pool, plugin, lambda tasks: self._run("gather", tasks))
        return self._dask

    def _start_map(self, task: Task) -> MapRun:
        """Begin a map, whose calls come later; see ``api.map_and_stream``."""
        return cast("MapRun", self._dispatch("map", [task]))

    def _gang_nodes(self, ranks: int) -> int:
        """Return how many nodes a gang of so many ranks has here.

        Raises:
            UsageError: No number of nodes has so many.
            PoolError: The pool is not up.
        """
        from skyward_core.pool.runs.gang_sweep import gang_nodes

        context = self.pool.context
        return gang_nodes(ranks, context.ranks_per_node, context.name)

    def _start_sweep(self, calls: Sequence[PendingFunction[Any]], run_id: str) -> Run:
        """Begin calls side by side, of which none stops the others; see ``api.hyperparameter_sweep``.

        Raises:
            NotPicklableError, TypeError: an argument cannot travel, or the function does not take these.
            PoolError: the pool is not up.
        """
        from skyward_core.tasks.function_pickling import make_tasks

        tasks = list(make_tasks(tuple(calls), self.plugins, self._archive_folder()))
        return self._dispatch("sweep", tasks, run_id=run_id)

    def _start_gangs(
        self,
        calls: Sequence[PendingFunction[Any]],
        sheet: TrialSheet,
        nodes: int | None,
        ended: Callable[[int, Run], None],
    ) -> GangSweep:
        """Begin calls, each as a gang of its own on so many nodes; see ``api.hyperparameter_sweep``.

        Raises:
            NotPicklableError, TypeError, PoolError: as :meth:`_start_sweep`.
            UsageError: the pool has fewer nodes.
        """
        from skyward_core.pool.runs.gang_sweep import begin_sweep, check_node_count
        from skyward_core.tasks.function_pickling import make_tasks

        pool = self.pool
        check_node_count(nodes or 0, len(pool.links), pool.name)
        tasks = list(make_tasks(tuple(calls), self.plugins, self._archive_folder()))
        return submit(begin_sweep(pool.context, tasks, sheet, nodes or 0, ended)).result()

    def _task(self, pending: PendingFunction[Any]) -> Task:
        from skyward_core.tasks.function_pickling import make_task

        return make_task(pending, self.plugins, self._archive_folder())

    def _tasks(self, group: PendingGroup[Any]) -> list[Task]:
        streaming = [item.name for item in group.items if item.streams]
        if streaming and group.stream:
            raise UsageError(
                f"a group that streams gives each call's value as it ends, and {streaming[0]} is a generator function: "
                "leave out stream=True, and its place in the tuple has an iterator"
            )
        from skyward_core.tasks.function_pickling import make_tasks

        return list(make_tasks(group.items, self.plugins, self._archive_folder()))

    def _dispatch(
        self,
        kind: RunKind,
        tasks: Sequence[Task],
        *,
        consumed: bool = False,
        run_id: str = "",
    ) -> Run:
        """Open a run and come back at once."""
        pool = self.pool
        opened: Future[Run] = Future()
        try:
            self._run_on_loop(
                lambda: opened.set_result(pool.context.scheduler.open(kind, tasks, consumed=consumed, run_id=run_id)),
                opened,
            )
            return opened.result()
        except BaseException:
            self._cancel_opened(lambda: [opened.result()] if opened.done() and not opened.exception() else [])
            raise

    def _run(self, kind: RunKind, tasks: Sequence[Task]) -> list[Any]:
        """Open a run and wait for its values; one change of threads each way."""
        from skyward_core.pool.runs.run import RunCompletion

        pool = self.pool
        ended = RunCompletion()
        opened: list[Run] = []
        try:
            # A ctrl-c may come at any line, also after the calls have left and before we wait.
            self._run_on_loop(lambda: opened.append(pool.context.scheduler.open(kind, tasks, future=ended)), ended)
            with nullcontext() if self._console is None else self._console.live():
                run = ended.wait()
        except BaseException:
            self._cancel_opened(lambda: opened)
            raise
        self._flush_output()
        return run.results()

    def _flush_output(self) -> None:
        """What ranks have printed stands there before what they return."""
        if self._console is not None:
            self._console.flush()

    def _cancel_opened(self, opened: Callable[[], list[Run]]) -> None:
        """Cancel what was opened, or is about to be: this queues up behind it on the loop."""
        background_loop().call_soon_threadsafe(lambda: self._cancel(*opened()))

    @staticmethod
    def _run_on_loop(work: Callable[[], None], failed: Future[Run]) -> None:
        def attempt() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  raised in the caller's thread instead
                failed.set_exception(error)

        background_loop().call_soon_threadsafe(attempt)

    def _cancel(self, *runs: Run) -> None:
        for run in () if self._forked else runs:
            background_loop().call_soon_threadsafe(run.cancel, "its caller went away")

    def _stream(self, run: Run) -> Iterator[Any]:
        try:
            yield from run.items(0)
            self._flush_output()
        finally:
            self._cancel(run)  # does nothing to a run that has ended

    def _streams(self, run: Run) -> list[Any]:
        from skyward_core.api.map_and_stream import split_streams

        crowded = run.kind == "gather" and run.total > self.concurrency
        return split_streams(run, lambda: self._cancel(run), ahead=crowded)

    def _mixed_values(self, run: Run) -> tuple[Any, ...]:
        """A group of which some calls yield."""
        values = self._streams(run)
        return GroupValues(
            each if task.stream else self._only_value(run, index, each)
            for index, (task, each) in enumerate(zip(run.tasks, values, strict=True))
        )

    @staticmethod
    def _only_value(run: Run, index: int, yielded: Iterator[Any]) -> Any:
        for _ in yielded:
            pass  # it is no generator: this waits for its end, and raises what became of the run
        return run.value(index)

    def _iter_values(self, run: Run, *, ordered: bool) -> Iterator[Any]:
        following, ready = 0, set[int]()
        try:
            while following < run.total:
                kind, *rest = run.arrivals.get()
                if kind == "end":
                    if run.state != "done":
                        raise run.error()
                    continue
                if kind != "outcome" or rest[1] != "returned":
                    continue
                if not ordered:
                    following += 1
                    yield run.value(rest[0])
                    continue
                ready.add(rest[0])
                while following in ready:
                    ready.discard(following)
                    following += 1
                    yield run.value(following - 1)
        finally:
            self._cancel(run)

    # -- map ---------------------------------------------------------------------------------------------

    @overload
    def map(
        self, fn: Function[..., Coroutine[Any, Any, T]], items: Iterable[Any], **how: Unpack[MapOptions]
    ) -> Iterator[T]: ...
    @overload
    def map(self, fn: Function[..., T], items: Iterable[Any], **how: Unpack[MapOptions]) -> Iterator[T]: ...
    @overload
    def map(self, fn: Callable[..., T], items: Iterable[Any], **how: Unpack[MapOptions]) -> Iterator[T]: ...
    def map(
        self,
        fn: Callable[..., Any],
        items: Iterable[Any],
        *more: Iterable[Any],
        ordered: bool = True,
        timeout: float | None = None,
    ) -> Iterator[Any]:
        """Call a function once for each item, spread over all ranks: one run, however many items there are.

            for area in compute.map(measure, Path("photos").glob("*.jpg")):
                ...

        Nothing is read of ``items`` before the first value is asked for, and never more than is soon to be worked on,
        so that they may be endless; it is this thread that reads them. Quick calls travel several at a time.

        Args:
            fn: a ``@function``, or a plain function, of one argument.
            items: what it is called with.
            *more: refused, as the builtin ``map`` takes several series: ``zip`` them.
            ordered: whether values come in the order of the items; with False as calls end.
            timeout: seconds that one item may take; None for the function's own limit. With a limit items travel one
                by one.

        Returns:
            An iterator of the values. Closing it, or leaving a loop over it, cancels what still runs. After the first
            failure nothing more is begun.

        Raises:
            TypeError: ``fn`` is no function, or does not take one argument; or there are several series of items.
            ValueError: ``timeout`` is not more than 0.
            UsageError: it is a generator function.
            RunError: a call failed (while values are taken); its cause is the function's own exception. ``results`` has
                the values that were computed, by item: those that the loop has not had, and of items with a length the
                first 64 MB of those that it has had.
            NotPicklableError: an item cannot travel (while values are taken).
            Cancelled: the run was cancelled (while values are taken).
            PoolError: the pool is not up.
        """
        from skyward_core.api.map_and_stream import MapBackend, MapOperation, make_map_call

        if more:
            raise TypeError("compute.map takes one series of items: compute.map(lambda each: f(*each), zip(a, b))")
        call = make_map_call(fn, timeout)
        single = call.timeout is not None
        return MapOperation(MapBackend(self, call), call, items, ordered=ordered, single=single).values()


def _safe(text: str) -> str:
    """A rank's names may hold anything, and most who see an error see it on a terminal."""
    from skyward_core.util.terminal_safe_text import sanitize_line  # few scripts see such an error

    return sanitize_line(text)


def _check_no_generator(pending: PendingFunction[Any], operator: str) -> None:
    """Raise UsageError for a generator function's call: its values come one by one."""
    if pending.streams:
        raise UsageError(
            f"{pending.name} is a generator function, and a future has one value: iterate over {pending.name}(...) "
            f"{operator} compute"
        )


def _wait_for(future: Future[Run]) -> Future[Run]:
    future.exception()
    return future


async def run_in_thread(work: Callable[[], T], *, cancel: Callable[[], None] | None = None) -> T:
    """Do blocking work in a thread. Whoever is cancelled meanwhile waits for its end all the same, so that nothing
    that it makes is left behind.

    Args:
        work: what to do.
        cancel: tells the work, each time that the caller is cancelled, that nobody wants what comes of it.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work has ended.
    """
    working = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
            if cancel is not None:
                cancel()
    if cancelled is not None:
        working.exception()  # looked at: the cancellation is what is told
        raise cancelled
    return working.result()


async def tear_down(pool: Pool) -> Receipt:
    """Tear a pool down. What is found to be left stands in the receipt's notes, and is said."""
    receipt = await pool.down()
    if not isinstance(pool.context.provider, Rents):
        return receipt
    from skyward_core.pool.leftover_verdicts import leftover_notes  # others have no account to look through

    notes = await leftover_notes(pool.row, pool.context.ledger)
    for note in notes:
        print_safely(f"pool {pool.name}: {note}")
    return replace(receipt, notes=(*receipt.notes, *notes))


def print_safely(text: str) -> bool:
    """Write a line to standard error, and return whether that was possible: no stream keeps a pool from its end."""
    try:
        write_escaped(cast(TextIO, sys.stderr), f"{text}\n")
    except Exception:  # noqa: BLE001  it is None, or any object that the script has put in its place
        return False
    return True
