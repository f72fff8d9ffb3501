"""``skyward-tui history`` and ``failures``: every past run, and how it went."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from skyward_core.front.line_search import FoundInLogs, LogSearch
from skyward_core.front.past_runs import PastRun, RunSearch
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError

from ..words import clip, count, duration, money, one_line
from .console import Console
from .reach import note_silent, opened
from .report import GLYPHS, table

SHOWN = 100  # unless all are asked for
PATIENCE = 30.0  # seconds for which logs are looked through, the same


def history(
    words: Sequence[str],
    console: Console,
    *,
    failed: bool,
    since: float,
    everything: bool,
    in_logs: bool = False,
) -> int:
    """Runs that have all of some words, newest first.

    Args:
        since: Unix time.
        everything: show more than the newest hundred, and look through all logs however long that takes.
        in_logs: look for words in what they printed and gave, too.
    """
    search = RunSearch(tuple(words), failed, since)
    looked: LogSearch | None = None
    lines: dict[str, FoundInLogs] = {}
    with opened(console) as session:
        note_silent(session, console)
        if in_logs:
            those = session.past_runs(RunSearch((), failed, since)).result()
            looked = session.search_logs(those, words)
            lines = _look(looked, None if everything else PATIENCE)
            found = [run for run in those if search.wants(run) or run.run in lines]
        else:
            found = session.past_runs(search).result()
    shown = found if everything else found[:SHOWN]
    now = time.time()
    if console.as_json:
        runs = [asdict(run) | {"seconds": run.seconds(now)} | _of_logs(looked, lines, run) for run in shown]
        told = {"logs": _told(looked)} if looked is not None else {}
        console.result({"runs": runs, "found": len(found), **told})
        return exit_status.OK
    if looked is not None and looked.looked < looked.runs:
        of = f"{looked.looked:,} of {count(looked.runs, 'run')}"
        console.note(f"the logs of {of} were looked through in {PATIENCE:g} s: --all looks through all")
    if looked is not None and looked.unread:
        console.note(f"the logs of {count(looked.unread, 'run')} could not be read")
    if not found:
        console.say("no run is like that" if words or failed else "there has been no run in that time")
        return exit_status.OK
    _show(shown, now, console, lines)
    if len(shown) < len(found):
        console.note(f"{count(len(found) - len(shown), 'older run')} more: --all shows them")
    return exit_status.OK


def failures(console: Console, *, dismiss: Sequence[str], dismiss_all: bool) -> int:
    """Failures of late that nobody has dismissed; some of them, by their ids, or all are dismissed first.

    Raises:
        UsageError: there is no such failure.
    """
    with opened(console) as session:
        note_silent(session, console)
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


def _look(search: LogSearch, patience: float | None) -> dict[str, FoundInLogs]:
    """Look through logs until all have been, or for so many seconds."""
    found: dict[str, FoundInLogs] = {}
    end = None if patience is None else time.monotonic() + patience
    while not search.done and (end is None or time.monotonic() < end):
        found |= search.step()
    return found


def _told(looked: LogSearch) -> dict[str, int]:
    """How far logs were looked through."""
    return {"runs": looked.runs, "looked_through": looked.looked, "unread": looked.unread}


def _of_logs(looked: LogSearch | None, lines: Mapping[str, FoundInLogs], run: PastRun) -> dict[str, Any]:
    """What was found in a run's log, where somebody looked."""
    if looked is None:
        return {}
    return {"in_log": asdict(lines[run.run]) if run.run in lines else None}


def _show(
    shown: Sequence[PastRun], now: float, console: Console, found: Mapping[str, FoundInLogs] | None = None
) -> None:
    heads = ("when", "run", "pool", "function", "outcome", "took", "cost", "arguments, or what failed")
    lines = table([heads, *(_row(run, now) for run in shown)])
    for line, run in zip(lines, [None, *shown], strict=True):
        codes = (1,) if run is None else (31,) if run.has_failed else ()
        console.say(clip(line, console.width), *codes)
        if run is not None and found and run.run in found:
            console.say(clip(f"    {found[run.run].note}", console.width))


def _row(run: PastRun, now: float) -> tuple[str, ...]:
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.opened_at))
    state = f"{GLYPHS.get(_OUTCOMES.get(run.state, ''), '●' if run.ended_at is None else '◌')} {run.state}"
    cost = "$?" if run.dollars is None else money(run.dollars) if run.dollars else ""
    function = run.function or "(no run)"
    note = " · ".join(filter(None, (one_line(run.note), run.figures_note)))
    return at, run.run, run.pool, function, state, duration(run.seconds(now)), cost, note


_OUTCOMES = {"done": "returned", "failed": "raised", "lost": "lost", "cancelled": "collateral"}
