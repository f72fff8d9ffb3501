"""``skyward-tui queue``: who has a pool's nodes, and who waits for some."""

from __future__ import annotations

import time

from skyward_core.model import exit_status

from ..queue_rows import queue_of
from ..queue_words import as_json, numbers, reason
from ..words import clip, count, duration
from .console import Console
from .reach import opened, up
from .report import table


def queue(pool: str, console: Console) -> int:
    """Runs of a pool that have not ended, those that have nodes first."""
    with opened(console) as session:
        (row,) = up(session, (pool,))
        view = session.look(row.key).result()
        rows, now = queue_of(view), time.time()
    if console.as_json:
        console.result(
            {"pool": view.name, "nodes": len(view.nodes), "runs": [as_json(each, now) for each in rows]}
        )
        return exit_status.OK
    if not rows:
        console.say(f"nothing runs or waits on pool {view.name} ({count(len(view.nodes), 'node')})")
        return exit_status.OK
    told = [("run", "name", "state", "nodes", "for", "")]
    for each in rows:
        state = "◌ waiting" if each.waits else "● running"
        nodes = numbers(each.nodes) if each.nodes else "-"
        told.append(
            (each.run, each.name, state, nodes, duration(max(0.0, now - each.since)), reason(each, now))
        )
    for line in table(told):
        console.say(clip(line, console.width))
    if waiting := next((each.run for each in rows if each.waits), ""):
        console.note(f"skyward-tui cancel {waiting} takes a waiting run out")
    return exit_status.OK
