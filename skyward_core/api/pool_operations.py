"""The operators >>, @ and > of pools, and the values that they return."""

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

from skyward_core.api.active_pool_and_operand_checks import PoolOperand, require_call
from skyward_core.api.older_compute_arguments_and_methods import DeprecatedMethods
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.function import Function, PendingFunction, PendingGroup
from skyward_core.model.provider_capability_protocols import Rents
from skyward_core.model.run_future import RunFuture
from skyward_core.tasks.script_stdout_beside_rank_lines import write_escaped
from skyward_core.transport.background_loop import (
    background_loop,
    call_on_loop,
    finish_despite_cancellation,
    process_id,
    submit,
)
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.api.dask_client_connection import DaskConnection
    from skyward_core.api.rank_output_printer import ScriptConsole
    from skyward_core.model.metric_definitions_series_and_export import Curves
    from skyward_core.model.outcomes_states_and_alerts import Alert, RunKind
    from skyward_core.model.output_files import WrittenFile
    from skyward_core.model.thread_stacks import Stacks
    from skyward_core.plugins.plugin import Plugin
    from skyward_core.plugins.redis_shared_state_client import SharedState
    from skyward_core.pool.pool import Pool
    from skyward_core.pool.runs.gang_sweep import GangSweep
    from skyward_core.pool.runs.map_run import MapRun
    from skyward_core.pool.runs.run import Run
    from skyward_core.store.receipts_and_bills import Receipt
    from skyward_core.tasks.pickled_calls_and_blobs import Task
    from skyward_core.views.pool_view import PoolView
    from skyward_core.views.sweep_argument_combinations import TrialSheet


class GroupValues(tuple[Any, ...]):
    """Values of a group's calls, in the order of the calls. An immutable tuple that also equals a list, and can be
    added to one.
    """

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
        if name in ("append", "clear", "copy", "extend", "insert", "pop", "remove", "reverse", "sort"):
            raise AttributeError(
                f"the values of a group are a tuple, which has no method {name}. Convert them with list(values)."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)  # pickle a plain tuple, which can be unpickled where this library is not installed


_registered_with: set[object] = set()


def _register_jax_pytree() -> None:
    """Register the class with JAX, which otherwise treats values of an unknown class as one leaf, not as a tuple."""
    trees = sys.modules.get("jax.tree_util")
    if trees in _registered_with or (register := getattr(trees, "register_pytree_node", None)) is None:
        return
    _registered_with.add(trees)
    register(GroupValues, lambda values: (tuple(values), None), lambda _, parts: GroupValues(parts))


T = TypeVar("T")


class MapOptions(TypedDict, total=False):
    """Keyword arguments of ``map``; see its docstring."""

    ordered: bool
    timeout: float | None


class PoolOperations(DeprecatedMethods, PoolOperand):
    """Operations of ``Compute`` and of an attached pool. Safe to use from any thread.

    Attributes:
        plugins: Plugins of the pool, in the order in which they are set up.
    """

    plugins: Sequence[Plugin] = ()

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._process = process_id()
        self._console: ScriptConsole | None = None
        self._dask: DaskConnection | None = None
        self._shared: SharedState | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a pool cannot be sent to ranks or other processes. Do not use it inside a function that runs on ranks."
        )

    @property
    def pool(self) -> Pool:
        """The underlying pool, owned by the background loop.

        Raises:
            PoolError: If the pool is not up, or if this process was forked from the pool's process.
        """
        if self._pool is None:
            raise PoolError("the pool is not up. Use it inside its with block.")
        if self._forked:
            raise PoolError(
                f"pool {self._pool.name} belongs to the parent process {self._process} and cannot be used after a "
                f"fork. Connect this process with sky.attach({self._pool.name!r})."
            )
        return self._pool

    @property
    def working_folder(self) -> str:
        """Working folder on the machine that created the pool; remote ranks use a copy. "" if unknown.

        Raises:
            PoolError: If the pool is not up.
        """
        return str(self.pool.row.spec.get("cwd", ""))

    @property
    def _forked(self) -> bool:
        """Whether this process is a forked child. A child inherits the connections, but its parent owns the pool."""
        return self._process != process_id()

    def current_nodes(self) -> int:
        """Return the number of nodes that the pool has now.

        Raises:
            PoolError: If the pool is not up.
        """
        return sum(not link.gone for link in self.pool.context.links)

    @property
    def is_active(self) -> bool:
        """Whether the pool is up and this process is connected to it."""
        pool = self._pool
        return pool is not None and not self._forked and pool.context.external_end is None and not pool.context.leaving

    @property
    def concurrency(self) -> int:
        """Number of calls that all nodes together run at the same time.

        Raises:
            PoolError: If the pool is not up.
        """
        context = self.pool.context
        return len(context.links) * context.slots_per_node

    @property
    def shared(self) -> SharedState:
        """State that ranks and client share by name, with the plugin ``shared``:
        ``compute.shared.counter("seen").value``.

        Raises:
            UsageError: If the pool has no plugin ``shared``.
            PoolError: If the pool is not up.
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

    # -- output files ------------------------------------------------------------------------------------

    def files(self, *patterns: str, run: str | None = None) -> list[WrittenFile]:
        """Return the files that ranks wrote in their working folder.

        Always empty for a pool on this machine, whose ranks work in the user's own folder.

        Args:
            *patterns: Patterns of files, such as ``"out/**"`` or ``"*.pt"``. All files if none is given.
            run: Id of the run during which the files were written. None for any time.

        Raises:
            UsageError: If a pattern leads out of the working folder.
            PoolError: If the pool is not up, if a node does not answer, or if there are more files than nodes list at
                once.
        """
        pool = self.pool
        found = submit(pool.context.outputs.files(patterns, run)).result()
        if found.failures:
            node, reason = next(iter(found.failures.items()))
            raise PoolError(sanitize_line(f"cannot list the files of node {node} of pool {pool.name}: {reason}"))
        if found.omitted_count:
            raise PoolError(
                f"ranks of pool {pool.name} wrote {found.omitted_count:,} files more than can be listed at once. "
                "Give patterns that match fewer files."
            )
        return found.files

    def fetch(self, *patterns: str, to: str | os.PathLike[str] | None = None, run: str | None = None) -> list[Path]:
        """Download files that ranks wrote in their working folder.

        Files that were fetched before are not downloaded again, interrupted downloads resume, and other files are never
        overwritten. Nothing is downloaded from a pool on this machine.

        Args:
            *patterns: Patterns of files, as for ``files``.
            to: Target folder. None for ``outputs/RUN``, or ``outputs/POOL`` without a run. If several nodes have a file
                of the same name, each copy goes to a subfolder: ``r0``, ``r1`` by rank, or ``n0``, ``n1`` by node if
                the ranks of a node share a folder.
            run: Id of the run during which the files were written. None for any time.

        Returns:
            Paths of the files, including files that were fetched before.

        Raises:
            UsageError: If a pattern leads out of the working folder.
            PoolError: If some files could not be fetched. The message names them, and all other files are downloaded.
        """
        from skyward_core.model.output_files import list_failed_files

        pool = self.pool
        result = submit(pool.context.outputs.fetch(patterns, None if to is None else Path(to), run)).result()
        failed = [f"{names} of node {node}: {reason}" for names, node, reason in list_failed_files(result.files)]
        if problems := [*result.notes, *failed]:
            raise PoolError(sanitize_line(f"could not fetch all files of pool {pool.name}: {'; '.join(problems)}"))
        return [each.target for each in result.files]

    # -- inspection of ranks -----------------------------------------------------------------------------

    def stacks(self, *, run: str | None = None, signal: bool = False) -> Stacks:
        """Return the current Python stack of every rank, read with py-spy if the node has it and the kernel allows it.

        ``skyward_core.views.stack_groups_and_profiles`` groups equal stacks and finds ranks that have not joined a
        collective.

        Args:
            run: Id of the run. None for the latest run.
            signal: Send a signal to ranks that cannot be read; they then write their own stacks. The signal may
                interrupt a call that blocks in native code (EINTR).

        Raises:
            PoolError: If the pool is not up.
        """
        # Imported late, because few scripts collect stacks.
        from skyward_core.pool.rank_inspection_and_debugger import collect_stacks

        context = self.pool.context
        run_id = next(reversed(context.view.runs), "") if run is None else run
        return submit(collect_stacks(context, run_id, signal=signal)).result()

    # -- metrics -----------------------------------------------------------------------------------------

    def metrics(self, run: str | None = None) -> Curves:
        """Return the metrics of the pool's machines, and of a run the metrics that its ranks logged.

        Nodes begin to sample at the first request of any client, or when calls have run for ten seconds, and keep the
        history. The method waits for the next sample of each node, about one second.

        Args:
            run: Id of a run: return its ranks' metrics, and machine metrics of the same time. None for all stored
                machine metrics.

        Returns:
            One series for each name and each rank, GPU or node. Its ``to_csv``, ``to_json`` and ``to_parquet`` export
                the series. Metrics that a node cannot provide are absent, and ``notes`` has the reasons.

        Raises:
            UsageError: If the pool has no such run.
            PoolError: If the pool is not up.
        """
        pool = self.pool

        async def work() -> Curves:
            return await pool.context.metrics.start_collector().fetch_series(run)

        return submit(work()).result()

    def alerts(self, run: str) -> list[Alert]:
        """Return the alerts of a run, as the app shows them.

        For a run that has ended, only alerts about non-finite values are returned. The method samples machines, and
        waits, as ``metrics`` does.

        Args:
            run: Id of the run.

        Returns:
            Alerts, the most severe first. Each has a ``kind`` ("gpu", "nan", "stall", "memory", "restarts",
                "throttled", "straggler" or "plateau"), ``who`` (``rank``, or ``node`` and ``gpu``), ``since`` (Unix
                time by this machine's clock) and a description in ``words``.

        Raises:
            UsageError: If the pool has no such run.
            PoolError: If the pool is not up.
        """
        pool = self.pool

        async def work() -> list[Alert]:
            from skyward_core.views.problem_alerts_and_stragglers import find_alerts

            await pool.context.metrics.start_collector().wait_for_samples()
            if (found := pool.view.runs.get(run)) is None:
                raise UsageError(f"pool {pool.name} has no run {run}")
            return find_alerts(pool.view, found, time.time())

        return submit(work()).result()

    # -- shared by subclasses and helpers ----------------------------------------------------------------

    def _archive_folder(self) -> Path:
        return self.pool.archive.folder

    def _run_html(self, run: str, state: str) -> str:
        """Return the current state of a run as HTML for notebooks.

        Args:
            state: State of the run's future, used if the run is unknown.
        """
        from skyward_core.api.notebook_display import run_html, unseen_html

        found = None if self._pool is None else self._current_view().runs.get(run)
        return unseen_html("run", run, state) if found is None else run_html(found)

    def _current_view(self) -> PoolView:
        call_on_loop(self.pool.context.background.run_deferred)
        return self.pool.view

    # -- operators ---------------------------------------------------------------------------------------

    def run_one(self, pending: PendingFunction[Any]) -> Any:
        """Run a call on one node: ``pending >> compute``.

        Args:
            pending: The call.

        Returns:
            The value. For a generator function an iterator over the yielded values.

        Raises:
            RunError: If the call failed. The cause is the function's own exception.
            NotPicklableError: If an argument cannot be pickled.
            Cancelled: If the run was cancelled.
            PoolError: If the pool is not up, or has no remaining node.
        """
        if pending.streams:
            return self._stream(self._dispatch("single", [self._task(pending)], consumed=True))
        return self._run("single", [self._task(pending)])[0]

    def run_all(self, pending: PendingFunction[Any]) -> list[Any]:
        """Run a call on every rank: ``pending @ compute``.

        Args:
            pending: The call.

        Returns:
            The values in rank order. For a generator function one iterator for each rank.

        Raises:
            RunError: If a rank failed. The cause is the exception of the root cause.
            UsageError: If the pool has fewer nodes than ``with_nodes`` requires.
            NotPicklableError: If an argument cannot be pickled.
            Cancelled: If the run was cancelled.
            PoolError: If the pool is not up, or has lost a node.
        """
        if pending.streams:
            return self._streams(self._dispatch("broadcast", [self._task(pending)], consumed=True))
        return self._run("broadcast", [self._task(pending)])

    def run_group(self, group: PendingGroup[Any]) -> Any:
        """Run several calls at the same time, spread over the nodes: ``group >> compute``.

        Args:
            group: The calls.

        Returns:
            A tuple of the values, in the order of the calls. The value of a generator function's call is an iterator;
                the tuple is returned after all other calls have ended. For a group with ``stream=True`` an iterator
                over the values.

        Raises:
            RunError: If a call failed. The cause is the function's own exception.
            UsageError: If the group streams and contains a call of a generator function.
            NotPicklableError: If an argument cannot be pickled.
            Cancelled: If the run was cancelled.
            PoolError: If the pool is not up, or has no remaining node.
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
        """Start a call on one node without waiting: ``pending > compute``.

        Args:
            pending: The call.

        Returns:
            A future of the value, which also has the run's id and its ranks' output. Cancelling the future cancels the
                run.

        Raises:
            UsageError: If the call is of a generator function.
            NotPicklableError: If an argument cannot be pickled.
            PoolError: If the pool is not up.
        """
        _check_no_generator(pending, ">>")
        return self._make_future(self._dispatch("single", [self._task(pending)]), lambda run: run.results()[0])

    def submit_all(self, pending: PendingFunction[Any]) -> RunFuture[list[Any]]:
        """Start a call on every rank without waiting: ``pending.on_all(compute)``. Raises the errors of ``submit``.

        Args:
            pending: The call.

        Returns:
            A future of the values in rank order.
        """
        _check_no_generator(pending, "@")
        return self._make_future(self._dispatch("broadcast", [self._task(pending)]), lambda run: run.results())

    def submit_group(self, group: PendingGroup[Any]) -> RunFuture[Any]:
        """Start several calls at the same time without waiting: ``group.on(compute)``.

        Args:
            group: The calls.

        Returns:
            A future of a tuple of the values, in the order of the calls.

        Raises:
            UsageError: If the group streams, is empty, or contains a call of a generator function.
            NotPicklableError: If an argument cannot be pickled.
            PoolError: If the pool is not up.
        """
        streams = group.stream or any(item.streams for item in group.items)
        if streams or not group.items:
            reason = "a group that streams has no single value" if streams else "the group is empty"
            raise UsageError(f"{reason}. Run it with >>.")
        return self._make_future(self._dispatch("gather", self._tasks(group)), lambda run: GroupValues(run.results()))

    def _make_future(self, run: Run, values: Callable[[Run], Any]) -> RunFuture[Any]:
        """Return a future that gets the values of a run when the run ends."""
        future: RunFuture[Any] = RunFuture(run.id, self)

        def settle() -> None:
            run.future.exception()  # returns when the run has ended
            if not future.set_running_or_notify_cancel():
                return
            try:
                self._flush_output()
                future.set_result(values(run.future.result()))
            except BaseException as error:  # noqa: BLE001  the future reports any exception
                future.set_exception(error)

        def forward(cancelled: Future[Any]) -> None:
            if cancelled.cancelled():
                self._cancel(run)

        # Unpickle values in a thread and not on the event loop, because this may run slow user code.
        threading.Thread(target=settle, daemon=True).start()
        future.add_done_callback(forward)
        return future

    # -- methods equal to operators ----------------------------------------------------------------------

    def run(self, pending: PendingFunction[T] | PendingGroup[T]) -> T:
        """Run a call or a group: same as ``pending >> compute``. Raises the errors of ``run_one`` or ``run_group``.

        Args:
            pending: A call, or a group of calls.
        """
        if isinstance(pending, Function):
            pending = require_call(pending, "compute.run")
        value: T = pending >> self
        return value

    def broadcast(self, pending: PendingFunction[T]) -> list[T]:
        """Run a call on every rank: same as ``pending @ compute``. Raises the errors of ``run_all``.

        Args:
            pending: The call.
        """
        return require_call(pending, "compute.broadcast") @ self

    def run_async(self, pending: PendingFunction[T]) -> RunFuture[T]:
        """Start a call without waiting: same as ``pending > compute``. Raises the errors of ``submit``.

        Args:
            pending: The call.
        """
        return require_call(pending, "compute.run_async") > self

    @property
    def dask(self) -> Any:
        """Connected ``distributed.Client`` of the cluster that the plugin ``dask`` starts on the pool. Connects at
        first use.

        Raises:
            UsageError: If the pool has no plugin ``dask``.
            RunError: If the cluster cannot be started. The cause has the reason.
            PoolError: If distributed is not installed here, if the scheduler does not answer, or if the pool is not up.
        """
        return self._dask_connection().client()

    def dashboard(self) -> str:
        """Return the URL of the Dask dashboard on this machine's loopback address, valid while this process uses the
        pool.

        Raises:
            UsageError: If the pool has no Dask, or no dashboard.
            PoolError: If the dashboard is not reachable, or if the pool is not up.
        """
        return self._dask_connection().dashboard()

    def _dask_connection(self) -> DaskConnection:
        """Return the connection to the pool's Dask cluster, or raise a UsageError without the plugin."""
        if self._dask is None:
            plugin: Any = next((each for each in self.plugins if each.name == "dask"), None)
            if plugin is None:
                raise UsageError("this pool has no Dask cluster. Create it with plugins=[sky.plugins.dask()].")
            from skyward_core.api.dask_client_connection import DaskConnection

            self._dask = DaskConnection(self.pool, plugin, lambda tasks: self._run("gather", tasks))
        return self._dask

    def _start_map(self, task: Task) -> MapRun:
        """Start a map, whose calls are submitted later; see ``api.map_and_stream``."""
        return cast("MapRun", self._dispatch("map", [task]))

    def _start_sweep(self, calls: Sequence[PendingFunction[Any]], run_id: str) -> Run:
        """Start independent calls side by side; see ``api.hyperparameter_sweep``.

        Raises:
            NotPicklableError: If an argument cannot be pickled.
            TypeError: If the function does not accept the arguments.
            PoolError: If the pool is not up.
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
        """Start calls, each as a gang on a number of nodes; see ``api.hyperparameter_sweep``.

        Raises:
            NotPicklableError: If an argument cannot be pickled.
            TypeError: If the function does not accept the arguments.
            PoolError: If the pool is not up.
            UsageError: If the pool has fewer nodes than each gang needs.
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
                f"a group with stream=True cannot contain {streaming[0]}, a generator function. "
                "Remove stream=True: the tuple then contains an iterator for that call."
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
        """Open a run and return without waiting."""
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
        """Open a run and wait for its values. Switch to the loop's thread only once, so that short calls are fast."""
        from skyward_core.pool.runs.run import RunCompletion

        pool = self.pool
        ended = RunCompletion()
        opened: list[Run] = []
        try:
            # Open the run within the `try` block, because ctrl-c may interrupt any line after the calls are sent.
            self._run_on_loop(lambda: opened.append(pool.context.scheduler.open(kind, tasks, future=ended)), ended)
            with nullcontext() if self._console is None else self._console.live():
                run = ended.wait()
        except BaseException:
            self._cancel_opened(lambda: opened)
            raise
        self._flush_output()
        return run.results()

    def _flush_output(self) -> None:
        """Wait until the ranks' output is printed, so that it precedes the returned values."""
        if self._console is not None:
            self._console.flush()

    def _cancel_opened(self, opened: Callable[[], list[Run]]) -> None:
        """Cancel runs, on the loop. A run whose opening is already scheduled there is opened first, then cancelled."""
        background_loop().call_soon_threadsafe(lambda: self._cancel(*opened()))

    @staticmethod
    def _run_on_loop(work: Callable[[], None], failed: Future[Run]) -> None:
        def attempt() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  raised in the caller's thread
                failed.set_exception(error)

        background_loop().call_soon_threadsafe(attempt)

    def _cancel(self, *runs: Run) -> None:
        for run in () if self._forked else runs:
            background_loop().call_soon_threadsafe(run.cancel, "its caller stopped waiting")

    def _stream(self, run: Run) -> Iterator[Any]:
        try:
            yield from run.items(0)
            self._flush_output()
        finally:
            self._cancel(run)  # stop a run that was interrupted; an ended run ignores this

    def _streams(self, run: Run) -> list[Any]:
        from skyward_core.api.map_and_stream import split_streams

        crowded = run.kind == "gather" and run.total > self.concurrency
        return split_streams(run, lambda: self._cancel(run), ahead=crowded)

    def _mixed_values(self, run: Run) -> tuple[Any, ...]:
        """Return a tuple of a group's values, with an iterator for each call of a generator function."""
        values = self._streams(run)
        return GroupValues(
            each if task.stream else self._only_value(run, index, each)
            for index, (task, each) in enumerate(zip(run.tasks, values, strict=True))
        )

    @staticmethod
    def _only_value(run: Run, index: int, yielded: Iterator[Any]) -> Any:
        for _ in yielded:
            pass  # wait for the call, which yields no items; if the run fails, the iterator raises its error
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
        """Call a function once for each item, spread over all ranks. The whole map is one run.

            for area in compute.map(measure, Path("photos").glob("*.jpg")):
                ...

        ``items`` may be endless: the iterating thread reads them only as they are needed, and none before the first
        value is requested. Short calls are sent in chunks.

        Args:
            fn: A ``@function``, or a plain function, of one argument.
            items: Arguments, one for each call.
            *more: Rejected: unlike the builtin ``map``, only one iterable is supported. Use ``zip``.
            ordered: True yields values in the order of the items, False as the calls end.
            timeout: Time limit of one item in seconds. None for the function's own limit. With a limit, items are sent
                one by one.

        Returns:
            An iterator over the values. Closing it, or leaving a loop over it, cancels the remaining calls. After the
                first failure no further calls start.

        Raises:
            TypeError: If ``fn`` is not a function or does not accept one argument, or if several iterables are given.
            ValueError: If ``timeout`` is not positive.
            UsageError: If ``fn`` is a generator function.
            RunError: If a call failed (during iteration). The cause is the function's own exception. ``results`` has
                computed values by item: all unconsumed values, and if ``items`` has a length, also the first 64 MB of
                consumed values.
            NotPicklableError: If an item cannot be pickled (during iteration).
            Cancelled: If the run was cancelled (during iteration).
            PoolError: If the pool is not up.
        """
        from skyward_core.api.map_and_stream import MapBackend, MapOperation, make_map_call

        if more:
            raise TypeError("compute.map takes one iterable. Use compute.map(lambda each: f(*each), zip(a, b)).")
        call = make_map_call(fn, timeout)
        single = call.timeout is not None
        return MapOperation(MapBackend(self, call), call, items, ordered=ordered, single=single).values()


def _check_no_generator(pending: PendingFunction[Any], operator: str) -> None:
    """Raise a UsageError for a generator function's call, which has no single value."""
    if pending.streams:
        raise UsageError(
            f"{pending.name} is a generator function, but a future has one value. "
            f"Iterate over {pending.name}(...) {operator} compute."
        )


async def run_in_thread(work: Callable[[], T], *, cancel: Callable[[], None] | None = None) -> T:
    """Run blocking work in a thread. A cancelled caller still waits until the work has ended, so that no resources
    leak.

    Args:
        work: The blocking function.
        cancel: Called at each cancellation of the caller, to stop the work early.

    Raises:
        asyncio.CancelledError: If the caller was cancelled. The work has ended.
    """
    return await finish_despite_cancellation(asyncio.get_running_loop().run_in_executor(None, work), cancel)


async def tear_down(pool: Pool) -> Receipt:
    """Tear a pool down. Print leftovers, and add them to the receipt's notes."""
    receipt = await pool.down()
    if not isinstance(pool.context.provider, Rents):
        return receipt
    # Imported late, because only providers of rented machines have an account to inspect.
    from skyward_core.pool.leftover_verdicts import leftover_notes

    notes = await leftover_notes(pool.row, pool.context.ledger)
    for note in notes:
        print_safely(f"pool {pool.name}: {note}")
    return replace(receipt, notes=(*receipt.notes, *notes))


def print_safely(text: str) -> bool:
    """Write a line to standard error and return whether that succeeded. A broken stream must not stop a teardown."""
    try:
        write_escaped(cast(TextIO, sys.stderr), f"{text}\n")
    except Exception:  # noqa: BLE001  stderr is None, or was replaced by the script
        return False
    return True
