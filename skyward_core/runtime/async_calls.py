"""``async def`` functions as plain ones: a rank calls plain functions, each of them in an event loop of its own."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import FunctionType
from typing import Any

_END = object()


class InOwnLoop:
    """An ``async def`` function as a plain one, which gives what the coroutine returns.

    Args:
        fn: the function.
    """

    def __init__(self, fn: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.fn, follow_wrapped=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return InOwnLoop, (self.fn,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self.fn(*args, **kwargs))


class YieldsInOwnLoop:
    """An ``async def`` function that yields, as a generator function of the same values.

    The coroutine stands still between two values. Its ``finally`` blocks run when the generator is closed.

    Args:
        fn: the function.
    """

    def __init__(self, fn: Callable[..., AsyncGenerator[Any, None]]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.fn, follow_wrapped=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return YieldsInOwnLoop, (self.fn,)

    def __call__(self, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        with asyncio.Runner() as runner:
            values = self.fn(*args, **kwargs)
            while (value := runner.run(_next_of(values))) is not _END:
                try:
                    yield value
                except BaseException:
                    runner.run(_close(values))
                    raise
            # (What breaks off the wait for a value is the runner's: leaving it cancels the coroutine and awaits that.)


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a rank can call: the function itself unless it is ``async def``."""
    if type(fn) is FunctionType and not fn.__code__.co_flags & (
        inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    ):
        return fn  # nearly always
    if inspect.iscoroutinefunction(fn):
        return InOwnLoop(fn)
    return YieldsInOwnLoop(fn) if inspect.isasyncgenfunction(fn) else fn


async def _close(values: AsyncGenerator[Any, None]) -> None:
    await values.aclose()


async def _next_of(values: AsyncGenerator[Any, None]) -> Any:
    return await anext(values, _END)
