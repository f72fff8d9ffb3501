"""``skyward-tui history`` and ``failures``: every past run, and how it went."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from skyward_core.front.past_runs import PastRun, RunSearch
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError

from ..words import clip, count, duration, money, one_line
from .console import Console
from .reach import opened
from .report import GLYPHS, table

SHOWN = 100  # unless all are asked for


def history(words: Sequence[str], console: Console, *, failed: bool, since: float, everything: bool) -> int:
    """Runs that have all of some words, newest first.

    Args:
        since: Unix time.
        everything: show more than the newest hundred.
    """
    with opened(console) as session:
        found = session.past_runs(RunSearch(tuple(words), failed, since)).result()
    shown = found if everything else found[:SHOWN]
    now = time.time()
    if console.as_json:
        runs = [asdict(run) | {"seconds": run.seconds(now)} for run in shown]
        console.result({"runs": runs, "found": len(found)})
        return exit_status.OK
    if not found:
        console.say("no run is like that" if words or failed else "there has been no run in that time")
        return exit_status.OK
    _show(shown, now, console)
    if len(shown) < len(found):
        console.note(f"{count(len(found) - len(shown), 'older run')} more: --all shows them")
    return exit_status.OK


def failures(console: Console, *, dismiss: Sequence[str], dismiss_all: bool) -> int:
    """Failures of late that nobody has dismissed; some of them, by their ids, or all are dismissed first.

    Raises:
        UsageError: there is no such failure.
    """
    with opened(console) as session:
        found = session.failures().result()
        known = [run.run for run in found]
        if strange := [run for run in dismiss if run not in known]:
            raise UsageError(f"no failure to dismiss is called {strange[0]}: skyward-tui failures lists them")
        gone = known if dismiss_all else list(dismiss)
        if gone:
            session.dismiss(gone).result()
            console.note(f"{count(len(gone), 'failure')} dismissed; skyward-tui history --failed shows all")
            found = session.failures().result()
    now = time.time()
    if console.as_json:
        console.result({"runs": [asdict(run) | {"seconds": run.seconds(now)} for run in found]})
    elif not found:
        console.say("no failures")
    else:
        _show(found, now, console)
    return exit_status.OK


def _show(shown: Sequence[PastRun], now: float, console: Console) -> None:
    heads = ("when", "run", "pool", "function", "outcome", "took", "cost", "arguments, or what failed")
    lines = table([heads, *(_row(run, now) for run in shown)])
    for line, run in zip(lines, [None, *shown], strict=True):
        codes = (1,) if run is None else (31,) if run.has_failed else ()
        console.say(clip(line, console.width), *codes)


def _row(run: PastRun, now: float) -> tuple[str, ...]:
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.opened_at))
    state = f"{GLYPHS.get(_OUTCOMES.get(run.state, ''), '●' if run.ended_at is None else '◌')} {run.state}"
    cost = "$?" if run.dollars is None else money(run.dollars) if run.dollars else ""
    function = run.function or "(no run)"
    note = " · ".join(filter(None, (one_line(run.note), run.figures_note)))
    return at, run.run, run.pool, function, state, duration(run.seconds(now)), cost, note


_OUTCOMES = {"done": "returned", "failed": "raised", "lost": "lost", "cancelled": "collateral"}
