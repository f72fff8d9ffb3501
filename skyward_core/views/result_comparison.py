"""Comparison of results: between the ranks of a run, and between two results.

Finds values on which few ranks disagree with the majority, and the differences between two results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from skyward_core.model.outcomes_states_and_alerts import Summary
from skyward_core.views.pool_view import RunView

MIN_RANKS = 3  # minimum number of ranks for one of them to be reported as different
MAX_DIFFERENCES = 1000  # maximum number of reported differences between two results
MAX_DISAGREEMENTS = 20  # maximum number of reported disagreements between ranks
_MISSING = "(none)"
_NO_VALUE = object()


class Disagreement(NamedTuple):
    """A value of the results on which most ranks agree, and the ranks that disagree.

    Attributes:
        name: Key of the results; "value" if they are not dictionaries.
        usual: Value of most ranks, as text.
        ranks: Ranks with other values, and their values.
    """

    name: str
    usual: str
    ranks: Mapping[int, str]


class Difference(NamedTuple):
    """A difference between two results.

    Attributes:
        at: Place, such as ``loss`` or ``steps[3].lr``; "" for the whole result.
        left, right: The values as text.
        by: Numeric difference. None for other values.
    """

    at: str
    left: str
    right: str
    by: float | None = None


def find_disagreements(run: RunView) -> list[Disagreement]:
    """Return the numbers and arrays in results on which most ranks of a broadcast agree, while other ranks differ.

    Ranks may return different values on purpose, so values without a majority are ignored. Strings, flags and None are
    also ignored: a host name, for example, differs without being an error.
    """
    if run.kind != "broadcast":
        return []
    given = {out.rank: out.summary for out in run.outcomes() if out.kind == "returned" and out.summary}
    if len(given) < MIN_RANKS:
        return []
    parts = {rank: _values_by_name(summary) for rank, summary in given.items()}
    found = []
    for name in dict.fromkeys(name for each in parts.values() for name in each):
        texts = {rank: _comparison_key(each.get(name, _NO_VALUE)) for rank, each in parts.items()}
        if any(text == "" for text in texts.values()):
            continue
        (usual, many), *others = Counter(texts.values()).most_common()
        if others and 2 * many > len(texts) and usual != _MISSING:
            odd = {rank: str(text) for rank, text in sorted(texts.items()) if text != usual}
            found.append(Disagreement(name, str(usual), odd))
    return found[:MAX_DISAGREEMENTS]


def _values_by_name(summary: Summary) -> Mapping[str, Any]:
    """Return a result's values by name. If the values were not sent to the client, return text summaries of arrays."""
    value = _summary_value(summary)
    return value if isinstance(value, dict) else {"value": value}


class _ValueText(str):
    """Text summary of a value that was not sent to the client."""

    __slots__ = ()


def _comparison_key(value: Any) -> str:
    """Return a text by which values are compared: equal for equal values, and "" for values that are not compared."""
    if value is _NO_VALUE:
        return _MISSING
    if isinstance(value, _ValueText):
        return str(value) if _is_array(value) or _is_number(value) else ""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return ""
    return json.dumps(value, sort_keys=True)


def _is_array(text: str) -> bool:
    head, mark, content = text.rpartition(" #")
    return bool(head and mark) and len(content) == 8


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def compare_results(left: Summary | None, right: Summary | None) -> tuple[list[Difference], int]:
    """Compare two results.

    Values that were not sent to the client are compared by text summaries with type, shape and content hash of arrays.

    Returns:
        At most 1,000 differences, and the number of equal values.
    """
    one, other = (_summary_value(summary) for summary in (left, right))
    found: list[Difference] = []
    equal = 0
    for difference in _compare_values("", one, other):
        if difference is None:
            equal += 1
        elif len(found) < MAX_DIFFERENCES:
            found.append(difference)
    return found, equal


def _summary_value(summary: Summary | None) -> Any:
    if summary is None:
        return _NO_VALUE
    if summary.is_json:
        return summary.json
    if isinstance(summary.json, dict):
        return {name: _ValueText(text) for name, text in summary.json.items()}
    return _ValueText(summary.text)


def _compare_values(at: str, left: Any, right: Any) -> Iterator[Difference | None]:
    """Yield for each number, text or other leaf of two JSON values their difference; None if they are equal."""
    if isinstance(left, dict) and isinstance(right, dict) and (left or right):
        for name in dict.fromkeys([*left, *right]):
            place = f"{at}.{name}" if at else name
            yield from _compare_values(place, left.get(name, _NO_VALUE), right.get(name, _NO_VALUE))
    elif isinstance(left, list) and isinstance(right, list) and (left or right):
        for number in range(max(len(left), len(right))):
            pair = (each[number] if number < len(each) else _NO_VALUE for each in (left, right))
            yield from _compare_values(f"{at}[{number}]", *pair)
    elif type(left) is type(right) and left == right:
        yield None
    else:
        yield Difference(at, _text(left), _text(right), _numeric_difference(left, right))


def _numeric_difference(left: Any, right: Any) -> float | None:
    numbers = [each for each in (left, right) if isinstance(each, int | float) and not isinstance(each, bool)]
    try:
        return float(right - left) if len(numbers) == 2 else None
    except OverflowError:
        return None


def _text(value: Any) -> str:
    if value is _NO_VALUE:
        return _MISSING
    return str(value) if isinstance(value, str) else json.dumps(value)
