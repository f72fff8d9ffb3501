"""Sweeps over arguments: launch, table of trials, and resumption of missing trials."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.model.errors import NoTrials, UsageError, convert_errors
from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.pool.runs.gang_sweep import CANNOT_SAVE, GangSweep, begin_sweep
from skyward_core.pool.runs.scheduler import new_run_id
from skyward_core.store import sweep_trial_files
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import RunRow
from skyward_core.tasks.pickled_calls_and_blobs import Task
from skyward_core.views.pool_view import RunView, TaskView
from skyward_core.views.sweep_argument_combinations import TrialSheet as TrialSheet
from skyward_core.views.sweep_trials import TrialTableSource, representative_task

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_option_declarations import LaunchRequest
    from skyward_core.pool.pool import Pool


async def launch_trials(
    pool: Pool, tasks: Sequence[Task], sheet: TrialSheet, request: LaunchRequest, *, joined: bool, is_retained: bool
) -> tuple[str, GangSweep | None]:
    """Start a sweep, either as one run, or by gangs as many runs; see ``Session.launch_sweep``.

    Returns:
        The first run, and for a sweep by gangs, the sweep.
    """
    from skyward_core.client.launch.launch_records_and_script_state import ScriptState, save_launch_record

    # Hash only the script now. The session saves the slower state of its repository after the launch.
    source = ScriptState.from_file(Path(request.script))

    def save(run: str) -> None:
        save_launch_record(pool.row.key, run, request, joined=joined, source=source)

    if sheet.gang:
        sweep = await begin_sweep(pool.context, tasks, sheet, sheet.nodes, keep=save)
        return sweep.begun_ids[0], sweep
    run_id = new_run_id()
    with convert_errors(f"Sweep not started: {CANNOT_SAVE}"):
        await asyncio.to_thread(sweep_trial_files.save_trials, pool.row.key, run_id, sheet)
        await asyncio.to_thread(save, run_id)
    return pool.context.scheduler.open("sweep", tasks, run_id=run_id, is_retained=is_retained).id, None


def trial_table_source(ledger: Ledger, pool: str, run: RunView, known: Mapping[str, RunView]) -> TrialTableSource:
    """Return the data for the table of a sweep. Without a saved sheet, the trials have no arguments.

    Args:
        pool: Key of the pool.
        known: Views of other runs of the pool.

    Raises:
        NoTrials: If the run is not a sweep.
        UsageError: If the saved sheet cannot be read.
        LedgerError: If the ledger cannot be read.
    """
    sheet = _read_sheet(pool, run.id)
    if sheet is None:
        if run.kind != "sweep":
            raise NoTrials(f"run {run.id} of {run.function} is not a sweep over arguments")
        sheet = TrialSheet.new((), [()] * run.total)
    earlier: dict[tuple[str, int], TaskView] = {}
    for before in {*(each for each, _ in sheet.before.values()), *sheet.runs.values()}:
        held, row = known.get(before), ledger.run(before) if sheet.gang else None
        if sheet.gang and (row is None or row.state == "running"):
            continue  # do not use saved outcomes of a run that is still running
        tasks = {outcome.index: _make_task_view(outcome) for outcome, _ in ledger.outcomes(before)}
        if held is not None and len(held.tasks) >= len(tasks):
            tasks = dict(held.tasks)
        if sheet.gang and (stands := representative_task(tasks.values())) is not None:
            tasks = {0: stands}
        earlier |= {(before, index): task for index, task in tasks.items()}
    return TrialTableSource(sheet, earlier)


def missing_trials(ledger: Ledger, row: RunRow) -> TrialSheet:
    """Return a sheet with only those trials of a sweep that have no result; it may be empty.

    Raises:
        UsageError: If the run is not a sweep, or its combinations are no longer saved.
        LedgerError: If the ledger cannot be read.
    """
    key, name, sheet = _load_sheet(ledger, row)
    if sheet.gang:
        found = filter(None, map(ledger.run, sheet.runs.values()))
        missing = sheet.missing_of_gangs({each.run for each in found if each.state == "done"})
    else:
        outcomes = (outcome for outcome, _ in ledger.outcomes(row.run))
        missing = sheet.missing(row.run, {outcome.index for outcome in outcomes if outcome.kind == "returned"})
    return replace(missing, after=(key, name))


def _load_sheet(ledger: Ledger, row: RunRow) -> tuple[str, str, TrialSheet]:
    """Return the key of a sweep's pool, the run under whose ID the combinations are saved, and the combinations."""
    key = ledger.pool(row.token).key
    sheet = _read_sheet(key, row.run)
    if sheet is None:
        raise UsageError(
            f"run {row.run} of {row.function} is not a sweep over arguments, or its combinations are no longer saved. "
            "Run it again without --missing"
        )
    return key, sheet.name if sheet.gang else row.run, sheet


@contextmanager
def resume_sweep(ledger: Ledger, row: RunRow, probe: Callable[[str], None]) -> Iterator[RunRow]:
    """Claim the missing trials of a sweep for this process. Yield the run to resume, which is the latest run that
    resumed the sweep.

    Args:
        probe: Updates the ledger from the nodes of the pool with the given key; may raise.

    Raises:
        UsageError: If another process is resuming the sweep, or the run is not a sweep or cannot be read.
        LedgerError: If the ledger cannot be read.
    """
    with ExitStack() as held:
        while True:
            key, name, _ = _load_sheet(ledger, row)
            held.close()  # release the lock of the previous run before locking the run that resumed it
            try:
                held.enter_context(sweep_trial_files.lock_sweep(key, name))
                place = sweep_trial_files.resumed_by(key, name)
            except sweep_trial_files.SweepLocked as error:
                raise UsageError(f"{error} is already running the missing trials of run {row.run}") from error
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"cannot determine whether another client is resuming run {row.run}: {error}"
                ) from error
            later = None if place is None else _find_started_run(ledger, *place, probe)
            if later is None:
                yield row
                return
            row = later


def _find_started_run(ledger: Ledger, key: str, run: str, probe: Callable[[str], None]) -> RunRow | None:
    """Return the ledger row of a planned run of a sweep if the run has started; otherwise None."""
    pool = ledger.find_pool(key)
    if ledger.run(run) is None and pool is not None and pool.ended_at is None:
        probe(key)  # let the agents report a run whose client died before recording it
    return ledger.run(run)


def gang_runs(ledger: Ledger, row: RunRow) -> tuple[list[RunRow], bool]:
    """Return the started runs of a sweep by gangs, and whether its client may start more runs.

    Args:
        row: Any run of the sweep.

    Raises:
        UsageError: If the saved sheet cannot be read.
        LedgerError: If the ledger cannot be read.
    """
    key = ledger.pool(row.token).key
    sheet = _read_sheet(key, row.run)
    if sheet is None or not sheet.gang:
        return [row], False
    runs = [found for run in sheet.runs.values() if (found := ledger.run(run))]
    return runs, sweep_trial_files.is_sweep_active(key, sheet)


def _read_sheet(pool: str, run: str) -> TrialSheet | None:
    with convert_errors(f"the combinations of run {run} cannot be read", UsageError, (OSError, ValueError)):
        return sweep_trial_files.read_trials(pool, run)


def _make_task_view(outcome: Outcome) -> TaskView:
    return TaskView(outcome.index, outcome.rank, outcome.node, outcome.kind, outcome=outcome)
