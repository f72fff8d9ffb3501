"""Calls inside a rank with special handling: ``async def`` functions, streamed iterator arguments and chunks of
maps.
"""

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
    """Base of adapters that make ``async def`` functions synchronous.

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
    """Synchronous adapter of an ``async def`` function. Returns the value of the coroutine."""

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
            # An exception during the wait for a value leaves the asyncio runner, which cancels and awaits the
            # coroutine.


def adapt_async_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a synchronous function: an adapter for an ``async def`` function, otherwise the function itself."""
    if type(fn) is FunctionType and not fn.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return fn  # the usual case
    if inspect.iscoroutinefunction(fn):
        return AsyncFunctionAdapter(fn)
    return AsyncGeneratorAdapter(fn) if inspect.isasyncgenfunction(fn) else fn


async def _await(result: Awaitable[Any]) -> Any:
    return await result  # an asyncio runner takes coroutines only


MAX_READ_AHEAD = 32  # values per iterator that are in transit to a rank or buffered there

_collected = threading.local()  # set while a call's arguments are unpickled


class StreamedIterator(Iterator[Any]):
    """Iterator over values that a client reads from its own iterator at the rank's request.

    Args:
        number: Index of the argument among the call's streamed arguments.
        name: Name of the parameter, for errors.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self._name = name
        self._ready: deque[bytes] = deque()
        self._pieces: list[bytes] = []  # received parts of the next value
        self._next = 0  # number of the next value
        self._requested: tuple[int, int] | None = None
        self._has_ended = False
        self._error: bytes | None = None
        self._is_closed = False  # True after the call has ended
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
        """Set functions that request values, wait for a condition, and load a value (errors contain the given text)."""
        self._request, self._wait, self._load = request, wait, load

    def __next__(self) -> Any:
        if self._process != os.getpid():  # a forked child has no connection to request more values
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
        except IndexError:  # another thread that reads the iterator was faster
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
        """Number of the next value, and end of the range of values that can be requested now."""
        return self._next, self._next + MAX_READ_AHEAD - len(self._ready)

    @property
    def is_waiting(self) -> bool:
        """Whether requested values have not arrived."""
        return self._requested is not None and not self._has_ended and self._error is None

    def add_part(self, number: int, part: int, data: bytes, *, more: bool, ends: str) -> None:
        """Add a value, or a part of a value. Repeated parts are ignored or replaced.

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
        """Mark the call as ended."""
        self._is_closed = True
        self._ready.clear()


class StreamedArgument:
    """Placeholder of a streamed argument in the pickled call."""

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
    """Return a list that collects the streamed arguments which this thread unpickles from now on."""
    _collected.items = []
    made: list[StreamedIterator] = _collected.items
    return made


VALUES_BEFORE = "_values_before"  # attribute of an exception: number of the first item, and pickled earlier values


class MapChunkFunction:
    """Adapter of a function of one item, which calls the function for several items.

    Args:
        fn: The function.
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
                    raise SystemExit(0)  # a forked child of the function must not process its parent's items
                values.append(value)
            except BaseException as error:
                with suppress(BaseException):  # the exception's class may override add_note
                    error.add_note(f"while it worked on item {first + len(values):,} of the map")
                    if values and len(data := pickle.dumps(values, 5)) < 1 << 20:
                        vars(error)[VALUES_BEFORE] = first, data
                raise
        return values
