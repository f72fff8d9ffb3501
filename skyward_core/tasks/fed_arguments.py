"""Arguments that travel value by value while the call goes on: generators, and those of ``Iterator`` parameters."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Generator, Iterable, Iterator
from types import FunctionType, GeneratorType
from typing import Any
from weakref import WeakKeyDictionary

from ..model.errors import UsageError
from ..model.function import PendingFunction
from ..runtime.fed import Fed
from ..wire.frames import Heard

Feeds = tuple[
    tuple[str, Iterable[Any]], ...
]  # of each such argument its parameter's name, and what gives the values

_known: WeakKeyDictionary[FunctionType, frozenset[str]] = WeakKeyDictionary()


def fed_arguments(pending: PendingFunction[Any]) -> tuple[PendingFunction[Any], Feeds]:
    """A call as it travels, and what its client feeds.

    Fed is a generator; and whatever is given for a parameter that says ``Iterator[...]`` or ``Generator[...]``.
    """
    fn = pending.fn
    wanted = _wanted(fn) if type(fn) is FunctionType and fn.__annotations__ else frozenset()
    if not wanted and not any(
        type(each) is GeneratorType for each in (*pending.args, *pending.kwargs.values())
    ):
        return pending, ()
    feeds: list[tuple[str, Iterable[Any]]] = []

    def taken(name: str, value: Any) -> Any:
        if type(value) is GeneratorType or (name in wanted and isinstance(value, Iterable)):
            feeds.append((name, value))
            return Fed(len(feeds) - 1, name)
        return value

    names = _positional(fn, len(pending.args))
    args = tuple(taken(name, value) for name, value in zip(names, pending.args, strict=True))
    kwargs = {name: taken(name, value) for name, value in pending.kwargs.items()}
    if not feeds:
        return pending, ()
    return PendingFunction(fn, args, kwargs, pending.timeout), tuple(feeds)


def refuse_shared(feeds: Feeds, seen: set[int]) -> None:
    """Two arguments cannot have one iterator: each is read in a thread of its own, and would get what the other lacks.

    Args:
        seen: ids of iterators that others have; gets these.

    Raises:
        UsageError: one of them is there already.
    """
    for name, values in feeds:
        if isinstance(values, Iterator):
            if id(values) in seen:
                raise UsageError(
                    f"argument {name!r} is an iterator that another argument is, too: make one for each, "
                    "or see itertools.tee"
                )
            seen.add(id(values))


def _positional(fn: Callable[..., Any], count: int) -> list[str]:
    if type(fn) is FunctionType:
        code = fn.__code__
        names = list(code.co_varnames[: code.co_argcount])[:count]
    else:
        names = []
    return names + [f"argument {number}" for number in range(len(names), count)]


def _wanted(fn: FunctionType) -> frozenset[str]:
    """The parameters of a function that take iterators, by what it says of them."""
    if (known := _known.get(fn)) is None:
        known = _known[fn] = frozenset(name for name, note in _notes(fn).items() if _is_iterator(note))
    return known


def _notes(fn: FunctionType) -> Heard:
    try:
        return typing.get_type_hints(fn)
    except Exception:  # noqa: BLE001  a note is evaluated, and may name what is there for a type checker only
        return inspect.get_annotations(fn)


def _is_iterator(note: Any) -> bool:
    if isinstance(note, str):
        return note.partition("[")[0].rpartition(".")[2] in ("Iterator", "Generator")
    return (typing.get_origin(note) or note) in (Iterator, Generator)
