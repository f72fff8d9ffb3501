"""Arguments by the words of older generations, for values that have others now: each is heeded, said to go unheeded, or
refused. None is swallowed."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import SpecError

T = TypeVar("T")

_OURS = __name__.partition(".")[0] + "."

# What an argument's value comes to: arguments by the words of today. Takes what is made of it, as people write that.
Rule = Callable[[str, str, Any], dict[str, Any]]
Rules = Mapping[str, Rule]


def renamed(new: str, made: Callable[[Any], Any] = lambda value: value) -> Rule:
    """It is called otherwise now; None stands for the default in both.

    Args:
        new: the name of today.
        made: what the value comes to; raises ValueError, in words, where it comes to none.
    """

    def rule(kind: str, name: str, value: Any) -> dict[str, Any]:
        try:
            return {} if value is None else {new: made(value)}
        except ValueError as error:
            raise SpecError(str(error), name) from None

    return rule


def unheeded(why: str, *meaningless: Any) -> Rule:
    """There is no such thing, and all goes on without: said once per line of a script.

    Args:
        why: what is so instead, in words.
        *meaningless: values that ask for nothing else than what is; None is one.
    """

    def rule(kind: str, name: str, value: Any) -> dict[str, Any]:
        if not any(value is each or value == each for each in (None, *meaningless)):
            warnings.warn(
                f"{kind}({name}=...) goes unheeded: {why}", FutureWarning, stacklevel=_to_the_script()
            )
        return {}

    return rule


def _to_the_script() -> int:
    """How many calls away from whoever warns the first line is that is none of ours."""
    away, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        away, frame = away + 1, frame.f_back
    return away


def no_matter(kind: str, name: str, value: Any) -> dict[str, Any]:
    """Whatever it says is so, or makes no difference here."""
    return {}


def refused(why: str, *meaningless: Any) -> Rule:
    """There is no such thing, and what the script does would not be what it asks for.

    Args:
        why: what to do instead, in words.
        *meaningless: values that ask for nothing; None is one.
    """

    def rule(kind: str, name: str, value: Any) -> dict[str, Any]:
        if any(value is each or value == each for each in (None, *meaningless)):
            return {}
        raise SpecError(f"{kind}({name}=...) is not to be had: {why}", name)

    return rule


def of_calls(given: dict[str, Any]) -> None:
    """Tell what goes unheeded of a function's options by the newest generation's words.

    Raises:
        TypeError: no generation has such an option.
    """
    from .misuse_words import refuse_unknown  # few scripts have such options

    refuse_unknown("sky.function", given, ["timeout", *_OF_CALLS])
    heeded("sky.function", _OF_CALLS, given)


def heeded(kind: str, rules: Rules, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the words of today.

    Args:
        kind: what is made, as people write it.
        rules: by the older word.
        given: arguments by any words.

    Raises:
        SpecError: one is refused, or the same is said twice, by two words.
    """
    new = {name: value for name, value in given.items() if name not in rules}
    for name in (each for each in given if each in rules):
        for word, value in rules[name](kind, name, given[name]).items():
            if word in new and new[word] != value:
                raise SpecError(f"{word} and {name} say the same, and differ: leave one out", word)
            new[word] = value
    return new


class TakesOlderWords(type):
    """Of values whose class says, under ``_today``, what arguments by any words come to."""

    if not TYPE_CHECKING:  # checkers know the words of today, and would take this for a value of any type

        def __call__(cls, *args, **given):
            return super().__call__(**cls._today(args, given))


def takes(rules: Rules) -> Callable[[type[T]], type[T]]:
    """Let a dataclass take older words, too.

    Args:
        rules: by the older word.
    """

    def decorate(kind: type[T]) -> type[T]:
        own: Any = kind.__init__

        @functools.wraps(own)
        def __init__(self: Any, *args: Any, **given: Any) -> None:
            if given.keys() & rules.keys():
                given = heeded(f"sky.{kind.__name__}", rules, given)
            own(self, *args, **given)

        __init__.__dict__["older_words"] = tuple(rules)  # as misuse_words.py wants to know them
        kind.__init__ = __init__  # type: ignore[method-assign]
        return kind

    return decorate


NO_RETRY = "no call is made again by itself: catch sky.RunError, and send it again"
_OF_CALLS: Rules = {
    "queue_timeout": unheeded(
        "a call waits for its turn for as long as it takes; timeout= counts from its start", 0
    ),
    "retry": unheeded(NO_RETRY),
}
