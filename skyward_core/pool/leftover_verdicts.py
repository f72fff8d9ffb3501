"""Verdicts on resources in cloud accounts, from the ledger: in use, expired or left over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from skyward_core import providers
from skyward_core.model.errors import SkywardError, UsageError, error_message
from skyward_core.model.leftovers import Inventory, Leftover
from skyward_core.model.provider_capability_protocols import ListsResources
from skyward_core.pool.unrecorded_machines_and_gone_pools import is_starting
from skyward_core.providers.provider_call_logs_polling_and_cache import ProviderTimeout, log_query
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.util.light_dataclass import Value, value
from skyward_core.views import group_pairs

# Verdicts on a resource: its pool is up ("up"); the pool's client exited during the start ("unfinished"); the pool
# should have ended, but no agent has ended it ("expired"); the ledger has no running pool for the resource ("left").
Verdict = Literal["up", "unfinished", "expired", "left"]

INVENTORY_TIMEOUT = 10.0  # seconds to list the resources of all cloud accounts after a teardown
_MAX_NAMED = 5  # maximum number of resource ids that a note lists


@value
class JudgedLeftover(Value):
    """Cloud resource, and the verdict whether it is in use, expired or left over.

    Attributes:
        thing: The resource.
        verdict: The verdict.
        account: Index of the account that contains the resource.
        pool: Key of the pool; "" if the ledger does not know the pool, for example because another laptop created it.
    """

    thing: Leftover
    verdict: Verdict
    account: int
    pool: str = ""


def judge(thing: Leftover, row: PoolRow | None, account: int) -> JudgedLeftover:
    """Decide by its pool's ledger row and its tags whether a cloud resource is in use, expired or left over."""
    if row is None or row.ended_at is not None:
        return JudgedLeftover(thing, "left", account, "" if row is None else row.key)
    if not thing.is_machine:
        return JudgedLeftover(thing, "up", account, row.key)
    if row.state == "starting" and not is_starting(row):
        return JudgedLeftover(thing, "unfinished", account, row.key)
    is_expired = thing.expires is not None and thing.expires < time.time()
    return JudgedLeftover(thing, "expired" if is_expired else "up", account, row.key)


def pool_of(thing: Leftover, ledger: Ledger) -> PoolRow | None:
    """Return the row of the pool that a resource was created for."""
    return ledger.find_pool(f"{thing.pool}.{thing.token}")


def sweepable_provider(name: str) -> Any:
    """Return a provider's class if the provider can list the resources of its accounts."""
    try:
        found = providers.provider_class(name)
    except UsageError:
        return None  # the provider's package is not installed, which the pool screens report
    return found if isinstance(found, ListsResources) else None


def _restore_provider(kind: Any, row: dict[str, Any]) -> Any:
    try:
        return kind.from_json(row)
    except (SkywardError, TypeError):
        return None  # another release of this library saved this provider in a format that this release cannot read


def accounts_of(rows: Iterable[dict[str, Any]], named: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> list[Any]:
    """Return the distinct cloud accounts that the given providers use.

    Args:
        rows: Providers as saved in the ledger.
        named: Further account descriptions, by name of their provider.
    """
    used = group_pairs((data["provider"], data) for data in rows)
    found: list[Any] = []
    for name in dict.fromkeys((*named, *used)):
        if (kind := sweepable_provider(name)) is not None:
            again = [_restore_provider(kind, row) for row in used.get(name, ())]
            found += kind.accounts([*(each for each in again if each is not None), *named.get(name, ())])
    return found


async def leftover_notes(row: PoolRow, ledger: Ledger) -> list[str]:
    """List leftovers of this or other pools in the accounts of an ended pool, as notes for the receipt.

    Changes nothing and takes at most ``INVENTORY_TIMEOUT`` seconds. Unreachable accounts are listed, too.
    """
    accounts = await asyncio.to_thread(accounts_of, providers.provider_parts(row.provider))
    if not accounts:
        return []
    inventories = await asyncio.gather(*(list_inventory(each, row.name, INVENTORY_TIMEOUT) for each in accounts))
    found = [
        judge(thing, pool_of(thing, ledger), 0) for inventory in inventories for thing in inventory.things if thing.ours
    ]
    notes = [_describe_leftovers([each for each in found if each.verdict != "up"])]
    unknown = {place: reason for each in inventories for place, reason in each.unknown.items()}
    if unknown:
        unchecked = "; ".join(f"{place} ({reason})" for place, reason in unknown.items())
        notes.append(f"not checked for other leftovers: {unchecked}")
    return list(filter(None, notes))


async def list_inventory(account: Any, subject: str, seconds: float, *, everywhere: bool = False) -> Inventory:
    """Return the inventory of an account; if the request fails, an inventory with the error.

    Args:
        subject: Name of the pool, for the log.
        seconds: Time limit.
        everywhere: Whether to search all places, not only those that the account's pools have used.
    """
    try:
        async with asyncio.timeout(seconds):
            found: Inventory = await log_query("inventory", subject, account.inventory(everywhere=everywhere))
    except (ProviderTimeout, TimeoutError):
        return Inventory((), {account.name: f"no answer within {seconds:g} s"})
    except (SkywardError, OSError) as error:
        return Inventory((), {account.name: error_message(error)})
    return found


def pools_text(found: Iterable[JudgedLeftover]) -> str:
    """Return the words for the pools of leftovers: "ended pools", or "ended or unfinished pools"."""
    return "ended or unfinished pools" if any(each.verdict == "unfinished" for each in found) else "ended pools"


def _describe_leftovers(found: list[JudgedLeftover]) -> str:
    if not found:
        return ""
    prices = [each.thing.hourly for each in found if each.thing.is_machine]
    total = sum(filter(None, prices))
    price = " ($?/h)" if None in prices else f" (${total:,.2f}/h)" if total else ""
    others = len(found) - len(prices)
    parts = [f"{len(prices)} machine{'s' * (len(prices) != 1)}{price}"] if prices else []
    parts += [f"{others} other resource{'s' * (others != 1)}"] if others else []
    first = sorted(found, key=lambda each: not each.thing.is_machine)[:_MAX_NAMED]
    ids = ", ".join(f"{each.thing.id} in {each.thing.place}" for each in first)
    more = ", …" if len(found) > _MAX_NAMED else ""
    is_are = "is" if len(found) == 1 else "are"
    fix = "Remove with: skyward-tui leftovers"
    return f"{' and '.join(parts)} of {pools_text(found)} {is_are} left over ({ids}{more}). {fix}"
