"""A function over items; generators of a run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import RunError, UsageError
from skyward_core.model.function import Function, PendingFunction, check_call, function_name
from skyward_core.pool.runs.map_run import EXTRA_CALLS
from skyward_core.pool.runs.run import Run
from skyward_core.tasks.function_pickling import make_map_function, make_map_task
from skyward_core.tasks.guarded_user_code import run_guarded
from skyward_core.transport.background_loop import background_loop

if TYPE_CHECKING:
    from skyward_core.api import PoolOperations
    from skyward_core.pool.runs.map_run import MapRun


MIN_CALL_SECONDS = 0.05  # that a call takes at least, while there are items enough
MAX_CHUNK_ITEMS = 256  # items of a call
MAX_CHUNK_BYTES = 32 << 10  # of a call's items that travel in its frame: of small ones no file is made
MAX_CHUNK_GROWTH = 4  # times that a share is larger than the one before, at most
MAX_RETAINED_BYTES = 64 << 20  # bytes of values that the loop has had and that a failure returns again
MAX_WAITING_CALLS = 8  # calls per place that have ended, or been sent, and that the reader has not come to


class ChunkSizer:
    """How many items the next call gets: so few that all ranks have some, so many that a call is worth its way.

    Args:
        places: calls that run at the same time.
        single: whether each item travels alone.
        left: how many items there are; None where nobody knows.
    """

    def __init__(self, places: int, *, single: bool, left: int | None) -> None:
        self._places = places
        self._most = 1 if single else MAX_CHUNK_ITEMS
        self._left = left
        self._last = 1
        self._seconds: float | None = None  # of an item
        self._bytes = 0.0  # of an item, at most

    def next_size(self) -> int:
        if self._seconds is None:
            return 1
        wanted = self._most if self._seconds <= 0 else int(MIN_CALL_SECONDS / self._seconds)
        if self._bytes:
            wanted = min(wanted, int(MAX_CHUNK_BYTES / self._bytes))
        if self._left is not None:
            wanted = min(wanted, self._left // (2 * self._places))
        self._last = max(1, min(wanted, self._most, self._last * MAX_CHUNK_GROWTH))
        return self._last

    def record_sent(self, items: int, size: int) -> None:
        """So many items were so many bytes."""
        self._bytes = max(self._bytes * 0.9, size / items)
        if self._left is not None:
            self._left = max(0, self._left - items)

    def record_duration(self, items: int, seconds: float) -> None:
        """A call of so many items took so long."""
        each = seconds / items
        self._seconds = each if self._seconds is None else 0.7 * self._seconds + 0.3 * each


class MapBackend:
    """Calls of the pool itself.

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
            raise RuntimeError("the map has not begun")
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
    """One map: reads the items, and gives the values.

    Args:
        single: whether each item travels alone.
    """

    def __init__(
        self,
        way: MapBackend,
        call: PendingFunction[Any],
        items: Iterable[Any],
        *,
        ordered: bool,
        single: bool,
    ) -> None:
        self._backend, self._ordered, self._fn = way, ordered, call.fn
        left = run_guarded(lambda: len(items))[0] if isinstance(items, Sized) else None
        self._sizes = ChunkSizer(way.places, single=single, left=left)
        self._items = iter(items)
        self._read_count = 0  # items
        self._submitted_count = self._ended_count = 0  # calls; of these, how many have ended
        self._exhausted = False
        # By number of the call: a function that loads its values, and their size; and the number of its first item.
        self._ready: dict[int, tuple[Callable[[], list[Any]], int]] = {}
        self._firsts: dict[int, int] = {}
        self._yielded_values: dict[int, Any] = {}  # values that the loop has had, by item
        self._retainable_bytes = (
            MAX_RETAINED_BYTES if left is not None else 0
        )  # items without an end would fill the memory

    def values(self) -> Iterator[Any]:
        """What comes of the items."""
        way, following, ended = self._backend, 0, False
        try:
            way.start()
            while True:
                ended = ended or self._process_arrivals()
                number = following if self._ordered else next(iter(self._ready), following)
                if number in self._ready:
                    self._submit_chunk()
                    following += 1
                    yield from self._load_values(number)
                elif ended:
                    if (failure := way.failure()) is not None:
                        raise failure
                    return
                elif not self._submit_chunk():
                    ended = self._process_arrival(way.arrivals.get())
        except RunError as error:
            self._attach_results(error)
            raise
        finally:
            way.close()

    def _load_values(self, number: int) -> list[Any]:
        """Return a call's values for the loop."""
        load, size = self._ready.pop(number)
        first, values = self._firsts.pop(number), load()
        self._retainable_bytes -= size
        if self._retainable_bytes >= 0:
            self._yielded_values.update(enumerate(values, first))
        return values

    def _attach_results(self, failure: RunError) -> None:
        """Add all values that were computed to a failure: those that the loop has not had, and those that are held."""
        failure.results |= self._yielded_values
        for number, (load, _) in self._ready.items():
            with suppress(RunError):  # of several that cannot be loaded the first one is the failure
                failure.results.update(enumerate(load(), self._firsts[number]))

    def _submit_chunk(self) -> bool:
        """Hand one more call out, if there are items for it, and if it is time; says whether it was."""
        out, places = self._submitted_count - self._ended_count, self._backend.places
        if self._exhausted or out >= places * (1 + EXTRA_CALLS) or out + len(self._ready) >= places * MAX_WAITING_CALLS:
            return False
        share = list(islice(self._items, self._sizes.next_size()))
        if not share:
            self._exhausted = True
            self._backend.finish()
            return False
        if not self._read_count:
            check_call(PendingFunction(self._fn, (share[0],)), self._fn)
        self._sizes.record_sent(len(share), self._backend.submit_chunk(self._read_count, share))
        self._firsts[self._submitted_count] = self._read_count
        self._read_count += len(share)
        self._submitted_count += 1
        return True

    def _process_arrivals(self) -> bool:
        """Take what is here; says whether it was the last."""
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
    """What a map calls, as a call without arguments.

    Args:
        timeout: of an item; None for the function's own.

    Raises:
        TypeError: it is no function.
        UsageError: it is a generator function.
    """
    if isinstance(fn, PendingFunction):
        raise TypeError(f"map calls its function with each item: give it {fn.name}, not a call of it")
    if not isinstance(fn, Function):
        if not callable(fn):
            raise TypeError(f"map takes a function and items, not {type(fn).__name__}")
        fn = Function(fn)
    call = PendingFunction(fn.fn, (), {}, fn.timeout)
    if call.streams:
        raise UsageError(f"{function_name(fn.fn)} is a generator function, and a map wants one value of each item")
    return call if timeout is None else call.with_timeout(timeout)


def split_streams(run: Run, cancel: Callable[[], None], *, ahead: bool = False) -> list[Iterator[Any]]:
    """Iterators over the values of each rank, by rank, or of each call; they may be read in any order, by any threads.

    A rank whose iterator is not read waits once it is a few values ahead; so do, then, its peers in collectives:
    read them in turns (``zip``).

    Args:
        cancel: called when an iterator is closed before its end, or raises.
        ahead: take values as they come, whoever reads them: with fewer places than calls one that waits for its reader
            would have the place of another, for which the reader may wait.
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
        except BaseException:  # closed, or a value that does not load: nobody reads any more
            cancel()
            raise

    return [items(index) for index in range(run.total)]


def _load_now(values: Iterator[Any]) -> Iterator[Any]:
    """The same values, taken now; what came in the way is raised to who reads them."""
    try:
        return iter(list(values))
    except BaseException as error:  # noqa: BLE001  user code may run as they are loaded
        return _raise_on_read(error)


def _raise_on_read(error: BaseException) -> Iterator[Any]:
    raise error
    yield
