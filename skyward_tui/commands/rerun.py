"""``skyward-tui rerun``: launch a run again, as it was or with other arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skyward_core.front.history import RunRow
from skyward_core.front.launch_request import LaunchRequest
from skyward_core.front.launches import KeptLaunch, ScriptState, diff_of, kept
from skyward_core.front.session import Session
from skyward_core.front.trials import TrialSheet, gangs_of, missing_of
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError

from ..words import count
from .console import Console
from .reach import fetched, meant, opened, recorded
from .run import have_terminal
from .run import run as launch


def rerun(
    run: str,
    arguments: Sequence[str],
    script_args: Sequence[str],
    pool: str | None,
    console: Console,
    *,
    missing: bool = False,
    detach: bool = False,
    dry_run: bool = False,
    watch: bool = False,
) -> int:
    """Launch a run again, in the folder in which it was launched, and give the new run's exit status.

    It goes to its pool where that is up, else to a new one that is made as that one was.

    Args:
        arguments: texts ``name=value``, in place of those of these names.
        script_args: a whole script's own words, in place of what it had; none for the same.
        pool: one that is up, to run on in place of its own.
        missing: run of a sweep what has no result.
    """
    if watch:
        have_terminal(console, detach=detach)
    if missing and (arguments or script_args):
        raise UsageError("--missing goes on with the same arguments: leave other ones out")
    with opened(console) as session:
        row = meant(session, run)
        sheet = _left(session, row, console) if missing else None
        if sheet is not None and not sheet.tasks:
            console.note(
                f"nothing is missing of run {row.run}: all {len(sheet.rows):,} combinations have results"
            )
            console.result({"run": row.run, "missing": 0})
            return exit_status.OK
        found = kept(session.ledger, row).changed_by(arguments, script_args or None)
        before = session.ledger.pool(row.token)
        diff = diff_of(session.ledger, row)
    if pool is not None:
        request = found.request.on_pool(pool)
    elif before.ended_at is None:
        request = found.request.on_pool(before.name)
    elif found.joined:
        raise UsageError(
            f"run {row.run} went to pool {before.name}, which was up already and is not any more: name one that is "
            "with --pool, or run again the run that made it"
        )
    else:
        request = found.request
    _enter(found, console)
    told = ScriptState.of(Path(request.script)).since(found.source)
    for said in told:
        console.note(f"run {row.run}: {said}")
    if told and found.source.diff:
        cut = ", of which the end is cut off" if found.source.cut else ""
        console.note(f"run {row.run}: how they differed: {diff}{cut}")
    if sheet is not None:
        console.note(
            f"{len(sheet.tasks):,} of {count(len(sheet.rows), 'combination')} have no result and are run"
        )
    request = replace(request, detach=detach or request.detach)
    return launch(request, console, dry_run=dry_run, watch=watch, missing=sheet)


def _left(session: Session, row: RunRow, console: Console) -> TrialSheet:
    """What a sweep has no results of, once all that can be had of it is here."""
    row = fetched(session, row, console)
    pool = session.ledger.pool(row.token)
    runs, client = gangs_of(session.ledger, row)
    if client:
        raise UsageError(f"the sweep of run {row.run} goes on: what is missing of it may still come")
    open_ones = [each for each in runs if each.state == "running"]
    if open_ones and pool.ended_at is None:
        # Its client may be gone: then nobody has told the ledger what the nodes know.
        held = session.attach(pool.key).result().runs
        for each in open_ones:
            view = held.get(each.run)
            under_way = view is not None and any(task.state == "running" for task in view.tasks.values())
            if each.has_client or under_way:
                raise UsageError(f"run {each.run} goes on: what is missing of it may still come")
        session.leave(pool.key).result()  # what has come is written down
    return missing_of(session.ledger, recorded(session, row.run))


def _enter(found: KeptLaunch, console: Console) -> None:
    """Go to the folder from which the launch's paths are seen."""
    try:
        os.chdir(found.cwd)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"it was launched in {found.cwd}, which cannot be entered: {why}") from error
    console.note(f"in {found.cwd}: {_said(found.request)}")


def _said(request: LaunchRequest) -> str:
    try:
        return request.command_line("skyward-tui", "run")
    except UsageError:  # a file's name that only the app's form can say
        return request.script
