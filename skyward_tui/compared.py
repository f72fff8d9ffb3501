"""Two runs side by side, as rows of texts: for the command line and the app alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from skyward_core.front.comparing import ComparedRow, Comparison

from .words import duration, money, number, one_line


class ComparedLine(NamedTuple):
    """A row of the comparison; of a heading both sides are empty."""

    name: str
    left: str = ""
    right: str = ""
    differs: bool = False
    is_heading: bool = False


def lines_of(found: Comparison, now: float, note: Callable[[Any], str]) -> Iterator[ComparedLine]:
    """All of them, in their parts.

    Args:
        note: what a task gave or died of, in a line.
    """
    yield ComparedLine("", found.left.past.run, found.right.past.run)
    for row in found.facts(now):
        if row.left or row.right:
            yield _line(row, _FACTS.get(row.name, str))
    parts: list[tuple[str, list[ComparedRow], Callable[[Any], str]]] = [
        ("arguments", found.arguments(), str),
        ("numbers: last, least … greatest", found.numbers(), _gist),
        ("results", found.aggregates(), _statistics),
        (
            "results by rank" if found.left.view.kind == "broadcast" else "results by task",
            found.results(),
            note,
        ),
    ]
    for heading, rows, text in parts:
        if rows:
            yield ComparedLine(heading, is_heading=True)
            yield from (_line(row, text) for row in rows)


def _line(row: ComparedRow, text: Callable[[Any], str]) -> ComparedLine:
    left, right = ("–" if value is None else one_line(text(value)) for value in (row.left, row.right))
    return ComparedLine(row.name, left, right, left != right)


def _gist(gist: tuple[float | None, float | None, float | None]) -> str:
    last, least, most = ("–" if each is None else number(each) for each in gist)
    return f"{last}, {least} … {most}"


def _statistics(row: Mapping[str, float]) -> str:
    return f"{number(row['mean'])} ± {number(row['std'])}, {number(row['min'])} … {number(row['max'])}"


def _files(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown}, …" if len(names) > 3 else shown or "–"


_FACTS: Mapping[str, Callable[[Any], str]] = {
    "text": lambda source: f"{source:.10}" or "–",
    "commit": lambda commit: f"{commit:.10}" or "–",
    "changed": _files,
    **dict.fromkeys(("plugins", "parameters", "image"), lambda names: ", ".join(names) or "–"),
    "began": lambda at: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)),
    "took": duration,
    "cost": money,
}
