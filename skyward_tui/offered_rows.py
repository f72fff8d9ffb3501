"""Offers of accelerators in rows: a kind of machine and a place each, with what both markets ask for it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from skyward_core.model import accelerators
from skyward_core.model.accelerators.model import Accelerator
from skyward_core.model.errors import UsageError
from skyward_core.model.offer import Offer, Wish, in_order
from skyward_core.wire.safe_text import field

from .words import fit, money

ANY = Wish(any_accelerator=True, allocation="cheapest")
USUAL_COUNT, USUAL_MEMORY = 8, 80.0  # of what most large trainings run on
_SLACK = 2.0  # GB by which a memory's size may differ from what it is called


class OfferRow(NamedTuple):
    """One of them.

    Attributes:
        wanted: what a launch asks for, to get it: ``A100-80GB:8``.
        told: the row, for people.
        words: by which it is found, in small letters.
        is_usual: whether it is eight of 80 GB.
    """

    wanted: str
    told: str
    words: str
    is_usual: bool

    def has(self, typed: str) -> bool:
        """Whether each word of a text is in it."""
        return all(word in self.words for word in typed.casefold().split())


def offer_rows(offers: Sequence[Offer]) -> list[OfferRow]:
    """The cheapest first, by the cheaper of both markets."""
    places: dict[tuple[str, str, str, str], dict[str, Offer]] = {}
    for each in in_order(offers, ANY):
        places.setdefault((each.provider, each.instance_type, each.region, each.zone), {})[each.market] = each
    return [_row(markets) for markets in places.values()]


def _row(markets: dict[str, Offer]) -> OfferRow:
    best = next(iter(markets.values()))
    memory = f"{best.memory_each_gb:.0f}"
    on_demand, spot = (_price(markets.get(market)) for market in ("on-demand", "spot"))
    where, name, kind = field(best.zone or best.region), field(best.accelerator), field(best.instance_type)
    amount = f"{best.count:>3} × {memory:>3} GB"
    told = f"{fit(name, 12)} {amount}  {fit(on_demand, -9)} {fit(spot, -9)}  {fit(where, 12)} {kind}"
    words = (
        f"{name} {best.count}x{memory}gb {best.count}x {memory}gb {memory} gb {where} {kind} {best.provider}"
    )
    usual = best.count == USUAL_COUNT and abs(best.memory_each_gb - USUAL_MEMORY) <= _SLACK
    return OfferRow(_wanted(best), told, words.casefold(), usual)


HEAD = f"{'':26}  {'ON DEMAND':>9} {'SPOT':>9}  {'ZONE':12} TYPE"


def _wanted(offer: Offer) -> str:
    """As a launch names it: with its memory where there are several of that name."""
    try:
        several = len(accelerators.find(offer.accelerator).variants) > 1
        memory = round(offer.memory_each_gb) if several else None
        return str(Accelerator(offer.accelerator, offer.count, memory))
    except UsageError:  # one that the catalogue does not have, or not of that size
        return f"{offer.accelerator}:{offer.count}"


def _price(offer: Offer | None) -> str:
    if offer is None:
        return "–"
    price = offer.billed_hourly
    return "$?/h" if price is None else f"{money(price)}/h"
