"""Pickles of functions that are called again and again: made once, as long as nothing that goes into one has changed.

cloudpickle takes a function of a script apart anew for every call, and that takes a sixth of a small call's time. What
goes into the pickle can be seen at a glance for most functions: code, names, modules, and values of a few types that
never change. A function that has anything else (a list, another function, an attribute) is pickled every time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from operator import is_
from types import CodeType, FunctionType, ModuleType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from .cloudpickle_import import cloudpickle

T = TypeVar("T")
_ABSENT = object()  # stands for a global that is not there
_LASTING = frozenset((type(None), bool, int, float, complex, str, bytes, ModuleType, object))
_CLASSES = frozenset((object, bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset))
_OF_MODULE = (
    "__package__",
    "__name__",
    "__path__",
    "__file__",
)  # of its globals these go with every function


# What a function's pickle is made of, and, where it names modules, which there are.
_Parts = tuple[tuple[Any, ...], tuple[int, str] | None]


class PickledFunctions(Generic[T]):
    """What was made of functions, for as long as they live.

    Args:
        keeps: whether something that was made is worth its memory.
    """

    def __init__(self, keeps: Callable[[T], bool]) -> None:
        self._keeps = keeps
        # Of each its code, the names in that, the parts it was made of, and what was made.
        self._made: WeakKeyDictionary[FunctionType, tuple[CodeType, tuple[str, ...], _Parts | None, T]] = (
            WeakKeyDictionary()
        )

    def get(self, fn: Callable[..., Any], make: Callable[[], T]) -> T:
        """What was made of a function before, if the same would be made of it now; else what ``make`` gives."""
        if type(fn) is not FunctionType:
            return make()
        code, found = fn.__code__, self._made.get(fn)
        names = found[1] if found is not None and found[0] is code else tuple(_names(code))
        parts = _parts(fn, names)  # before it is made: it may change meanwhile
        if found is not None and _same(parts, found[2]):
            return found[3]
        made = make()
        if self._keeps(made):
            self._made[fn] = code, names, parts, made
        return made


def _same(parts: _Parts | None, others: _Parts | None) -> bool:
    """Whether each is the same object: equal ones may be of other types."""
    if parts is None or others is None or parts[1] != others[1] or len(parts[0]) != len(others[0]):
        return False
    return all(map(is_, parts[0], others[0]))


def _parts(fn: FunctionType, names: tuple[str, ...]) -> _Parts | None:
    """What a function's pickle is made of; None where it may change without that being seen.

    Args:
        names: those that its code, and code inside it, speaks of; some of them are globals.
    """
    if fn.__module__ != "__main__" and "<locals>" not in fn.__qualname__:
        return None  # it may be pickled as a name that others import: quick, and a matter of what is loaded
    if fn.__dict__ or fn.__kwdefaults__ or getattr(fn, "__type_params__", None):
        return None
    notes = fn.__annotations__
    if not all(type(note) is str or (type(note) is type and note in _CLASSES) for note in notes.values()):
        return None
    defaults, space = fn.__defaults__ or (), fn.__globals__
    try:
        enclosed = [cell.cell_contents for cell in fn.__closure__ or ()]
    except ValueError:  # one is empty yet
        return None
    values = (
        *(space.get(name, _ABSENT) for name in _OF_MODULE), *(space.get(name, _ABSENT) for name in names),
        *defaults, *enclosed, fn.__name__, fn.__qualname__, fn.__module__, fn.__doc__, *sys.argv, len(sys.argv),
    )  # fmt: skip
    kinds = set(map(type, values))
    if not kinds <= _LASTING:
        return None
    loaded = None
    if ModuleType in kinds:
        by_value = tuple(f"{name}." for name in cloudpickle.list_registry_pickle_by_value())
        for module in (value for value in values if type(value) is ModuleType):
            if sys.modules.get(module.__name__) is not module or f"{module.__name__}.".startswith(by_value):
                return None  # what stands in it goes into the pickle, too
        # Which submodules a function can reach is a part of its pickle.
        try:
            loaded = len(sys.modules), next(reversed(sys.modules))
        except RuntimeError:  # another thread imports at this very moment
            return None
    return (fn.__code__, *notes, *notes.values(), len(notes), *values), loaded


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _names(constant)
