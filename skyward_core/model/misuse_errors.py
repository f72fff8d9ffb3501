"""What functions, calls, providers and plugins say where they stand for something else, or are made with other words.

Nodes load this module; its texts are in ``model.older_api_arguments``. Type checkers reject such lines, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


def _argument_errors() -> Any:
    return import_module(f"{__package__}.older_api_arguments")


def not_a_call_error(given: Any, position: int) -> TypeError:
    """The error of a group that something is to be part of which is no call.

    Args:
        given: what.
        position: its place in the group.
    """
    error: TypeError = _argument_errors().not_a_call_error(given, position)
    return error


def _uncalled_operator(right: str) -> Any:
    def operator(self: Any, other: Any) -> Any:
        raise _argument_errors().uncalled_function_error(self, right, other)

    return operator


class UncalledFunctionGuard:
    """Base of ``Function``: it stands beside operators that send calls, and is none."""

    if not TYPE_CHECKING:
        __rshift__ = _uncalled_operator("{}(...) >> pool")
        __matmul__ = _uncalled_operator("{}(...) @ pool")
        __gt__ = _uncalled_operator("{}(...) > pool")
        __and__ = _uncalled_operator("{}(...) & {}")
        __rand__ = _uncalled_operator("... & {}(...)")


class PendingCallGuard:
    """Base of ``PendingFunction``: it is asked for what only its value has."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def _as_value(self, *_):
            raise TypeError(_argument_errors().not_run_message(self))

        __getitem__ = _as_value  # to go through it is that, too
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _as_value
        __float__ = __int__ = __round__ = __neg__ = _as_value

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(f"{_argument_errors().not_run_message(self)} (it has no {name!r} before)")


class StrictKeywords:
    """Base of providers and plugins: an argument that they do not take is told with the nearest that they do.

    By ``__new__``, as a class of another package may have a metaclass besides.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __new__(cls, *args, **given):
            # Nearly always they are a dataclass's own fields.
            if args or not given.keys() <= getattr(cls, "__dataclass_fields__", {}).keys():
                _argument_errors().check_keywords(cls, args, given)
            new = super().__new__
            return new(cls) if new is object.__new__ else new(cls, *args, **given)
