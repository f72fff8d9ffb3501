"""Async functions, streamed arguments and map shares run in a rank."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import pickle
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any

_END = object()


class _AsyncAdapter:
    """Base of what stands for an ``async def`` function.

    Args:
        fn: the function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)  # type: ignore[arg-type]  # a subclass has the call
        self.fn = fn

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.fn, follow_wrapped=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fn,)


class AsyncFunctionAdapter(_AsyncAdapter):
    """An ``async def`` function as a plain one, which gives what the coroutine returns."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self.fn(*args, **kwargs))


class AsyncGeneratorAdapter(_AsyncAdapter):
    """An ``async def`` function that yields, as a generator function of the same values.

    The coroutine stands still between two values. Its ``finally`` blocks run when the generator is closed.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        with asyncio.Runner() as runner:
            values = self.fn(*args, **kwargs)
            while (value := runner.run(_next_value(values))) is not _END:
                try:
                    yield value
                except BaseException:
                    runner.run(_close(values))
                    raise
            # (What breaks off the wait for a value is the runner's: leaving it cancels the coroutine and awaits that.)


def adapt_async_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a rank can call: the function itself unless it is ``async def``."""
    if type(fn) is FunctionType and not fn.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return fn  # nearly always
    if inspect.iscoroutinefunction(fn):
        return AsyncFunctionAdapter(fn)
    return AsyncGeneratorAdapter(fn) if inspect.isasyncgenfunction(fn) else fn


async def _close(values: AsyncGenerator[Any, None]) -> None:
    await values.aclose()


async def _next_value(values: AsyncGenerator[Any, None]) -> Any:
    return await anext(values, _END)


MAX_READ_AHEAD = 32  # values that may be on their way to a rank, or wait there

_collected = threading.local()  # while a call's arguments are loaded


class StreamedIterator(Iterator[Any]):
    """Values that a client reads from its own iterator, as the rank asks for them.

    Args:
        number: of the argument, among those of the call that are fed.
        name: of the parameter, for words.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self._name = name
        self._ready: deque[bytes] = deque()
        self._pieces: list[bytes] = []  # of the value that is coming
        self._next = 0  # number of the value to come
        self._requested: tuple[int, int] | None = None
        self._has_ended = False
        self._error: bytes | None = None
        self._is_closed = False  # the call has ended
        self._process = os.getpid()
        self._request: Callable[[StreamedIterator], None] | None = None
        self._wait: Callable[[Callable[[], bool]], None] | None = None
        self._load: Callable[[str, Callable[[], Any]], Any] = lambda what, load: load()

    def bind(
        self,
        ask: Callable[[StreamedIterator], None],
        wait: Callable[[Callable[[], bool]], None],
        load: Callable[[str, Callable[[], Any]], Any],
    ) -> None:
        """Say how to ask for values, how to wait until a condition holds, and how to load what is called so."""
        self._request, self._wait, self._load = ask, wait, load

    def __next__(self) -> Any:
        if self._process != os.getpid():  # it has a copy of what is ready, and nobody to ask for more
            raise RuntimeError(
                f"{self._name!r} gives each value once, in the process that has the call, and this one was forked "
                "from it: read the values there, and hand them on"
            )
        while (value := self._pop_ready()) is None:
            if self._error is not None:
                raise self._loaded(f"what {self._name!r} raised", self._error)
            if self._has_ended:
                raise StopIteration
            if self._is_closed or self._request is None or self._wait is None:
                raise RuntimeError(f"{self._name!r} has no more values: the call that it was an argument of has ended")
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
        except IndexError:  # of several threads that read, another was quicker
            return None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"{self._name!r} gives each value once, in the process that has the call: send on its values")

    def _has_news(self) -> bool:
        return bool(self._ready) or self._has_ended or self._is_closed or self._error is not None

    def _request_more(self) -> None:
        asked = self.wanted_range
        if asked != self._requested and self._request is not None:
            self._requested = asked
            self._request(self)

    @property
    def wanted_range(self) -> tuple[int, int]:
        """The number of the value to come, and the first that is not wanted yet."""
        return self._next, self._next + MAX_READ_AHEAD - len(self._ready)

    @property
    def is_waiting(self) -> bool:
        """Whether values were asked for that have not come."""
        return self._requested is not None and not self._has_ended and self._error is None

    def add_part(self, number: int, part: int, data: bytes, *, more: bool, ends: str) -> None:
        """A value has come, or a part of one; perhaps once more.

        Args:
            number: the value's.
            part: the part's, from 0.
            more: whether other parts follow.
            ends: "end" where there are no more values, "error" where the body is the exception that stands for them.
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
        """The call has ended."""
        self._is_closed = True
        self._ready.clear()


class StreamedArgument:
    """What stands for such an argument on its way."""

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
    """A list that gets what is fed of the arguments that this thread loads from now on."""
    _collected.items = []
    made: list[StreamedIterator] = _collected.items
    return made


VALUES_BEFORE = "_values_before"  # of an exception: the first item's number, pickled values


class MapChunkFunction:
    """A function that takes one item, as one that takes a few.

    Args:
        fn: the function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, first: int, items: Sequence[Any]) -> list[Any]:
        """What the function makes of each item; whatever it raises comes through, with a note that says of which.

        To leave by ``sys.exit(0)`` is to return None, as in a call by itself.

        Args:
            first: the number of the first of them, among all items of the map.
            items: those of this call.
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
                    raise SystemExit(0)  # a child that the function forked: the items are its parent's
                values.append(value)
            except BaseException as error:
                with suppress(BaseException):  # its class may have notes of its own
                    error.add_note(f"while it worked on item {first + len(values):,} of the map")
                    if values and len(data := pickle.dumps(values, 5)) < 1 << 20:
                        vars(error)[VALUES_BEFORE] = first, data
                raise
        return values
