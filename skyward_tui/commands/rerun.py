"""``skyward-tui rerun``: launch a run again, as it was or with other arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.front.history import PoolRow, RunRow
from skyward_core.front.launch_plan import python_of
from skyward_core.front.launch_request import LaunchRequest
from skyward_core.front.launches import KeptLaunch, ScriptState, any_kept, diff_of
from skyward_core.front.session import Session
from skyward_core.front.trials import TrialSheet, gangs_of, going_on, missing_of
from skyward_core.model import exit_status
from skyward_core.model.errors import UsageError

from ..words import count
from .console import Console
from .reach import fetched, meant, opened, recorded
from .run import have_terminal
from .run import run as launch

if TYPE_CHECKING:
    from skyward_core.front.kept_commands import KeptCommand, KeptShell
    from skyward_core.front.kept_jobs import KeptJob

Given = dict[str, dict[str, str | None]]  # values of variables, by the option that they are of


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
    env: Mapping[str, str | None] | None = None,
    secrets: Mapping[str, str | None] | None = None,
) -> int:
    """Launch a run again, in the folder in which it was launched, and give the new run's exit status.

    It goes to its pool where that is up, else to a new one that is made as that one was.

    Args:
        arguments: texts ``name=value``, in place of those of these names.
        script_args: a whole script's own words, in place of what it had; none for the same.
        pool: one that is up, to run on in place of its own.
        missing: run of a sweep what has no result.
        env, secrets: of a job, variables in place of those that are kept, or of those that are not.
    """
    if watch:
        have_terminal(console, detach=detach)
    if missing and (arguments or script_args):
        raise UsageError("--missing goes on with the same arguments: leave other ones out")
    with ExitStack() as held:
        with opened(console) as session:
            row, sheet = meant(session, run), None
            if missing:
                asked = row
                row = held.enter_context(going_on(session.ledger, row, partial(_look, session)))
                if row.run != asked.run:
                    console.note(f"run {row.run} went on with what was missing of run {asked.run}")
                sheet = _left(session, row, console)
                if not sheet.tasks:
                    console.note(
                        f"nothing is missing of run {row.run}: all {len(sheet.rows):,} combinations have results"
                    )
                    console.result({"run": row.run, "missing": 0})
                    return exit_status.OK
            launched = any_kept(session.ledger, row)
            before = session.ledger.pool(row.token)
            diff = diff_of(session.ledger, row)
        if not isinstance(launched, KeptLaunch):
            from skyward_core.front.kept_commands import KeptCommand

            if arguments or script_args:
                raise UsageError(f"run {row.run} is of {launched.label}: give its variables by --env")
            place = _place(row, before, pool, joined=launched.joined)
            launched.check()
            given = {"--env": dict(env or {}), "--secret": dict(secrets or {})}
            how = {"detach": detach, "dry_run": dry_run, "watch": watch}
            if isinstance(launched, KeptCommand):
                return _command(launched, place or "", console, given, **how)
            return _job(launched, place, console, given, **how)
        if env or secrets:
            raise UsageError(
                f"run {row.run} was of a script, and --env and --secret are of job files and commands: leave them out"
            )
        found = launched.changed_by(arguments, script_args or None)
        place = _place(row, before, pool, joined=found.joined)
        request = found.request if place is None else found.request.on_pool(place)
        _enter(found.cwd, console, _said(found.request))
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
        had = row.run, python_of(before.spec)
        return launch(request, console, dry_run=dry_run, watch=watch, missing=sheet, before=had)


def _look(session: Session, pool: str) -> None:
    """What the nodes of a pool hold is written down."""
    session.attach(pool).result()
    session.leave(pool).result()


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


def _place(row: RunRow, before: PoolRow, pool: str | None, *, joined: bool) -> str | None:
    """The pool that a run goes to again; None for a new one.

    Args:
        before: its own.
        pool: the one that the person names.
        joined: whether its own was up before it.
    """
    if pool is not None or before.ended_at is None:
        return pool or before.name
    if joined:
        raise UsageError(
            f"run {row.run} went to pool {before.name}, which was up already and is not any more: name one that is "
            "with --pool, or run again the run that made it"
        )
    return None


def _command(
    found: KeptCommand, pool: str, console: Console, given: Given, *, detach: bool, dry_run: bool, watch: bool
) -> int:
    """Run a command again, on a pool that is up."""
    from skyward_core.front.shell_tasks import values_here

    from .execute import execute

    _need_no_plan(dry_run)
    console.note(f"exec {pool} {found.command_line}")
    _complete(found, console, given)
    env, secrets = found.values(given["--env"], given["--secret"])
    return execute(
        pool,
        found.words,
        console,
        env=values_here("--env", env),
        secrets=values_here("--secret", secrets),
        detach=detach,
        nodes=found.nodes,
        watch=watch,
    )


def _job(
    found: KeptJob,
    pool: str | None,
    console: Console,
    given: Given,
    *,
    detach: bool,
    dry_run: bool,
    watch: bool,
) -> int:
    """Run a job again as it was kept: all of it, whichever of its steps was named.

    Args:
        pool: one that is up; None for a new one.
    """
    from skyward_core.front.job_request import JobRequest

    from .execute import execute
    from .job import launch as launch_job

    what = "exec" if found.run_alone else "launch"
    _enter(found.cwd, console, f"{what} {found.path}" + ("" if found.setup else " --no-setup"))
    if not found.is_unchanged:
        console.note(f"{found.path} is not what it was: this runs what was kept of it")
    _complete(found, console, given)
    job = found.job(given["--env"], given["--secret"])
    if found.run_alone:
        _need_no_plan(dry_run)
        return execute(pool or "", (), console, job=job, env={}, secrets={}, detach=detach, watch=watch)
    request = found.again(job, None) if pool is None else JobRequest(job=job, pool=pool)
    return launch_job(
        request,
        console,
        setup=found.setup,
        detach=detach,
        down=found.down and pool is None,
        dry_run=dry_run,
        watch=watch,
    )


def _need_no_plan(dry_run: bool) -> None:
    if dry_run:
        raise UsageError("--dry-run tells what a launch would make, and exec makes nothing: leave it out")


def _complete(found: KeptShell, console: Console, given: Given) -> None:
    """Have what it lacks typed, where there is somebody to do so; what is this shell's is told."""
    for name, option in found.lacking(given["--env"], given["--secret"]).items():
        if not (sys.stdin.isatty() and console.is_terminal):
            break  # it says which, and how to give it
        given[option][name] = console.ask_secret(f"{name} of {found.label}, which is not kept")
    for name in (*found.lacks_env, *found.lacks_secrets):
        if name in os.environ and not any(name in each for each in given.values()):
            console.note(f"{name} is this shell's: no value of a secret is kept")


def _enter(folder: Path, console: Console, what: str) -> None:
    """Go to the folder from which the launch's paths are seen."""
    try:
        os.chdir(folder)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"it was launched in {folder}, which cannot be entered: {why}") from error
    console.note(f"in {folder}: {what}")


def _said(request: LaunchRequest) -> str:
    try:
        return request.command_line("skyward-tui", "run")
    except UsageError:  # a file's name that only the app's form can say
        return request.script
