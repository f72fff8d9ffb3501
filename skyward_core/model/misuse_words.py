"""What people are told of arguments that nothing takes, with the nearest one which is taken, and of functions and calls
that stand where something else is wanted."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any

from .misuse import Uncalled, Unrun
from .value import Value

FEW = 8  # names that are all told where none is near
_GATHERS, _BY_ANY_NAME = 0x04, 0x08  # inspect's CO_VARARGS and CO_VARKEYWORDS
_OURS = __name__.partition(".")[0] + "."


def meant(name: str, known: Collection[str]) -> str:
    """What to add to a sentence that ends with a name which nobody knows.

    Args:
        name: as a person wrote it.
        known: those that there are.
    """
    from difflib import get_close_matches  # only ever needed for a typo

    if near := get_close_matches(name, known, 1) or _within(name, known):
        return f"; did you mean {near[0]!r}?"
    if not known:
        return "; it takes none"
    return f"; known: {', '.join(known)}" if len(known) <= FEW else ""


def _within(name: str, known: Collection[str]) -> list[str]:
    """The one that a name is a part of, or that is a part of it: "start_timeout" for "timeout"."""
    found = [each for each in known if min(len(name), len(each)) > 3 and (name in each or each in name)]
    return found if len(found) == 1 else []


def refuse_unknown(kind: str, given: Iterable[str], known: Collection[str]) -> None:
    """See whether all arguments are such as there are.

    Args:
        kind: what is made or called, as people write it.
        given: the names that were written.
        known: those that it takes.

    Raises:
        TypeError: one is not.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"{kind} takes no {name!r}{meant(name, known)}")


def check_words(cls: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """See whether a class takes these arguments, as far as that is a matter of their names.

    Raises:
        TypeError: it takes no such argument, or none at all.
    """
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    kind = _spelled(cls)
    known: list[str] | None = []
    places = 0.0
    if issubclass(owner, Value):  # whose __init__ is not compiled yet
        known = [each.name for each in fields(owner)]
        places = sum(not each.kw_only for each in fields(owner))
    elif owner is not object:  # and with a __new__ Python lets arguments pass by an object's own
        known, places = _of(vars(owner)["__init__"])
    if known is not None:
        refuse_unknown(kind, given, known)
    if len(args) > places:
        takes = (
            "takes no arguments"
            if known == []
            else f"takes {places} by position"
            if places
            else "takes all by name"
        )
        raise TypeError(f"{kind} {takes}, and was given {len(args)}{' by position' * bool(known)}")


def _of(call: Any) -> tuple[list[str] | None, float]:
    """What a method takes by name, None where that is anything; and how many arguments by position."""
    older: list[str] = []
    while (inner := getattr(call, "__wrapped__", None)) is not None:
        older, call = [*older, *getattr(call, "older_words", ())], inner
    code = getattr(call, "__code__", None)
    if code is None:
        return None, math.inf
    places = math.inf if code.co_flags & _GATHERS else code.co_argcount - 1
    if code.co_flags & _BY_ANY_NAME:
        return None, places
    first = max(code.co_posonlyargcount, 1)
    return [*code.co_varnames[first : code.co_argcount + code.co_kwonlyargcount], *older], places


def _spelled(cls: Any) -> str:
    """As people write it: a provider by its class, a plugin by its name."""
    if not cls.__module__.startswith(_OURS):
        return str(cls.__name__)
    return f"sky.plugins.{cls.name}" if ".plugins." in cls.__module__ else f"sky.{cls.__name__}"


def no_call(given: Any, position: int) -> TypeError:
    """The error of a group that something is to be part of which is no call.

    Args:
        given: what.
        position: its place in the group.
    """
    if isinstance(given, Uncalled):
        return not_called(given, "sky.gather({}(...), ...)", None)
    spread = ": spread it, sky.gather(*calls)" if isinstance(given, Iterable) else ""
    return TypeError(
        f"gather takes calls of @function functions; number {position} is {type(given).__name__}{spread}"
    )


def not_called(function: Any, right: str, other: Any) -> TypeError:
    """The error of a function that stands where a call of it is wanted: the parentheses were forgotten.

    Args:
        function: what stands there.
        right: what to write, with braces for the function's name, and for what stands beside it.
        other: what stands beside it.
    """
    name = _name(function)
    beside = f"{_name(other)}(...)" if isinstance(other, Uncalled | Unrun) else "..."
    return TypeError(
        f"{name} is a function, and what runs is a call of it: call it, {right.format(name, beside)}"
    )


def not_run(call: Any) -> str:
    """What a call says that is taken for its value: it was never sent."""
    name = _name(call)
    return (
        f"{name}(...) has not run, and has no value yet: send it to a pool, value = {name}(...) >> pool, or call it "
        f"here, {name}.local(...)"
    )


def _name(has_one: Any) -> str:
    return str(getattr(has_one.fn, "__name__", None) or type(has_one.fn).__name__)
