"""``skyward-tui rerun``: launch a run again, as it was or with other arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skyward_core.front.launch_request import LaunchRequest
from skyward_core.front.launches import KeptLaunch, ScriptState, diff_of, kept
from skyward_core.model.errors import UsageError

from .console import Console
from .reach import meant, opened
from .run import run as launch


def rerun(
    run: str,
    arguments: Sequence[str],
    script_args: Sequence[str],
    pool: str | None,
    console: Console,
    *,
    detach: bool = False,
    dry_run: bool = False,
) -> int:
    """Launch a run again, in the folder in which it was launched, and give the new run's exit status.

    It goes to its pool where that is up, else to a new one that is made as that one was.

    Args:
        arguments: texts ``name=value``, in place of those of these names.
        script_args: a whole script's own words, in place of what it had; none for the same.
        pool: one that is up, to run on in place of its own.
    """
    with opened(console) as session:
        row = meant(session, run)
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
    return launch(replace(request, detach=detach or request.detach), console, dry_run=dry_run)


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
