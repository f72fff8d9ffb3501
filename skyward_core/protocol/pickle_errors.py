"""What is the matter with an object that cannot be pickled, and bytes as picklers write them. Standard library only."""

from __future__ import annotations

import copyreg
import dis
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

FILENAME = 10  # where a code object's constructor takes the file


def to_memoryview(data: Any) -> memoryview:
    """What a pickler writes (bytes, or an array's own buffer) as plain bytes, without copying."""
    return data.raw() if isinstance(data, pickle.PickleBuffer) else memoryview(data)


def make_cached(function: Callable[..., Any], size: int | None, typed: bool) -> Any:
    """A function with a cache, as :func:`functools.lru_cache` makes it."""
    from functools import lru_cache

    return lru_cache(size, typed)(function)


def make_new_type(name: str, base: Any) -> Any:
    """A type as :class:`typing.NewType` makes it."""
    from typing import NewType

    return NewType(name, base)


def reduce_cached_property(made: Any) -> Any:
    """How a ``functools.cached_property`` pickles, which before Python 3.12 has a lock."""
    return type(made), (made.func,), {"attrname": made.attrname}


def reduce_code(code: CodeType) -> Any:
    """How code pickles: as cloudpickle takes it apart, and with its file. cloudpickle 3.1.3 leaves that out, and then
    no traceback shows a line, and neither a debugger nor ``torch.jit.script`` finds a source."""
    from cloudpickle.cloudpickle import _code_reduce  # only picklers of cloudpickle's come here

    make, parts = _code_reduce(code)
    return make, (*parts[:FILENAME], code.co_filename, *parts[FILENAME + 1 :])


def set_unless_found(kind: type, state: Any) -> type:
    """Fill a class that was made of a pickle, unless it is the one that stands here under its name."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not kind:
        from cloudpickle.cloudpickle import _class_setstate  # only what it has pickled comes here

        _class_setstate(kind, state)
    return kind


class NullFile:
    """Takes a pickle that only has to be possible."""

    @staticmethod
    def write(data: Any) -> None:
        return None


def find_culprit(
    value: Any,
    error: BaseException,
    path: str,
    failure_of: Callable[[Any], BaseException | None],
    depth: int = 10,
) -> tuple[str, Any, BaseException]:
    """Follow containers, attributes and closures down to the object that cannot be pickled.

    Args:
        error: what pickling the value raised.
        path: what the value is called.
        failure_of: pickles an object, and gives what that raises.

    Returns:
        What the object is called, the object, and why it cannot be pickled.
    """
    with suppress(BaseException):  # the object's own code: it is the object itself, then
        for name, part in _iterate_parts(value, path) if depth else ():
            failure = failure_of(part)
            if failure is not None:
                return find_culprit(part, failure, name, failure_of, depth - 1)
    return path, value, error


def _iterate_parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{path}[{key!r:.40}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((path, part) for part in value)
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((name, cell.cell_contents) for name, cell in cells if _is_filled(cell))
        yield from ((name, value.__globals__[name]) for name in _globals_of(value))
        yield from _defaults_of(value)
    elif isinstance(value, type):
        own = ((name, part) for name, part in vars(value).items() if not hasattr(type(part), "__set__"))
        yield from ((f"{value.__name__}.{name}", part) for name, part in own)
    else:
        yield from _iterate_state(value, path)


def _iterate_state(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What pickle would take of an object: its attributes, in ``__dict__`` or slots, and how it is made."""
    reduced = value.__reduce_ex__(4)
    if not isinstance(reduced, tuple):
        return
    state = reduced[2] if len(reduced) > 2 else None
    for attributes in state if isinstance(state, tuple) else (state,):
        if isinstance(attributes, dict):
            yield from ((f"{path}.{name}", part) for name, part in attributes.items())
        else:
            yield path, attributes
    yield from ((path, part) for part in reduced[1])


def _globals_of(fn: FunctionType) -> list[str]:
    """Names of the globals that a function, and those written inside it, use."""
    names, codes = set(), [fn.__code__]
    while codes:
        code = codes.pop()
        names |= {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return sorted(names & fn.__globals__.keys())


def _defaults_of(fn: FunctionType) -> Iterator[tuple[str, Any]]:
    defaults = fn.__defaults__ or ()
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (fn.__kwdefaults__ or {}).items()


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def has_tblib_reducer(value: Any) -> bool:
    """Whether an exception would be pickled by tblib, which distributed puts in the place of its own way: of some, such
    as UnicodeDecodeError and SyntaxError, that keeps no more than the arguments."""
    if not isinstance(value, BaseException):
        return False
    way = copyreg.dispatch_table.get(type(value))
    return getattr(way, "__module__", "").partition(".")[0] == "tblib"
