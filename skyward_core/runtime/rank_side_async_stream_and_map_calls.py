"""Calls that a rank handles specially: ``async def`` functions, streamed iterator arguments, and chunks of maps."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import pickle
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

_END = object()


class _AsyncAdapter:
    """Base of adapters that call ``async def`` functions like ordinary functions.

    Args:
        fn: The function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)  # type: ignore[arg-type]  # subclasses define __call__
        self.fn = fn

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.fn, follow_wrapped=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fn,)


class AsyncFunctionAdapter(_AsyncAdapter):
    """Ordinary function that runs an ``async def`` function and returns its result."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self.fn(*args, **kwargs))


class AsyncGeneratorAdapter(_AsyncAdapter):
    """Generator function that yields the values of an async generator function.

    The coroutine is suspended between two values. Its ``finally`` blocks run when the generator is closed.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        with asyncio.Runner() as runner:
            values = self.fn(*args, **kwargs)
            while (value := runner.run(_await(anext(values, _END)))) is not _END:
                try:
                    yield value
                except BaseException:
                    runner.run(_await(values.aclose()))
                    raise
            # An exception that interrupts the wait for a value ends the asyncio runner, which cancels and awaits the
            # coroutine.


def adapt_async_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a synchronous function: an adapter for an ``async def`` function, otherwise the function itself."""
    if type(fn) is FunctionType and not fn.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return fn  # Most functions are synchronous.
    if inspect.iscoroutinefunction(fn):
        return AsyncFunctionAdapter(fn)
    return AsyncGeneratorAdapter(fn) if inspect.isasyncgenfunction(fn) else fn


async def _await(result: Awaitable[Any]) -> Any:
    return await result  # An asyncio runner accepts only coroutines, so wrap other awaitables in one.


MAX_READ_AHEAD = 32  # number of values per streamed iterator that are in transit to a rank or buffered there

# per thread: list that collects streamed arguments while a call's arguments are unpickled
_collected = threading.local()


class StreamedIterator(Iterator[Any]):
    """Iterator on a rank over the values of a client's iterator, which the client sends at the rank's request.

    Args:
        number: Index of the argument among the call's streamed arguments.
        name: Name of the parameter, for errors.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self._name = name
        self._ready: deque[bytes] = deque()
        self._pieces: list[bytes] = []  # received parts of the next value, which is not complete yet
        self._next = 0  # number of the next value that the iterator returns
        self._requested: tuple[int, int] | None = None
        self._has_ended = False
        self._error: bytes | None = None
        self._is_closed = False  # whether the call has ended
        self._process = os.getpid()
        self._request: Callable[[StreamedIterator], None] | None = None
        self._wait: Callable[[Callable[[], bool]], None] | None = None
        self._load: Callable[[str, Callable[[], Any]], Any] = lambda what, load: load()

    def bind(
        self,
        request: Callable[[StreamedIterator], None],
        wait: Callable[[Callable[[], bool]], None],
        load: Callable[[str, Callable[[], Any]], Any],
    ) -> None:
        """Set the functions that the iterator calls to request values, wait for a condition, and load a value.

        The text is part of the error if a value cannot be loaded.
        """
        self._request, self._wait, self._load = request, wait, load

    def __next__(self) -> Any:
        if self._process != os.getpid():
            # A forked child cannot request more values, because only its parent has the connection.
            raise RuntimeError(
                f"{self._name!r} cannot be read in a forked process. Read its values in the process that runs the "
                "call, and pass them to the child."
            )
        while (value := self._pop_ready()) is None:
            if self._error is not None:
                raise self._loaded(f"the exception of {self._name!r}", self._error)
            if self._has_ended:
                raise StopIteration
            if self._is_closed or self._request is None or self._wait is None:
                raise RuntimeError(f"{self._name!r} has no more values, because its call has ended")
            self._request_more()
            self._wait(self._has_news)
        if (
            self._requested is not None
            and self.wanted_range[1] - self._requested[1] >= MAX_READ_AHEAD // 2
            and not self._has_ended
        ):
            self._request_more()
        return self._loaded(f"a value of {self._name!r}", value)

    def _loaded(self, what: str, data: bytes) -> Any:
        return self._load(what, lambda: pickle.loads(data))

    def _pop_ready(self) -> bytes | None:
        try:
            return self._ready.popleft()
        except IndexError:  # Another thread that reads the same iterator has taken the value.
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"{self._name!r} cannot be pickled, because each value is delivered once. Send its values instead."
        )

    def _has_news(self) -> bool:
        return bool(self._ready) or self._has_ended or self._is_closed or self._error is not None

    def _request_more(self) -> None:
        requested = self.wanted_range
        if requested != self._requested and self._request is not None:
            self._requested = requested
            self._request(self)

    @property
    def wanted_range(self) -> tuple[int, int]:
        """Number of the next value, and end (exclusive) of the range of values that can be requested now."""
        return self._next, self._next + MAX_READ_AHEAD - len(self._ready)

    @property
    def is_waiting(self) -> bool:
        """Whether the iterator waits for values that it has requested."""
        return self._requested is not None and not self._has_ended and self._error is None

    def add_part(self, number: int, part: int, data: bytes, *, more: bool, ends: str) -> None:
        """Add a received value, or a part of a value. Parts that arrive again are ignored, or replace the first ones.

        Args:
            number: Number of the value.
            part: Number of the part, from 0.
            data: The data.
            more: Whether further parts follow.
            ends: "end" if there are no more values, "error" if the data is the iterator's exception.
        """
        if number != self._next or part > len(self._pieces):
            return
        del self._pieces[part:]
        self._pieces.append(data)
        if more:
            return
        whole, self._pieces = b"".join(self._pieces), []
        if ends == "error":
            self._error = whole
        elif ends:
            self._has_ended = True
        else:
            self._ready.append(whole)
            self._next += 1

    def close(self) -> None:
        """Mark the iterator's call as ended, so that it returns no further values."""
        self._is_closed = True
        self._ready.clear()


class StreamedArgument:
    """Placeholder that replaces a streamed argument in the pickled call."""

    def __init__(self, number: int, name: str) -> None:
        self._place = number, name

    def __reduce__(self) -> tuple[Any, ...]:
        return make_streamed_iterator, self._place


def make_streamed_iterator(number: int, name: str) -> StreamedIterator:
    items = StreamedIterator(number, name)
    if (made := getattr(_collected, "items", None)) is not None:
        made.append(items)
    return items


def collect_streamed_arguments() -> list[StreamedIterator]:
    """Return an empty list, to which each streamed argument is added that this thread unpickles from now on."""
    _collected.items = []
    made: list[StreamedIterator] = _collected.items
    return made


# attribute of an exception in a chunk of a map: number of the first item, and the pickled values before the error
VALUES_BEFORE = "_values_before"


class MapChunkFunction:
    """Function of several items that calls a function of one item for each.

    Args:
        fn: The function of one item.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, first: int, items: Sequence[Any]) -> list[Any]:
        """Return the function's value for each item. Exceptions get a note that names the item.

        ``sys.exit(0)`` counts as returning None, as in a single call.

        Args:
            first: Number of the first item in the map.
            items: The items.
        """
        values: list[Any] = []
        process = os.getpid()
        for item in items:
            try:
                try:
                    value = self.fn(item)
                except SystemExit as error:
                    if error.code:
                        raise
                    value = None
                if os.getpid() != process:
                    # Exit a child process that the user's function forked, because it must not process its parent's
                    # items.
                    raise SystemExit(0)
                values.append(value)
            except BaseException as error:
                with suppress(BaseException):  # The exception's class may override add_note() and raise an error.
                    error.add_note(f"while it worked on item {first + len(values):,} of the map")
                    if values and len(data := pickle.dumps(values, 5)) < 1 << 20:
                        vars(error)[VALUES_BEFORE] = first, data
                raise
        return values
