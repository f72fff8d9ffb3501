"""What runs gave that a client fetched without being there to use it: from its files, in any script that asks later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...model.errors import PoolError, RunError, UsageError
from ...model.hint import Hint
from ...model.outcome import Outcome, RootCause
from ...pool.runs.results import caused, describe, load, place_of, unloadable
from ...pool.runs.root_cause import is_failure
from ...pool.unfetched import fetch, is_here
from ...store.archive import Archive
from ...store.ledger import Ledger
from ...store.ledger_rows import RunRow
from ...transport.background_loop import submit


def results(run: str) -> list[Any]:
    """What a run gave that was left to itself: values by rank, or by task.

        values = sky.results("3f9c0a1b2c")

    What waits on the hosts of a pool that has ended is fetched first. The values stay in the client's files and can be
    asked for again.

    Args:
        run: its id.

    Raises:
        UsageError: there is no such run.
        RunError: it failed, or a value cannot be loaded here; the others are in its ``results``.
        PoolError: its pool is up and has them (``sky.attach(pool).wait(run)`` gives them), its values were given to the
            client that ran it, or they cannot be fetched now.
    """
    ledger = Ledger()
    row = ledger.run(run)
    if row is None:
        raise UsageError(f"no run {run!r} in the ledger", hint=Hint("list-all"))
    pool = ledger.pool(row.token)
    if pool.ended_at is None and not is_here(ledger, run):
        raise PoolError(f"pool {pool.name} is up: sky.attach({pool.name!r}).wait({run!r}) gives the results")
    if any(run in kept.runs for kept in ledger.kept(row.token)):
        submit(fetch(pool, ledger)).result()
        row = ledger.run(run) or row
    outcomes = {outcome.index: outcome for outcome, _ in ledger.outcomes(run)}
    files = _files(pool.key, run, outcomes)
    loaded = {i: load(data) for i, data in files.items() if outcomes[i].kind == "returned"}
    returned = {i: value for i, (value, failure) in loaded.items() if failure is None}
    if row.state == "failed" and row.root_cause is not None:
        raise _failure(row, row.root_cause, outcomes, files, returned)
    if row.state != "done":
        raise PoolError(f"run {run} of {row.function} did not end well ({row.state}), and gave no results")
    for i, (_, failure) in loaded.items():
        if failure is not None:
            place = f"{place_of(row.kind, outcomes[i])} returned, but"
            about = outcomes[i].rank, place, "its result", failure, returned
            raise unloadable(run, row.function, outcomes, *about) from failure
    if len(returned) < row.total:
        raise PoolError(
            f"the results of run {run} were given to the client that ran it, or removed since",
            hint=Hint("results", run),
        )
    return [returned[index] for index in range(row.total)]


def _files(key: str, run: str, indices: Iterable[int]) -> dict[int, bytes]:
    """What the client's files hold of a run."""
    archive = Archive(key)
    try:
        paths = {index: archive.results / f"{run}.{index}.pickle" for index in indices}
        return {index: path.read_bytes() for index, path in paths.items() if path.exists()}
    finally:
        archive.close()


def _failure(
    row: RunRow,
    cause: RootCause,
    outcomes: Mapping[int, Outcome],
    files: Mapping[int, bytes],
    returned: Mapping[int, Any],
) -> RunError:
    culprit = next(out for out in outcomes.values() if is_failure(out) and RootCause.of(out) == cause)
    said = describe(row.function, row.kind, outcomes.values(), culprit)
    error = RunError(
        said, run=row.run, function=row.function, outcomes=outcomes, root_cause=cause, results=returned
    )
    return caused(error, culprit, files.get(culprit.index))
