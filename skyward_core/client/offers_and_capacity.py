"""Offers and capacity of all providers."""

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
from skyward_core.client import settings
from skyward_core.model.errors import Hint, SkywardError, Unreachable, UsageError, error_message
from skyward_core.model.offers import Block, MachineRequirements, OfferList, Reservation
from skyward_core.model.provider_capabilities import Offers, SellsBlocks
from skyward_core.providers import provider_class, provider_names
from skyward_core.providers.provider import make_provider
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Purchase as Purchase
from skyward_core.transport.background_loop import submit
from skyward_core.util.user_files import parse_json


def list_offers(requirements: MachineRequirements) -> OfferList:
    """What all providers have that a wish is about; nothing is made.

    Raises:
        UsageError: no provider tells its offers; or the wish makes no sense to the only one that does.
    """
    asked, notes = _providers_with(Offers)
    if not asked:
        raise UsageError("; ".join(["no provider here tells what can be had of it", *notes]))
    found = submit(_gather_offers(asked, requirements)).result()
    return OfferList(offers=found.offers, notes=[*notes, *found.notes])


def list_blocks(requirements: MachineRequirements, nodes: int, hours: int) -> list[Block]:
    """Machines that can be bought ahead, of all providers that sell some, the earliest first; nothing is bought.

    Raises:
        UsageError: no provider sells any, or none for so long.
        PoolError: one of them cannot be asked.
    """
    asked, notes = _providers_with(SellsBlocks)
    if not asked:
        raise UsageError("; ".join(["no provider here sells machines ahead", *notes]))
    found = [each for one in asked for each in submit(one.blocks(requirements, nodes, hours)).result()]
    return sorted(found, key=lambda block: (block.starts_at, block.upfront))


def _providers_with(capability: type) -> tuple[list[Any], list[str]]:
    """The providers that have a capability, and why others are left out."""
    asked, notes = [], []
    for name in provider_names():
        try:
            found = provider_class(name)
            if isinstance(found, capability):
                asked.append(make_provider(found, {}))
        except SkywardError as error:  # one of another package; the others are asked all the same
            notes.append(f"provider {name} is left out: {error_message(error)}")
    return asked, notes


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


LISTED, BEFORE = "blocks", "blocks-before"  # what was listed last, and earlier, in the person's own folder
MAX_SAVED_BLOCKS = 500  # blocks of earlier lists
# Seconds between looks for what may have been bought: a new one may be invisible.
PURCHASE_POLL_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
PENDING_SECONDS = 600.0  # seconds for which a purchase without an answer may be under way, or invisible


def save_listed_blocks(blocks: Sequence[Block]) -> None:
    """Keep what was listed: a purchase names one of these.

    Raises:
        OSError: it cannot be written.
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
    """A block that was listed here; of one that the last list does not have the provider is asked again.

    Args:
        id: as the list named it.
        texts: settings of the provider.

    Raises:
        UsageError: none of that name was, or it is not sold any more.
        SkywardError: the provider cannot be asked.
    """
    for name in (LISTED, BEFORE):
        found = next((each for each in _load_blocks(name) if each.id == id), None)
        if found is None:
            continue
        if _is_over(found):
            raise UsageError(f"offering {id} is over", hint=Hint("blocks"))
        if name == BEFORE:
            found = submit(_seller(found, texts).still_sold(found)).result()
        if found is None:
            raise UsageError(f"offering {id} is not sold any more", hint=Hint("blocks"))
        return found
    raise UsageError(f"no offering {id} was listed here", hint=Hint("blocks"))


def _seller(block: Block, texts: Mapping[str, str]) -> Any:
    kind = providers.provider_class(block.provider)
    if not isinstance(kind, SellsBlocks):
        raise UsageError(f"provider {block.provider} sells nothing ahead")
    return make_provider(kind, {"region": block.region} | dict(texts))


def same_price(block: Block, said: float) -> bool:
    """Whether a price is that of the block, to the cent."""
    return all(map(math.isfinite, (said, block.upfront))) and round(said * 100) == round(block.upfront * 100)


def buy(block: Block, price: float, texts: Mapping[str, str]) -> Reservation:
    """Buy a block, once.

    Args:
        price: what the person says that it costs.
        texts: settings of the provider.

    Raises:
        UsageError: the price is another one, or the block may have been bought before; nothing was bought.
        Unreachable: nobody knows whether it was bought.
        SkywardError: it was not.
    """
    if not same_price(block, price):
        raise UsageError(f"{block.id} costs ${block.upfront:,.2f}, not ${price:,.2f}: nothing was bought")
    provider = _seller(block, texts)
    with closing(Ledger()) as ledger:
        token = secrets.token_hex(16)
        if not ledger.record_purchase_intent(token, provider.to_json(), asdict(block)):
            before = [each for each in ledger.purchases() if each.block.get("id") == block.id]
            said = next((_describe_purchase(each) for each in before if each.state != "refused"), "was asked for")
            raise UsageError(f"{block.id} {said}, and is not bought again", hint=Hint("purchases"))
        return submit(_buy_block(ledger, provider, block, token)).result()


def _describe_purchase(purchase: Purchase) -> str:
    if purchase.state == "bought":
        return f"was bought as {purchase.told}"
    return "was asked for, and nobody knows whether it was bought"


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


async def _find_purchase(provider: Any, block: Block, token: str, reason: str) -> Reservation:
    """What was bought by a call without an answer.

    Raises:
        Unreachable: nothing is seen of it, which does not mean that there is nothing.
    """
    said = "none with its tag is seen"
    for pause in PURCHASE_POLL_PAUSES:
        await asyncio.sleep(pause)
        try:
            found: Reservation | None = await provider.bought(block.region, token)
        except SkywardError as error:
            said = f"nobody can tell ({error_message(error)})"
            continue
        if found is not None:
            return found
        said = "none with its tag is seen"
    raise Unreachable(
        f"nobody knows whether {block.id} was bought ({reason}): of reservations {said} after "
        f"{sum(PURCHASE_POLL_PAUSES):g} s. It may "
        f"cost ${block.upfront:,.2f} all the same, and is not tried again",
        hint=Hint("purchases"),
    )


def purchases() -> list[tuple[Purchase, Reservation | None, str]]:
    """What was bought from here or may have been, the latest first, with what the account says of it, or why it says
    nothing. What is found of a purchase without an answer is written down."""
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
    """The purchase of an offering that may be called none: it is old, and the account shows nothing of it.

    Raises:
        UsageError: there is no such purchase, it was bought, or it may be under way.
        SkywardError: the account cannot be asked.
    """
    with closing(Ledger()) as ledger:
        asked = [each for each in ledger.purchases() if each.block.get("id") == id and each.state == "asked"]
        if not asked:
            raise UsageError(f"no purchase of {id} is in doubt", hint=Hint("purchases"))
        if (old := time.time() - asked[0].asked_at) < PENDING_SECONDS:
            raise UsageError(
                f"{id} was asked for {max(0.0, old):.0f} s ago: what was bought may be invisible until "
                f"{PENDING_SECONDS:.0f} s "
                "are over"
            )
        _, found, reason = submit(_check_purchase(ledger, asked[0])).result()
    if found is not None:
        raise UsageError(f"{id} was bought as {found.id}", hint=Hint("purchases"))
    if reason:
        raise Unreachable(f"nobody can tell whether {id} was bought: {reason}")
    return asked[0]


def clear_purchase(purchase: Purchase) -> None:
    """Have a purchase that :func:`find_doubtful_purchase` gave count as none: its offering may be bought again."""
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    with closing(Ledger()) as ledger:
        ledger.record_purchase(purchase.token, "refused", f"cleared by hand at {day}: no reservation had its tag")


def list_reservations(provider: str, texts: Mapping[str, str]) -> list[Reservation]:
    """All reservations of an account in the regions of a provider; reads only.

    Raises:
        SkywardError: it has none to tell, or cannot be asked.
    """
    kind = providers.provider_class(provider)
    if not isinstance(kind, SellsBlocks):
        raise UsageError(f"provider {provider} holds no machines for anybody")
    return list(submit(make_provider(kind, texts).reserved()).result())
