"""Pool as a ``concurrent.futures.Executor``, for libraries that accept one and for ``loop.run_in_executor``."""

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

from skyward_core.model.deprecated_and_unknown_arguments import apply_rules, check_unknown_arguments, renamed
from skyward_core.model.errors import UsageError
from skyward_core.model.function import Function, PendingFunction, check_call, function_name
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo
from skyward_core.model.specs import Worker
from skyward_core.node.worker.returned_exceptions import CapturedResult, capture_call
from skyward_core.pool.runs.map_run import EXTRA_CALLS, MapRun, MapValues
from skyward_core.pool.runs.result_loading_and_run_errors import load, load_exception
from skyward_core.runtime.rank_side_async_stream_and_map_calls import adapt_async_function
from skyward_core.tasks.function_pickling import make_map_function, make_map_task
from skyward_core.transport.background_loop import background_loop

if TYPE_CHECKING:
    from types import TracebackType

    from skyward_core.api.pool_operations import PoolOperations

P = ParamSpec("P")
T = TypeVar("T")


class Executor(_Executor):
    """Executor that runs plain functions on the ranks of a pool, like ``ProcessPoolExecutor`` on local processes.

        with sky.Compute(nodes=4) as compute, sky.Executor(compute) as executor:
            future = executor.submit(pow, 2, 10)
            values = list(executor.map(measure, paths, chunksize=8))

    All calls of one executor are one run of the pool. A call that raises does not affect the others. If the process of
    a rank dies, the executor is broken: unfinished calls get ``BrokenExecutor``, and new calls are rejected. A call can
    be cancelled until it is sent to a node. Ctrl-c in the executor's block stops all calls. Each node receives at most
    two more calls than the node can run at the same time.

    Args:
        pool: A pool that is up: ``Compute`` in its block, or the result of ``sky.attach``.
        **words: Arguments of a ``Worker``, if no pool is given: ``type``, ``concurrency``, ``reuse`` and ``buffer``, as
            in the newest API generation.

    Raises:
        PoolError: If the pool is not up.
    """

    # Hidden from type checkers, which see only the executor of a pool.
    if not TYPE_CHECKING:

        def __new__(cls, pool: Any = None, **words: Any) -> Any:
            """Return a ``Worker`` if no pool is given, as in the newest API generation."""
            if pool is not None and not isinstance(pool, str):
                return super().__new__(cls)
            rules = {"type": renamed("executor"), "reuse": renamed("reuse_processes")}
            given = {"type": pool, **words}
            check_unknown_arguments("sky.Executor", given, ("type", "concurrency", "reuse", "buffer"))
            arguments = apply_rules("sky.Executor", rules, given)
            return Worker(**{name: value for name, value in arguments.items() if value is not None})

    def __init__(self, pool: PoolOperations) -> None:
        self._work = _CallDispatcher(pool, pool.concurrency)
        # End the dispatching thread when the script has no reference to the executor any more.
        self._ends = weakref.finalize(self, self._work.close)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a function call on a rank.

        Args:
            fn: A plain function, an ``async def`` function, or a ``@function`` (its time limit applies).
            *args: Positional arguments of the call.
            **kwargs: Keyword arguments of the call.

        Returns:
            A future of the value. The future raises an exception if the arguments or the value cannot be serialized.

        Raises:
            RuntimeError: If the executor was shut down. A broken executor raises the subclass ``BrokenExecutor``.
            UsageError: If the function is a generator function.
            TypeError: If the function does not accept these arguments.
            PoolError: If the pool is not up, or if this process was forked from the pool's process.
        """
        if isinstance(fn, PendingFunction):
            raise TypeError(f"submit takes a function and its arguments, got a call. Use submit({fn.name}, ...).")
        timeout = fn.timeout if isinstance(fn, Function) else None
        call = PendingFunction(fn.fn if isinstance(fn, Function) else fn, args, kwargs, timeout)
        if call.streams:
            raise UsageError(
                f"{call.name} is a generator function, but a future has one value. Use {call.name}(...) >> compute."
            )
        check_call(call, call.fn)
        return self._work.submit(call)

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:  # fmt: skip
        """Call a function with each item of the iterables, as the builtin ``map`` does. Values come in order.

        Reads all items at once, as executors do. ``compute.map`` reads items only as they are needed.

        Args:
            fn: The function.
            *iterables: One iterable for each argument of the function.
            timeout: Seconds from now after which the iterator raises TimeoutError.
            chunksize: Calls that are sent together. Calls of a ``@function`` with a time limit are always sent one by
                one.
            buffersize: Only None is accepted.

        Raises:
            ValueError: If ``chunksize`` is less than 1.
            UsageError: If ``buffersize`` is given.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be 1 or more")
        if buffersize is not None:
            raise UsageError(
                "buffersize is not supported: Executor.map reads all items at once. Use compute.map instead."
            )
        # The time limit of a @function applies to each call, so send each item in its own call.
        if chunksize == 1 or (isinstance(fn, Function) and fn.timeout is not None):
            return super().map(fn, *iterables, timeout=timeout)
        whole = adapt_async_function(fn.fn if isinstance(fn, Function) else fn)
        chunks = super().map(partial(_call_each, whole), _chunks(chunksize, *iterables), timeout=timeout)
        return itertools.chain.from_iterable(chunks)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Reject further calls.

        Args:
            wait: Return only after all submitted calls have ended.
            cancel_futures: Cancel calls that were not sent to a node yet.
        """
        self._ends.detach()
        self._work.close(cancel_futures=cancel_futures)
        if wait:
            self._work.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, (KeyboardInterrupt, CancelledError)):
            # Cancel the calls, as a process pool does, because ctrl-c also reaches the pool's processes.
            self._work.cancel()
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
    """Dispatcher of an executor's calls, with its own thread. Lives until all calls have ended."""

    def __init__(self, pool: PoolOperations, places: int) -> None:
        self._pool = pool
        self._max_dispatched = places * (1 + EXTRA_CALLS)
        self._shared = make_map_function(capture_call, "executor", pool.plugins, pool._archive_folder())
        self._lock = threading.Lock()
        self._waiting: deque[_PendingCall] = deque()
        # Number of a call -> call that was sent and has not ended; only the dispatching thread uses it.
        self._dispatched: dict[int, _PendingCall] = {}
        self._dispatched_count = 0
        self._closed = False
        self._broken: Exception | None = None
        self._run: MapRun | None = None
        self._thread: threading.Thread | None = None

    def submit(self, pending: PendingFunction[Any]) -> Future[Any]:
        call = _PendingCall(pending)
        with self._lock:
            if self._broken is not None:
                raise BrokenExecutor(f"the executor is broken and rejects new calls: {self._broken}") from self._broken
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            _ = self._pool.pool  # raise an error in a forked child, because the dispatching thread does not exist there
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
        """Stop the calls that are running on ranks."""
        with self._lock:
            self._closed = True
        if self._run is not None:
            self._pool._cancel(self._run)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    # -- on the thread -----------------------------------------------------------------------------------

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
                    self._shared, self._dispatched_count, [item], pending.timeout, self._pool._archive_folder()
                )
            except BaseException as error:  # noqa: BLE001  pickling failed: the future reports the error
                _resolve_future(call.future.set_exception, error)
                continue
            self._dispatched[self._dispatched_count] = call
            self._dispatched_count += 1
            background_loop().call_soon_threadsafe(run.submit_next, task, 1)

    def _complete_call(self, call: _PendingCall, values: MapValues) -> None:
        """Set the result of a call's future. Loading the value or the exception can run user code."""
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
        except BaseException as error:  # noqa: BLE001  the future reports any exception of the call
            _resolve_future(call.future.set_exception, error)
        else:
            _resolve_future(call.future.set_result, value)

    def _fail_remaining(self, run: MapRun) -> None:
        failure = None if run.state == "done" else run.error()
        with self._lock:
            self._broken = failure
            remaining = [*self._dispatched.values(), *self._waiting]
            self._waiting.clear()
            self._dispatched.clear()
        for call in remaining:
            if call.future.cancelled() or call.future.done():
                continue
            if not call.future.running() and not call.future.set_running_or_notify_cancel():
                continue
            broken = BrokenExecutor(f"{function_name(call.pending.fn)} did not finish: {failure}")
            broken.__cause__ = failure
            _resolve_future(call.future.set_exception, broken)


def _resolve_future(settle: Callable[[Any], None], what: Any) -> None:
    """Set a future's result or exception. Errors in its callbacks (user code) must not affect other calls."""
    try:
        settle(what)
    except BaseException:  # noqa: BLE001  futures log Exceptions of callbacks, but let SystemExit pass
        sys.excepthook(*sys.exc_info())
