"""``skyward-tui history``, ``failures``, ``compare``, ``rerun`` and ``record``: past runs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len

from skyward_core.client.launch.job_and_shell_launch import JobRequest, parse_variables, resolve_variables
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import pool_interpreter
from skyward_core.client.launch.launch_records_and_script_state import (
    LaunchRecord,
    ScriptState,
    diff_path,
    load_any_record,
)
from skyward_core.client.log_search import LineMatch, LogSearch
from skyward_core.client.replay_session import open_recording
from skyward_core.client.replayable_recording_export import export_recording
from skyward_core.client.run_comparison import ComparedRow, Comparison
from skyward_core.client.run_history import (
    PastRun,
    PoolRow,
    RunRow,
    RunSearch,
    best_runs,
    chosen_columns,
    follow_output,
    metric_value,
)
from skyward_core.client.session import Session
from skyward_core.client.sweep_launch_and_resumption import TrialSheet, gang_runs, missing_trials, resume_sweep
from skyward_core.model import errors
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.util.number_size_and_time_format import format_size
from skyward_tui.cli.commands.launched_and_attached_runs import run as launch
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import current_run, fetch_run, note_unreachable, open_session, resolve_run
from skyward_tui.cli.result_tables_failures_and_receipts import GLYPHS, outcome_note, table
from skyward_tui.cli.shared_options_and_command_class import (
    Duration,
    command,
    repeatable_option,
    variable_options,
    watch_option,
)
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.json_output import run_json
from skyward_tui.text.number_time_and_run_state_format import count, date_time, duration, money, number
from skyward_tui.text.queue_trial_and_comparison_rows import ComparedLine, comparison_lines
from skyward_tui.text.text_width_tables_and_ascii import clip, fit_width, one_line

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_records_and_script_state import CommandRecord, JobRecord, ShellRecord


SHOWN = 100  # maximum number of runs that ``history`` lists without --all
METRIC_COLUMNS, ARGUMENT_COLUMNS = 4, 3  # maximum numbers of columns for metrics and for arguments in the table of runs
RECORDING_SUFFIX = ".skyrec"
PATIENCE = 30.0  # seconds; time limit of a search in logs without --all


@command()
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--failed", is_flag=True, help="List only failed and lost runs.")
@click.option("--since", type=Duration(), help='List only runs of the last "12h", "7d" or "4w".  [default: all]')
@click.option("--in-logs", is_flag=True, help="Also search the logs and results of runs.")
@click.option("--all", "everything", is_flag=True, help="List all runs, not only the newest 100.")
def history(
    console: Console, words: Sequence[str], failed: bool, since: float | None, in_logs: bool, everything: bool
) -> None:
    """List every past run: outcome, duration, metrics, cost.

    With WORDs, list only runs that contain each of them in their id, pool, function, script, arguments, outcome,
    error or note. Put a #TAG in quotes for the shell. Pools without a run are listed, too. With --in-logs, words that
    these fields lack may occur in one line of output, in a result or in an error that is saved on this machine. The
    search begins with the newest runs, and stops after 30 seconds unless --all is given.
    """
    if in_logs and not words:
        raise click.UsageError("--in-logs needs a WORD to search for")
    began = 0.0 if since is None else max(0.0, time.time() - since)
    search = RunSearch(words, failed, began)
    log_search: LogSearch | None = None
    lines: dict[str, LineMatch] = {}
    with open_session(console) as session:
        note_unreachable(session, console)
        if in_logs:
            candidates = session.past_runs(RunSearch((), failed, began)).result()
            log_search = session.search_logs(candidates, words)
            lines = _search_logs(log_search, None if everything else PATIENCE)
            found = [run for run in candidates if search.matches(run) or run.run in lines]
        else:
            found = session.past_runs(search).result()
    shown = found if everything else found[:SHOWN]
    now = time.time()
    if console.as_json:
        runs = [_run_json_row(run, now) for run in shown]
        result: dict[str, Any] = {"runs": runs, "found": len(found)}
        if log_search is not None:
            counts = {"runs": log_search.runs, "looked_through": log_search.searched, "unread": log_search.unread}
            result["logs"] = counts
            for row in runs:
                row["in_log"] = asdict(lines[row["run"]]) if row["run"] in lines else None
        console.result(result)
        return
    if log_search is not None and log_search.searched < log_search.runs:
        progress = f"{log_search.searched:,} of {count(log_search.runs, 'run')}"
        console.note(f"searched the logs of {progress} in {PATIENCE:g} s. Search all with --all")
    if log_search is not None and log_search.unread:
        console.note(f"the logs of {count(log_search.unread, 'run')} could not be read")
    if not found:
        console.print_line("no matching runs" if words or failed else "no runs in that time")
        return
    _show(shown, now, console, lines)
    if len(shown) < len(found):
        console.note(f"{count(len(found) - len(shown), 'older run')} not shown. Show all with --all")


@command()
@repeatable_option(
    "--dismiss", metavar="RUN|POOL", help="Dismiss the failure of this run, or the failed start of this pool."
)
@click.option("--dismiss-all", is_flag=True, help="Dismiss all listed failures.")
def failures(console: Console, dismiss: Sequence[str], dismiss_all: bool) -> None:
    """List recent failures of runs and pool starts, until dismissed."""
    if dismiss and dismiss_all:
        raise click.UsageError("--dismiss cannot be combined with --dismiss-all. Remove one of them")
    with open_session(console) as session:
        note_unreachable(session, console)
        found = session.failures().result()
        known = [run.run or run.pool for run in found]
        dismiss = [name if name in known else resolve_run(session, name).run for name in dismiss]
        if unknown := [name for name in dismiss if name not in known]:
            raise UsageError(f"no undismissed failure of {unknown[0]}. List them with: skyward-tui failures")
        dismissed = [run.id for run, name in zip(found, known, strict=True) if dismiss_all or name in dismiss]
        if dismissed:
            session.dismiss(dismissed).result()
            console.note(f"dismissed {count(len(dismissed), 'failure')}; skyward-tui history --failed lists all")
            found = session.failures().result()
    now = time.time()
    if console.as_json:
        console.result({"runs": [_run_json_row(run, now) for run in found]})
    elif not found:
        console.print_line("no failures")
    else:
        _show(found, now, console)


def _search_logs(search: LogSearch, patience: float | None) -> dict[str, LineMatch]:
    """Search logs until all are searched, or until ``patience`` seconds have passed."""
    found: dict[str, LineMatch] = {}
    end = None if patience is None else time.monotonic() + patience
    while not search.done and (end is None or time.monotonic() < end):
        found |= search.step()
    return found


def _show(shown: Sequence[PastRun], now: float, console: Console, found: Mapping[str, LineMatch] | None = None) -> None:
    metrics, arguments = chosen_columns(shown)
    metrics, arguments = metrics[:METRIC_COLUMNS], arguments[:ARGUMENT_COLUMNS]
    best = {column: best_runs(shown, column) if column.startswith("best") else () for column in metrics}
    titles = [column.replace(":", " ") for column in metrics] + [column[4:].lstrip("-") for column in arguments]
    heads = ("when", "run", "pool", "function", "outcome", "time", *titles, "cost", "arguments / error")
    lines = table([heads, *(_row(run, now, best, [column[4:] for column in arguments]) for run in shown)])
    for line, run in zip(lines, [None, *shown], strict=True):
        codes = (1,) if run is None else (31,) if run.has_failed else ()
        console.print_line(clip(line, console.width), *codes)
        if run is not None and found and run.run in found:
            console.print_line(clip(f"    {found[run.run].note}", console.width))


def _row(run: PastRun, now: float, best: Mapping[str, Collection[str]], names: Sequence[str]) -> tuple[str, ...]:
    at = date_time(run.opened_at)
    state = f"{GLYPHS.get(_OUTCOMES.get(run.state, ''), '●' if run.ended_at is None else '◌')} {run.state}"
    cost = "$?" if run.dollars is None else money(run.dollars) if run.dollars else ""
    values = {column: metric_value(run, column) for column in best}
    marks = {column: " ★" if run.run in found else "" for column, found in best.items()}
    metrics = ["" if value is None else f"{number(value)}{marks[column]}" for column, value in values.items()]
    given = run.named_arguments()
    note = " · ".join(filter(None, (one_line(run.note_without(names)), run.figures_note)))
    return (
        at, run.run, run.pool, run.function or "(no run)", state, duration(run.seconds(now)), *metrics,
        *(one_line(given.get(name, "")) for name in names), cost, note,
    )  # fmt: skip


def _run_json_row(run: PastRun, now: float) -> dict[str, Any]:
    metrics = {
        name: {"last": each.last, "min": each.least, "max": each.most, "best": each.best(name)}
        for name, each in run.metrics.items()
    }
    return asdict(run) | {"seconds": run.seconds(now), "metrics": metrics, "tags": run.tags}


@command()
@click.argument("run")
@click.argument("text", required=False)
def note(console: Console, run: str, text: str | None) -> None:
    """Show or replace the note of a run. Words that begin with # are tags, and "" deletes the note.

    `history '#TAG'` lists the runs with a tag.
    """
    with open_session(console) as session:
        row = resolve_run(session, run)
        if text is not None:
            session.set_note(row.run, text).result()
        (found,) = (each for each in session.past_runs(RunSearch((row.run,))).result() if each.run == row.run)
    if not console.as_json:
        console.print_line(found.user_note or "no note")
    console.result({"run": found.run, "note": found.user_note, "tags": found.tags})


_OUTCOMES = {"done": "returned", "failed": "raised", "lost": "lost", "cancelled": "collateral"}


_DIFF_COLOURS = {"+": (32,), "-": (31,), "@": (36,)}  # by the first character of a line of a diff
LEAST = 12  # minimum width in cells of each of the two compared runs, if the terminal is narrow


@command()
@click.argument("left", metavar="RUN")
@click.argument("right", metavar="RUN")
@click.option("--diff", is_flag=True, help="Print only the unified diff of the texts of both scripts.")
def compare(console: Console, left: str, right: str, diff: bool) -> None:
    """Show two runs side by side.

    Shows how the runs were launched, their outcomes, metrics and results. Differences are marked.

    RUN is the id of a run or the name of a pool (its running run, else its last), or a unique prefix.
    """
    with open_session(console) as session:
        runs = [fetch_run(session, resolve_run(session, word), console).run for word in (left, right)]
        found = session.compare(*runs).result()
    now = time.time()
    if console.as_json:
        return console.result(_run_json(found, now))
    if not diff:
        return _show_comparison(list(comparison_lines(found, now, outcome_note, "--diff shows them")), console)
    if not found.script_diff:
        console.note(found.no_diff_reason)
    for line in found.script_diff:
        console.print_line(line, *_DIFF_COLOURS.get(line[:1], ()))


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
    def sides(rows: list[ComparedRow]) -> dict[str, Any]:
        return {row.name: {"left": row.left, "right": row.right, "differs": row.differs} for row in rows}

    numbers = [
        ComparedRow(row.name, *(None if gist is None else gist._asdict() for gist in (row.left, row.right)))
        for row in found.numbers()
    ]
    rows = {"facts": sides(found.facts(now)), "arguments": sides(found.arguments()), "numbers": sides(numbers)}
    results = [run_json(each.view) for each in (found.left, found.right)]
    runs = [found.left.past.run, found.right.past.run]
    return {"runs": runs, **rows, "results": results, "script_diff": found.script_diff}


# for each of the options --env and --secret: the values by variable name; None for NAME without =VALUE
Given = dict[str, dict[str, str | None]]


@command(context_settings={"allow_interspersed_args": True})
@click.argument("run", metavar="RUN")
@click.argument("script_args", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED)
@repeatable_option("-a", "--arg", "arguments", metavar="NAME=VALUE", help="Change an argument.")
@click.option("--pool", metavar="NAME", help="Run on this running pool instead of the original one.")
@click.option("--missing", is_flag=True, help="Run only the trials of a sweep that have no result.")
@variable_options
@click.option("--detach", is_flag=True, help="Exit as soon as the function runs. Implies --keep.")
@click.option("--dry-run", is_flag=True, help="Show the plan and its cost without creating or running anything.")
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
    """Launch a run again, optionally with other arguments.

    The run uses its pool if that is up, else a new pool of the same settings. A command of exec needs a running pool.
    Changes of the script and its git commit are reported. A job runs with all of its steps. Values of secrets are not
    saved: they come from --secret, this shell, or the terminal.

    RUN is the id of a run or the name of a pool (its running run, else its last), or a unique prefix.
    """
    given = {"--env": parse_variables("--env", env), "--secret": parse_variables("--secret", secrets)}
    if missing and (arguments or script_args):
        raise UsageError("--missing continues with the original arguments. Remove all other arguments")
    with ExitStack() as held:
        with open_session(console) as session:
            row, sheet = resolve_run(session, run), None
            if missing:
                asked = row
                row = held.enter_context(resume_sweep(session.ledger, row, partial(_sync_ledger, session)))
                if row.run != asked.run:
                    console.note(f"run {row.run} has continued the sweep of run {asked.run}")
                sheet = _missing_trials(session, row, console)
                if not sheet.tasks:
                    console.note(f"all {len(sheet.rows):,} combinations of run {row.run} have results")
                    console.result({"run": row.run, "missing": 0})
                    return errors.OK
            launched = load_any_record(session.ledger, row)
            before = session.ledger.pool(row.token)
            diff = diff_path(session.ledger, row)
        if not isinstance(launched, LaunchRecord):
            from skyward_core.client.launch.launch_records_and_script_state import CommandRecord

            if arguments or script_args:
                raise UsageError(f"run {row.run} belongs to {launched.label}. Set its variables with --env")
            place = _target_pool(row, before, pool, joined=launched.joined)
            launched.check_rerunnable()
            if isinstance(launched, CommandRecord):
                return _rerun_command(launched, place or "", console, given, dry_run, detach=detach, watch=watch)
            return _rerun_job(launched, place, console, given, dry_run, detach=detach, watch=watch)
        if env or secrets:
            raise UsageError(
                f"run {row.run} ran a script, but --env and --secret apply only to job files and commands. Remove them"
            )
        found = launched.with_arguments(arguments, script_args or None)
        # ``joined`` is False, because the record of a script includes the settings for a new pool
        place = _target_pool(row, before, pool, joined=False)
        request = found.request if place is None else found.request.on_pool(place)
        _change_folder(found.cwd, console, _command_text(found.request))
        changes = ScriptState.capture(Path(request.script)).changes_since(found.source)
        for change in changes:
            console.note(f"run {row.run}: {change}")
        if changes and found.source.diff:
            cut = " (truncated)" if found.source.cut else ""
            console.note(f"run {row.run}: uncommitted changes at its launch: {diff}{cut}")
        if sheet is not None:
            console.note(f"{len(sheet.tasks):,} of {count(len(sheet.rows), 'combination')} have no result and are run")
        request = replace(request, detach=detach or (request.detach and not watch))
        had = row.run, pool_interpreter(before.spec)
        return launch(request, console, dry_run=dry_run, watch=watch, missing=sheet, before=had)


def _sync_ledger(session: Session, pool: str) -> None:
    """Update the ledger with the state of a pool's nodes."""
    session.attach(pool).result()
    session.detach_pool(pool).result()


def _missing_trials(session: Session, row: RunRow, console: Console) -> TrialSheet:
    """Return the trials of a sweep that have no result, after fetching all available results."""
    row = fetch_run(session, row, console)
    pool = session.ledger.pool(row.token)
    runs, client = gang_runs(session.ledger, row)
    if client:
        raise UsageError(f"the sweep of run {row.run} is still running. Wait for its end")
    active = [each for each in runs if each.state == "running"]
    if active and pool.ended_at is None:
        # If the client of a running run is gone, the ledger may be outdated, so ask the nodes for the run's state.
        views = session.attach(pool.key).result().runs
        for each in active:
            view = views.get(each.run)
            is_running = view is not None and any(task.state == "running" for task in view.tasks.values())
            if each.has_client or is_running:
                raise UsageError(f"run {each.run} is still running. Wait for its end")
        session.detach_pool(pool.key).result()  # detaching also saves the results that the attach has fetched
    return missing_trials(session.ledger, current_run(session, row))


def _target_pool(row: RunRow, before: PoolRow, pool: str | None, *, joined: bool) -> str | None:
    """Return the pool on which to run a past run again; None for a new pool.

    Args:
        row: The original run.
        before: The pool of the original run.
        pool: Pool that the user has named for the new run; None if the user has named no pool.
        joined: Whether the run needs a pool that another launch created.
    """
    if pool is not None or before.ended_at is None:
        return pool or before.name
    if joined:
        raise UsageError(
            f"run {row.run} used pool {before.name}, which another launch created and which has ended. Name a running "
            "pool with --pool, or rerun the run that created the pool"
        )
    return None


def _rerun_command(found: CommandRecord, pool: str, console: Console, given: Given, dry_run: bool, **how: bool) -> int:
    """Run a command of ``exec`` again, on a running pool."""
    from skyward_tui.cli.commands.exec_launch_queue import execute

    _refuse_dry_run(dry_run)
    console.note(f"exec {pool} {found.command_line}")
    _ask_missing_values(found, console, given)
    env, secrets = found.values(given["--env"], given["--secret"])
    env, secrets = resolve_variables("--env", env), resolve_variables("--secret", secrets)
    return execute(pool, found.words, console, job=None, env=env, secrets=secrets, nodes=found.nodes, **how)


def _rerun_job(found: JobRecord, pool: str | None, console: Console, given: Given, dry_run: bool, **how: bool) -> int:
    """Run all steps of a saved job again.

    Args:
        found: The saved job.
        pool: A running pool; None for a new one.
        console: Console for the output.
        given: Variables from the command line.
        dry_run: Whether to show only the plan.
        how: Other options of ``exec`` and ``launch``.
    """
    from skyward_tui.cli.commands.exec_launch_queue import execute, launch

    what = "exec" if found.run_alone else "launch"
    _change_folder(found.cwd, console, f"{what} {found.path}" + ("" if found.setup else " --no-setup"))
    if not found.is_unchanged:
        console.note(f"{found.path} has changed; running the saved version")
    _ask_missing_values(found, console, given)
    job = found.load_job(given["--env"], given["--secret"])
    if found.run_alone:
        _refuse_dry_run(dry_run)
        return execute(pool or "", (), console, job=job, env={}, secrets={}, **how)
    request = found.to_job_request(job) if pool is None else JobRequest.from_options(job, pool=pool)
    return launch(request, console, setup=found.setup, down=found.down and pool is None, dry_run=dry_run, **how)


def _refuse_dry_run(dry_run: bool) -> None:
    if dry_run:
        raise UsageError("--dry-run is not supported here: exec creates nothing. Remove --dry-run")


def _ask_missing_values(found: ShellRecord, console: Console, given: Given) -> None:
    """Ask the user for missing values if there is a terminal. Report values that come from the environment of this
    shell.
    """
    for name in given["--env"].keys() & set(found.lacks_secrets):
        given["--secret"].setdefault(name, given["--env"].pop(name))
    for name, option in found.missing_variables(given["--env"], given["--secret"]).items():
        if not (sys.stdin.isatty() and console.is_terminal):
            break  # no terminal to ask; the code that resolves the variables reports the missing values later
        given[option][name] = console.ask_secret(f"{found.label}: value of {name} (will not be saved)")
    for name in (*found.lacks_env, *found.lacks_secrets):
        if name in os.environ and not any(name in each for each in given.values()):
            console.note(f"{name} is taken from this shell: values of secrets are not saved")


def _change_folder(folder: Path, console: Console, what: str) -> None:
    """Change to the folder of the original launch, because the saved paths are relative to this folder."""
    try:
        os.chdir(folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot enter {folder}, the folder of the original launch: {reason}") from error
    console.note(f"in {folder}: {what}")


def _command_text(request: LaunchRequest) -> str:
    try:
        return request.command_line("skyward-tui", "run")
    except UsageError:  # the file name of the script cannot be written on a command line
        return request.script


@command()
@click.argument("run", metavar="RUN|POOL")
@click.option("-o", "--output", metavar="FILE", help="Write to FILE, which must not exist yet.  [default: NAME.skyrec]")
def record(console: Console, run: str, output: str | None) -> None:
    """Save a recording of a pool or a run to one file.

    Play the recording on any machine with "replay FILE". Known secrets are masked. Check the file before you send it.

    RUN is the id of a run or the name of a pool, or a unique prefix.
    """
    with open_session(console) as session:
        pool, run = _resolve_recording(session, run)
        target = Path(output or f"{run or pool.name}{RECORDING_SUFFIX}")
        if os.path.lexists(target):
            raise UsageError(f"{target} already exists and was not changed. Name another file with -o")
        if pool.ended_at is None:
            _fetch_recording(session, pool, console)
        packed = export_recording(session.ledger, session.ledger.pool(pool.token), run, target)
    what = f"run {run}" if run else f"pool {pool.name}"
    console.print_line(
        f"saved {what} to {target}: {packed.entries:,} events, lines and metrics in {format_size(packed.size)}; "
        f"play it with: skyward-tui replay {target}"
    )
    if packed.left_out:
        console.print_line(f"long logs were shortened in the middle: {format_size(packed.left_out)} omitted")
    console.print_line(
        "Check the file before you send it. Known secrets are masked. The file contains the output of ranks, names of "
        "hosts, users, folders and functions, and error messages."
    )
    about = {"pool": pool.name, "run": run, "bytes": packed.size, "left_out": packed.left_out}
    console.result({"path": str(target)} | about)


def dump(record: Path, console: Console) -> int:
    """Print the entries of a recording in order, each as a line of JSON without control characters.

    Args:
        record: File of the recording.
        console: Console for the output.

    Raises:
        UsageError: If the file is not a recording, or belongs to a newer release.
        OSError: If the file cannot be read.
    """
    found = open_recording(record)
    for entry in found.entries():
        console.print_line(json.dumps(entry))
    if found.is_truncated:
        console.note(f"{record} is truncated: later entries are missing")
    return errors.OK


def _resolve_recording(session: Session, word: str) -> tuple[PoolRow, str]:
    """Return the pool that the user has named, and the ID of the named run; "" instead of the ID means all runs of the
    pool.
    """
    pool = session.ledger.find_pool(word)
    if pool is not None:
        return pool, ""
    row = resolve_run(session, word)
    pool = session.ledger.pool(row.token)
    return pool, row.run if row.run.startswith(word) else ""


def _fetch_recording(session: Session, pool: PoolRow, console: Console) -> None:
    """Fetch the latest events and logs of a running pool. Does nothing if the pool does not answer."""
    try:
        session.observe(pool.key).result()
    except PoolError as error:
        console.note(f"{format_error(error)}; saving the data on this machine")
        return
    for run in session.ledger.runs(pool.token)[-1:]:
        # iterating fetches the output; the iteration ends when everything is fetched
        for _ in follow_output(session.ledger, run.run, None):
            pass
