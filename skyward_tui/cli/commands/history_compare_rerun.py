"""``skyward-tui history``, ``failures``, ``compare`` and ``rerun``: past runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len

from skyward_core.client.launch.job_launch import JobRequest, parse_variables, resolve_variables
from skyward_core.client.launch.launch_plan import pool_interpreter
from skyward_core.client.launch.launch_records import LaunchRecord, diff_path, load_any_record
from skyward_core.client.launch.launch_request import LaunchRequest
from skyward_core.client.launch.script_state import ScriptState
from skyward_core.client.run_comparison import ComparedRow, Comparison
from skyward_core.client.run_history import LineMatch, LogSearch, PastRun, PoolRow, RunRow, RunSearch
from skyward_core.client.session import Session
from skyward_core.client.sweep_results import TrialSheet, gang_runs, missing_trials, resume_sweep
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_tui.cli.commands.run import run as launch
from skyward_tui.cli.console import Console
from skyward_tui.cli.pool_and_run_lookup import (
    fetch_run,
    find_run,
    note_unreachable,
    open_session,
    resolve_run,
)
from skyward_tui.cli.run_report import GLYPHS, outcome_note, table
from skyward_tui.cli.shared_options import command, parse_time, variable_options, watch_option
from skyward_tui.text.json_output import run_json
from skyward_tui.text.number_and_time_format import clip, count, duration, fit_width, money, one_line
from skyward_tui.text.queue_sweep_comparison_rows import ComparedLine, comparison_lines

if TYPE_CHECKING:
    from skyward_core.client.launch.job_records import CommandRecord, JobRecord, ShellRecord


SHOWN = 100  # unless all are asked for
PATIENCE = 30.0  # seconds for which logs are looked through, the same


@command()
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--failed", is_flag=True, help="Only what failed or was lost.")
@click.option("--since", metavar="TIME", help='How far back: "12h", "7d", "4w".  [default: all]')
@click.option("--in-logs", is_flag=True, help="Look for the words in what runs printed and gave, too.")
@click.option("--all", "everything", is_flag=True, help="Also what is older than the newest hundred.")
def history(
    console: Console, words: Sequence[str], failed: bool, since: str | None, in_logs: bool, everything: bool
) -> int:
    """List every past run: outcome, duration, cost.

    Each WORD has to be in it: in its id, its pool, its function, its script, its arguments, its outcome or its error.
    Pools that had no run are listed, too. With --in-logs, words that are in none of these may stand together in a line
    that a rank printed, in a result, or in what a rank failed by, as far as that is kept on this machine; the newest
    runs come first, and after 30 seconds it tells what it has, unless --all is given.
    """
    if in_logs and not words:
        raise click.UsageError("--in-logs looks for words: give one")
    began = 0.0 if since is None else parse_time("--since", since)
    search = RunSearch(words, failed, began)
    looked: LogSearch | None = None
    lines: dict[str, LineMatch] = {}
    with open_session(console) as session:
        note_unreachable(session, console)
        if in_logs:
            those = session.past_runs(RunSearch((), failed, began)).result()
            looked = session.search_logs(those, words)
            lines = _search_logs(looked, None if everything else PATIENCE)
            found = [run for run in those if search.matches(run) or run.run in lines]
        else:
            found = session.past_runs(search).result()
    shown = found if everything else found[:SHOWN]
    now = time.time()
    if console.as_json:
        runs: list[dict[str, Any]] = [asdict(run) | {"seconds": run.seconds(now)} for run in shown]
        told: dict[str, Any] = {"runs": runs, "found": len(found)}
        if looked is not None:
            told["logs"] = {"runs": looked.runs, "looked_through": looked.searched, "unread": looked.unread}
            for row in runs:
                row["in_log"] = asdict(lines[row["run"]]) if row["run"] in lines else None
        console.result(told)
        return errors.OK
    if looked is not None and looked.searched < looked.runs:
        of = f"{looked.searched:,} of {count(looked.runs, 'run')}"
        console.note(f"the logs of {of} were looked through in {PATIENCE:g} s: --all looks through all")
    if looked is not None and looked.unread:
        console.note(f"the logs of {count(looked.unread, 'run')} could not be read")
    if not found:
        console.print_line("no run is like that" if words or failed else "there has been no run in that time")
        return errors.OK
    _show(shown, now, console, lines)
    if len(shown) < len(found):
        console.note(f"{count(len(found) - len(shown), 'older run')} more: --all shows them")
    return errors.OK


@command()
@click.option("--dismiss", metavar="RUN", multiple=True, help="Tell of this one no more; repeatable.")
@click.option("--dismiss-all", is_flag=True, help="Tell of none of these any more.")
def failures(console: Console, dismiss: Sequence[str], dismiss_all: bool) -> int:
    """List failures of late that nobody has dismissed.

    Of all pools, of the last 30 days.
    """
    if dismiss and dismiss_all:
        raise click.UsageError("name the failures to dismiss, or give --dismiss-all")
    with open_session(console) as session:
        note_unreachable(session, console)
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
        console.print_line("no failures")
    else:
        _show(found, now, console)
    return errors.OK


def _search_logs(search: LogSearch, patience: float | None) -> dict[str, LineMatch]:
    """Look through logs until all have been, or for so many seconds."""
    found: dict[str, LineMatch] = {}
    end = None if patience is None else time.monotonic() + patience
    while not search.done and (end is None or time.monotonic() < end):
        found |= search.step()
    return found


def _show(shown: Sequence[PastRun], now: float, console: Console, found: Mapping[str, LineMatch] | None = None) -> None:
    heads = ("when", "run", "pool", "function", "outcome", "took", "cost", "arguments, or what failed")
    lines = table([heads, *(_row(run, now) for run in shown)])
    for line, run in zip(lines, [None, *shown], strict=True):
        codes = (1,) if run is None else (31,) if run.has_failed else ()
        console.print_line(clip(line, console.width), *codes)
        if run is not None and found and run.run in found:
            console.print_line(clip(f"    {found[run.run].note}", console.width))


def _row(run: PastRun, now: float) -> tuple[str, ...]:
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.opened_at))
    state = f"{GLYPHS.get(_OUTCOMES.get(run.state, ''), '●' if run.ended_at is None else '◌')} {run.state}"
    cost = "$?" if run.dollars is None else money(run.dollars) if run.dollars else ""
    function = run.function or "(no run)"
    note = " · ".join(filter(None, (one_line(run.note), run.figures_note)))
    return at, run.run, run.pool, function, state, duration(run.seconds(now)), cost, note


_OUTCOMES = {"done": "returned", "failed": "raised", "lost": "lost", "cancelled": "collateral"}


LEAST = 12  # cells of a side, however narrow the terminal


@command()
@click.argument("left", metavar="RUN")
@click.argument("right", metavar="RUN")
def compare(console: Console, left: str, right: str) -> int:
    """Show two runs side by side.

    What they were launched with, how they went, what they logged and what they gave; what differs is marked.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with open_session(console) as session:
        runs = [fetch_run(session, resolve_run(session, word), console).run for word in (left, right)]
        found = session.compare(*runs).result()
    now = time.time()
    if console.as_json:
        console.result(_run_json(found, now))
        return errors.OK
    _show_comparison(list(comparison_lines(found, now, outcome_note)), console)
    return errors.OK


def _show_comparison(lines: list[ComparedLine], console: Console) -> None:
    names = max(cell_len(line.name) for line in lines if not line.is_heading)
    sides = max(cell_len(line.left) for line in lines)
    if console.width < sys.maxsize:
        sides = min(sides, max(LEAST, (console.width - names - 8) // 2))
    for line in lines:
        if line.is_heading:
            console.print_line(f"\n{line.name}", 1)
            continue
        mark = "≠" if line.differs and line.name else " "
        text = f"{fit_width(line.name, names)} {mark} {fit_width(line.left, sides)}  {line.right}".rstrip()
        console.print_line(clip(text, console.width), *((33,) if mark == "≠" else () if line.name else (1,)))


def _run_json(found: Comparison, now: float) -> dict[str, Any]:
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


Given = dict[str, dict[str, str | None]]  # values of variables, by the option that they are of


@command(context_settings={"allow_interspersed_args": True})
@click.argument("run", metavar="RUN")
@click.argument("script_args", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-a", "--arg", "arguments", metavar="NAME=VALUE", multiple=True, help="Another argument; repeatable.")
@click.option("--pool", metavar="NAME", help="Run on this pool, which is up, and not on its own.")
@click.option("--missing", is_flag=True, help="Of a sweep over arguments: run what has no result yet.")
@variable_options
@click.option("--detach", is_flag=True, help="Leave as soon as the function runs; implies --keep.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run, and what it would cost.")
@watch_option
def rerun(
    console: Console,
    run: str,
    script_args: Sequence[str],
    arguments: Sequence[str],
    pool: str | None,
    missing: bool,
    env: Sequence[str],
    secrets: Sequence[str],
    detach: bool,
    dry_run: bool,
    watch: bool,
) -> int:
    """Launch a run again, as it was, or with other arguments.

    On its pool where that is up, else on a new one made as that one was. What has changed of the script and its git
    commit since is told. A job runs whole, whichever of its steps is named; values of secrets are not kept, and come
    from --secret, this shell, or the terminal.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    given = {"--env": parse_variables("--env", env), "--secret": parse_variables("--secret", secrets)}
    if missing and (arguments or script_args):
        raise UsageError("--missing goes on with the same arguments: leave other ones out")
    with ExitStack() as held:
        with open_session(console) as session:
            row, sheet = resolve_run(session, run), None
            if missing:
                asked = row
                row = held.enter_context(resume_sweep(session.ledger, row, partial(_sync_ledger, session)))
                if row.run != asked.run:
                    console.note(f"run {row.run} went on with what was missing of run {asked.run}")
                sheet = _missing_trials(session, row, console)
                if not sheet.tasks:
                    console.note(
                        f"nothing is missing of run {row.run}: all {len(sheet.rows):,} combinations have results"
                    )
                    console.result({"run": row.run, "missing": 0})
                    return errors.OK
            launched = load_any_record(session.ledger, row)
            before = session.ledger.pool(row.token)
            diff = diff_path(session.ledger, row)
        if not isinstance(launched, LaunchRecord):
            from skyward_core.client.launch.job_records import CommandRecord

            if arguments or script_args:
                raise UsageError(f"run {row.run} is of {launched.label}: give its variables by --env")
            place = _target_pool(row, before, pool, joined=launched.joined)
            launched.check_rerunnable()
            if isinstance(launched, CommandRecord):
                return _rerun_command(launched, place or "", console, given, dry_run, detach=detach, watch=watch)
            return _rerun_job(launched, place, console, given, dry_run, detach=detach, watch=watch)
        if env or secrets:
            raise UsageError(
                f"run {row.run} was of a script, and --env and --secret are of job files and commands: leave them out"
            )
        found = launched.with_arguments(arguments, script_args or None)
        place = _target_pool(row, before, pool, joined=found.joined)
        request = found.request if place is None else found.request.on_pool(place)
        _change_folder(found.cwd, console, _command_text(found.request))
        told = ScriptState.capture(Path(request.script)).changes_since(found.source)
        for said in told:
            console.note(f"run {row.run}: {said}")
        if told and found.source.diff:
            cut = ", of which the end is cut off" if found.source.cut else ""
            console.note(f"run {row.run}: how they differed: {diff}{cut}")
        if sheet is not None:
            console.note(f"{len(sheet.tasks):,} of {count(len(sheet.rows), 'combination')} have no result and are run")
        request = replace(request, detach=detach or request.detach)
        had = row.run, pool_interpreter(before.spec)
        return launch(request, console, dry_run=dry_run, watch=watch, missing=sheet, before=had)


def _sync_ledger(session: Session, pool: str) -> None:
    """What the nodes of a pool hold is written down."""
    session.attach(pool).result()
    session.detach_pool(pool).result()


def _missing_trials(session: Session, row: RunRow, console: Console) -> TrialSheet:
    """What a sweep has no results of, once all that can be had of it is here."""
    row = fetch_run(session, row, console)
    pool = session.ledger.pool(row.token)
    runs, client = gang_runs(session.ledger, row)
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
        session.detach_pool(pool.key).result()  # what has come is written down
    return missing_trials(session.ledger, find_run(session, row.run))


def _target_pool(row: RunRow, before: PoolRow, pool: str | None, *, joined: bool) -> str | None:
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


def _rerun_command(found: CommandRecord, pool: str, console: Console, given: Given, dry_run: bool, **how: bool) -> int:
    """Run a command again, on a pool that is up."""
    from skyward_tui.cli.commands.exec_launch_queue import execute

    _refuse_dry_run(dry_run)
    console.note(f"exec {pool} {found.command_line}")
    _ask_missing_values(found, console, given)
    env, secrets = found.values(given["--env"], given["--secret"])
    env, secrets = resolve_variables("--env", env), resolve_variables("--secret", secrets)
    return execute(pool, found.words, console, job=None, env=env, secrets=secrets, nodes=found.nodes, **how)


def _rerun_job(found: JobRecord, pool: str | None, console: Console, given: Given, dry_run: bool, **how: bool) -> int:
    """Run a job again as it was kept: all of it, whichever of its steps was named.

    Args:
        pool: one that is up; None for a new one.
    """
    from skyward_tui.cli.commands.exec_launch_queue import execute, launch

    what = "exec" if found.run_alone else "launch"
    _change_folder(found.cwd, console, f"{what} {found.path}" + ("" if found.setup else " --no-setup"))
    if not found.is_unchanged:
        console.note(f"{found.path} is not what it was: this runs what was kept of it")
    _ask_missing_values(found, console, given)
    job = found.load_job(given["--env"], given["--secret"])
    if found.run_alone:
        _refuse_dry_run(dry_run)
        return execute(pool or "", (), console, job=job, env={}, secrets={}, **how)
    request = found.to_job_request(job, None) if pool is None else JobRequest.from_options(job, pool=pool)
    down = found.down and pool is None
    return launch(request, console, setup=found.setup, down=down, dry_run=dry_run, **how)


def _refuse_dry_run(dry_run: bool) -> None:
    if dry_run:
        raise UsageError("--dry-run tells what a launch would make, and exec makes nothing: leave it out")


def _ask_missing_values(found: ShellRecord, console: Console, given: Given) -> None:
    """Have what it lacks typed, where there is somebody to do so; what is this shell's is told."""
    for name, option in found.missing_variables(given["--env"], given["--secret"]).items():
        if not (sys.stdin.isatty() and console.is_terminal):
            break  # it says which, and how to give it
        given[option][name] = console.ask_secret(f"{name} of {found.label}, which is not kept")
    for name in (*found.lacks_env, *found.lacks_secrets):
        if name in os.environ and not any(name in each for each in given.values()):
            console.note(f"{name} is this shell's: no value of a secret is kept")


def _change_folder(folder: Path, console: Console, what: str) -> None:
    """Go to the folder from which the launch's paths are seen."""
    try:
        os.chdir(folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"it was launched in {folder}, which cannot be entered: {reason}") from error
    console.note(f"in {folder}: {what}")


def _command_text(request: LaunchRequest) -> str:
    try:
        return request.command_line("skyward-tui", "run")
    except UsageError:  # a file's name that only the app's form can say
        return request.script
