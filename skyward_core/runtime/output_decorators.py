"""Decorators that silence some ranks' Python streams while a function runs.

Only output that Python code writes to ``sys.stdout`` and ``sys.stderr`` is silenced. Other tasks in threads of the same
process must still print. The streams are therefore not replaced for the whole process. Instead, a filter in front of
each stream checks which task writes.
"""

from __future__ import annotations

import inspect
import io
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Literal, TypeVar, cast, overload

from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, instance_info

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
V = TypeVar("V")
Only = Literal["head"] | int | Sequence[int] | Callable[[InstanceInfo], object]


@overload
def stdout(fn: F, /) -> F: ...
@overload
def stdout(*, only: Only = "head") -> Callable[[F], F]: ...
def stdout(fn: F | None = None, /, *, only: Only = "head") -> F | Callable[[F], F]:
    """Let only some ranks print to standard output while the function runs.

    Works above and below ``@function``, and for generator functions (while their body runs).

        @sky.function
        @sky.stdout(only="head")
        def train() -> None: ...

    Args:
        fn: The function.
        only: Ranks that print: "head" (rank 0), one index or several, or a predicate of ``InstanceInfo``.

    Raises:
        TypeError: If ``only`` has another type.
        ValueError: If ``only`` is negative.
    """
    return _make_decorator(("stdout",), _check_only(only), fn)


@overload
def stderr(fn: F, /) -> F: ...
@overload
def stderr(*, only: Only = "head") -> Callable[[F], F]: ...
def stderr(fn: F | None = None, /, *, only: Only = "head") -> F | Callable[[F], F]:
    """Let only some ranks print to standard error while the function runs; see ``sky.stdout``.

    Args:
        fn: The function.
        only: Ranks that print: "head" (rank 0), one index or several, or a predicate of ``InstanceInfo``.

    Raises:
        TypeError: If ``only`` has another type.
        ValueError: If ``only`` is negative.
    """
    return _make_decorator(("stderr",), _check_only(only), fn)


@overload
def silent(fn: F, /) -> F: ...
@overload
def silent(*, only: Only | None = None) -> Callable[[F], F]: ...
def silent(fn: F | None = None, /, *, only: Only | None = None) -> F | Callable[[F], F]:
    """Silence standard output and standard error while the function runs.

    Works above and below ``@function``, and for generator functions (while their body runs).

    Args:
        fn: The function.
        only: Ranks that still print: "head" (rank 0), one index or several, or a predicate of ``InstanceInfo``. None
            for no rank.

    Raises:
        TypeError: If ``only`` has another type.
        ValueError: If ``only`` is negative.
    """
    return _make_decorator(("stdout", "stderr"), None if only is None else _check_only(only), fn)


def _check_only(only: Only) -> Only:
    if isinstance(only, list | tuple):
        return tuple(_check_rank(each) for each in only)
    if only == "head" or callable(only):
        return only
    return _check_rank(only)


def _check_rank(index: object) -> int:
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError(f'only= must be "head", one rank index or several, or a predicate, got {index!r}')
    if index < 0:
        raise ValueError(f"only= must be a rank index of 0 or more, got {index}")
    return index


def _make_decorator(streams: tuple[str, ...], only: Only | None, fn: F | None) -> F | Callable[[F], F]:
    decorator = cast(Callable[[F], F], partial(_wrap_function, streams, only))
    return decorator if fn is None else decorator(fn)


def _wrap_function(streams: tuple[str, ...], only: Only | None, fn: Any) -> Any:
    if hasattr(fn, "__skyward_wrap__"):
        # The decorator is above @function, so decorate the function inside the function object.
        return fn.__skyward_wrap__(partial(_wrap_function, streams, only))
    # The wrapper is pickled with the function, so it may only use names that ranks can import.
    if inspect.isgeneratorfunction(fn):

        @wraps(fn)
        def stream(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from _QuietGenerator(fn(*args, **kwargs), streams, only))

        return stream
    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def later(*args: Any, **kwargs: Any) -> Any:
            with _silence(streams, only):
                return await fn(*args, **kwargs)

        return later
    if inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"{getattr(fn, '__name__', 'the function')} is an async generator function, which cannot be silenced "
            "between its values. Decorate the functions that it calls, or use a plain generator function."
        )

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _silence(streams, only):
            return fn(*args, **kwargs)

    return call


class _QuietGenerator(Generator[Any, Any, Any]):
    """Generator whose body runs with its output silenced. Output of the generator's reader is not silenced."""

    def __init__(self, inner: Generator[Any, Any, Any], streams: tuple[str, ...], only: Only | None) -> None:
        self._inner = inner
        self._quiet = partial(_silence, streams, only)

    def send(self, value: Any, /) -> Any:
        with self._quiet():
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._quiet():
            return self._inner.throw(*error)

    def close(self) -> None:
        with self._quiet():
            self._inner.close()


_muted: ContextVar[frozenset[str]] = ContextVar("skyward_muted", default=frozenset())
_muted_here: list[str] = []  # streams that are muted for the whole process; a stream appears once for each nested mute
_install = threading.Lock()


def _silence(streams: tuple[str, ...], only: Only | None) -> AbstractContextManager[object]:
    if only is not None and _may_print(only, instance_info()):
        return nullcontext()
    return _filtered(streams, _muted_here, streams, _muted, _muted.get() | frozenset(streams))


def _may_print(only: Only, info: InstanceInfo) -> bool:
    if isinstance(only, int):
        return info.rank == only
    if isinstance(only, tuple):
        return info.rank in only
    return bool(only(info)) if callable(only) else info.is_head


@contextmanager
def _filtered(
    streams: tuple[str, ...], here: list[T], items: Sequence[T], for_thread: ContextVar[V], value: V
) -> Iterator[None]:
    """Filter output streams during a block.

    On the main thread, add ``items`` to ``here``, which affects the whole process. On another thread, set the context
    variable ``for_thread``, which affects only this thread.
    """
    _install_filters(streams)
    if threading.current_thread() is threading.main_thread():
        # The process runs only this task, so also filter the task's threads (data loaders, progress bars).
        here.extend(items)
        try:
            yield
        finally:
            for each in items:
                here.remove(each)
    else:
        token = for_thread.set(value)
        try:
            yield
        finally:
            for_thread.reset(token)


def _install_filters(names: tuple[str, ...]) -> None:
    with _install:
        for name in names:
            stream = getattr(sys, name)
            if stream is not None and not isinstance(stream, _FilteredStream):
                setattr(sys, name, _FilteredStream(stream, name))


class CallbackWriter(io.TextIOBase):
    """Text stream that passes written text to a function, without a buffer.

    Args:
        callback: Called with each text.
    """

    def __init__(self, callback: Callable[[str], object]) -> None:
        self._callback = callback

    def write(self, text: str, /) -> int:
        """Pass a text to the function.

        Args:
            text: The text.

        Returns:
            Length of the text.
        """
        self._callback(text)
        return len(text)

    def writable(self) -> bool:
        """Return True."""
        return True


_redirected: ContextVar[CallbackWriter | None] = ContextVar("skyward_redirected", default=None)
# callbacks of redirect_output() that receive the output of the whole process
_redirected_here: list[CallbackWriter] = []


@contextmanager
def redirect_output(callback: Callable[[str], object]) -> Iterator[tuple[CallbackWriter, CallbackWriter]]:
    """Pass the output of Python code in the block to a function.

    Affects the whole process, or only this thread if a rank's calls run as threads.

        with sky.redirect_output(lines.append):
            print("here")

    Args:
        callback: Called with each text written to standard output or standard error.

    Yields:
        The replacements of both streams, which are the same object.
    """
    writer = CallbackWriter(callback)
    with _filtered(("stdout", "stderr"), _redirected_here, (writer,), _redirected, writer):
        yield writer, writer


def _redirect_target() -> CallbackWriter | None:
    return _redirected.get() or (_redirected_here[-1] if _redirected_here else None)


class _FilteredStream:
    """Text stream in front of another one. Drops text of silenced tasks, and passes redirected text to callbacks."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, text: str) -> int:
        if (writer := _redirect_target()) is not None:
            return writer.write(text)
        return len(text) if self._closed() else self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        if (writer := _redirect_target()) is not None:
            writer.writelines(lines)
        elif not self._closed():
            self._stream.writelines(lines)

    @property
    def buffer(self) -> Any:
        if (writer := _redirect_target()) is not None:
            raise io.UnsupportedOperation(f"{writer!r} accepts text only and has no buffer")
        return io.BytesIO() if self._closed() else self._stream.buffer

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._stream, attribute)

    def _closed(self) -> bool:
        return self._name in _muted_here or self._name in _muted.get()
