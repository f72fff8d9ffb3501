"""Errors for the misuse of functions, calls, providers and plugins: a missing call, an unknown argument.

Nodes load this module. The messages are in ``model.deprecated_and_unknown_arguments``, which loads on the first error.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


def _argument_errors() -> Any:
    return import_module(f"{__package__}.deprecated_and_unknown_arguments")


def _uncalled_operator(right: str) -> Any:
    def operator(self: Any, other: Any) -> Any:
        raise _argument_errors().uncalled_function_error(self, right, other)

    return operator


class UncalledFunctionGuard:
    """Base of ``Function``: raises an error if a function is an operand where a call is required."""

    if not TYPE_CHECKING:
        __rshift__ = _uncalled_operator("{}(...) >> pool")
        __matmul__ = _uncalled_operator("{}(...) @ pool")
        __gt__ = _uncalled_operator("{}(...) > pool")
        __and__ = _uncalled_operator("{}(...) & {}")
        __rand__ = _uncalled_operator("... & {}(...)")


class PendingCallGuard:
    """Base of ``PendingFunction``: raises an error if a call is used like the value that it returns."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def _as_value(self, *_):
            raise TypeError(_argument_errors().not_run_message(self))

        __getitem__ = _as_value  # Python also calls __getitem__ for an iteration
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _as_value
        __float__ = __int__ = __round__ = __neg__ = _as_value

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(f"{_argument_errors().not_run_message(self)} (it has no {name!r} before)")


class StrictKeywords:
    """Base of providers and plugins: an unknown argument raises an error that suggests the closest name.

    Uses ``__new__``, because classes of other packages may have a metaclass.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __new__(cls, *args, **given):
            # Most often, all arguments are fields of the dataclass, so that no check is necessary.
            if args or not given.keys() <= getattr(cls, "__dataclass_fields__", {}).keys():
                _argument_errors().check_keywords(cls, args, given)
            new = super().__new__
            return new(cls) if new is object.__new__ else new(cls, *args, **given)
