"""Two results beside each other, in words and as lines."""

from __future__ import annotations

from collections.abc import Sequence

from skyward_core.model.errors import UsageError
from skyward_core.views.agreement import Difference
from skyward_core.views.views import RunView, TaskView
from skyward_core.wire.safe_text import field

from .words import clip, count, number, one_line, table

WIDE = 60  # characters of a value


def two_of(run: RunView, said: str) -> tuple[TaskView, TaskView]:
    """Two ranks of a run, or tasks, as a person names them: ``0,3``.

    Raises:
        UsageError: these are no two of them.
    """
    words = [word.strip().lstrip("r#") for word in said.replace(" ", ",").split(",") if word.strip()]
    found = [run.tasks.get(int(word)) for word in words if word.isdecimal() and len(word) < 10]
    if len(words) != 2 or len(found) != 2 or found[0] is None or found[1] is None or found[0] is found[1]:
        what = "ranks" if run.kind == "broadcast" else "tasks"
        raise UsageError(
            f"name two {what} of {run.total:,}, counted from 0, such as 0,1: not {field(said)!r}"
        )
    return found[0], found[1]


def difference_table(names: Sequence[str], found: Sequence[Difference], equal: int) -> list[str]:
    """The differences as lines, with how many things are equal."""
    same = f"{count(equal, 'value')} equal" if equal else "nothing is equal"
    if not found:
        return [f"{names[0]} and {names[1]} are the same: {same}"]
    rows = [("where", *names, "by")]
    for each in found:
        by = "" if each.by is None else number(each.by)
        rows.append((field(each.at) or "value", _short(each.left), _short(each.right), by))
    return [
        *table(rows),
        f"{count(len(found), 'value')} differ, {same}" if len(found) > 1 else f"1 value differs, {same}",
    ]


def _short(text: str) -> str:
    return clip(one_line(text), WIDE)
