"""What stands right of an operator says what it wants left of it, where that is something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ...model.call_check import name_of
from ...model.function import Function, PendingFunction, PendingGroup


class RightSide:
    """Base of pools. Python asks it where what stands left knows nothing of pools."""

    if not TYPE_CHECKING:  # to checkers such a line is wrong, as it is to everybody
        __array_ufunc__ = None  # an array does not go through a pool as through one more array

        def __rrshift__(self, left):
            _refuse(left, ">>")

        def __rmatmul__(self, left):
            _refuse(left, "@")

        def __lt__(self, left):
            _refuse(left, ">")


def _refuse(left: Any, operator: str) -> NoReturn:
    if isinstance(left, PendingFunction):
        raise TypeError(
            f"{left.name} gave NotImplemented, which no operator can give: have it give something else"
        )
    if isinstance(left, PendingGroup):  # that has the other two
        raise TypeError("a group runs with >>, or with group.on(pool), which waits for nothing")
    if isinstance(left, list | tuple) and left and all(isinstance(each, PendingFunction) for each in left):
        raise TypeError("several calls are sent as a group: sky.gather(*calls) >> pool")
    raise TypeError(
        f"left of {operator} stands a call of a function that has @sky.function above it, and not its value, "
        f"{left!r:.80}: decorate the function, and calling it runs nothing before {operator} does"
    )


def call_of(given: Any, verb: str) -> PendingFunction[Any]:
    """What a verb of a pool was given, where that is a call.

    Args:
        given: what it was given.
        verb: as people write it.

    Raises:
        TypeError: it is something else; says what to write.
    """
    if isinstance(given, PendingFunction):
        return given
    raise TypeError(_wants(given, verb, "a call"))


def group_of(given: Any, verb: str) -> PendingGroup[Any]:
    """The same of a group."""
    if isinstance(given, PendingGroup):
        return given
    raise TypeError(_wants(given, verb, "a group"))


def _wants(given: Any, verb: str, what: str) -> str:
    if isinstance(given, Function) and what == "a call":
        return f"{verb} takes a call: call it, {verb}({name_of(given.fn)}(...))"
    if isinstance(given, PendingGroup):
        return (
            f"{verb} takes a call, and a group of {len(given.items)} runs with >>, or by compute.run(group)"
        )
    how = (
        "f(...) of a @sky.function" if what == "a call" else "sky.gather(f(...), g(...)), or f(...) & g(...)"
    )
    return f"{verb} takes {what}, {how}, not {given!r:.80}"
