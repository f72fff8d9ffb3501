"""``sky.function``, pending calls, ``sky.gather``, and checks of the arguments of calls."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    overload,
)
from weakref import WeakKeyDictionary

from skyward_core.model.misuse_guards import PendingCallGuard, UncalledFunctionGuard

if TYPE_CHECKING:
    from inspect import Signature

    from skyward_core.model.run_future import RunFuture


def check_call(pending: PendingFunction[Any], fn: Callable[..., Any]) -> None:
    """Check that a function accepts the arguments of a call.

    Args:
        pending: The call.
        fn: The function, possibly with decorators of plugins.

    Raises:
        TypeError: If the function does not accept the arguments. The message is Python's own.
    """
    fn = _unwrap_decorators(fn)
    if type(fn) is FunctionType and not pending.kwargs and _accepts_count(fn, len(pending.args)):
        return  # most calls need no binding, which can take longer than pickling the arguments
    signature = _cached_signature(fn)
    try:
        if signature is not None:
            signature.bind(*pending.args, **pending.kwargs)
    except TypeError as error:
        raise TypeError(f"{pending.name}{signature} cannot be called with these arguments: {error}") from None


def check_extra_arguments(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Reject arguments that a function does not accept. Missing arguments are checked later, by :func:`check_call`,
    because a plugin may add them.

    Raises:
        TypeError: If an argument is unknown or given twice, or if there are too many arguments.
    """
    whole = called = _unwrap_decorators(fn)
    count = len(args)
    # The function is bound to an object, as for a method, so count the object, too.
    if type(whole) is functools.partial and not whole.keywords:
        called, count = whole.func, count + len(whole.args)
    if type(called) is not FunctionType:
        return
    code = called.__code__
    if count <= code.co_argcount:
        if not kwargs:
            return  # most calls need no binding of arguments, which takes ten times as long
        names, first = code.co_varnames, code.co_posonlyargcount
        free = names[max(first, count) : code.co_argcount + code.co_kwonlyargcount]
        if all(name in free for name in kwargs):
            return
    signature = _cached_signature(whole)
    try:
        if signature is not None:
            signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function_name(fn)}{signature} cannot be called with these arguments: {error}") from None


def _unwrap_decorators(fn: Any) -> Any:
    """Return the function inside this library's decorators, which forward all arguments."""
    while type(fn) is FunctionType and fn.__globals__.get("__name__", "").startswith(_OURS):
        inner = fn.__dict__.get("__wrapped__")
        if inner is None:
            break
        fn = inner
    return fn


_OURS = __name__.partition(".")[0] + "."


def _accepts_count(fn: FunctionType, count: int) -> bool:
    """Check whether a function accepts a number of positional arguments and no others."""
    code = fn.__code__
    if code.co_kwonlyargcount:
        return False
    enough = code.co_argcount - len(fn.__defaults__ or ()) <= count
    return enough and (count <= code.co_argcount or bool(code.co_flags & _VARARGS_FLAG))


_VARARGS_FLAG = 0x04  # flag of code objects: inspect.CO_VARARGS


def _cached_signature(fn: Callable[..., Any]) -> Signature | None:
    """Return the signature of a function. None if unavailable, as for some C functions."""
    if type(fn) is not FunctionType:
        return _signature(fn)
    if fn not in _signatures:  # Cached, because reading a signature is slow and functions are called repeatedly.
        _signatures[fn] = _signature(fn)
    return _signatures[fn]


_signatures: WeakKeyDictionary[FunctionType, Signature | None] = WeakKeyDictionary()


def _signature(fn: Callable[..., Any]) -> Signature | None:
    from inspect import signature

    try:
        # Use the signature of the outermost function, because a decorator of the script may change arguments.
        return signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def function_name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", None) or type(fn).__name__)


P = ParamSpec("P")
P2 = ParamSpec("P2")
T = TypeVar("T")
# Covariant, so that a function that returns a subtype is accepted where the base type is expected.
T_co = TypeVar("T_co", covariant=True)
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
# Flags of code objects: inspect.CO_GENERATOR and CO_ASYNC_GENERATOR together, and inspect.CO_COROUTINE.
_YIELDS, _AWAITS = 0x20 | 0x200, 0x80

RetryRule: TypeAlias = "Callable[[Any, int], bool] | None"


class Dispatcher(Protocol):
    """Right operand of ``>>``, ``@`` and ``>``, such as a pool, which runs the calls."""

    def run_one(self, pending: PendingFunction[Any]) -> Any: ...

    def run_all(self, pending: PendingFunction[Any]) -> list[Any]: ...

    def run_group(self, group: PendingGroup[Any]) -> Any: ...

    def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]: ...

    def submit_all(self, pending: PendingFunction[Any]) -> RunFuture[list[Any]]: ...

    def submit_group(self, group: PendingGroup[Any]) -> RunFuture[Any]: ...


class Function(UncalledFunctionGuard, Generic[P, T_co]):
    """Function that can run on a pool.

    Calling a ``Function`` returns a ``PendingFunction`` and runs nothing. An unknown argument raises a TypeError at
    once. A missing argument raises a TypeError when the call is sent, because a plugin of the pool may add the
    argument.

    Args:
        fn: The function.
        timeout: Time limit per rank in seconds. None for no limit.

    Raises:
        TypeError: If ``fn`` is not callable.
        ValueError: If ``timeout`` is not positive.
    """

    def __init__(self, fn: Callable[P, T_co], timeout: float | None = None) -> None:
        inner: Any = fn
        if isinstance(inner, Function):  # the decorator was applied twice, so use the inner function
            fn, timeout = inner.fn, inner.timeout if timeout is None else timeout
        if not callable(fn):
            raise TypeError(f"@function decorates functions, got {type(fn).__name__}")
        functools.update_wrapper(self, fn)
        self.fn: Callable[P, T_co] = fn
        self.timeout: float | None = _check_timeout(timeout)

    @overload
    def __call__(
        self: Function[P, Coroutine[Any, Any, T2]], *args: P.args, **kwargs: P.kwargs
    ) -> PendingFunction[T2]: ...
    @overload
    def __call__(
        self: Function[P, AsyncIterator[T2]], *args: P.args, **kwargs: P.kwargs
    ) -> PendingFunction[Iterator[T2]]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> PendingFunction[T_co]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> PendingFunction[Any]:
        check_extra_arguments(self.fn, args, kwargs)
        return PendingFunction(self.fn, args, kwargs, self.timeout)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Function[P, T_co]: ...
    @overload
    def __get__(
        self: Function[Concatenate[Any, P2], T_co], instance: object, owner: Any = None
    ) -> Function[P2, T_co]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Function[..., T_co]:
        """Bind the function to an object as a method. The object is sent to the rank as the first argument."""
        fn: Any = self.fn
        if instance is None or type(fn) is not FunctionType:
            return self
        # Not a bound method, because pickle would find this Function instead of ``fn`` under the method's name.
        bound: Any = functools.partial(fn, instance)
        bound.__name__, bound.__qualname__, bound.__doc__ = fn.__name__, fn.__qualname__, fn.__doc__
        return Function(bound, self.timeout)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Call the function in this process.

        Args:
            *args: Positional arguments of the function.
            **kwargs: Keyword arguments of the function.

        Returns:
            The function's return value. Exceptions are not changed.
        """
        return self.fn(*args, **kwargs)

    def __skyward_wrap__(self, decorator: Callable[[Callable[P, T_co]], Callable[P, T_co]]) -> Function[P, T_co]:
        """Return a Function whose inner function is decorated, for decorators that stand above ``@function``."""
        return Function(decorator(self.fn), self.timeout)

    def __repr__(self) -> str:
        return f"<sky.function {function_name(self.fn)}>"


@overload
def function(fn: Callable[P, T], /) -> Function[P, T]: ...
@overload
def function(
    *, timeout: float | None = None, queue_timeout: float | None = None, retry: RetryRule = None
) -> Callable[[Callable[P, T]], Function[P, T]]: ...
def function(fn: Callable[..., Any] | None = None, /, *, timeout: float | None = None, **older: Any) -> Any:
    """Make a function runnable on a pool.

    Works without arguments (``@sky.function``) and with options (``@sky.function(timeout=60)``). An ``async def``
    function runs in its own event loop on the rank. An ``async def`` function that yields behaves as a generator
    function.

        @sky.function(timeout=60)
        def train(epochs: int) -> float: ...

        loss = train(10) >> compute

    Args:
        fn: The function.
        timeout: Time limit per rank in seconds. When it expires, the rank's process is stopped and the run fails. None
            for no limit.
        **older: ``queue_timeout`` and ``retry`` of the newest API generation, ignored with a warning.

    Raises:
        TypeError: If ``fn`` is not callable.
        ValueError: If ``timeout`` is not positive.
    """
    if older:
        _warn_ignored_options(**older)
    if fn is not None:
        return Function(fn, timeout)
    return lambda inner: Function(inner, timeout)


def _warn_ignored_options(**older: Any) -> None:
    from skyward_core.model.deprecated_and_unknown_arguments import check_function_options

    check_function_options(older)


class _ImmutableValue:
    """Base of immutable values. A frozen dataclass would add half a millisecond to the start of every worker."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot set {name!r}: {type(self).__name__} is immutable. Create another.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete {name!r}: {type(self).__name__} is immutable")


_set = object.__setattr__


class PendingFunction(_ImmutableValue, PendingCallGuard, Generic[T]):
    """Call that has not run yet: function, arguments and time limit.

    ``p >> pool`` runs the call on one node and returns its value. ``p @ pool`` runs it on every rank and returns a list
    of values in rank order. ``p > pool`` returns a future without waiting. ``p & q`` makes a group.

    Args:
        fn: The function.
        args: Positional arguments.
        kwargs: Keyword arguments. None for none.
        timeout: Time limit per rank in seconds. None for no limit.
        nodes: Number or indices of the nodes that run the call with ``@``. None for all.
    """

    __slots__ = ("args", "fn", "kwargs", "nodes", "timeout")
    fn: Callable[..., T]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    timeout: float | None
    nodes: int | tuple[int, ...] | None

    def __init__(
        self,
        fn: Callable[..., T],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
        nodes: int | tuple[int, ...] | None = None,
    ) -> None:
        _set(self, "fn", fn)
        _set(self, "args", args)
        _set(self, "kwargs", {} if kwargs is None else kwargs)
        _set(self, "timeout", timeout)
        _set(self, "nodes", nodes)

    def __reduce__(self) -> tuple[Any, ...]:
        return PendingFunction, (self.fn, self.args, self.kwargs, self.timeout, self.nodes)

    @property
    def name(self) -> str:
        """Name of the function."""
        return function_name(self.fn)

    @property
    def streams(self) -> bool:
        """Whether the function is a generator, whose values arrive while it runs."""
        fn: Any = self.fn
        while (wrapped := getattr(fn, "__wrapped__", None)) is not None:
            fn = wrapped
        if type(fn) is FunctionType:  # handle plain functions here, because inspect checks more and is slower
            return bool(fn.__code__.co_flags & _YIELDS)
        from inspect import isasyncgenfunction, isgeneratorfunction

        return isgeneratorfunction(fn) or isasyncgenfunction(fn)

    @property
    def is_script(self) -> bool:
        """Whether the call is a whole script, which ends its rank's process."""
        return bool(getattr(type(self.fn), "is_script", False))

    def with_timeout(self, seconds: float | None) -> PendingFunction[T]:
        """Return the call with another time limit.

        Args:
            seconds: Time limit per rank. None for no limit.

        Raises:
            ValueError: If ``seconds`` is not positive.
        """
        return PendingFunction(self.fn, self.args, self.kwargs, _check_timeout(seconds), self.nodes)

    def with_queue_timeout(self, queue_timeout: float | None) -> PendingFunction[T]:
        """Return the call unchanged, with a warning. Only the newest generation limits the time in the queue.

        Args:
            queue_timeout: Ignored.
        """
        _warn_ignored_options(queue_timeout=queue_timeout)
        return self

    def with_retry(self, retry: RetryRule) -> PendingFunction[T]:
        """Return the call unchanged, with a warning. Only the newest generation retries failed calls.

        Args:
            retry: Ignored.
        """
        _warn_ignored_options(retry=retry)
        return self

    def with_nodes(self, nodes: int | Iterable[int] | None) -> PendingFunction[T]:
        """Return the call for some of a pool's nodes.

        With ``@`` the ranks of these nodes form a separate gang, while other runs use other nodes. The call waits until
        the nodes are free. Waiting calls start in the order of their submission.

            train(10).with_nodes(2) @ pool  # any two nodes; values of their ranks in order

        Args:
            nodes: Number of nodes, or their indices. None for all.

        Raises:
            ValueError: If ``nodes`` is empty, repeats an index, or is invalid.
        """
        return PendingFunction(self.fn, self.args, self.kwargs, self.timeout, _check_nodes(nodes))

    def local(self) -> T:
        """Run the call in this process and return its value."""
        return self.fn(*self.args, **self.kwargs)

    def __rshift__(self, pool: Dispatcher) -> T:
        value: T = _require_dispatcher(pool, ">>").run_one(self)
        return value

    def __matmul__(self, pool: Dispatcher) -> list[T]:
        return _require_dispatcher(pool, "@").run_all(self)

    def __gt__(self, pool: Dispatcher) -> RunFuture[T]:
        return _require_dispatcher(pool, ">").submit(self)

    def on(self, pool: Dispatcher) -> RunFuture[T]:
        """Start the call on one node, as ``>`` does: ``value = await call.on(compute)`` in asynchronous code.

        Args:
            pool: The pool.

        Returns:
            A future of the value: await it, or call ``result()``.

        Raises:
            NotPicklableError: If an argument cannot be pickled.
            PoolError: If the pool is not up.
        """
        return _require_dispatcher(pool, "on(...)").submit(self)

    def on_all(self, pool: Dispatcher) -> RunFuture[list[T]]:
        """Start the call on every rank, as ``@`` does: ``values = await call.on_all(compute)`` in asynchronous code.

        Args:
            pool: The pool.

        Returns:
            A future of the values in rank order. Raises the errors of ``on``.
        """
        return _require_dispatcher(pool, "on_all(...)").submit_all(self)

    @overload
    def __and__(self, other: PendingFunction[T2]) -> PendingGroup[tuple[T, T2]]: ...
    @overload
    def __and__(self, other: PendingGroup[tuple[*Ts]]) -> PendingGroup[tuple[T, *Ts]]: ...
    @overload
    def __and__(self, other: PendingGroup[Any]) -> PendingGroup[Any]: ...
    def __and__(self, other: PendingFunction[Any] | PendingGroup[Any]) -> PendingGroup[Any]:
        return PendingGroup[Any]((self,)) & other

    def __repr__(self) -> str:
        return f"<{self.name}(…), not sent: use >> or @ with a pool>"


def _check_nodes(nodes: int | Iterable[int] | None) -> int | tuple[int, ...] | None:
    if nodes is None or (isinstance(nodes, int) and not isinstance(nodes, bool) and nodes > 0):
        return nodes
    if isinstance(nodes, int | str | bytes):
        raise ValueError(f"nodes must be a positive integer, or a list of indices such as [0, 2], got {nodes!r}")
    named = tuple(sorted(nodes))
    if not named or any(isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in named):
        raise ValueError(f"nodes must be a list of indices such as [0, 2], got {list(named)!r:.80}")
    if len(set(named)) != len(named):
        raise ValueError(f"nodes contains an index twice: {list(named)!r:.80}")
    return named


class PendingGroup(_ImmutableValue, Generic[R]):
    """Several calls that run at the same time. ``group >> pool`` returns their values in the order of the calls.

    Args:
        items: The calls.
        stream: Return an iterator that yields each value as soon as it is available.
        ordered: Whether the iterator of ``stream`` keeps the order of the calls. False yields values as calls end.
    """

    __slots__ = ("items", "ordered", "stream")
    items: tuple[PendingFunction[Any], ...]
    stream: bool
    ordered: bool

    def __init__(self, items: tuple[PendingFunction[Any], ...], stream: bool = False, ordered: bool = True) -> None:
        _set(self, "items", items)
        _set(self, "stream", stream)
        _set(self, "ordered", ordered)

    def __reduce__(self) -> tuple[Any, ...]:
        return PendingGroup, (self.items, self.stream, self.ordered)

    @overload
    def __and__(self: PendingGroup[tuple[*Ts]], other: PendingFunction[T]) -> PendingGroup[tuple[*Ts, T]]: ...
    @overload
    def __and__(self, other: PendingFunction[Any] | PendingGroup[Any]) -> PendingGroup[Any]: ...
    def __and__(self, other: PendingFunction[Any] | PendingGroup[Any]) -> PendingGroup[Any]:
        if isinstance(other, PendingGroup):
            return PendingGroup(self.items + other.items, self.stream, self.ordered)
        if isinstance(other, PendingFunction):
            return PendingGroup((*self.items, other), self.stream, self.ordered)
        return NotImplemented

    def with_timeout(self, seconds: float | None) -> PendingGroup[R]:
        """Return the group with another time limit for each call.

        Args:
            seconds: Time limit of each call. None for no limit.

        Raises:
            ValueError: If ``seconds`` is not positive.
        """
        return PendingGroup(tuple(item.with_timeout(seconds) for item in self.items), self.stream, self.ordered)

    def __rshift__(self, pool: Dispatcher) -> R:
        result: R = _require_dispatcher(pool, ">>").run_group(self)
        return result

    def __matmul__(self, pool: object) -> Any:
        raise TypeError("a group does not support @. Use group >> pool, or broadcast its calls one by one with @.")

    def on(self, pool: Dispatcher) -> RunFuture[R]:
        """Start the calls, as ``>>`` does: ``values = await group.on(compute)`` in asynchronous code.

        Args:
            pool: The pool.

        Returns:
            A future of the values in the order of the calls, which can be awaited.

        Raises:
            UsageError: If the group streams or is empty.
            NotPicklableError: If an argument cannot be pickled.
            PoolError: If the pool is not up.
        """
        return _require_dispatcher(pool, "on(...)").submit_group(self)


@overload
def gather(task: PendingFunction[T], /, *, stream: Literal[False] = False) -> PendingGroup[tuple[T]]: ...
@overload
def gather(
    task: PendingFunction[T], task2: PendingFunction[T2], /, *, stream: Literal[False] = False
) -> PendingGroup[tuple[T, T2]]: ...
@overload
def gather(
    task: PendingFunction[T],
    task2: PendingFunction[T2],
    task3: PendingFunction[T3],
    /,
    *,
    stream: Literal[False] = False,
) -> PendingGroup[tuple[T, T2, T3]]: ...
@overload
def gather(
    task: PendingFunction[T],
    task2: PendingFunction[T2],
    task3: PendingFunction[T3],
    task4: PendingFunction[T4],
    /,
    *,
    stream: Literal[False] = False,
) -> PendingGroup[tuple[T, T2, T3, T4]]: ...
@overload
def gather(
    task: PendingFunction[T],
    task2: PendingFunction[T2],
    task3: PendingFunction[T3],
    task4: PendingFunction[T4],
    task5: PendingFunction[T5],
    /,
    *,
    stream: Literal[False] = False,
) -> PendingGroup[tuple[T, T2, T3, T4, T5]]: ...
@overload
def gather(
    *tasks: PendingFunction[T], stream: Literal[False] = False, ordered: bool = True
) -> PendingGroup[tuple[T, ...]]: ...
@overload
def gather(
    *tasks: PendingFunction[T], stream: Literal[True], ordered: bool = True
) -> PendingGroup[Generator[T, None, None]]: ...
@overload
def gather(*tasks: PendingFunction[Any], stream: bool = False, ordered: bool = True) -> PendingGroup[Any]: ...
def gather(*tasks: PendingFunction[Any], stream: bool = False, ordered: bool = True) -> PendingGroup[Any]:
    """Combine several calls into a group, which runs with ``group >> pool``.

        loss, accuracy = sky.gather(train(10), evaluate(10)) >> compute

    Args:
        *tasks: Calls of ``@function`` functions.
        stream: Return an iterator that yields each value as soon as it is available.
        ordered: Whether the iterator of ``stream`` keeps the order of the calls. False yields values as calls end.

    Raises:
        TypeError: If an argument is not a call of a ``@function``.
    """
    for position, task in enumerate(tasks):
        if not isinstance(task, PendingFunction):
            from skyward_core.model.deprecated_and_unknown_arguments import not_a_call_error

            raise not_a_call_error(task, position)
    return PendingGroup(tasks, stream, ordered)


def _check_timeout(timeout: float | None) -> float | None:
    # The comparison is also false for NaN.
    if timeout is None or (isinstance(timeout, int | float) and timeout > 0):
        return timeout
    raise ValueError(f"timeout must be more than 0 seconds, or None for no limit, got {timeout!r}")


def _require_dispatcher(pool: Any, operator: str) -> Dispatcher:
    if isinstance(pool, ModuleType):  # `pool` may be this library's module, which stands for the currently open pool
        pool = getattr(pool, "sky", pool)
    if hasattr(pool, "run_one"):
        dispatcher: Dispatcher = pool
        return dispatcher
    raise TypeError(f"right of {operator} must be a pool (with sky.Compute(...) as pool), got {pool!r:.80}")


@overload
def stream(fn: Callable[P, Iterator[T]], /) -> Function[P, Iterator[T]]: ...


@overload
def stream(*, timeout: float | None = None) -> Callable[[Callable[P, Iterator[T]]], Function[P, Iterator[T]]]: ...


def stream(
    fn: Callable[P, Iterator[T]] | None = None, /, *, timeout: float | None = None
) -> Function[P, Iterator[T]] | Callable[[Callable[P, Iterator[T]]], Function[P, Iterator[T]]]:
    """Make a generator function runnable on a pool, as ``sky.function`` does. The values arrive while the function
    runs.

    Args:
        fn: The function.
        timeout: Time limit per rank in seconds. None for no limit.

    Raises:
        TypeError: If ``fn`` is not a generator function.
        ValueError: If ``timeout`` is not positive.
    """

    from inspect import isgeneratorfunction  # imported late, because nodes rarely need it

    def decorate(inner: Callable[P, Iterator[T]]) -> Function[P, Iterator[T]]:
        if not isgeneratorfunction(inner):
            raise TypeError(
                f"@stream requires a generator function, but {function_name(inner)} has no yield. Use @function."
            )
        return Function(inner, timeout)

    return decorate if fn is None else decorate(fn)
