"""Reconciliation of the ledger with the provider's machines.

A client can be killed before it writes to the ledger. This module records machines that are missing in the ledger, and
closes pools that have ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.provider_capability_protocols import FindsMachines, StopsRuns, hourly_price
from skyward_core.model.specs import Interpreter
from skyward_core.providers.provider import Provider
from skyward_core.providers.provider_call_logs_polling_and_cache import log_query
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, RetainedResults, is_process_alive
from skyward_core.store.pool_folder import last_event_at, read_events
from skyward_core.store.receipts_and_bills import Receipt, make_bills
from skyward_core.store.state_folder import pool_path
from skyward_core.views.events import UnfetchedNews


def with_python(machine: Machine, row: PoolRow) -> Machine:
    """Return a machine that also states the pool's Python, for clients that attach with another Python."""
    python = row.spec.get("interpreter")
    if not python:
        return machine
    return replace(machine, extra=machine.extra | {"loaded_with": Interpreter.from_json(python).for_hosts})


async def save_unknown_machines(name: str, token: str, provider: Provider, ledger: Ledger) -> list[Machine]:
    """Add machines that are missing in the ledger.

    Args:
        name: Name of the pool.
        token: Token of the pool.
        provider: Provider that lists the machines.
        ledger: Ledger to add the machines to.

    Returns:
        The machines that were added.

    Raises:
        PoolError: If the provider cannot list the machines now.
        LedgerError: If the ledger cannot be written.
    """
    return await asyncio.to_thread(record_missing, token, await find_machines(name, token, provider), ledger)


async def find_machines(name: str, token: str, provider: Provider) -> list[Machine]:
    """Return the machines that a provider created for a pool; empty if the provider cannot search.

    Raises:
        PoolError: If the provider cannot list the machines now.
    """
    return await log_query("find", name, provider.find(name, token)) if isinstance(provider, FindsMachines) else []


def record_missing(token: str, machines: Sequence[Machine], ledger: Ledger) -> list[Machine]:
    """Add machines of a pool to the ledger, unless it lists them. Return the machines that were added.

    Raises:
        LedgerError: If the ledger cannot be written.
    """
    known = {each.id for each in (*ledger.machines(token), *ledger.replaced_machines(token))}
    new = [with_python(each, ledger.pool(token)) for each in machines if each.id not in known]
    if new:
        ledger.record_discovered(token, new)
    return new


async def close_if_gone(row: PoolRow, provider: Provider, ledger: Ledger) -> Receipt | None:
    """Close a pool in the ledger if its provider reports that nothing of the pool remains.

    Returns:
        The receipt, with the nodes' final reports as notes. None if resources remain or are being created.
    """
    if is_starting(row):
        return None
    await save_unknown_machines(row.name, row.token, provider, ledger)
    machines = ledger.machines(row.token)
    if any(each.is_owner_alive for each in ledger.replacements(row.token)):
        # A replacement in progress is not visible at the provider before its agent runs, so the pool counts as running.
        return None
    machines += ledger.replaced_machines(row.token)
    seen = await log_query("describe", row.name, provider.describe(row.name, machines))
    if any(machine.state != "gone" for machine in seen):
        return None
    notes = {f"node {machine.node}: {reason}" for machine in seen if (reason := machine.extra.get("why"))}
    # Another client may have closed this pool in the meantime, and a new pool may already have the same name.
    closed = ledger.pool(row.token).ended_at is not None
    if not closed:
        await log_query("teardown", row.name, provider.teardown(row.name))
    gone = tuple(sorted(machine.node for machine in seen))
    retained = list(filter(None, (RetainedResults.from_machine(row.token, machine) for machine in seen)))
    runs = await asyncio.to_thread(_unfetched_runs, row, ledger) if isinstance(provider, StopsRuns) else []
    lost = [f"unfetched results of run {run}" for run in runs]
    receipt = Receipt(
        row.name,
        len(machines),
        gone,
        (),
        0.0,
        tuple(sorted(notes)),
        retained=tuple(map(str, ledger.select_wanted(retained))),
        lost=tuple(lost),
        bills=make_bills(
            row, machines, {each.id: each.extra.get("ended", time.time()) for each in seen}, hourly_price(provider)
        ),
        machines=tuple(each.id for each in machines),
    )
    if not closed:
        ledger.record_teardown(row.token, receipt, retained, await asyncio.to_thread(_end_time, row, seen, ledger))
    return receipt


def _end_time(row: PoolRow, gone: Sequence[Machine], ledger: Ledger) -> float:
    """Return the Unix time of an end that no client observed.

    Uses the time that the machines or the provider report, or else the time of the last known event.
    """
    known = [float(each.extra["ended"]) for each in gone if "ended" in each.extra]
    if len(known) < len(gone) and (last := last_event_at(pool_path(row.key))) is not None:
        known.append(last)
    for run in ledger.runs(row.token):
        known += [run.opened_at, run.ended_at or run.opened_at]
    return min(max([row.created_at, *known]), time.time())


def _unfetched_runs(row: PoolRow, ledger: Ledger) -> list[str]:
    """Return the runs that were running, or had unfetched results, at the last recorded event."""
    waiting: dict[str, int] = {}
    folder = pool_path(row.key)
    for event in read_events(folder) if (folder / "events.jsonl").exists() else ():
        if isinstance(event, UnfetchedNews):
            waiting = event.runs
    return [each.run for each in ledger.runs(row.token) if each.state == "running" or each.run in waiting]


def is_starting(row: PoolRow) -> bool:
    """Check whether another process is starting the pool. Its machines may have no agent yet and seem to have ended."""
    options = row.spec.get("options", {})
    patience = float(options.get("start_timeout", 0.0)) + float(options.get("wait_for_capacity", 0.0))
    # After this time, assume that another process has got the process id of the client that started the pool.
    is_late = time.time() > row.created_at + patience
    return row.state == "starting" and is_process_alive(row.pid or 0) and not is_late


def describe_end(receipt: Receipt) -> str:
    """Describe the end of a pool that this client did not observe."""
    reason = "; ".join(sorted({note.partition(": ")[2] for note in receipt.notes})) or "no resources remain"
    reason += f"; lost: {'; '.join(receipt.lost)}" if receipt.lost else ""
    return f"{reason}; not fetched: {'; '.join(receipt.retained)}" if receipt.retained else reason
