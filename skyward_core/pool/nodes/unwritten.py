"""Machines that a provider has and the ledger has not: who made them died, or was stopped, before writing it down."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ...model.capabilities import Finds
from ...model.interpreter import Interpreter
from ...model.machine import Machine
from ...providers.base import Provider
from ...providers.told import answered
from ...store.ledger import Ledger
from ...store.ledger_rows import PoolRow


def with_python(machine: Machine, row: PoolRow) -> Machine:
    """A machine as it is written down: with its pool's Python, for who comes to it later with another."""
    python = row.spec.get("interpreter")
    if not python:
        return machine
    return replace(machine, extra=machine.extra | {"loaded_with": Interpreter.from_json(python).for_hosts})


async def write_down(name: str, token: str, provider: Provider, ledger: Ledger) -> list[Machine]:
    """Have the ledger know all machines of a pool; gives those that it did not know.

    Args:
        name: the pool's.
        token: the pool's.

    Raises:
        PoolError: the provider cannot tell now. There may be some all the same.
        LedgerError: they cannot be written down.
    """
    if not isinstance(provider, Finds):
        return []
    found = await answered("find", name, provider.find(name, token))
    known = {each.id for each in (*ledger.machines(token), *ledger.former(token))}
    new = [with_python(each, ledger.pool(token)) for each in found if each.id not in known]
    if new:
        await asyncio.to_thread(ledger.found, token, new)
    return new
