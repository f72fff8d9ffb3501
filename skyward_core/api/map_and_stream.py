"""A function over items; generators of a run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from skyward_core.model.errors import RunError, UsageError
from skyward_core.model.function import Function, PendingFunction, check_call, name_of
from skyward_core.pool.runs.map_run import AHEAD
from skyward_core.pool.runs.run import Run
from skyward_core.tasks.function_pickling import map_function, map_share
from skyward_core.tasks.guarded_user_code import tried
from skyward_core.transport.background_loop import background

if TYPE_CHECKING:
    from skyward_core.pool.runs.map_run import MapRun
    from skyward_core.tasks.pickled_call import Task


SECONDS = 0.05  # that a call takes at least, while there are items enough
MOST = 256  # items of a call
BYTES = 32 << 10  # of a call's items that travel in its frame: of small ones no file is made
GROWTH = 4  # times that a share is larger than the one before, at most
HELD = 64 << 20  # bytes of values that the loop has had and that a failure returns again
WAITING = 8  # calls per place that have ended, or been sent, and that the reader has not come to


class Sizes:
    """How many items the next call gets: so few that all ranks have some, so many that a call is worth its way.

    Args:
        places: calls that run at the same time.
        single: whether each item travels alone.
        left: how many items there are; None where nobody knows.
    """

    def __init__(self, places: int, *, single: bool, left: int | None) -> None:
        self._places = places
        self._most = 1 if single else MOST
        self._left = left
        self._last = 1
        self._seconds: float | None = None  # of an item
        self._bytes = 0.0  # of an item, at most

    def next(self) -> int:
        if self._seconds is None:
            return 1
        wanted = self._most if self._seconds <= 0 else int(SECONDS / self._seconds)
        if self._bytes:
            wanted = min(wanted, int(BYTES / self._bytes))
        if self._left is not None:
            wanted = min(wanted, self._left // (2 * self._places))
        self._last = max(1, min(wanted, self._most, self._last * GROWTH))
        return self._last

    def sent(self, items: int, size: int) -> None:
        """So many items were so many bytes."""
        self._bytes = max(self._bytes * 0.9, size / items)
        if self._left is not None:
            self._left = max(0, self._left - items)

    def took(self, items: int, seconds: float) -> None:
        """A call of so many items took so long."""
        each = seconds / items
        self._seconds = each if self._seconds is None else 0.7 * self._seconds + 0.3 * each


class ShareWay(Protocol):
    """How shares of items get to ranks, and what comes of them back.

    Attributes:
        places: calls that run at the same time.
        arrivals: ("values", number of the call, what gives its values, how many, seconds that they took, their size in
            bytes), and ("end",).
    """

    places: int
    arrivals: queue.SimpleQueue[Any]

    def begin(self) -> None: ...

    def give(self, first: int, items: Sequence[Any]) -> int:
        """Hand out the next call; gives its bytes, as far as they are known."""
        ...

    def finish(self) -> None:
        """There are no more items."""

    def failure(self) -> Exception | None:
        """Why it ended before all was done."""

    def close(self) -> None:
        """Nobody takes any more values. Does nothing to a map that has ended."""


class OnRanks:
    """Calls of the pool itself.

    Args:
        start, cancel: the pool's own, for runs.
        call: the function, as a call without arguments.
        folder: for large items.
    """

    def __init__(
        self,
        start: Callable[[Task], MapRun],
        cancel: Callable[[MapRun], None],
        call: PendingFunction[Any],
        plugins: Sequence[Any],
        folder: Path,
        places: int,
    ) -> None:
        self.places = places
        self.arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._start, self._cancel = start, cancel
        self._folder, self._timeout = folder, call.timeout
        self._shared = map_function(call.fn, call.name, plugins, folder)
        self._run: MapRun | None = None

    @property
    def run(self) -> MapRun:
        if self._run is None:
            raise RuntimeError("the map has not begun")
        return self._run

    def begin(self) -> None:
        self._run = self._start(self._shared)
        self.arrivals = self._run.arrivals

    def give(self, first: int, items: Sequence[Any]) -> int:
        task = map_share(self._shared, first, list(items), self._timeout, self._folder)
        background().call_soon_threadsafe(self.run.give, task, len(items))
        return task.args.size

    def finish(self) -> None:
        background().call_soon_threadsafe(self.run.finish)

    def failure(self) -> Exception | None:
        return None if self.run.state == "done" else self.run.error()

    def close(self) -> None:
        if self._run is not None:
            self._cancel(self._run)


class Mapped:
    """One map: reads the items, and gives the values.

    Args:
        single: whether each item travels alone.
    """

    def __init__(
        self, way: ShareWay, call: PendingFunction[Any], items: Iterable[Any], *, ordered: bool, single: bool
    ) -> None:
        self._way, self._ordered, self._fn = way, ordered, call.fn
        left = tried(lambda: len(items))[0] if isinstance(items, Sized) else None
        self._sizes = Sizes(way.places, single=single, left=left)
        self._items = iter(items)
        self._read = 0  # items
        self._given = self._over = 0  # calls; of these, how many have ended
        self._exhausted = False
        # By number of the call: a function that loads its values, and their size; and the number of its first item.
        self._ready: dict[int, tuple[Callable[[], list[Any]], int]] = {}
        self._firsts: dict[int, int] = {}
        self._had: dict[int, Any] = {}  # values that the loop has had, by item
        self._room = HELD if left is not None else 0  # items without an end would fill the memory

    def values(self) -> Iterator[Any]:
        """What comes of the items."""
        way, following, ended = self._way, 0, False
        try:
            way.begin()
            while True:
                ended = ended or self._take_what_came()
                number = following if self._ordered else next(iter(self._ready), following)
                if number in self._ready:
                    self._give()
                    following += 1
                    yield from self._next(number)
                elif ended:
                    if (failure := way.failure()) is not None:
                        raise failure
                    return
                elif not self._give():
                    ended = self._take(way.arrivals.get())
        except RunError as error:
            self._complete(error)
            raise
        finally:
            way.close()

    def _next(self, number: int) -> list[Any]:
        """Return a call's values for the loop."""
        load, size = self._ready.pop(number)
        first, values = self._firsts.pop(number), load()
        self._room -= size
        if self._room >= 0:
            self._had.update(enumerate(values, first))
        return values

    def _complete(self, failure: RunError) -> None:
        """Add all values that were computed to a failure: those that the loop has not had, and those that are held."""
        failure.results |= self._had
        for number, (load, _) in self._ready.items():
            with suppress(RunError):  # of several that cannot be loaded the first one is the failure
                failure.results.update(enumerate(load(), self._firsts[number]))

    def _give(self) -> bool:
        """Hand one more call out, if there are items for it, and if it is time; says whether it was."""
        out, places = self._given - self._over, self._way.places
        if self._exhausted or out >= places * (1 + AHEAD) or out + len(self._ready) >= places * WAITING:
            return False
        share = list(islice(self._items, self._sizes.next()))
        if not share:
            self._exhausted = True
            self._way.finish()
            return False
        if not self._read:
            check_call(PendingFunction(self._fn, (share[0],)), self._fn)
        self._sizes.sent(len(share), self._way.give(self._read, share))
        self._firsts[self._given] = self._read
        self._read += len(share)
        self._given += 1
        return True

    def _take_what_came(self) -> bool:
        """Take what is here; says whether it was the last."""
        try:
            while not self._take(self._way.arrivals.get_nowait()):
                pass
        except queue.Empty:
            return False
        return True

    def _take(self, arrival: Any) -> bool:
        if arrival[0] == "end":
            return True
        _, number, load, items, seconds, size = arrival
        self._over += 1
        self._sizes.took(items, seconds)
        self._ready[number] = load, size
        return False


def function_of(fn: Any, timeout: float | None) -> PendingFunction[Any]:
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
        raise UsageError(f"{name_of(fn.fn)} is a generator function, and a map wants one value of each item")
    return call if timeout is None else call.with_timeout(timeout)


def split(run: Run, cancel: Callable[[], None], *, ahead: bool = False) -> list[Iterator[Any]]:
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
                inboxes[rest[1]["i"]].put(_taken(values) if ahead else values)
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


def _taken(values: Iterator[Any]) -> Iterator[Any]:
    """The same values, taken now; what came in the way is raised to who reads them."""
    try:
        return iter(list(values))
    except BaseException as error:  # noqa: BLE001  user code may run as they are loaded
        return _raised(error)


def _raised(error: BaseException) -> Iterator[Any]:
    raise error
    yield
