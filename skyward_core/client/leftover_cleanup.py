"""What accounts hold that was made for pools: the account is asked first, and the ledger second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from skyward_core import providers
from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_message
from skyward_core.model.machines import Inventory
from skyward_core.pool import leftover_verdicts
from skyward_core.pool.leftover_verdicts import JudgedLeftover as JudgedLeftover
from skyward_core.pool.leftover_verdicts import Verdict as Verdict
from skyward_core.pool.leftover_verdicts import judge, pool_of, sweepable_provider
from skyward_core.providers.provider import make_provider
from skyward_core.providers.provider_calls import QUERY_TIMEOUT, ProviderTimeout, log_call, log_query
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, Receipt
from skyward_core.util.light_dataclass import Value, value

LOG_SUBJECT = "a look through the account"  # what the log calls it in place of a pool


@value
class LeftoverScan(Value):
    """What was found.

    Attributes:
        accounts: the providers that were asked.
        found: what was made by this ledger, and by others that were named.
        others: things of other ledgers: ledger and owner -> how many machines, how much else.
        unknown: places that could not be looked at, and why.
    """

    accounts: Sequence[Any] = ()
    found: Sequence[JudgedLeftover] = ()
    others: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def removable(self) -> list[JudgedLeftover]:
        """What nobody needs, as far as can be told."""
        return [each for each in self.found if each.verdict != "up"]

    def select(self, found: Sequence[JudgedLeftover]) -> LeftoverScan:
        """The same with some of what was found alone."""
        return replace(self, found=tuple(found))


def scannable_providers() -> list[str]:
    """The providers that have accounts to look through."""
    return [name for name in providers.provider_names() if sweepable_provider(name) is not None]


def find_accounts(ledger: Ledger, asked: Mapping[str, Sequence[str]] | None = None) -> list[Any]:
    """The accounts in which this ledger's pools have been.

    Args:
        asked: names of providers, each with settings as ``name=value``: these alone are looked at, and the account that
            these settings lead to is among them.

    Raises:
        UsageError: one of these has no account to look through, or no such setting.
    """
    rows = [each for row in ledger.providers() for each in providers.provider_parts(row)]
    if asked is None:
        return leftover_verdicts.accounts_of(rows)
    named = {}
    for name, settings in asked.items():
        if (kind := sweepable_provider(name)) is None:
            raise UsageError(
                f"provider {name!r} has no account to look through; {', '.join(scannable_providers())} has"
            )
        named[name] = [make_provider(kind, dict(map(parse_setting, settings)))]
    # Where settings say which account is meant, those of pools are not.
    return leftover_verdicts.accounts_of([row for row in rows if not asked.get(row["provider"], True)], named)


def parse_setting(text: str) -> tuple[str, str]:
    """Return the name and the value of a provider's setting, ``KEY=VALUE``.

    Raises:
        UsageError: It is not written like that.
    """
    name, equals, given = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--set {text}: write a setting of the provider as KEY=VALUE")
    return name, given


async def scan_accounts(
    ledger: Ledger, accounts: Sequence[Any], *, everywhere: bool = False, ledgers: Collection[str] = ()
) -> LeftoverScan:
    """Look through accounts; changes nothing.

    Args:
        everywhere: at all places, not only where pools have been.
        ledgers: others whose things are meant, too.
    """
    found: list[JudgedLeftover] = []
    others: dict[tuple[str, str], tuple[int, int]] = {}
    unknown: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    # All at once: one that does not answer holds the others up for no longer than itself.
    inventories = await asyncio.gather(*(_inventory(each, everywhere) for each in accounts))
    for index, inventory in enumerate(inventories):
        for place, reason in inventory.unknown.items():  # two accounts may have places of one name
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
    return LeftoverScan(tuple(accounts), tuple(await _mark_live_pools(ledger, found)), others, unknown)


async def _inventory(account: Any, everywhere: bool) -> Inventory:
    """What an account holds; of one that cannot be asked, why."""
    try:
        found: Inventory = await log_query("inventory", LOG_SUBJECT, account.inventory(everywhere=everywhere))
    except ProviderTimeout:
        return Inventory((), {account.name: f"no answer within {QUERY_TIMEOUT:g} s"})
    except (SkywardError, OSError) as error:
        return Inventory((), {account.name: error_message(error)})
    return found


async def _mark_live_pools(ledger: Ledger, found: Sequence[JudgedLeftover]) -> list[JudgedLeftover]:
    """A pool whose time is over, by what its machines say, may still be used: its agents tell."""
    alive = {}
    for key in {each.pool for each in found if each.verdict == "expired"}:
        row = ledger.find_pool(key)
        alive[key] = row is not None and await _is_alive(ledger, row)
    return [replace(each, verdict="up") if each.verdict == "expired" and alive[each.pool] else each for each in found]


async def _is_alive(ledger: Ledger, row: PoolRow) -> bool:
    provider = providers.provider_from_json(row.provider)
    try:
        seen = await log_query("describe", row.name, provider.describe(row.name, ledger.machines(row.token)))
    except (SkywardError, OSError):
        return True  # nobody can tell
    return any(machine.state in ("running", "orphaned") for machine in seen)


async def remove_leftovers(
    scan: LeftoverScan,
    ledger: Ledger,
    down: Callable[[str], Awaitable[Receipt]],
    tell: Callable[[str], None] = lambda said: None,
) -> list[str]:
    """End what nobody needs of what was found, and see it gone; gives what remains, in words.

    A pool whose time is over is torn down as any other, unless an agent of it lives by now.

    Args:
        down: tears the pool with that key down.
        tell: hears what became of each pool that was.
    """
    remains: list[str] = []
    for key in sorted({each.pool for each in scan.removable if each.verdict == "expired"}):
        row = ledger.find_pool(key)
        if row is not None and await _is_alive(ledger, row):
            remains.append(f"pool {row.name}: an agent lives there again, or may; tear the pool down if you want that")
            continue
        try:
            receipt = await down(key)
        except Exception as error:  # noqa: BLE001  whatever it was, the others have to end
            remains.append(f"pool {key}: {error_message(error)}")
            continue
        tell(f"{key}: {receipt}")
        remains += receipt.unaccounted
    return remains + await _remove_resources(scan)


async def _remove_resources(scan: LeftoverScan) -> list[str]:
    """End what is left of pools that are not up."""
    remains: list[str] = []
    for index, account in enumerate(scan.accounts):
        things = [each.thing for each in scan.removable if each.verdict == "left" and each.account == index]
        if things:
            try:
                remains += await log_call("remove", LOG_SUBJECT, account.remove(things))
            except (PoolError, OSError) as error:
                remains += [f"{each.what} {each.id} ({each.place}): {error_message(error)}" for each in things]
    return remains
