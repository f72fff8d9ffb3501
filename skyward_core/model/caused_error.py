"""A run's error that is of its cause's type, too: ``except ValueError`` around a call catches what a rank raised.

A class is made for each type of cause. To all who look it is :class:`~.errors.RunError`: name, text and behaviour are
that one's. Of the cause it has the type, and the attributes that say more (``errno``, ``pos``, what a script has set).
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, cast

from .errors import Cancelled, PoolError, RunError

CLASSES_KEPT = 256
MADE_BY_PROGRAMS = 1 << 9  # a flag of types

# Errors of these kinds say something else where they come out of a call: that the pool is amiss, the run cancelled. The
# next two would end loops in silence. Groups are taken apart by ``except*``.
NEVER = (PoolError, Cancelled, StopIteration, StopAsyncIteration, BaseExceptionGroup)

NOT_SET = {*dir(BaseException), "__dict__", "__weakref__"}
OF_RUNS = {"run", "function", "outcomes", "root_cause", "results"}
BEHAVIOUR = set(dir(RunError)) - {
    "__new__",
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__annotations__",
}
# What Python itself looks for: when such a class is made, and in each error that it prints.
RUNS_CODE = {"__init_subclass__", "__notes__"}
KIND = "_kind"  # of such a class the type of the cause
UNTOLD = {"hint", "field", "__notes__", *OF_RUNS}  # attributes of a cause that would say something else here
# Where these stand in an error, Python looks among the names of whoever prints it for one that was meant.
MISSPELT: tuple[tuple[type[Exception], set[str]], ...] = (
    (AttributeError, {"name", "obj"}),
    (NameError, {"name"}),
)


def of_cause(error: RunError, cause: BaseException) -> RunError:
    """A run's error with its cause; of the cause's type, too, where there can be such a class.

    Where there can be none for that type itself, there may be one for a type that it derives from: what catches
    those catches the error.
    """
    caused = _made(type(cause), error.args, {**_attributes(cause), **vars(error)}, _members(cause))
    caused.__cause__ = cause
    return caused


def _made(
    kind: type, args: tuple[Any, ...], attributes: Mapping[str, Any], members: Mapping[str, Any]
) -> RunError:
    # Not by its truth: it may have a length.
    error = next((made for made in map(_instance, _kinds(kind)) if made is not None), None)
    if error is None:
        error = RunError.__new__(RunError)
        attributes = {name: value for name, value in attributes.items() if name in UNTOLD}
    error.args = args
    vars(error).update(attributes)
    for name, member in _descriptors(type(error)):
        if name in members:
            member.__set__(error, members[name])
    if isinstance(error, SyntaxError):
        error.msg = args[0]  # which is what is printed of those
    return error


def _kinds(kind: type) -> Iterator[type[Exception]]:
    """Those types of a cause that an error can take over, the nearest first."""
    of_all: tuple[type, ...] = RunError.__mro__
    if kind is RuntimeError:  # of the class there is something to take over all the same: attributes
        yield RuntimeError
    for each in kind.__mro__:
        if each not in of_all and issubclass(each, Exception) and not issubclass(each, (RunError, *NEVER)):
            yield each


def _instance(kind: type[Exception]) -> RunError | None:
    """An empty one, for no ``__init__`` of a script's to see."""
    made = _class(kind)  # type: ignore[arg-type]  # types can be hashed, whatever theirs say
    if made is None:
        return None
    for each in made.__mro__:
        if not each.__flags__ & MADE_BY_PROGRAMS:
            make: Any = each.__new__
            with suppress(TypeError):  # it may be another of its types that lays out its memory
                return cast(RunError, make(made))
    return None


@lru_cache(CLASSES_KEPT)
def _class(kind: type[Exception]) -> type[RunError] | None:
    """A class of both; None where there can be none, or to make one would run code of a script's."""
    if type(kind) is not type:
        return None
    given: dict[str, Any] = {}
    for each in kind.__mro__:
        if not each.__flags__ & MADE_BY_PROGRAMS:
            continue
        for name, value in vars(each).items():
            if name in RUNS_CODE or (name in OF_RUNS and hasattr(value, "__set__")):
                return None
            if name in BEHAVIOUR:
                given[name] = getattr(RunError, name)
    given |= {name: getattr(RunError, name) for name in ("__module__", "__qualname__", "__doc__", "__repr__")}
    given |= {"__reduce__": _reduce, "__reduce_ex__": _reduce, "__copy__": _copy, KIND: kind}
    try:
        return type(RunError.__name__, (RunError, kind), given)
    except TypeError:  # their memory is laid out in ways that do not go together
        return None


# -- what such an error is made of -----------------------------------------------------------------------


def _attributes(cause: BaseException) -> dict[str, Any]:
    """What a script has set on it."""
    held: dict[str, Any] = object.__getattribute__(cause, "__dict__")
    return {name: value for name, value in held.items() if name not in UNTOLD}


def _members(error: BaseException) -> dict[str, Any]:
    """What stands elsewhere than in its dictionary, such as an ``errno``."""
    found = {}
    for name, member in _descriptors(type(error)):
        with suppress(AttributeError):  # nobody has set it
            found[name] = member.__get__(error)
    for kind, names in MISSPELT:
        if isinstance(error, kind):
            found = {name: value for name, value in found.items() if name not in names}
    return found


def _descriptors(kind: type) -> Iterator[tuple[str, Any]]:
    for each in kind.__mro__:
        for name, value in vars(each).items():
            if isinstance(value, (GetSetDescriptorType, MemberDescriptorType)) and name not in NOT_SET:
                yield name, value


# -- copies and pickles ----------------------------------------------------------------------------------


def _copy(error: RunError) -> RunError:
    return _made(getattr(error, KIND), error.args, vars(error), _members(error))


def _reduce(error: RunError, protocol: int = 0) -> tuple[Any, ...]:
    """Where nobody finds the cause's type, it is a plain :class:`RunError` that comes of the pickle."""
    kind: type = getattr(error, KIND)
    own = {name: value for name, value in vars(error).items() if name in UNTOLD}
    more = {name: value for name, value in vars(error).items() if name not in own and _travels(value)}
    members = {name: value for name, value in _members(error).items() if _travels(value)}
    return _again, (kind.__module__, kind.__qualname__, error.args, own | more, members)


def _travels(value: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001  a reducer may raise anything; that is the answer asked for
        return False
    return True


def _again(
    module: str,
    name: str,
    args: tuple[Any, ...],
    attributes: Mapping[str, Any],
    members: Mapping[str, Any],
) -> RunError:
    found: Any = None
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:  # noqa: BLE001  what is imported may raise anything; then there is no such type here
        found = None
    return _made(found if isinstance(found, type) else RunError, args, attributes, members)
