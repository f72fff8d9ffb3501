"""``@stream``: the newest generation's word for a ``@function`` that is a generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import isgeneratorfunction
from typing import ParamSpec, TypeVar, overload

from skyward_core.model.function import Function, function_name

P = ParamSpec("P")
T = TypeVar("T")


@overload
def stream(fn: Callable[P, Iterator[T]], /) -> Function[P, Iterator[T]]: ...
@overload
def stream(*, timeout: float | None = None) -> Callable[[Callable[P, Iterator[T]]], Function[P, Iterator[T]]]: ...
def stream(
    fn: Callable[P, Iterator[T]] | None = None, /, *, timeout: float | None = None
) -> Function[P, Iterator[T]] | Callable[[Callable[P, Iterator[T]]], Function[P, Iterator[T]]]:
    """Make a generator function one that can run on a pool, as ``sky.function`` does: its values come one by one.

    Args:
        fn: the function.
        timeout: seconds that one rank may take; None for no limit.

    Raises:
        TypeError: ``fn`` is no generator function.
        ValueError: ``timeout`` is not more than 0.
    """

    def decorate(inner: Callable[P, Iterator[T]]) -> Function[P, Iterator[T]]:
        if not isgeneratorfunction(inner):
            raise TypeError(
                f"@stream is for generator functions, and {function_name(inner)} has no yield: write @function"
            )
        return Function(inner, timeout)

    return decorate if fn is None else decorate(fn)
