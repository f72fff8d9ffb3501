"""Machines that a provider has and the ledger has not: who made them died, or was stopped, before writing it down."""

from __future__ import annotations

import asyncio

from ...model.capabilities import Finds
from ...model.machine import Machine
from ...providers.base import Provider
from ...providers.told import answered
from ...store.ledger import Ledger
from .machine_python import with_python


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
