"""Taking a pool down, with proof."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import events as ev
from ..ledger import Receipt

if TYPE_CHECKING:
    from ..providers.base import Machine
    from .lifecycle import Pool
    from .link import Link

GOODBYE = 10.0  # seconds beyond the grace in which an agent must move on with ending
VERIFY = 60.0  # seconds in which the provider must say that machines are gone
SILENCE = 10.0  # the same where none of those that are left can be reached


async def tear_down(pool: Pool) -> Receipt:
    """End a pool: its runs, its workers, its agents, its machines; nothing is called gone before its provider
    says so. What cannot be verified stays in the ledger as not ended."""
    started = time.monotonic()
    pool.emit(ev.PoolState(pool=pool.name, state="stopping"))
    # From now on no client puts a machine in another's place.
    pool.ledger.pool_state(pool.row.token, "stopping")
    for run in list(pool.runs.values()):
        run.cancel("the pool is torn down")
    await pool.replacements.stop()
    machines = [*pool.ledger.machines(pool.row.token), *pool.ledger.former(pool.row.token)]
    notes = [
        note for note in await asyncio.gather(*(_say_goodbye(pool, link) for link in pool.links)) if note
    ]
    left = await _verify(pool, machines)
    if not left:
        await pool.provider.teardown(pool.name)
    receipt = Receipt(
        pool.name,
        len(machines),
        tuple(sorted(machine.node for machine in machines if machine not in left)),
        tuple(m.id for m in left),
        round(time.monotonic() - started, 3),
        tuple(notes),
    )
    for run in list(pool.runs.values()):
        for link in pool.links:
            for index in run.calls_on(link):
                pool.lost_call(run, index)
    pool.catch_up()
    pool.emit(ev.PoolGone(pool=pool.name, receipt=receipt.to_json()))
    pool.records.flush()
    pool.ledger.ended(pool.row.token, receipt)
    await pool.detach()
    return receipt


async def _say_goodbye(pool: Pool, link: Link) -> str:
    """Have an agent end itself, after its last log byte is here."""
    if not link.send({"t": "shutdown"}):
        link.finished = True
        return ""
    deadline = time.monotonic() + pool.spec_options.grace + GOODBYE
    seen = -1
    # Its goodbye is the last that it says; the connection's own end may come late, or not at all, from an SSH server.
    while link.up and not link.finished and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
        here = sum(pool.archive.cursors.values())
        if here != seen:
            # As long as bytes come, it is not stuck: a slow link may need long for a long log.
            seen = here
            deadline = max(deadline, time.monotonic() + GOODBYE)
    link.finished = True
    sizes = link.last_sizes
    missing = sum(size - pool.archive.cursors.get(name, 0) for name, size in (sizes or {}).items())
    if sizes is None:
        return f"node {link.node} ended without saying how long its logs are"
    return f"{missing} bytes of the logs of node {link.node} did not arrive" if missing > 0 else ""


async def _verify(pool: Pool, machines: Sequence[Machine]) -> list[Machine]:
    """Wait until the provider says that machines are gone; gives those of which it does not."""
    left = list(machines)
    deadline = time.monotonic() + VERIFY
    patience = time.monotonic() + SILENCE
    delay = 0.01
    while True:
        seen = await pool.provider.describe(pool.name, left)
        there = {machine.node for machine in seen if machine.state != "gone"}
        for node in {machine.node for machine in left} - there:
            pool.emit(ev.NodePhase(pool=pool.name, node=node, phase="gone", detail="verified"))
        left = [machine for machine, now in zip(left, seen, strict=True) if now.state != "gone"]
        silent = all(machine.state in ("lost", "unreachable") for machine in seen if machine.state != "gone")
        if not left or time.monotonic() > (patience if silent else deadline):
            return left
        if delay > 0.1:  # most end by themselves at once
            await pool.provider.terminate(pool.name, left)
        await asyncio.sleep(delay)
        delay = min(delay * 2, 5.0)
