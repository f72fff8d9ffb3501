"""What accounts hold that was made for pools: the account is asked first, and the ledger second."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from .. import providers
from ..model.capabilities import Sweeps
from ..model.errors import PoolError, SkywardError, UsageError, what_of
from ..model.leftover import Leftover
from ..model.value import Value, value
from ..providers.making import make
from ..providers.told import answered, told
from ..store.ledger import Ledger
from ..store.ledger_rows import PoolRow

Verdict = Literal["up", "expired", "left"]
"""Of a pool that is up; of one that should have ended and has no agent; of one that the ledger does not have as up."""

LOOK = "a look through the account"  # what the log calls it in place of a pool


@value
class Found(Value):
    """One thing, and what is to be made of it.

    Attributes:
        account: index of the account that has it.
        pool: the key of the pool that is up, or "".
    """

    thing: Leftover
    verdict: Verdict
    account: int
    pool: str = ""


@value
class Sweep(Value):
    """What was found.

    Attributes:
        accounts: the providers that were asked.
        found: what was made by this ledger, and by others that were named.
        others: things of other ledgers: ledger and owner -> how many machines, how much else.
        unknown: places that could not be looked at, and why.
    """

    accounts: Sequence[Any] = ()
    found: Sequence[Found] = ()
    others: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def left(self) -> list[Found]:
        """What nobody needs, as far as can be told."""
        return [each for each in self.found if each.verdict != "up"]


def sweepers() -> list[str]:
    """The providers that have accounts to look through."""
    return [name for name in providers.names() if _sweeper(name) is not None]


def accounts_of(ledger: Ledger, asked: Mapping[str, Sequence[str]] | None = None) -> list[Any]:
    """The accounts in which this ledger's pools have been.

    Args:
        asked: names of providers, each with settings as ``name=value``: these alone are looked at, and the account that
            these settings lead to is among them.

    Raises:
        UsageError: one of these has no account to look through, or no such setting.
    """
    used: dict[str, list[dict[str, Any]]] = {name: [] for name in asked or ()}
    for data in (each for row in ledger.providers() for each in row.get("of", (row,))):  # some are several
        if asked is None:
            used.setdefault(data["provider"], []).append(data)
        elif not asked.get(data["provider"], True):  # settings say which account is meant
            used[data["provider"]].append(data)
    found: list[Any] = []
    for name, rows in used.items():
        kind = _sweeper(name)
        if kind is not None:
            more = [] if asked is None else [make(kind, dict(map(_setting, asked[name])))]
            found += kind.accounts([*filter(None, (_made(kind, row) for row in rows)), *more])
        elif asked is not None:
            raise UsageError(f"provider {name!r} has no account to look through; {', '.join(sweepers())} has")
    return found


def _sweeper(name: str) -> Any:
    """A provider's class, where it has accounts to look through."""
    try:
        found = providers.by_name(name)
    except UsageError:
        return None  # its package is not here; whoever looks at its pools is told
    return found if isinstance(found, Sweeps) else None


def _made(kind: Any, row: dict[str, Any]) -> Any:
    try:
        return kind.from_json(row)
    except (SkywardError, TypeError):
        return None  # of another version of this library, which knows its accounts by itself


def _setting(text: str) -> tuple[str, str]:
    name, equals, given = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--set {text}: write a setting of the provider as KEY=VALUE")
    return name, given


async def look(
    ledger: Ledger, accounts: Sequence[Any], *, everywhere: bool = False, ledgers: Collection[str] = ()
) -> Sweep:
    """Look through accounts; changes nothing.

    Args:
        everywhere: at all places, not only where pools have been.
        ledgers: others whose things are meant, too.
    """
    found: list[Found] = []
    others: dict[tuple[str, str], tuple[int, int]] = {}
    unknown: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    for index, account in enumerate(accounts):
        try:
            inventory = await answered("inventory", LOOK, account.inventory(everywhere=everywhere))
        except (SkywardError, OSError) as error:
            unknown[account.name] = what_of(error)
            continue
        unknown |= inventory.unknown
        for thing in inventory.things:
            if (thing.what, thing.id) in seen:
                continue
            seen.add((thing.what, thing.id))
            if thing.ours or thing.ledger in ledgers:
                found.append(_judged(thing, ledger.find(f"{thing.pool}.{thing.token}"), index))
            else:
                key = thing.ledger, thing.owner
                machines, more = others.get(key, (0, 0))
                others[key] = machines + thing.is_machine, more + (not thing.is_machine)
    return Sweep(tuple(accounts), tuple(await _looked_at(ledger, found)), others, unknown)


def _judged(thing: Leftover, row: PoolRow | None, account: int) -> Found:
    if row is None or row.ended_at is not None:
        return Found(thing, "left", account)
    return Found(thing, "expired" if thing.is_machine and thing.is_expired else "up", account, row.key)


async def _looked_at(ledger: Ledger, found: Sequence[Found]) -> list[Found]:
    """A pool whose time is over, by what its machines say, may still be used: its agents tell."""
    alive = {}
    for key in {each.pool for each in found if each.verdict == "expired"}:
        row = ledger.find(key)
        alive[key] = row is not None and await _is_alive(ledger, row)
    return [
        Found(each.thing, "up", each.account, each.pool)
        if each.verdict == "expired" and alive[each.pool]
        else each
        for each in found
    ]


async def _is_alive(ledger: Ledger, row: PoolRow) -> bool:
    provider = providers.from_json(row.provider)
    try:
        seen = await answered("describe", row.name, provider.describe(row.name, ledger.machines(row.token)))
    except (SkywardError, OSError):
        return True  # nobody can tell
    return any(machine.state in ("running", "orphaned") for machine in seen)


async def remove(sweep: Sweep) -> list[str]:
    """End what is left of pools that are not up, and see it gone; gives what remains, in words."""
    remains: list[str] = []
    for index, account in enumerate(sweep.accounts):
        things = [each.thing for each in sweep.left if each.verdict == "left" and each.account == index]
        if things:
            try:
                remains += await told("remove", LOOK, account.remove(things))
            except (PoolError, OSError) as error:
                remains += [f"{each.what} {each.id} ({each.place}): {what_of(error)}" for each in things]
    return remains
