"""How runs of a function went before, a line for each: beside a form that is about to run it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from ..theme import look
from ..words import ago, clip, duration, one_line

if TYPE_CHECKING:
    from skyward_core.front.past_runs import PastRun


def earlier(runs: Sequence[PastRun], script: str, function: str) -> list[PastRun]:
    """Those of a script's function, or of the whole script, in the order in which they are given."""
    return [run for run in runs if script and run.script == script and run.function == function]


def rows(runs: Sequence[PastRun], now: float, width: int) -> list[Content]:
    """A line for each."""
    made = []
    for run in runs:
        mark = look(run.state)
        when, lasted = ago(now - run.opened_at), duration(run.seconds(now))
        head = f"{mark.text:<12}", mark.style
        facts = f"{lasted:>8}  {when:>8}  ", "$muted"
        note = clip(one_line(run.note), max(0, width - 30))
        made.append(Content.assemble(head, facts, (note, "$text-error" if run.error else "")))
    return made
