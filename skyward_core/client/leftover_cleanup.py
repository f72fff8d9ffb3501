"""Scan of provider accounts for leftovers of pools, and removal of the leftovers.

If an account and the ledger disagree, the account counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from skyward_core import providers
from skyward_core.client.launch.launch_option_declarations import parse_setting
from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_message
from skyward_core.model.provider_settings_schema import make_provider
from skyward_core.pool import leftover_verdicts
from skyward_core.pool.leftover_verdicts import JudgedLeftover as JudgedLeftover
from skyward_core.pool.leftover_verdicts import Verdict as Verdict
from skyward_core.pool.leftover_verdicts import judge, list_inventory, pool_of, pools_text, sweepable_provider
from skyward_core.providers.provider_call_logs_polling_and_cache import QUERY_TIMEOUT, log_call, log_query
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.util.light_dataclass import Value, value

# Verdicts on machines whose pool is still open in the ledger although it should have ended.
OPEN_VERDICTS = ("expired", "unfinished")
LOG_SUBJECT = "a scan of the account"  # text that replaces the name of the pool in log entries about a scan


@value
class LeftoverScan(Value):
    """Result of a scan of accounts for leftovers.

    Attributes:
        accounts: Accounts that were scanned.
        found: Resources that this ledger's pools created, and those of the other ledgers that the scan was to include.
        others: Number of machines and of other resources of all other ledgers, by ledger and owner.
        unknown: Places that could not be scanned, each with the reason.
        is_unconfigured: Whether no place could be scanned because this machine has no settings for the accounts, and no
            pool of the ledger has created anything.
    """

    accounts: Sequence[Any] = ()
    found: Sequence[JudgedLeftover] = ()
    others: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    is_unconfigured: bool = False

    @property
    def removable(self) -> list[JudgedLeftover]:
        """Resources that no pool needs, as far as the scan could determine."""
        return [each for each in self.found if each.verdict != "up"]

    @property
    def pools(self) -> str:
        """Text that names the owners of the removable resources in messages, such as "ended pools"."""
        return pools_text(self.removable)

    def select(self, found: Sequence[JudgedLeftover]) -> LeftoverScan:
        """Return the scan with only some of its resources."""
        return replace(self, found=tuple(found))


def scannable_providers() -> list[str]:
    """Return the providers with accounts to scan."""
    return [name for name in providers.provider_names() if sweepable_provider(name) is not None]


def find_accounts(ledger: Ledger, asked: Mapping[str, Sequence[str]] | None = None) -> list[Any]:
    """Return the accounts that this ledger's pools have used.

    Args:
        asked: Settings ``name=value`` by provider. If given, only these providers are included, and the accounts that
            the settings select are added.

    Raises:
        UsageError: If a provider has no account to scan, or lacks a given setting.
    """
    rows = [each for row in ledger.providers() for each in providers.provider_parts(row)]
    if asked is None:
        return leftover_verdicts.accounts_of(rows)
    named = {}
    for name, settings in asked.items():
        if (kind := sweepable_provider(name)) is None:
            raise UsageError(
                f"provider {name!r} has no account to scan. Providers with one: {', '.join(scannable_providers())}"
            )
        named[name] = [make_provider(kind, dict(map(parse_setting, settings)))]
    # Settings of a provider select one account, so the accounts that pools of this provider used are left out.
    return leftover_verdicts.accounts_of([row for row in rows if not asked.get(row["provider"], True)], named)


async def scan_accounts(
    ledger: Ledger, accounts: Sequence[Any], *, everywhere: bool = False, ledgers: Collection[str] = ()
) -> LeftoverScan:
    """Scan accounts without changing anything.

    Args:
        everywhere: Whether to scan all places, such as regions, instead of only those that pools have used.
        ledgers: Other ledgers whose resources are included.
    """
    found: list[JudgedLeftover] = []
    others: dict[tuple[str, str], tuple[int, int]] = {}
    unknown: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    # Query the accounts concurrently, so that an unresponsive account does not delay the others.
    inventories = await asyncio.gather(
        *(list_inventory(each, LOG_SUBJECT, QUERY_TIMEOUT, everywhere=everywhere) for each in accounts)
    )
    used = {part["provider"] for row in ledger.providers(used=True) for part in providers.provider_parts(row)}
    unreadable = [inventory for inventory in inventories if inventory.unknown]
    is_configured = any(map(sweepable_provider, used)) or any(inventory.is_configured for inventory in unreadable)
    for index, inventory in enumerate(inventories):
        # Accounts may have places of the same name, such as regions, so add the number of the account.
        for place, reason in inventory.unknown.items():
            unknown[f"{place} of account {index + 1}" if place in unknown else place] = reason
        for thing in inventory.things:
            if (thing.what, thing.id) in seen:
                continue
            seen.add((thing.what, thing.id))
            if thing.ours or thing.ledger in ledgers:
                found.append(judge(thing, pool_of(thing, ledger), index))
            else:
                key = thing.ledger, thing.owner
                machines, more = others.get(key, (0, 0))
                others[key] = machines + thing.is_machine, more + (not thing.is_machine)
    judged = tuple(await _mark_live_pools(ledger, found))
    return LeftoverScan(tuple(accounts), judged, others, unknown, bool(unreadable) and not is_configured)


async def _mark_live_pools(ledger: Ledger, found: Sequence[JudgedLeftover]) -> list[JudgedLeftover]:
    """Mark an expired or unfinished pool as up if its agents are alive.

    The recorded expiry date of its machines may be outdated, and another client may have finished its start.
    """
    alive = {}
    for key in {each.pool for each in found if each.verdict in OPEN_VERDICTS}:
        row = ledger.find_pool(key)
        alive[key] = row is not None and await _is_alive(ledger, row)
    return [
        replace(each, verdict="up") if each.verdict in OPEN_VERDICTS and alive[each.pool] else each for each in found
    ]


async def _is_alive(ledger: Ledger, row: PoolRow) -> bool:
    provider = providers.provider_from_json(row.provider)
    try:
        seen = await log_query("describe", row.name, provider.describe(row.name, ledger.machines(row.token)))
    except (SkywardError, OSError):
        return True  # without the provider's answer the pool may be alive, so it must not be torn down
    return any(machine.state in ("running", "orphaned") for machine in seen)


async def remove_leftovers(
    scan: LeftoverScan,
    ledger: Ledger,
    down: Callable[[str], Awaitable[Receipt]],
    report: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Remove the resources that a scan judged removable, check that they are gone, and describe those that remain.

    An expired or unfinished pool is torn down like any other pool, unless one of its agents is alive by now.

    Args:
        down: Tears down the pool with the given key.
        report: Receives the result for each pool.
    """
    remains: list[str] = []
    for key in sorted({each.pool for each in scan.removable if each.verdict in OPEN_VERDICTS}):
        row = ledger.find_pool(key)
        if row is not None and await _is_alive(ledger, row):
            remains.append(
                f"pool {row.name}: its agent is, or may be, alive again. Tear the pool down if you do not need it"
            )
            continue
        try:
            receipt = await down(key)
        except Exception as error:  # noqa: BLE001  the other pools must still be torn down
            remains.append(f"pool {key}: {error_message(error)}")
            continue
        report(f"{key}: {receipt}")
        remains += receipt.unaccounted
    return remains + await _remove_resources(scan)


async def _remove_resources(scan: LeftoverScan) -> list[str]:
    """Remove the resources of ended pools that a teardown did not remove."""
    remains: list[str] = []
    for index, account in enumerate(scan.accounts):
        things = [each.thing for each in scan.removable if each.verdict == "left" and each.account == index]
        if things:
            try:
                remains += await log_call("remove", LOG_SUBJECT, account.remove(things))
            except (PoolError, OSError) as error:
                remains += [f"{each.what} {each.id} ({each.place}): {error_message(error)}" for each in things]
    return remains
