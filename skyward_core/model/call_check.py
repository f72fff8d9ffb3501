"""Whether a function takes the arguments that it is called with: told where the call stands, and not on the ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:  # agents and workers do not need it, nor what it loads
    from inspect import Signature


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
    fn = _below_ours(fn)
    if type(fn) is FunctionType and not pending.kwargs and _takes(fn, len(pending.args)):
        return  # nearly always; to bind the arguments takes longer than to pickle some
    signature = _signature_of(fn)
    try:
        if signature is not None:
            signature.bind(*pending.args, **pending.kwargs)
    except TypeError as error:
        raise TypeError(f"{pending.name}{signature} cannot be called so: {error}") from None


def refuse_surplus(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse arguments that a function does not take. What is missing is for :func:`check_call`, which knows what
    decorators of plugins give.

    Raises:
        TypeError: it takes no such argument, fewer, or one of them twice.
    """
    whole = called = _below_ours(fn)
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
    signature = _signature_of(whole)
    try:
        if signature is not None:
            signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name_of(fn)}{signature} cannot be called so: {error}") from None


def _below_ours(fn: Any) -> Any:
    """What a function's decorators that are ours stand around; they hand on all that they are given."""
    while type(fn) is FunctionType and fn.__globals__.get("__name__", "").startswith(_OURS):
        inner = fn.__dict__.get("__wrapped__")
        if inner is None:
            break
        fn = inner
    return fn


_OURS = __name__.partition(".")[0] + "."


def _takes(fn: FunctionType, count: int) -> bool:
    """Whether so many positional arguments are enough for a function that needs no others, and not too many."""
    code = fn.__code__
    if code.co_kwonlyargcount:
        return False
    enough = code.co_argcount - len(fn.__defaults__ or ()) <= count
    return enough and (count <= code.co_argcount or bool(code.co_flags & _GATHERS))


_GATHERS = 0x04  # inspect's CO_VARARGS


def _signature_of(fn: Callable[..., Any]) -> Signature | None:
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


def name_of(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", None) or type(fn).__name__)
