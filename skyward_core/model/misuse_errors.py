"""What functions, calls, providers and plugins say where they stand for something else, or are made with other words.

Nodes load this module; its texts are in ``model.older_api_arguments``. Type checkers reject such lines, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


def _words() -> Any:
    return import_module(f"{__package__}.older_api_arguments")


def no_call(given: Any, position: int) -> TypeError:
    """The error of a group that something is to be part of which is no call.

    Args:
        given: what.
        position: its place in the group.
    """
    error: TypeError = _words().no_call(given, position)
    return error


def _without_call(right: str) -> Any:
    def operator(self: Any, other: Any) -> Any:
        raise _words().not_called(self, right, other)

    return operator


class Uncalled:
    """Base of ``Function``: it stands beside operators that send calls, and is none."""

    if not TYPE_CHECKING:
        __rshift__ = _without_call("{}(...) >> pool")
        __matmul__ = _without_call("{}(...) @ pool")
        __gt__ = _without_call("{}(...) > pool")
        __and__ = _without_call("{}(...) & {}")
        __rand__ = _without_call("... & {}(...)")


class Unrun:
    """Base of ``PendingFunction``: it is asked for what only its value has."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def _as_value(self, *_):
            raise TypeError(_words().not_run(self))

        __getitem__ = _as_value  # to go through it is that, too
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _as_value
        __float__ = __int__ = __round__ = __neg__ = _as_value

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(f"{_words().not_run(self)} (it has no {name!r} before)")


class KnowsItsWords:
    """Base of providers and plugins: an argument that they do not take is told with the nearest that they do.

    By ``__new__``, as a class of another package may have a metaclass besides.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __new__(cls, *args, **given):
            # Nearly always they are a dataclass's own fields.
            if args or not given.keys() <= getattr(cls, "__dataclass_fields__", {}).keys():
                _words().check_words(cls, args, given)
            new = super().__new__
            return new(cls) if new is object.__new__ else new(cls, *args, **given)
