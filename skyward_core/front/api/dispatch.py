"""The right side of the operators: sends calls to a pool and brings back what they give."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ...model.errors import UsageError
from ...model.function import Function, PendingFunction, PendingGroup
from ...model.run_future import RunFuture
from ...model.states import RunKind
from ...transport.background_loop import background, submit
from .group_values import GroupValues
from .pool_face import PoolFace
from .right_side import RightSide, call_of

if TYPE_CHECKING:
    from ...pool.runs.carried_run import CarriedRun
    from ...pool.runs.gang_sweep import GangSweep
    from ...pool.runs.map_run import MapRun
    from ...pool.runs.run import Run
    from ...tasks.task import Task
    from ...views.trial_sheet import TrialSheet
    from .dask_work import DaskWork

T = TypeVar("T")


class Dispatching(PoolFace, RightSide):
    """What ``Compute`` and an attached pool share. Safe to use from any thread."""

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
        # Dask can stop no task, and streams no values of one.
        own = any(item.timeout is not None or item.streams for item in group.items)
        if not own and (engine := self._engine()) is not None:
            from .dask_work import ByDask, called
            from .maps import Mapped

            call = PendingFunction(called(group.items[0].name))
            ordered = group.ordered or not group.stream
            values = Mapped(ByDask(engine, call), call, group.items, ordered=ordered, single=False).values()
            return values if group.stream else GroupValues(values)
        tasks = self._tasks(group)
        if any(task.stream for task in tasks):
            return self._mixed(self._dispatch("gather", tasks, consumed=True))
        if group.stream:
            return self._as_they_come(self._dispatch("gather", tasks), ordered=group.ordered)
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
        _refuse_generator(pending, ">>")
        return self._future(self._dispatch("single", [self._task(pending)]), lambda run: run.results()[0])

    def submit_all(self, pending: PendingFunction[Any]) -> RunFuture[list[Any]]:
        """``pending.on_all(compute)``: run a call on every rank, and wait for nothing; raises as ``submit``.

        Args:
            pending: the call.

        Returns:
            A future of the values in rank order.
        """
        _refuse_generator(pending, "@")
        return self._future(self._dispatch("broadcast", [self._task(pending)]), lambda run: run.results())

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
        return self._future(
            self._dispatch("gather", self._tasks(group)), lambda run: GroupValues(run.results())
        )

    def _future(self, run: Run, values: Callable[[Run], Any]) -> RunFuture[Any]:
        """A run as a future of what it gives."""
        future: RunFuture[Any] = RunFuture(run.id, self)

        def settle(done: Future[Run]) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                self._show_all()
                future.set_result(values(done.result()))
            except BaseException as error:  # noqa: BLE001  a future carries whatever its work raised
                future.set_exception(error)

        def forward(cancelled: Future[Any]) -> None:
            if cancelled.cancelled():
                self._cancel(run)

        # Values are unpickled here, not on the loop: user code may run in that, and may be slow.
        threading.Thread(target=lambda: settle(_finished(run.future)), daemon=True).start()
        future.add_done_callback(forward)
        return future

    # -- the same as the operators, by names -------------------------------------------------------------

    def run(self, pending: PendingFunction[T] | PendingGroup[T]) -> T:
        """The same as ``pending >> compute``, and raises as ``run_one`` or ``run_group``.

        Args:
            pending: the call, or a group of calls.
        """
        if isinstance(pending, Function):
            pending = call_of(pending, "compute.run")
        value: T = pending >> self
        return value

    def broadcast(self, pending: PendingFunction[T]) -> list[T]:
        """The same as ``pending @ compute``, and raises as ``run_all``.

        Args:
            pending: the call.
        """
        return call_of(pending, "compute.broadcast") @ self

    def run_async(self, pending: PendingFunction[T]) -> RunFuture[T]:
        """The same as ``pending > compute``, and raises as ``submit``.

        Args:
            pending: the call.
        """
        return call_of(pending, "compute.run_async") > self

    @property
    def dask(self) -> Any:
        """A ``distributed.Client`` of the cluster that the plugin ``dask`` makes of the pool, connected when it is
        first asked for.

        Raises:
            UsageError: the pool has no such plugin.
            RunError: the cluster could not be brought up; its cause says why.
            PoolError: distributed is not installed here, the scheduler does not answer, or the pool is not up.
        """
        engine = self._engine()
        if engine is None:
            raise UsageError("this pool has no Dask: give it plugins=[sky.plugins.dask()]")
        return engine.client()

    def dashboard(self) -> str:
        """Where Dask's dashboard is, on this machine's loopback, for as long as the pool is used from here.

        Raises:
            UsageError: the pool has no Dask, or it was made without a dashboard.
            PoolError: there is no way to it, or the pool is not up.
        """
        engine = self._engine()
        if engine is None:
            raise UsageError("this pool has no Dask: give it plugins=[sky.plugins.dask()]")
        return engine.dashboard()

    def _engine(self) -> DaskWork | None:
        """What hands out the pool's small calls in place of ourselves."""
        if self._dask is None:
            plugin: Any = next((each for each in self.plugins if each.name == "dask"), None)
            if plugin is not None:
                from .dask_work import DaskWork

                self._dask = DaskWork(self, plugin)
        return self._dask

    def _refuse_within_map(self) -> None:
        """Ranks are taken until a map on Dask ends, and it ends only when this thread takes its values."""
        if self._dask is not None and threading.get_ident() in self._dask.reading:
            raise UsageError(
                "this thread is within a map that Dask does, which has all ranks until its end, so that the call would "
                "never begin: take the values first, list(compute.map(...)), or call it within the map's function"
            )

    def _start_carried(self, task: Task, run_id: str) -> CarriedRun:
        """Begin a run whose work an engine does."""
        run: Any = self._dispatch("map", [task], run_id=run_id, carried=True)
        begun: CarriedRun = run
        return begun

    def _start_map(self, task: Task) -> MapRun:
        """Begin a map, whose calls come later; see :mod:`.maps`."""
        run: Any = self._dispatch("map", [task])
        begun: MapRun = run
        return begun

    def _gang_shape(self, ranks: int) -> tuple[int, int]:
        """Of what gangs of so many ranks are made here; see :func:`...pool.runs.gang_sweep.shape_with`.

        Raises:
            UsageError: they cannot be had.
            PoolError: the pool is not up.
        """
        from ...pool.runs.gang_sweep import check_blocks, shape_with

        context = self.pool.context
        nodes, width = shape_with(ranks, context.ranks_per_node, context.name)
        if width > 1:
            check_blocks(self.plugins, alone=context.alone)
        return nodes, width

    def _start_sweep(self, calls: Sequence[PendingFunction[Any]], run_id: str, width: int = 1) -> Run:
        """Begin calls side by side, of which none stops the others; see :mod:`.trials`.

        Args:
            width: on how many ranks of a node each runs.

        Raises:
            NotPicklableError, TypeError: an argument cannot travel, or the function does not take these.
            PoolError: the pool is not up.
        """
        from ...tasks.payload import make_tasks

        tasks = make_tasks(tuple(calls), self.plugins, self._folder())
        return self._dispatch("sweep", [replace(task, width=width) for task in tasks], run_id=run_id)

    def _start_gangs(
        self,
        calls: Sequence[PendingFunction[Any]],
        sheet: TrialSheet,
        nodes: int | None,
        ended: Callable[[int, Run], None],
    ) -> GangSweep:
        """Begin calls, each as a gang of its own on so many nodes; see :mod:`.trials`.

        Raises:
            NotPicklableError, TypeError, PoolError: as :meth:`_start_sweep`.
            UsageError: the pool has fewer nodes.
        """
        from ...pool.runs.gang_sweep import begin, check_room
        from ...tasks.payload import make_tasks

        pool = self.pool
        self._refuse_within_map()
        check_room(nodes or 0, len(pool.links), pool.name)
        tasks = list(make_tasks(tuple(calls), self.plugins, self._folder()))
        return submit(begin(pool.context, pool.launch, tasks, sheet, nodes or 0, ended)).result()

    def _task(self, pending: PendingFunction[Any]) -> Task:
        from ...tasks.payload import make_task

        return make_task(pending, self.plugins, self._folder())

    def _tasks(self, group: PendingGroup[Any]) -> list[Task]:
        streaming = [item.name for item in group.items if item.streams]
        if streaming and group.stream:
            raise UsageError(
                f"a group that streams gives each call's value as it ends, and {streaming[0]} is a generator function: "
                "leave out stream=True, and its place in the tuple has an iterator"
            )
        from ...tasks.payload import make_tasks

        return list(make_tasks(group.items, self.plugins, self._folder()))

    def _dispatch(
        self,
        kind: RunKind,
        tasks: Sequence[Task],
        *,
        consumed: bool = False,
        run_id: str = "",
        carried: bool = False,
    ) -> Run:
        """Open a run and come back at once."""
        pool = self.pool
        self._refuse_within_map()
        opened: Future[Run] = Future()
        try:
            self._on_loop(
                lambda: opened.set_result(
                    pool.launch.open(kind, tasks, consumed=consumed, run_id=run_id, carried=carried)
                ),
                opened,
            )
            return opened.result()
        except BaseException:
            self._cancel_soon(lambda: [opened.result()] if opened.done() and not opened.exception() else [])
            raise

    def _run(self, kind: RunKind, tasks: Sequence[Task]) -> list[Any]:
        """Open a run and wait for its values; one change of threads each way."""
        from ...pool.runs.run import Ending

        pool = self.pool
        self._refuse_within_map()
        ended = Ending()
        opened: list[Run] = []
        try:
            # A ctrl-c may come at any line, also after the calls have left and before we wait.
            self._on_loop(lambda: opened.append(pool.launch.open(kind, tasks, future=ended)), ended)
            with nullcontext() if self._console is None else self._console.live():
                run = ended.wait()
        except BaseException:
            self._cancel_soon(lambda: opened)
            raise
        self._show_all()
        return run.results()

    def _show_all(self) -> None:
        """What ranks have printed stands there before what they return."""
        if self._console is not None:
            self._console.catch_up()

    def _cancel_soon(self, opened: Callable[[], list[Run]]) -> None:
        """Cancel what was opened, or is about to be: this queues up behind it on the loop."""
        background().call_soon_threadsafe(lambda: self._cancel(*opened()))

    @staticmethod
    def _on_loop(work: Callable[[], None], failed: Future[Run]) -> None:
        def attempt() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  raised in the caller's thread instead
                failed.set_exception(error)

        background().call_soon_threadsafe(attempt)

    def _cancel(self, *runs: Run) -> None:
        for run in () if self._forked else runs:
            background().call_soon_threadsafe(run.cancel, "its caller went away")

    def _stream(self, run: Run) -> Iterator[Any]:
        try:
            yield from run.items(0)
            self._show_all()
        finally:
            self._cancel(run)  # does nothing to a run that has ended

    def _streams(self, run: Run) -> list[Any]:
        from .streams import split

        crowded = run.kind == "gather" and run.total > self.concurrency
        return split(run, lambda: self._cancel(run), ahead=crowded)

    def _mixed(self, run: Run) -> tuple[Any, ...]:
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

    def _as_they_come(self, run: Run, *, ordered: bool) -> Iterator[Any]:
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


def _refuse_generator(pending: PendingFunction[Any], operator: str) -> None:
    """Raise UsageError for a generator function's call: its values come one by one."""
    if pending.streams:
        raise UsageError(
            f"{pending.name} is a generator function, and a future has one value: iterate over {pending.name}(...) "
            f"{operator} compute"
        )


def _finished(future: Future[Run]) -> Future[Run]:
    future.exception()
    return future
