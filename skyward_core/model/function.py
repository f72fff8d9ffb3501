"""@function, pending calls, gather, the check of a call."""

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

from skyward_core.model.misuse_errors import PendingCallGuard, UncalledFunctionGuard, not_a_call_error

if TYPE_CHECKING:
    from inspect import Signature

    from skyward_core.model.run_future import RunFuture


class BoundCall(Protocol):
    """What a function was called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str: ...


def check_call(pending: BoundCall, fn: Callable[..., Any]) -> None:
    """See whether a call is one that a function takes: its own, perhaps decorated.

    Raises:
        TypeError: it is not, as Python would say on the ranks.
    """
    fn = _unwrap_decorators(fn)
    if type(fn) is FunctionType and not pending.kwargs and _accepts_count(fn, len(pending.args)):
        return  # nearly always; to bind the arguments takes longer than to pickle some
    signature = _cached_signature(fn)
    try:
        if signature is not None:
            signature.bind(*pending.args, **pending.kwargs)
    except TypeError as error:
        raise TypeError(f"{pending.name}{signature} cannot be called so: {error}") from None


def check_extra_arguments(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse arguments that a function does not take. What is missing is for :func:`check_call`, which knows what
    decorators of plugins give.

    Raises:
        TypeError: it takes no such argument, fewer, or one of them twice.
    """
    whole = called = _unwrap_decorators(fn)
    count = len(args)
    if type(whole) is functools.partial and not whole.keywords:  # a method
        called, count = whole.func, count + len(whole.args)
    if type(called) is not FunctionType:
        return
    code = called.__code__
    if count <= code.co_argcount:
        if not kwargs:
            return  # nearly always, or as below; to bind the arguments takes ten times as long
        names, first = code.co_varnames, code.co_posonlyargcount
        free = names[max(first, count) : code.co_argcount + code.co_kwonlyargcount]
        if all(name in free for name in kwargs):
            return
    signature = _cached_signature(whole)
    try:
        if signature is not None:
            signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function_name(fn)}{signature} cannot be called so: {error}") from None


def _unwrap_decorators(fn: Any) -> Any:
    """What a function's decorators that are ours stand around; they hand on all that they are given."""
    while type(fn) is FunctionType and fn.__globals__.get("__name__", "").startswith(_OURS):
        inner = fn.__dict__.get("__wrapped__")
        if inner is None:
            break
        fn = inner
    return fn


_OURS = __name__.partition(".")[0] + "."


def _accepts_count(fn: FunctionType, count: int) -> bool:
    """Whether so many positional arguments are enough for a function that needs no others, and not too many."""
    code = fn.__code__
    if code.co_kwonlyargcount:
        return False
    enough = code.co_argcount - len(fn.__defaults__ or ()) <= count
    return enough and (count <= code.co_argcount or bool(code.co_flags & _VARARGS_FLAG))


_VARARGS_FLAG = 0x04  # inspect's CO_VARARGS


def _cached_signature(fn: Callable[..., Any]) -> Signature | None:
    """What a function takes; None where it does not tell, as some that are written in C."""
    if type(fn) is not FunctionType:
        return _signature(fn)
    if fn not in _signatures:  # one is called again and again, and to find out takes a while
        _signatures[fn] = _signature(fn)
    return _signatures[fn]


_signatures: WeakKeyDictionary[FunctionType, Signature | None] = WeakKeyDictionary()


def _signature(fn: Callable[..., Any]) -> Signature | None:
    from inspect import signature

    try:
        # What a decorator of the script hands on is its own affair: the outermost function decides.
        return signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def function_name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", None) or type(fn).__name__)


P = ParamSpec("P")
P2 = ParamSpec("P2")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)  # a checker may know more of a value than an operator asks for
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
# inspect's CO_GENERATOR with CO_ASYNC_GENERATOR, and CO_COROUTINE
_YIELDS, _AWAITS = 0x20 | 0x200, 0x80

RetryRule: TypeAlias = "Callable[[Any, int], bool] | None"


class Dispatcher(Protocol):
    """What stands right of an operator: a pool."""

    def run_one(self, pending: PendingFunction[Any]) -> Any: ...

    def run_all(self, pending: PendingFunction[Any]) -> list[Any]: ...

    def run_group(self, group: PendingGroup[Any]) -> Any: ...

    def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]: ...

    def submit_all(self, pending: PendingFunction[Any]) -> RunFuture[list[Any]]: ...

    def submit_group(self, group: PendingGroup[Any]) -> RunFuture[Any]: ...


class Function(UncalledFunctionGuard, Generic[P, T_co]):
    """A function that can run on a pool. Calling it makes a ``PendingFunction``, and runs nothing; an argument that it
    does not take is a TypeError there. One that is missing is a TypeError where the call is sent, for a plugin of the
    pool may give it.

    Args:
        fn: the function itself.
        timeout: seconds that one rank may take; None for no limit.

    Raises:
        TypeError: ``fn`` cannot be called.
        ValueError: ``timeout`` is not more than 0.
    """

    def __init__(self, fn: Callable[P, T_co], timeout: float | None = None) -> None:
        inner: Any = fn
        if isinstance(inner, Function):  # decorated twice
            fn, timeout = inner.fn, inner.timeout if timeout is None else timeout
        if not callable(fn):
            raise TypeError(f"@function decorates a function, not {type(fn).__name__}")
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
        """A method of a class, called as one: the object travels as its first argument."""
        fn: Any = self.fn
        if instance is None or type(fn) is not FunctionType:
            return self
        bound: Any = functools.partial(fn, instance)  # pickle has methods by their names, and finds us there
        bound.__name__, bound.__qualname__, bound.__doc__ = fn.__name__, fn.__qualname__, fn.__doc__
        return Function(bound, self.timeout)

    def local(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Call the function here and now, in this process.

        Args:
            *args: the function's own.
            **kwargs: the function's own.

        Returns:
            What the function returns; whatever it raises comes through.
        """
        return self.fn(*args, **kwargs)

    def __skyward_wrap__(self, decorator: Callable[[Callable[P, T_co]], Callable[P, T_co]]) -> Function[P, T_co]:
        """The same function with its body decorated; lets decorators of ours stand above ``@function`` too."""
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
    """Make a function one that can run on a pool.

    Works bare (``@sky.function``) and with options (``@sky.function(timeout=60)``). A rank runs an ``async def`` one in
    an event loop of its own; one that yields is a generator function to whoever calls it.

    Args:
        fn: the function.
        timeout: seconds that one rank may take; then its process is stopped and the run fails. None for no limit.
        **older: ``queue_timeout`` and ``retry`` of the newest generation, which are said to go unheeded.

    Raises:
        TypeError: ``fn`` cannot be called.
        ValueError: ``timeout`` is not more than 0.
    """
    if older:
        _warn_ignored_options(**older)
    if fn is not None:
        return Function(fn, timeout)
    return lambda inner: Function(inner, timeout)


def _warn_ignored_options(**older: Any) -> None:
    from skyward_core.model.older_api_arguments import check_function_options

    check_function_options(older)


class _ImmutableValue:
    """What does not change once it is made. A frozen dataclass would take every worker half a millisecond to define."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name!r} of a {type(self).__name__} does not change; make another")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name!r} of a {type(self).__name__} cannot be deleted")


_set = object.__setattr__


class PendingFunction(_ImmutableValue, PendingCallGuard, Generic[T]):
    """A call that has not happened yet: function, arguments, time limit.

    ``p >> pool`` runs it on one node and gives its value; ``p @ pool`` on every rank and gives the list of values
    in rank order; ``p > pool`` gives a Future at once; ``p & q`` makes a group.

    Args:
        fn: the function that will be called.
        args: its positional arguments.
        kwargs: its keyword arguments; None for none.
        timeout: seconds that one rank may take; None for no limit.
        nodes: how many of the pool's nodes run it with ``@``, or which; None for all.
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
        """The function's name."""
        return function_name(self.fn)

    @property
    def streams(self) -> bool:
        """Whether the function is a generator: its values come one by one while it runs."""
        fn: Any = self.fn
        while (wrapped := getattr(fn, "__wrapped__", None)) is not None:
            fn = wrapped
        if type(fn) is FunctionType:  # nearly always; inspect looks for more than that
            return bool(fn.__code__.co_flags & _YIELDS)
        from inspect import isasyncgenfunction, isgeneratorfunction

        return isgeneratorfunction(fn) or isasyncgenfunction(fn)

    @property
    def is_script(self) -> bool:
        """Whether it is a whole script, which takes its rank's process with it."""
        return bool(getattr(type(self.fn), "is_script", False))

    def with_timeout(self, seconds: float | None) -> PendingFunction[T]:
        """The same call with another time limit.

        Args:
            seconds: what one rank may take; None for no limit.

        Raises:
            ValueError: ``seconds`` is not more than 0.
        """
        return PendingFunction(self.fn, self.args, self.kwargs, _check_timeout(seconds), self.nodes)

    def with_queue_timeout(self, queue_timeout: float | None) -> PendingFunction[T]:
        """The same call, as the newest generation limits its wait: a warning says that here it has no limit.

        Args:
            queue_timeout: what it may wait for its turn.
        """
        _warn_ignored_options(queue_timeout=queue_timeout)
        return self

    def with_retry(self, retry: RetryRule) -> PendingFunction[T]:
        """The same call, as the newest generation has it made again: a warning says that here it is not.

        Args:
            retry: whether it is to be made again, of the reason and how often it was made.
        """
        _warn_ignored_options(retry=retry)
        return self

    def with_nodes(self, nodes: int | Iterable[int] | None) -> PendingFunction[T]:
        """The same call, for some of a pool's nodes: with ``@`` their ranks are a gang of their own, that knows no
        others, beside those of other runs. It waits until so many nodes are free, or these are; first come, first
        served.

            train(10).with_nodes(2) @ pool  # on any two nodes; the values of their ranks, in order

        Args:
            nodes: how many, or which, by index; None for all.

        Raises:
            ValueError: it names none, one twice, or what is no node.
        """
        return PendingFunction(self.fn, self.args, self.kwargs, self.timeout, _check_nodes(nodes))

    def local(self) -> T:
        """Make the call here and now, in this process."""
        return self.fn(*self.args, **self.kwargs)

    def __rshift__(self, pool: Dispatcher) -> T:
        value: T = _require_dispatcher(pool, ">>").run_one(self)
        return value

    def __matmul__(self, pool: Dispatcher) -> list[T]:
        return _require_dispatcher(pool, "@").run_all(self)

    def __gt__(self, pool: Dispatcher) -> RunFuture[T]:
        return _require_dispatcher(pool, ">").submit(self)

    def on(self, pool: Dispatcher) -> RunFuture[T]:
        """Begin the call on one node, as ``>`` does: ``value = await call.on(compute)`` in asynchronous code.

        Args:
            pool: where it runs.

        Returns:
            A future of its value, which can be awaited, and waited for by ``result()``.

        Raises:
            NotPicklableError: an argument cannot travel.
            PoolError: the pool is not up.
        """
        return _require_dispatcher(pool, "on(...)").submit(self)

    def on_all(self, pool: Dispatcher) -> RunFuture[list[T]]:
        """Begin the call on every rank, as ``@`` does: ``values = await call.on_all(compute)`` in asynchronous code.

        Args:
            pool: where it runs.

        Returns:
            A future of the values in rank order; raises as ``on``.
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
        return f"<{self.name}(…) not run yet: use >> or @ with a pool>"


def _check_nodes(nodes: int | Iterable[int] | None) -> int | tuple[int, ...] | None:
    if nodes is None or (isinstance(nodes, int) and not isinstance(nodes, bool) and nodes > 0):
        return nodes
    if isinstance(nodes, int | str | bytes):
        raise ValueError(f"nodes must be a number of them, 1 at least, or a list of such as [0, 2], not {nodes!r}")
    named = tuple(sorted(nodes))
    if not named or any(isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in named):
        raise ValueError(f"nodes must be a list of indices such as [0, 2], not {list(named)!r:.80}")
    if len(set(named)) != len(named):
        raise ValueError(f"nodes names one twice: {list(named)!r:.80}")
    return named


class PendingGroup(_ImmutableValue, Generic[R]):
    """Several calls that run at the same time. ``group >> pool`` gives their values in the order written.

    Args:
        items: the calls.
        stream: give an iterator of values instead, which has each as soon as it can be had.
        ordered: whether that iterator keeps the order written; with False values come as calls end.
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
        """The same calls, each with another time limit.

        Args:
            seconds: what each may take; None for no limit.

        Raises:
            ValueError: ``seconds`` is not more than 0.
        """
        return PendingGroup(tuple(item.with_timeout(seconds) for item in self.items), self.stream, self.ordered)

    def __rshift__(self, pool: Dispatcher) -> R:
        result: R = _require_dispatcher(pool, ">>").run_group(self)
        return result

    def __matmul__(self, pool: object) -> Any:
        raise TypeError("a group runs with >>; broadcast its functions one by one with @")

    def on(self, pool: Dispatcher) -> RunFuture[R]:
        """Begin the calls, as ``>>`` does: ``values = await group.on(compute)`` in asynchronous code.

        Args:
            pool: where they run.

        Returns:
            A future of their values in the order written, which can be awaited.

        Raises:
            UsageError: the group streams, or has nothing in it.
            NotPicklableError: an argument cannot travel.
            PoolError: the pool is not up.
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
    """Several calls as one group, which runs with ``group >> pool``.

    Args:
        *tasks: calls of ``@function`` functions.
        stream: have the group give an iterator of values, which has each as soon as it can be had.
        ordered: whether that iterator keeps the order written; with False values come as calls end.

    Raises:
        TypeError: something given is not a call of a ``@function``.
    """
    for position, task in enumerate(tasks):
        if not isinstance(task, PendingFunction):
            raise not_a_call_error(task, position)
    return PendingGroup(tasks, stream, ordered)


def _check_timeout(timeout: float | None) -> float | None:
    # The second half is false for NaN too.
    if timeout is None or (isinstance(timeout, int | float) and timeout > 0):
        return timeout
    raise ValueError(f"timeout must be more than 0 seconds, or None for no limit, not {timeout!r}")


def _require_dispatcher(pool: Any, operator: str) -> Dispatcher:
    if isinstance(pool, ModuleType):  # the library itself, whose open pool is meant
        pool = getattr(pool, "sky", pool)
    if hasattr(pool, "run_one"):
        dispatcher: Dispatcher = pool
        return dispatcher
    raise TypeError(f"right of {operator} stands a pool (with sky.Compute(...) as pool), not {pool!r:.80}")


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

    from inspect import isgeneratorfunction  # nodes need it rarely

    def decorate(inner: Callable[P, Iterator[T]]) -> Function[P, Iterator[T]]:
        if not isgeneratorfunction(inner):
            raise TypeError(
                f"@stream is for generator functions, and {function_name(inner)} has no yield: write @function"
            )
        return Function(inner, timeout)

    return decorate if fn is None else decorate(fn)
