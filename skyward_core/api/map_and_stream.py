"""``compute.map`` over items, and iterators over the values of generator calls."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import RunError, UsageError
from skyward_core.model.function import Function, PendingFunction, check_call, function_name
from skyward_core.pool.runs.map_run import EXTRA_CALLS, MapRun
from skyward_core.pool.runs.run import Run
from skyward_core.tasks.function_pickling import make_map_function, make_map_task
from skyward_core.tasks.guarded_user_code import run_guarded
from skyward_core.transport.background_loop import background_loop

if TYPE_CHECKING:
    from skyward_core.api import PoolOperations


MIN_CALL_SECONDS = 0.05  # seconds; intended duration of a chunk, so that the overhead of its dispatch is small
MAX_CHUNK_ITEMS = 256  # maximum number of items in one call
MAX_CHUNK_BYTES = 32 << 10  # maximum bytes of a call's items, because a larger payload would be sent as a file
MAX_CHUNK_GROWTH = 4  # maximum growth factor from one chunk to the next
MAX_RETAINED_BYTES = 64 << 20  # maximum bytes of consumed values that a RunError still returns in `results`
MAX_WAITING_CALLS = 8  # maximum number of calls per place in the pool whose values the reader has not consumed yet


class ChunkSizer:
    """Chooses the number of items for the next call.

    A chunk must be small enough to keep all ranks busy, and large enough to justify the overhead of a call.

    Args:
        places: Number of calls that can run at the same time.
        single: Whether each item is sent alone.
        remaining: Number of items that are not sent yet. None if unknown.
    """

    def __init__(self, places: int, *, single: bool, remaining: int | None) -> None:
        self._places = places
        self._most = 1 if single else MAX_CHUNK_ITEMS
        self._left = remaining
        self._last = 1
        self._seconds: float | None = None  # measured seconds per item; None before the first measurement
        self._bytes = 0.0  # decaying maximum of the measured bytes per item

    def next_size(self) -> int:
        if self._seconds is None:
            return 1
        size = self._most if self._seconds <= 0 else int(MIN_CALL_SECONDS / self._seconds)
        if self._bytes:
            size = min(size, int(MAX_CHUNK_BYTES / self._bytes))
        if self._left is not None:
            size = min(size, self._left // (2 * self._places))
        self._last = max(1, min(size, self._most, self._last * MAX_CHUNK_GROWTH))
        return self._last

    def record_sent(self, items: int, size: int) -> None:
        """Record the size in bytes of a sent chunk."""
        self._bytes = max(self._bytes * 0.9, size / items)
        if self._left is not None:
            self._left = max(0, self._left - items)

    def record_duration(self, items: int, seconds: float) -> None:
        """Record the duration of a call in seconds."""
        each = seconds / items
        self._seconds = each if self._seconds is None else 0.7 * self._seconds + 0.3 * each


class MapBackend:
    """Connection of a map to the pool: sends the map's calls and receives their outcomes.

    Args:
        call: The function, as a call without arguments.
    """

    def __init__(self, pool: PoolOperations, call: PendingFunction[Any]) -> None:
        self._pool = pool
        self.places = pool.concurrency
        self.arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._folder, self._timeout = pool._archive_folder(), call.timeout
        self._shared = make_map_function(call.fn, call.name, pool.plugins, self._folder)
        self._run: MapRun | None = None

    @property
    def run(self) -> MapRun:
        if self._run is None:
            raise RuntimeError("the map has not started")
        return self._run

    def start(self) -> None:
        self._run = self._pool._start_map(self._shared)
        self.arrivals = self._run.arrivals

    def submit_chunk(self, first: int, items: Sequence[Any]) -> int:
        task = make_map_task(self._shared, first, list(items), self._timeout, self._folder)
        background_loop().call_soon_threadsafe(self.run.submit_next, task, len(items))
        return task.args.size

    def finish(self) -> None:
        background_loop().call_soon_threadsafe(self.run.finish)

    def failure(self) -> Exception | None:
        return None if self.run.state == "done" else self.run.error()

    def close(self) -> None:
        if self._run is not None:
            self._pool._cancel(self._run)


class MapOperation:
    """One map: reads the items, sends calls and yields the values.

    Args:
        single: Whether each item is sent alone.
    """

    def __init__(
        self, backend: MapBackend, call: PendingFunction[Any], items: Iterable[Any], *, ordered: bool, single: bool
    ) -> None:
        self._backend, self._ordered, self._fn = backend, ordered, call.fn
        remaining = run_guarded(lambda: len(items))[0] if isinstance(items, Sized) else None
        self._sizes = ChunkSizer(backend.places, single=single, remaining=remaining)
        self._items = iter(items)
        self._read_count = 0  # number of items that were read from the input
        # Numbers of the map's calls that were submitted and that have ended.
        self._submitted_count = self._ended_count = 0
        self._exhausted = False
        # Number of an ended call -> function that loads its values, and their size in bytes.
        self._ready: dict[int, tuple[Callable[[], list[Any]], int]] = {}
        self._firsts: dict[int, int] = {}  # number of a call -> index of its first item
        self._yielded_values: dict[int, Any] = {}  # index of an item -> consumed value
        # Without a known number of items, retained values could fill the memory, so retain none.
        self._retainable_bytes = MAX_RETAINED_BYTES if remaining is not None else 0

    def values(self) -> Iterator[Any]:
        """Yield the values of all items, and submit further calls in between."""
        backend, following, ended = self._backend, 0, False
        try:
            backend.start()
            while True:
                ended = ended or self._process_arrivals()
                number = following if self._ordered else next(iter(self._ready), following)
                if number in self._ready:
                    self._submit_chunk()
                    following += 1
                    yield from self._load_values(number)
                elif ended:
                    if (failure := backend.failure()) is not None:
                        raise failure
                    return
                elif not self._submit_chunk():
                    ended = self._process_arrival(backend.arrivals.get())
        except RunError as error:
            self._attach_results(error)
            raise
        finally:
            backend.close()

    def _load_values(self, number: int) -> list[Any]:
        """Return a call's values, and retain them for ``_attach_results``, up to ``MAX_RETAINED_BYTES``."""
        load, size = self._ready.pop(number)
        first, values = self._firsts.pop(number), load()
        self._retainable_bytes -= size
        if self._retainable_bytes >= 0:
            self._yielded_values.update(enumerate(values, first))
        return values

    def _attach_results(self, failure: RunError) -> None:
        """Add all available values to a failure: unconsumed values, and retained consumed ones."""
        failure.results |= self._yielded_values
        for number, (load, _) in self._ready.items():
            # Ignore values that cannot be loaded, because the first such error is already raised.
            with suppress(RunError):
                failure.results.update(enumerate(load(), self._firsts[number]))

    def _submit_chunk(self) -> bool:
        """Send one more call unless items are exhausted or enough calls are outstanding. Return whether a call was
        sent.
        """
        out, places = self._submitted_count - self._ended_count, self._backend.places
        if self._exhausted or out >= places * (1 + EXTRA_CALLS) or out + len(self._ready) >= places * MAX_WAITING_CALLS:
            return False
        chunk = list(islice(self._items, self._sizes.next_size()))
        if not chunk:
            self._exhausted = True
            self._backend.finish()
            return False
        if not self._read_count:
            check_call(PendingFunction(self._fn, (chunk[0],)), self._fn)
        self._sizes.record_sent(len(chunk), self._backend.submit_chunk(self._read_count, chunk))
        self._firsts[self._submitted_count] = self._read_count
        self._read_count += len(chunk)
        self._submitted_count += 1
        return True

    def _process_arrivals(self) -> bool:
        """Process all arrivals that are available. Return whether the run has ended."""
        try:
            while not self._process_arrival(self._backend.arrivals.get_nowait()):
                pass
        except queue.Empty:
            return False
        return True

    def _process_arrival(self, arrival: Any) -> bool:
        if arrival[0] == "end":
            return True
        _, number, load, items, seconds, size = arrival
        self._ended_count += 1
        self._sizes.record_duration(items, seconds)
        self._ready[number] = load, size
        return False


def make_map_call(fn: Any, timeout: float | None) -> PendingFunction[Any]:
    """Return a map's function as a call without arguments.

    Args:
        timeout: Time limit of an item in seconds. None for the function's own limit.

    Raises:
        TypeError: If ``fn`` is not a function.
        UsageError: If ``fn`` is a generator function.
    """
    if isinstance(fn, PendingFunction):
        raise TypeError(f"map takes a function, got a call. Use map({fn.name}, items).")
    if not isinstance(fn, Function):
        if not callable(fn):
            raise TypeError(f"map takes a function and items, not {type(fn).__name__}")
        fn = Function(fn)
    call = PendingFunction(fn.fn, (), {}, fn.timeout)
    if call.streams:
        raise UsageError(f"{function_name(fn.fn)} is a generator function, but a map needs one value of each item")
    return call if timeout is None else call.with_timeout(timeout)


def split_streams(run: Run, cancel: Callable[[], None], *, ahead: bool = False) -> list[Iterator[Any]]:
    """Return an iterator over the values of each rank, or of each call. Different threads may read them in any order.

    A rank waits while the reader has not consumed its last few values. Its peers then wait in collectives, so read the
    iterators in turns (``zip``).

    Args:
        cancel: Called when an iterator is closed before its end, or raises.
        ahead: Load values as they arrive, without waiting for the reader. Required if the pool cannot run all calls at
            the same time: a call that waits for its reader would block a call that the reader may wait for.
    """
    inboxes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(run.total)]

    def sort() -> None:
        while True:
            kind, *rest = run.arrivals.get()
            if kind == "item":
                values = run.item(*rest)
                inboxes[rest[1]["i"]].put(_load_now(values) if ahead else values)
            elif kind == "outcome":
                if rest[1] == "returned":
                    inboxes[rest[0]].put(None)
            else:
                for inbox in inboxes:
                    inbox.put(None)
                return

    threading.Thread(target=sort, name=f"run {run.id}", daemon=True).start()

    def items(index: int) -> Iterator[Any]:
        try:
            while (found := inboxes[index].get()) is not None:
                yield from found
            if run.state not in ("running", "done"):
                raise run.error()
        except BaseException:  # cancel the run, because its values have no reader after an early close or an error
            cancel()
            raise

    return [items(index) for index in range(run.total)]


def _load_now(values: Iterator[Any]) -> Iterator[Any]:
    """Load all values of an iterator now. If loading fails, return an iterator that raises the error."""
    try:
        return iter(list(values))
    except BaseException as error:  # noqa: BLE001  loading can run user code
        return _raise_on_read(error)


def _raise_on_read(error: BaseException) -> Iterator[Any]:
    raise error
    yield
