"""Arguments of the launch form that are given several values: ``lr=0.1,0.01`` and ``seed=1..5`` make a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skyward_core.model.errors import UsageError

from .argument_line import given

if TYPE_CHECKING:
    from skyward_core.front.scripts import ArgumentField


def amiss(asked: ArgumentField, text: str) -> str:
    """Why a text is no list of values of an argument, in words; "" where it is one."""
    try:
        values = values_of(asked.name, text)
    except UsageError as error:
        return str(error)
    return next((why for value in values if (why := asked.amiss(value))), "")


def mean_a_sweep(asked: Sequence[ArgumentField], line: str) -> bool:
    """Whether an argument is given what is no value of it, and several that are.

    Args:
        line: of all arguments, as it is typed.
    """
    texts = given(line) or {}
    for each in asked:
        text = texts.get(each.name)
        if text and each.amiss(text) and not amiss(each, text) and len(values_of(each.name, text)) > 1:
            return True
    return False


def values_of(name: str, text: str) -> list[str]:
    """The values of one argument, as texts.

    Raises:
        UsageError: it is no list.
    """
    from skyward_core.front.scripts import values_of as of_core

    return of_core(name, text)
