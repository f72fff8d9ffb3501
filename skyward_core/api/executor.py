"""A pool as a ``concurrent.futures.Executor``, for libraries that take one, and for ``loop.run_in_executor``."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures import Executor as _Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from skyward_core.model.errors import UsageError
from skyward_core.model.function import Function, PendingFunction, check_call, function_name
from skyward_core.model.outcomes import ErrorInfo
from skyward_core.node.worker.returned_exceptions import CapturedResult, capture_call
from skyward_core.pool.runs.map_run import EXTRA_CALLS
from skyward_core.pool.runs.run_results import load, load_exception
from skyward_core.runtime.async_and_mapped_calls import adapt_async_function
from skyward_core.tasks.function_pickling import make_map_function, make_map_task
from skyward_core.transport.background_loop import background_loop

if TYPE_CHECKING:
    from types import TracebackType

    from skyward_core.api.operators import PoolOperations
    from skyward_core.pool.runs.map_run import MapRun, MapValues

P = ParamSpec("P")
T = TypeVar("T")


class Executor(_Executor):
    """Runs plain functions on the ranks of a pool, as ``ProcessPoolExecutor`` does in processes of this machine.

        with sky.Compute(nodes=4) as compute, sky.Executor(compute) as executor:
            future = executor.submit(pow, 2, 10)
            values = list(executor.map(measure, paths, chunksize=8))

    All calls of one executor are one run of the pool. A call that raises fails alone. When a rank's process dies, the
    executor is broken: calls that have not ended get ``BrokenExecutor``, and it takes no others. A call can be
    cancelled until a node has been given it; ctrl-c in the executor's block stops all. Each node is given two calls
    more than it can work on.

    Args:
        pool: a pool that is up: ``Compute`` in its block, or what ``sky.attach`` gives.
        **words: without a pool, as the newest generation has it: ``type``, ``concurrency``, ``reuse`` and ``buffer`` of
            how a node works, which give a ``Worker``.

    Raises:
        PoolError: the pool is not up.
    """

    if not TYPE_CHECKING:  # types know the one meaning

        def __new__(cls, pool: Any = None, **words: Any) -> Any:
            """As the newest generation has it, without a pool: how a node runs its tasks, which is a ``Worker``."""
            if pool is not None and not isinstance(pool, str):
                return super().__new__(cls)
            from skyward_core.model.older_api_arguments import apply_rules, check_unknown_arguments, renamed
            from skyward_core.model.specs import Worker

            rules = {"type": renamed("executor"), "reuse": renamed("reuse_processes")}
            said = {"type": pool, **words}
            check_unknown_arguments("sky.Executor", said, ("type", "concurrency", "reuse", "buffer"))
            return Worker(
                **{name: value for name, value in apply_rules("sky.Executor", rules, said).items() if value is not None}
            )

    def __init__(self, pool: PoolOperations) -> None:
        self._work = _CallDispatcher(pool, pool.concurrency)
        self._ends = weakref.finalize(self, self._work.close)  # nobody can submit any more

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a function called on a rank.

        Args:
            fn: a plain function, an ``async def`` one, or a ``@function`` (its time limit holds).
            *args: what it is called with.
            **kwargs: the same, by name.

        Returns:
            A future of its value. What cannot travel to the nodes, or back, is its exception.

        Raises:
            RuntimeError: the executor was shut down, or is broken (then a ``BrokenExecutor``).
            UsageError: it is a generator function.
            TypeError: it does not take these arguments.
            PoolError: the pool is not up, or this process was forked from the one that it belongs to.
        """
        if isinstance(fn, PendingFunction):
            raise TypeError(f"submit takes a function and its arguments: submit({fn.name}, ...), not a call of it")
        timeout = fn.timeout if isinstance(fn, Function) else None
        call = PendingFunction(fn.fn if isinstance(fn, Function) else fn, args, kwargs, timeout)
        if call.streams:
            raise UsageError(f"{call.name} is a generator function, and a future has one value; use >> with the pool")
        check_call(call, call.fn)
        return self._work.submit(call)

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:  # fmt: skip
        """Call a function with each item of the iterables, as the builtin ``map`` does; values come in order.

        Reads all items at once, as executors do; ``compute.map`` reads them as they are needed.

        Args:
            fn: the function.
            *iterables: one for each of its arguments.
            timeout: seconds from now after which the iterator raises TimeoutError.
            chunksize: calls that travel as one; of a ``@function`` with a time limit they travel one by one.
            buffersize: only None; ``compute.map`` reads items as they are needed.

        Raises:
            ValueError: ``chunksize`` is less than 1.
            UsageError: a ``buffersize`` was given.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be 1 or more")
        if buffersize is not None:
            raise UsageError("an executor's map reads all its items; compute.map reads them as they are needed")
        if chunksize == 1 or (isinstance(fn, Function) and fn.timeout is not None):  # a limit is each call's own
            return super().map(fn, *iterables, timeout=timeout)
        whole = adapt_async_function(fn.fn if isinstance(fn, Function) else fn)
        chunks = super().map(partial(_call_each, whole), _chunks(chunksize, *iterables), timeout=timeout)
        return itertools.chain.from_iterable(chunks)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls.

        Args:
            wait: come back when all that were taken have ended.
            cancel_futures: cancel those that no node has been given yet.
        """
        self._ends.detach()
        self._work.close(cancel_futures=cancel_futures)
        if wait:
            self._work.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, (KeyboardInterrupt, CancelledError)):
            self._work.cancel()  # processes of this machine get a ctrl-c, too
        self.shutdown()


def _call_each(fn: Callable[..., T], calls: list[tuple[Any, ...]]) -> list[T]:
    return [fn(*args) for args in calls]


def _chunks(size: int, *iterables: Iterable[Any]) -> Iterator[list[tuple[Any, ...]]]:
    calls = zip(*iterables, strict=False)
    while chunk := list(itertools.islice(calls, size)):
        yield chunk


@dataclass(eq=False)
class _PendingCall:
    pending: PendingFunction[Any]
    future: Future[Any] = field(default_factory=Future)


class _CallDispatcher:
    """The calls of an executor, and the thread that hands them out; lives as long as one of them has not ended."""

    def __init__(self, pool: PoolOperations, places: int) -> None:
        self._pool = pool
        self._max_dispatched = places * (1 + EXTRA_CALLS)
        self._shared = make_map_function(capture_call, "executor", pool.plugins, pool._archive_folder())
        self._lock = threading.Lock()
        self._waiting: deque[_PendingCall] = deque()
        self._dispatched: dict[int, _PendingCall] = {}  # by number; the thread's own
        self._dispatched_count = 0
        self._closed = False
        self._broken: Exception | None = None
        self._run: MapRun | None = None
        self._thread: threading.Thread | None = None

    def submit(self, pending: PendingFunction[Any]) -> Future[Any]:
        call = _PendingCall(pending)
        with self._lock:
            if self._broken is not None:
                raise BrokenExecutor(f"it takes no calls any more: {self._broken}") from self._broken
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            _ = self._pool.pool  # a forked child has no thread that would hand it out
            if self._run is None:
                self._run = self._pool._start_map(self._shared)
                self._thread = threading.Thread(target=self._serve, args=(self._run,), name="executor", daemon=True)
                self._thread.start()
            self._waiting.append(call)
        self._run.arrivals.put(("taken",))
        return call.future

    def close(self, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._closed = True
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
        for call in dropped:
            call.future.cancel()
        if self._run is not None:
            self._run.arrivals.put(("taken",))

    def cancel(self) -> None:
        """Stop what runs."""
        with self._lock:
            self._closed = True
        if self._run is not None:
            self._pool._cancel(self._run)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    # -- the thread's ------------------------------------------------------------------------------------

    def _serve(self, run: MapRun) -> None:
        finished = False
        while True:
            arrival = run.arrivals.get()
            if arrival[0] == "end":
                break
            if arrival[0] == "values":
                _, number, values, *_ = arrival
                self._complete_call(self._dispatched.pop(number), values)
            self._dispatch_waiting(run)
            if not finished and self._closed and not self._waiting:
                finished = True
                background_loop().call_soon_threadsafe(run.finish)
        self._fail_remaining(run)

    def _dispatch_waiting(self, run: MapRun) -> None:
        while len(self._dispatched) < self._max_dispatched:
            try:
                call = self._waiting.popleft()
            except IndexError:
                return
            if not call.future.set_running_or_notify_cancel():
                continue
            pending = call.pending
            item = pending.fn, pending.args, pending.kwargs
            try:
                task = make_map_task(
                    self._shared,
                    self._dispatched_count,
                    [item],
                    pending.timeout,
                    self._pool._archive_folder(),
                )
            except BaseException as error:  # noqa: BLE001  it cannot travel, or its reducer raised: its future says so
                _resolve_future(call.future.set_exception, error)
                continue
            self._dispatched[self._dispatched_count] = call
            self._dispatched_count += 1
            background_loop().call_soon_threadsafe(run.submit_next, task, 1)

    def _complete_call(self, call: _PendingCall, values: MapValues) -> None:
        """User code may run in here: what it returned, or raised, is loaded."""
        answer: CapturedResult
        try:
            (answer,) = values()
            if answer.traceback:
                kind, _, words = answer.traceback.rstrip().rpartition("\n")[2].partition(": ")
                info = ErrorInfo(kind, words, answer.traceback)
                raise load_exception(replace(values.outcome, kind="raised", error=info), answer.data)
            value, failure = load(answer.data)
            if failure is not None:
                raise values.not_loaded(failure) from failure
        except BaseException as error:  # noqa: BLE001  what the call raised may be anything: its future says so
            _resolve_future(call.future.set_exception, error)
        else:
            _resolve_future(call.future.set_result, value)

    def _fail_remaining(self, run: MapRun) -> None:
        failure = None if run.state == "done" else run.error()
        with self._lock:
            self._broken = failure
            left = [*self._dispatched.values(), *self._waiting]
            self._waiting.clear()
            self._dispatched.clear()
        for call in left:
            if call.future.cancelled() or call.future.done():
                continue
            if not call.future.running() and not call.future.set_running_or_notify_cancel():
                continue
            names = function_name(call.pending.fn)
            broken = BrokenExecutor(f"{names} did not end: {failure}")
            broken.__cause__ = failure
            _resolve_future(call.future.set_exception, broken)


def _resolve_future(settle: Callable[[Any], None], what: Any) -> None:
    """Settle a future. Its callbacks are user code, and one that exits must not take the other calls along."""
    try:
        settle(what)
    except BaseException:  # noqa: BLE001  a future tells what else a callback raises in its own words
        sys.excepthook(*sys.exc_info())
