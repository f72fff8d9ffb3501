"""Verdicts on resources in cloud accounts: in use, expired, or left over, by the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from skyward_core import providers
from skyward_core.model.errors import SkywardError, UsageError, error_message
from skyward_core.model.machines import Inventory, Leftover
from skyward_core.model.provider_capabilities import Sweeps
from skyward_core.providers.provider_calls import log_call
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.util.light_dataclass import Value, value

Verdict = Literal["up", "expired", "left"]
"""Of a pool that is up; of one that should have ended and has no agent; of one that the ledger does not have as up."""

INVENTORY_TIMEOUT = 10.0  # seconds in which accounts are looked through after a teardown
_MAX_NAMED = 5  # ids in a note


@value
class JudgedLeftover(Value):
    """One thing, and what is to be made of it.

    Attributes:
        account: index of the account that has it.
        pool: the key of its pool; "" where the ledger knows of none, as after the loss of a laptop.
    """

    thing: Leftover
    verdict: Verdict
    account: int
    pool: str = ""


def judge(thing: Leftover, row: PoolRow | None, account: int) -> JudgedLeftover:
    """A thing, by its pool's row and its own tags."""
    if row is None or row.ended_at is not None:
        return JudgedLeftover(thing, "left", account, "" if row is None else row.key)
    return JudgedLeftover(thing, "expired" if thing.is_machine and thing.is_expired else "up", account, row.key)


def pool_of(thing: Leftover, ledger: Ledger) -> PoolRow | None:
    """The pool that it was made for, as the ledger knows it."""
    return ledger.find_pool(f"{thing.pool}.{thing.token}")


def sweepable_provider(name: str) -> Any:
    """A provider's class, where it has accounts to look through."""
    try:
        found = providers.provider_class(name)
    except UsageError:
        return None  # its package is not here; whoever looks at its pools is told
    return found if isinstance(found, Sweeps) else None


def _restore_provider(kind: Any, row: dict[str, Any]) -> Any:
    """The provider that wrote a row."""
    try:
        return kind.from_json(row)
    except (SkywardError, TypeError):
        return None  # of another version of this library, which knows its accounts by itself


def accounts_of(rows: Iterable[dict[str, Any]], named: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> list[Any]:
    """The accounts of providers, by what they wrote of themselves, and of those that are named, by their names."""
    used: dict[str, list[dict[str, Any]]] = {}
    for data in rows:
        used.setdefault(data["provider"], []).append(data)
    found: list[Any] = []
    for name in dict.fromkeys((*named, *used)):
        if (kind := sweepable_provider(name)) is not None:
            again = [_restore_provider(kind, row) for row in used.get(name, ())]
            found += kind.accounts([*(each for each in again if each is not None), *named.get(name, ())])
    return found


async def leftover_notes(row: PoolRow, ledger: Ledger) -> list[str]:
    """What is left in the accounts of a pool that has ended, of that pool or of others, in words.

    It is one look, which changes nothing and takes :data:`PATIENCE` at most; where it could not tell, that is said.
    """
    accounts = await asyncio.to_thread(accounts_of, providers.provider_parts(row.provider))
    if not accounts:
        return []
    looks = (_list_inventory(row.name, each) for each in accounts)
    inventories = await asyncio.gather(*looks)
    found = [
        judge(thing, pool_of(thing, ledger), 0) for inventory in inventories for thing in inventory.things if thing.ours
    ]
    notes = [_describe_leftovers([each for each in found if each.verdict != "up"])]
    unknown = {place: reason for each in inventories for place, reason in each.unknown.items()}
    if unknown:
        said = "; ".join(f"{place} ({reason})" for place, reason in unknown.items())
        notes.append(f"whether anything else of pools that are over is left there is not known: {said}")
    return list(filter(None, notes))


async def _list_inventory(pool: str, account: Any) -> Inventory:
    try:
        async with asyncio.timeout(INVENTORY_TIMEOUT):
            found: Inventory = await log_call("inventory", pool, account.inventory(everywhere=False))
    except TimeoutError:
        return Inventory((), {account.name: f"no answer within {INVENTORY_TIMEOUT:g} s"})
    except (SkywardError, OSError) as error:
        return Inventory((), {account.name: error_message(error)})
    return found


def _describe_leftovers(found: list[JudgedLeftover]) -> str:
    if not found:
        return ""
    prices = [each.thing.hourly for each in found if each.thing.is_machine]
    total = sum(filter(None, prices))
    price = " ($?/h)" if None in prices else f" (${total:,.2f}/h)" if total else ""
    others = len(found) - len(prices)
    parts = [f"{len(prices)} machine{'s' * (len(prices) != 1)}{price}"] if prices else []
    parts += [f"{others} other thing{'s' * (others != 1)}"] if others else []
    first = sorted(found, key=lambda each: not each.thing.is_machine)[:_MAX_NAMED]
    ids = ", ".join(f"{each.thing.id} in {each.thing.place}" for each in first)
    more = ", …" if len(found) > _MAX_NAMED else ""
    is_are = "is" if len(found) == 1 else "are"
    fix = "the command `leftovers` removes it"
    return f"{' and '.join(parts)} of pools that are over {is_are} still there ({ids}{more}): {fix}"
