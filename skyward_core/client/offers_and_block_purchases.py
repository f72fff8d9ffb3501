"""Offers of machines, capacity blocks, purchases and reservations, for all providers."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from skyward_core import providers
from skyward_core.client import user_settings_and_app_state as settings
from skyward_core.model.errors import Hint, SkywardError, Unreachable, UsageError, error_message
from skyward_core.model.offers_and_rental_plans import Block, MachineRequirements, OfferList, Reservation
from skyward_core.model.provider_capability_protocols import Offers, SellsBlocks
from skyward_core.model.provider_settings_schema import make_provider
from skyward_core.providers import provider_class, provider_names
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Purchase as Purchase
from skyward_core.transport.background_loop import submit
from skyward_core.util.safe_file_access import parse_json


def list_offers(requirements: MachineRequirements) -> OfferList:
    """Return the machine offers that match requirements, from all providers. Create nothing.

    Raises:
        UsageError: If no provider lists offers, or the only one rejects the requirements.
    """
    sources, notes = _providers_with(Offers, "no provider lists its offers")
    found = submit(_gather_offers(sources, requirements)).result()
    return OfferList(offers=found.offers, notes=[*notes, *found.notes])


def list_blocks(requirements: MachineRequirements, nodes: int, hours: int) -> list[Block]:
    """Return the capacity blocks of all providers that can be reserved in advance, the earliest first; nothing is
    bought.

    Raises:
        UsageError: If no provider sells capacity blocks, or none for that duration.
        PoolError: If a provider cannot be queried.
    """
    sellers, _ = _providers_with(SellsBlocks, "no provider sells reserved capacity")
    found = [each for seller in sellers for each in submit(seller.blocks(requirements, nodes, hours)).result()]
    return sorted(found, key=lambda block: (block.starts_at, block.upfront))


def _providers_with(capability: type, refusal: str) -> tuple[list[Any], list[str]]:
    """Return the providers with a capability, and the reasons why other providers could not be loaded.

    Raises:
        UsageError: If no provider has the capability. The message begins with ``refusal``.
    """
    capable, notes = [], []
    for name in provider_names():
        try:
            found = provider_class(name)
            if isinstance(found, capability):
                capable.append(make_provider(found, {}))
        except SkywardError as error:  # skip a provider of another package that cannot be loaded, and query the others
            notes.append(f"provider {name} is ignored: {error_message(error)}")
    if not capable:
        raise UsageError("; ".join([refusal, *notes]))
    return capable, notes


async def _gather_offers(asked: list[Offers], requirements: MachineRequirements) -> OfferList:
    found = await asyncio.gather(*(each.offers(requirements) for each in asked), return_exceptions=True)
    lists = [each for each in found if isinstance(each, OfferList)]
    errors = [each for each in found if isinstance(each, BaseException)]
    for error in errors:
        if not lists or not isinstance(error, SkywardError):
            raise error
    return OfferList(
        offers=[offer for each in lists for offer in each.offers],
        notes=[*(note for each in lists for note in each.notes), *map(error_message, errors)],
    )


# Names of files in the state folder: the latest list of capacity blocks, and the blocks of earlier lists.
LISTED, BEFORE = "blocks", "blocks-before"
MAX_SAVED_BLOCKS = 500  # number of blocks that are saved from earlier lists
# seconds between queries for an unconfirmed purchase, which the account may show with a delay
PURCHASE_POLL_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
# seconds during which an unconfirmed purchase may still be in progress or not yet visible in the account
PENDING_SECONDS = 600.0


def save_listed_blocks(blocks: Sequence[Block]) -> None:
    """Save listed blocks, because a later command buys one of them by its ID.

    Raises:
        OSError: If the file cannot be written.
    """
    now = {each.id for each in blocks}
    earlier = [
        each for each in (*_load_blocks(LISTED), *_load_blocks(BEFORE)) if each.id not in now and not _is_over(each)
    ]
    settings.save_state(BEFORE, json.dumps([asdict(each) for each in earlier[:MAX_SAVED_BLOCKS]]))
    settings.save_state(LISTED, json.dumps([asdict(each) for each in blocks]))


def _load_blocks(name: str) -> list[Block]:
    try:
        return [Block(**each) for each in parse_json(settings.load_state(name))]
    except (OSError, ValueError, TypeError):
        return []


def _is_over(block: Block) -> bool:
    return bool(block.starts_at) and block.starts_at + block.hours * 3600 < time.time()


def find_offering(id: str, texts: Mapping[str, str]) -> Block:
    """Return a listed block. If only an earlier list contains the block, query the provider again.

    Args:
        id: ID of the block in the list.
        texts: Settings of the provider.

    Raises:
        UsageError: If no such block was listed, or it is no longer sold.
        SkywardError: If the provider cannot be queried.
    """
    for name in (LISTED, BEFORE):
        found = next((each for each in _load_blocks(name) if each.id == id), None)
        if found is None:
            continue
        if _is_over(found):
            raise UsageError(f"offering {id} has ended", hint=Hint("blocks"))
        if name == BEFORE:
            found = submit(_seller(found, texts).still_sold(found)).result()
        if found is None:
            raise UsageError(f"offering {id} is no longer sold", hint=Hint("blocks"))
        return found
    raise UsageError(f"offering {id} was not listed on this machine", hint=Hint("blocks"))


def _seller(block: Block, texts: Mapping[str, str]) -> Any:
    kind = providers.provider_class(block.provider)
    if not isinstance(kind, SellsBlocks):
        raise UsageError(f"provider {block.provider} does not sell reserved capacity")
    return make_provider(kind, {"region": block.region} | dict(texts))


def same_price(block: Block, price: float) -> bool:
    """Check whether a price equals the listed price of a block, to the cent."""
    return all(map(math.isfinite, (price, block.upfront))) and round(price * 100) == round(block.upfront * 100)


def buy(block: Block, price: float, texts: Mapping[str, str]) -> Reservation:
    """Buy a block, at most once.

    Args:
        price: Price in dollars that the user expects.
        texts: Settings of the provider.

    Raises:
        UsageError: If the price differs, or the block may have been bought before; nothing was bought.
        Unreachable: If the purchase cannot be confirmed.
        SkywardError: If the block was not bought.
    """
    if not same_price(block, price):
        raise UsageError(f"{block.id} costs ${block.upfront:,.2f}, not ${price:,.2f}. Nothing was bought")
    provider = _seller(block, texts)
    with closing(Ledger()) as ledger:
        token = secrets.token_hex(16)
        if not ledger.record_purchase_intent(token, provider.to_json(), asdict(block)):
            before = [each for each in ledger.purchases() if each.block.get("id") == block.id]
            reason = next(
                (_describe_purchase(each) for each in before if each.state != "refused"), "was requested before"
            )
            raise UsageError(f"{block.id} {reason}, so it is not bought again", hint=Hint("purchases"))
        return submit(_buy_block(ledger, provider, block, token)).result()


def _describe_purchase(purchase: Purchase) -> str:
    if purchase.state == "bought":
        return f"was bought as {purchase.result}"
    return "was requested before, and the purchase is not confirmed"


async def _buy_block(ledger: Ledger, provider: Any, block: Block, token: str) -> Reservation:
    try:
        found: Reservation = await provider.buy(block, token)
    except Unreachable as error:
        found = await _find_purchase(provider, block, token, error_message(error))
    except SkywardError as error:
        ledger.record_purchase(token, "refused", error_message(error))
        raise
    ledger.record_purchase(token, "bought", found.id)
    return found


async def _find_purchase(provider: Any, block: Block, token: str, problem: str) -> Reservation:
    """Find out whether a purchase succeeded after its request got no response.

    Raises:
        Unreachable: If no reservation is visible, which does not prove that nothing was bought.
    """
    reason = "no reservation with its tag"
    for pause in PURCHASE_POLL_PAUSES:
        await asyncio.sleep(pause)
        try:
            found: Reservation | None = await provider.bought(block.region, token)
        except SkywardError as error:
            reason = f"the search failed ({error_message(error)})"
            continue
        if found is not None:
            return found
        reason = "no reservation with its tag"
    raise Unreachable(
        f"Could not confirm the purchase of {block.id} ({problem}): {reason} after {sum(PURCHASE_POLL_PAUSES):g} s. "
        f"You may still be charged ${block.upfront:,.2f}. The purchase is not retried.",
        hint=Hint("purchases"),
    )


def purchases() -> list[tuple[Purchase, Reservation | None, str]]:
    """Return confirmed and possible purchases, the latest first, each with its reservation or the reason why there is
    none.

    If an unconfirmed purchase has a reservation, the purchase is recorded as confirmed.
    """
    with closing(Ledger()) as ledger:
        rows = [each for each in ledger.purchases() if each.state != "refused"]
        return [submit(_check_purchase(ledger, each)).result() for each in rows]


async def _check_purchase(ledger: Ledger, row: Purchase) -> tuple[Purchase, Reservation | None, str]:
    try:
        provider = providers.provider_from_json(row.provider)
        found: Reservation | None = await provider.bought(row.block["region"], row.token)
    except SkywardError as error:
        return row, None, error_message(error)
    if found is not None and row.state != "bought":
        ledger.record_purchase(row.token, "bought", found.id)
    return row, found, ""


def find_doubtful_purchase(id: str) -> Purchase:
    """Return the unconfirmed purchase of an offering if the purchase may be cleared: it is old, and the account does
    not show it.

    Raises:
        UsageError: If there is no such purchase, the offering was bought, or the purchase may be in progress.
        SkywardError: If the account cannot be queried.
    """
    with closing(Ledger()) as ledger:
        unconfirmed = [each for each in ledger.purchases() if each.block.get("id") == id and each.state == "asked"]
        if not unconfirmed:
            raise UsageError(f"offering {id} has no unconfirmed purchase", hint=Hint("purchases"))
        if (old := time.time() - unconfirmed[0].asked_at) < PENDING_SECONDS:
            raise UsageError(
                f"{id} was requested {max(0.0, old):.0f} s ago. Its purchase may be invisible for "
                f"{PENDING_SECONDS:.0f} s. Try again later"
            )
        _, found, reason = submit(_check_purchase(ledger, unconfirmed[0])).result()
    if found is not None:
        raise UsageError(f"{id} was bought as {found.id}", hint=Hint("purchases"))
    if reason:
        raise Unreachable(f"Could not determine whether {id} was bought: {reason}")
    return unconfirmed[0]


def clear_purchase(purchase: Purchase) -> None:
    """Record that an unconfirmed purchase did not happen, so that its offering can be bought again.

    Args:
        purchase: Result of :func:`find_doubtful_purchase`.
    """
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    with closing(Ledger()) as ledger:
        ledger.record_purchase(purchase.token, "refused", f"cleared by hand at {day}: no reservation had its tag")


def list_reservations(provider: str, texts: Mapping[str, str]) -> list[Reservation]:
    """Return all reservations of an account in the regions of a provider, without changing anything.

    Raises:
        SkywardError: If the provider has no reservations, or cannot be queried.
    """
    kind = providers.provider_class(provider)
    if not isinstance(kind, SellsBlocks):
        raise UsageError(f"Provider '{provider}' does not support capacity reservations.")
    return list(submit(make_provider(kind, texts).reserved()).result())
