"""What runs gave that a client fetched without being there to use it: from its files, in any script that asks later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...model.errors import PoolError, PoolGone, RunError, UsageError
from ...model.hint import Hint
from ...model.outcome import ErrorInfo, Outcome, RootCause
from ...pool.pool import Pool, write_down
from ...pool.runs.results import caused, describe, load, place_of, unloadable
from ...pool.unfetched import fetch, is_here
from ...store.archive import RAISED, Archive
from ...store.ledger import Ledger
from ...store.ledger_rows import PoolRow, RunRow
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
    submit(write_down()).result()
    row = ledger.run(run)
    if row is None:
        raise UsageError(f"no run {run!r} in the ledger", hint=Hint("list-all"))
    pool = ledger.pool(row.token)
    if pool.ended_at is None and not is_here(ledger, run):
        if submit(_is_there(pool, run, ledger)).result():
            raise PoolError(
                f"pool {pool.name} is up: sky.attach({pool.name!r}).wait({run!r}) gives the results"
            )
        pool, row = ledger.pool(row.token), ledger.run(run) or row
    if any(run in kept.runs for kept in ledger.kept(row.token)):
        submit(fetch(pool, ledger)).result()
        row = ledger.run(run) or row
    outcomes = {outcome.index: outcome for outcome, _ in ledger.outcomes(run)}
    files, raised = _files(pool.key, run, outcomes)
    loaded = {i: load(data) for i, data in files.items() if outcomes[i].kind == "returned"}
    returned = {i: value for i, (value, failure) in loaded.items() if failure is None}
    if row.state == "failed" and row.root_cause is not None:
        raise _failure(row, row.root_cause, outcomes, files, raised, returned)
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


async def _is_there(row: PoolRow, run: str, ledger: Ledger) -> bool:
    """Check whether a pool is up and a run goes on there, or its results wait there.

    A pool that has ended is closed in the ledger, and so are runs of one that is up.
    """
    try:
        pool = await Pool.attached(row, ledger, observer=True)
    except PoolGone:
        return False
    try:
        view = pool.view.runs.get(run)
        waits = any(run in link.welcome.get("unfetched", ()) for link in pool.links if link.up)
        return waits or (view is not None and view.state == "running")
    finally:
        await pool.detach()


def _files(key: str, run: str, indices: Iterable[int]) -> tuple[dict[int, bytes], bytes]:
    """Return what the client's files hold of a run: values and exceptions of its calls, and its root cause."""
    archive = Archive(key)
    try:
        paths = {index: archive.results / f"{run}.{index}.pickle" for index in indices}
        raised = archive.results / f"{run}{RAISED}"
        files = {index: path.read_bytes() for index, path in paths.items() if path.exists()}
        return files, raised.read_bytes() if raised.exists() else b""
    finally:
        archive.close()


def _failure(
    row: RunRow,
    cause: RootCause,
    outcomes: Mapping[int, Outcome],
    files: Mapping[int, bytes],
    raised: bytes,
    returned: Mapping[int, Any],
) -> RunError:
    culprit = next((out for out in outcomes.values() if RootCause.of(out) == cause), None)
    if culprit is None:  # a map lost its client, or a node was lost with tasks that nobody can name
        error = ErrorInfo(cause.type, cause.message)
        culprit = Outcome(-1, cause.rank, -1, cause.outcome, error=error, exit_code=cause.exit_code)
        said = f"{row.function} failed: {cause.message}"
    else:
        said = describe(row.function, row.kind, outcomes.values(), culprit)
    failure = RunError(
        said, run=row.run, function=row.function, outcomes=outcomes, root_cause=cause, results=returned
    )
    return caused(failure, culprit, files.get(culprit.index, raised))
