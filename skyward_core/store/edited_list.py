"""A list of texts in a statement of a TOML file, with one item more, less or otherwise: comments and lines stay."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

# A text of one line, a comment, or a mark: what is between the brackets of a list of texts. Texts of several lines have
# three quotation marks, which no rule here takes.
_TOKEN = re.compile(
    r"""(?P<item>"(?!"")(?:[^"\\\n]|\\.)*"|'(?!'')[^'\n]*')|(?P<comment>\#[^\n]*)|(?P<mark>[\[\],])|(?P<gap>\s+)"""
)


def changed_list(
    statement: str, old: Sequence[str], new: Sequence[str], write: Callable[[str], str]
) -> str | None:
    """The statement ``name = [...]`` with another list; None where that has to be written anew.

    Args:
        statement: as it stands, with its comments.
        old, new: what it holds, and shall hold.
        write: gives an item as TOML.
    """
    spans = _items(statement)
    if spans is None or len(spans) != len(old):
        return None
    if len(new) == len(old):
        edits = [(*spans[at], write(item)) for at, item in enumerate(new) if item != old[at]]
    elif len(new) == len(old) - 1 and (gone := _gone(old, new)) is not None:
        edits = [(*_with_surroundings(statement, spans, gone), "")]
    elif len(new) == len(old) + 1 and list(new[:-1]) == list(old) and spans:
        edits = [_behind(statement, spans, write(new[-1]))]
    else:
        return None
    for begin, end, text in reversed(edits):
        statement = statement[:begin] + text + statement[end:]
    try:
        told: Any = tomllib.loads(statement)
    except ValueError:
        return None
    return statement if list(told.values()) == [list(new)] else None


def _items(statement: str) -> list[tuple[int, int]] | None:
    """Where each item stands; None where the statement holds something else than a list of plain texts."""
    start = re.match(r"""\s*(?:"[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)\s*=\s*(?=\[)""", statement)
    if start is None:
        return None
    at, found, depth = start.end(), list[tuple[int, int]](), 0
    while at < len(statement):
        token = _TOKEN.match(statement, at)
        if token is None:
            return None
        if token["item"]:
            found.append(token.span())
        depth += {"[": 1, "]": -1}.get(token["mark"] or "", 0)
        if depth == 0 or depth > 1:
            return found if depth == 0 else None
        at = token.end()
    return None


def _gone(old: Sequence[str], new: Sequence[str]) -> int | None:
    return next((at for at in range(len(old)) if [*old[:at], *old[at + 1 :]] == list(new)), None)


def _with_surroundings(statement: str, spans: Sequence[tuple[int, int]], at: int) -> tuple[int, int]:
    """What goes with an item: its comma, and where it has a line to itself all of that."""
    begin, end = spans[at]
    line = statement.rfind("\n", 0, begin) + 1
    behind = re.compile(r"[ \t]*,?[ \t]*(?:\#[^\n]*)?(?:\n|$)").match(statement, end)
    if behind is not None and not statement[line:begin].strip():
        return line, behind.end()
    comma = re.compile(r"\s*,[ \t]*").match(statement, end)
    if at + 1 < len(spans) and comma is not None:
        return begin, comma.end()
    before = re.search(r",[ \t]*$", statement[:begin])
    return (before.start() if before is not None else begin), end


def _behind(statement: str, spans: Sequence[tuple[int, int]], text: str) -> tuple[int, int, str]:
    """Where one more stands, and what is written there."""
    begin, end = spans[-1]
    line = statement.rfind("\n", 0, begin) + 1
    indent = statement[line:begin]
    behind = re.compile(r"(?P<comma>[ \t]*,)?(?P<rest>[ \t]*(?:\#[^\n]*)?\r?\n)").match(statement, end)
    if indent.strip() or behind is None or not line:
        return end, end, f", {text}"
    comma = behind["comma"] or ""
    return end, behind.end(), f"{comma or ','}{behind['rest']}{indent}{text}{',' if comma else ''}\n"
