"""Results of ranks beside each other: which differ where nearly all agree, and in what two of them differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from skyward_core.model.outcomes import Summary
from skyward_core.views.pool_view import RunView

MIN_RANKS = 3  # ranks of which one can be said to be odd
MAX_DIFFERENCES = 1000  # differences that are told
MAX_DISAGREEMENTS = 20  # disagreements that are told
_MISSING = "(none)"
_NO_VALUE = object()


class Disagreement(NamedTuple):
    """One value that most ranks have in common.

    Attributes:
        name: a key of the results; "value" where they are no dictionaries.
        usual: what most have, as text.
        ranks: those that have another one, and which.
    """

    name: str
    usual: str
    ranks: Mapping[int, str]


class Difference(NamedTuple):
    """One thing in which two results differ.

    Attributes:
        at: where, as ``loss`` or ``steps[3].lr``; "" for all of it.
        left, right: as texts.
        by: how far apart two numbers are; None for others.
    """

    at: str
    left: str
    right: str
    by: float | None = None


def find_disagreements(run: RunView) -> list[Disagreement]:
    """Numbers and arrays that more than half of a broadcast's ranks have in common, and some have not.

    Ranks may well give different things, so nothing is said where no value is most ranks'. Texts, flags and nothing at
    all are passed over: a host's name, or whether it is rank 0, tells of no mistake.
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
    """A result's values by name; of texts, where the values themselves did not travel, only those of arrays."""
    value = _summary_value(summary)
    return value if isinstance(value, dict) else {"value": value}


class _ValueText(str):
    """A value that did not travel, in few characters."""

    __slots__ = ()


def _comparison_key(value: Any) -> str:
    """A value as text that is the same where it is the same; "" for what is not compared."""
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
    """What differs between two results, at most 1,000 things, and how many are equal. Of values that did not travel
    their texts are compared, of arrays type, shape and content among them."""
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
    """Leaf by leaf: a difference, or None for one that is equal."""
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
