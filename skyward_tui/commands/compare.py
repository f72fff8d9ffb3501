"""``skyward-tui compare``: two runs side by side."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.cells import cell_len

from skyward_core.front.comparing import ComparedRow, Comparison
from skyward_core.model import exit_status

from ..as_json import run_json
from ..compared import ComparedLine, lines_of
from ..words import clip, fit
from .console import Console
from .reach import fetched, meant, opened
from .report import note_of

LEAST = 12  # cells of a side, however narrow the terminal


def compare(left: str, right: str, console: Console) -> int:
    """What two runs have in common, and what not; each by its id or its pool's name, see :func:`.reach.meant`."""
    with opened(console) as session:
        runs = [fetched(session, meant(session, word), console).run for word in (left, right)]
        found = session.compare(*runs).result()
    now = time.time()
    if console.as_json:
        console.result(_object(found, now))
        return exit_status.OK
    _show(list(lines_of(found, now, note_of)), console)
    return exit_status.OK


def _show(lines: list[ComparedLine], console: Console) -> None:
    names = max(cell_len(line.name) for line in lines if not line.is_heading)
    sides = max(cell_len(line.left) for line in lines)
    if console.width < sys.maxsize:
        sides = min(sides, max(LEAST, (console.width - names - 8) // 2))
    for line in lines:
        if line.is_heading:
            console.say(f"\n{line.name}", 1)
            continue
        mark = "≠" if line.differs and line.name else " "
        text = f"{fit(line.name, names)} {mark} {fit(line.left, sides)}  {line.right}".rstrip()
        console.say(clip(text, console.width), *((33,) if mark == "≠" else () if line.name else (1,)))


def _object(found: Comparison, now: float) -> dict[str, Any]:
    def told(rows: list[ComparedRow]) -> dict[str, Any]:
        return {row.name: {"left": row.left, "right": row.right, "differs": row.differs} for row in rows}

    numbers = [
        ComparedRow(row.name, *(None if gist is None else gist._asdict() for gist in (row.left, row.right)))
        for row in found.numbers()
    ]
    return {
        "runs": [found.left.past.run, found.right.past.run],
        "facts": told(found.facts(now)),
        "arguments": told(found.arguments()),
        "numbers": told(numbers),
        "results": [run_json(each.view) for each in (found.left, found.right)],
    }
