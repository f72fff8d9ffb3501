"""Arguments that are given several values: ``lr=0.1,0.01`` and ``seed=1..5`` make ten combinations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

from ..model.errors import UsageError
from ..model.wrong_field import of_field

MOST = 4_096  # combinations of one run: as many outcomes as are held in memory

_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
_OPENS, _CLOSES, _QUOTES = "([{", ")]}", "\"'"


def combinations(pairs: Sequence[str]) -> list[tuple[str, ...]]:
    """Texts ``name=value`` of which the values are lists, as texts ``name=value`` for each combination.

    Values are separated by commas; one with a comma of its own stands in brackets or quotes. ``1..5`` stands for 1, 2,
    3, 4 and 5. The last argument changes first.

    Raises:
        UsageError: no value stands between two commas, a value is given twice, or there are more than 4,096
            combinations.
    """
    lists = []
    many = 1
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"an argument is written name=value, got {pair!r}")
        with of_field(f"arguments.{name.strip()}"):
            values = values_of(name, text)
        many *= len(values)
        if many > MOST:
            raise UsageError(f"these are more than {MOST:,} combinations of arguments: give fewer values")
        lists.append([f"{name}={value}" for value in values])
    return list(product(*lists))


def values_of(name: str, text: str) -> list[str]:
    """The values of one argument, as texts.

    Raises:
        UsageError: as :func:`combinations`.
    """
    values: list[str] = []
    for part in _parts(text):
        if not part and text:
            raise UsageError(f"argument {name}={text}: a value is missing before or behind a comma")
        values += _counted(name, part) if _RANGE.fullmatch(part) else [_unquoted(part)]
    if len(set(values)) < len(values):
        twice = next(each for each in values if values.count(each) > 1)
        raise UsageError(f"argument {name}={text}: {twice} is given twice")
    return values


def _counted(name: str, text: str) -> list[str]:
    first, last = map(int, text.split(".."))
    if last < first:
        raise UsageError(f"argument {name}={text}: a range counts up")
    if last - first >= MOST:
        raise UsageError(f"argument {name}={text}: these are more than {MOST:,} values")
    return list(map(str, range(first, last + 1)))


def _parts(text: str) -> list[str]:
    """What stands between the commas that are in no brackets and no quotes."""
    parts, part, depth, quote = [], "", 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in _QUOTES and not part.strip():
            quote = letter
        elif letter in _OPENS:
            depth += 1
        elif letter in _CLOSES:
            depth -= 1
        if letter == "," and not quote and depth <= 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return [*parts, part.strip()]


def _unquoted(part: str) -> str:
    return part[1:-1] if len(part) > 1 and part[0] in _QUOTES and part[0] == part[-1] else part
