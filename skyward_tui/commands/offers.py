"""``skyward-tui offers``: what could be had, where, and for how much."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from skyward_core.front.capacity import listed
from skyward_core.front.offers import blocks, offered
from skyward_core.model import accelerators, exit_status
from skyward_core.model.errors import UsageError
from skyward_core.model.offer import Offer, Wish, in_order, nearest
from skyward_core.wire.safe_text import field

from ..words import ago, money
from .console import Console
from .report import table


def offers(
    console: Console, *, accelerator: str | None, max_hourly: float | None, spot: bool, regions: Sequence[str],
    zones: Sequence[str], vcpus: int, memory: float, architecture: str | None, efa: bool,
    block: int | None, nodes: int | None,
) -> int:  # fmt: skip
    """A table of what fits, the cheapest first; where nothing does, what comes nearest, and why it is none."""
    wish = Wish(
        accelerator=accelerators.resolve(accelerator),
        any_accelerator=not (accelerator or vcpus or memory or architecture),
        vcpus=vcpus,
        memory_gb=memory,
        architecture=architecture or "",
        regions=tuple(regions),
        zones=tuple(zones),
        efa=efa,
        max_hourly=max_hourly,
        allocation="spot" if spot else "cheapest",
    )
    if block is not None:
        if spot:
            raise UsageError("--spot machines are not bought ahead: leave it or --block out")
        return _blocks(console, wish, nodes or 1, block)
    if nodes is not None:
        raise UsageError("--nodes goes with --block; other prices are of one machine")
    found = offered(wish)
    fitting = in_order(found.offers, wish)
    missed = [] if fitting else nearest(found.offers, wish)
    for note in found.notes:
        console.note(note)
    if console.as_json:
        rows = [_as_json(each) for each in fitting]
        console.result({"offers": rows, "nearest": missed, "notes": list(found.notes)})
    elif fitting:
        for line in table([_HEAD, *_rows(fitting)]):
            console.say(line)
    else:
        console.say("nothing fits; what comes nearest:" if missed else "nothing fits, and nothing comes near")
        for line in missed:
            console.say(f"  {field(line)}")
    return exit_status.OK if fitting else exit_status.FAILED


def _blocks(console: Console, wish: Wish, nodes: int, hours: int) -> int:
    """A table of what can be bought ahead."""
    # The limit is to what an hour of the block costs.
    asked = replace(wish, allocation="on-demand", max_hourly=None)
    most = wish.max_hourly
    found = [
        each
        for each in blocks(asked, nodes, hours)
        if (most is None or each.hourly <= most) and (not wish.zones or each.zone in wish.zones)
    ]
    try:
        listed(found)
    except OSError as error:
        console.note(f"none of these can be bought by its id, which could not be written down: {error}")
    rows = [("provider", "type", "machines", "where", "from", "hours", "all of it", "each", "id")]
    for each in found:
        begins = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.starts_at))
        kind, zone, id = field(each.instance_type), field(each.zone), field(each.id)
        price = money(each.upfront), f"{money(each.hourly)}/h"
        rows.append((field(each.provider), kind, str(each.count), zone, begins, str(each.hours), *price, id))
    console.result({"blocks": [asdict(each) | {"hourly": each.hourly} for each in found]})
    if not console.as_json:
        for line in table(rows) if found else ["nothing that fits can be bought ahead now"]:
            console.say(line)
    return exit_status.OK if found else exit_status.FAILED


_HEAD = (
    "provider",
    "type",
    "accelerator",
    "vCPUs",
    "memory",
    "where",
    "on demand",
    "spot",
    "3 days",
    "price of",
)


def _rows(fitting: Sequence[Offer]) -> list[Sequence[str]]:
    """A line for each kind of machine and place, at its best offer's rank, with what both markets ask there."""
    lines: dict[tuple[str, str, str, str], dict[str, Offer]] = {}
    for each in fitting:
        place = each.provider, each.instance_type, each.region, each.zone
        lines.setdefault(place, {})[each.market] = each
    return [_row(markets) for markets in lines.values()]


def _row(markets: dict[str, Offer]) -> Sequence[str]:
    best = next(iter(markets.values()))
    spot = markets.get("spot")
    # All told, as the price that stands beside it.
    lately = (
        "–".join(money(each + spot.beside_hourly) for each in (spot and spot.lately) or ()) if spot else ""
    )
    of_each = f" {best.memory_each_gb:.0f} GB" if best.memory_each_gb else ""
    return (
        field(best.provider),
        field(best.instance_type),
        f"{best.count} × {field(best.accelerator)}{of_each}" if best.count else "-",
        str(best.vcpus),
        f"{best.memory_gb:g} GB",
        field(best.zone or best.region),
        _price(markets.get("on-demand")),
        _price(spot),
        lately,
        _age(best),
    )


def _price(offer: Offer | None) -> str:
    if offer is None:
        return "-"
    price = offer.billed_hourly
    return "$?/h" if price is None else f"{money(price)}/h"


def _age(offer: Offer) -> str:
    if not offer.priced_at:
        return "?"
    if offer.shipped:
        return f"{time.strftime('%Y-%m-%d', time.gmtime(offer.priced_at))} (this release)"
    return ago(time.time() - offer.priced_at)


def _as_json(offer: Offer) -> dict[str, Any]:
    return asdict(offer) | {"billed_hourly": offer.billed_hourly}
