"""Search for the object that makes pickling fail, and reducers for picklers. Uses only the standard library."""

from __future__ import annotations

import copyreg
import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

FILENAME = 10  # index of the file name among the arguments of a code object's constructor


def make_cached(function: Callable[..., Any], size: int | None, typed: bool) -> Any:
    """Recreate an unpickled function that :func:`functools.lru_cache` decorates."""
    from functools import lru_cache

    return lru_cache(size, typed)(function)


def make_new_type(name: str, base: Any) -> Any:
    """Recreate an unpickled :class:`typing.NewType`."""
    from typing import NewType

    return NewType(name, base)


def reduce_cached_property(value: Any) -> Any:
    """Reduce a ``functools.cached_property`` for a pickler. Before Python 3.12, it contains a lock."""
    return type(value), (value.func,), {"attrname": value.attrname}


def reduce_code(code: CodeType) -> Any:
    """Reduce a code object for a pickler as cloudpickle does, but include the file name of the code.

    cloudpickle 3.1.3 omits the file name. Without it tracebacks show no source lines, and debuggers and
    ``torch.jit.script`` cannot find the source.
    """
    # imported late, because only picklers of cloudpickle call this function
    from cloudpickle.cloudpickle import _code_reduce

    make, parts = _code_reduce(code)
    return make, (*parts[:FILENAME], code.co_filename, *parts[FILENAME + 1 :])


def set_unless_found(kind: type, state: Any) -> type:
    """Set the attributes of an unpickled class, unless this process already had this class under its name."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not kind:
        # imported late, because only pickles of cloudpickle call this function
        from cloudpickle.cloudpickle import _class_setstate

        _class_setstate(kind, state)
    return kind


class NullFile:
    """File that discards all data, for testing whether a value can be pickled."""

    @staticmethod
    def write(data: Any) -> None:
        return None


def find_culprit(
    value: Any, error: BaseException, path: str, failure_of: Callable[[Any], BaseException | None], depth: int = 10
) -> tuple[str, Any, BaseException]:
    """Search the containers, attributes and closures of a value for the object that cannot be pickled.

    Args:
        value: The value that cannot be pickled.
        error: The error of pickling the value.
        path: Description of the value.
        failure_of: Returns the error of pickling an object, or None.
        depth: Maximum number of steps.

    Returns:
        Description of the object, the object, and its error.
    """
    with suppress(BaseException):  # If the object's own code raises an error, blame the object itself.
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
    """Yield the parts of an object that pickle would store: attributes and constructor arguments."""
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
    """Return the names of the globals that a function and its inner functions use."""
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
    """Check whether the package ``tblib``, a dependency of ``distributed``, would pickle an exception.

    For some exceptions, such as UnicodeDecodeError and SyntaxError, tblib stores only the arguments.
    """
    if not isinstance(value, BaseException):
        return False
    reducer = copyreg.dispatch_table.get(type(value))
    return getattr(reducer, "__module__", "").partition(".")[0] == "tblib"
