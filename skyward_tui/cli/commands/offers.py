"""Offers, capacity, costs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from skyward_core.client import offers as capacity
from skyward_core.client.offers import blocks, listed, offered
from skyward_core.client.run_history import PoolCost
from skyward_core.client.run_history import costs as add_up
from skyward_core.model import accelerators, errors
from skyward_core.model.errors import Unreachable, UsageError
from skyward_core.model.offers import Block, Offer, Reservation, Wish, in_order, nearest
from skyward_core.util.terminal_safe_text import field
from skyward_tui.cli.console import Console
from skyward_tui.cli.pool_and_run_lookup import note_silent, opened
from skyward_tui.cli.run_report import table
from skyward_tui.text.number_format import ago, count, money


def buy(offering: str, price: float | None, settings: Sequence[str], console: Console) -> int:
    """Buy what was listed, once its price has been said.

    Raises:
        UsageError: no price was said, or another one.
        SkywardError: it was not bought.
    """
    texts = dict(map(_setting, settings))
    block = capacity.offering(offering, texts)
    console.note(
        f"{count(block.count, 'machine')} of {field(block.instance_type)} in {field(block.zone)} for "
        f"{block.hours} hours from {_when(block.starts_at)}: ${block.upfront:,.2f}, paid at once and not given back"
    )
    said = _said(block, price, console)
    try:
        found = capacity.buy(block, said, texts)
    except Unreachable as error:  # nobody knows
        console.fail(error)
        return errors.UNVERIFIED
    console.note(f"bought: {found.id}; sky.AWS(reservation={found.id!r}) has machines of it once it has begun")
    console.result({"bought": asdict(found)})
    if not console.as_json:
        console.say(found.id)
    return errors.OK


def _said(block: Block, price: float | None, console: Console) -> float:
    """The price, as the person says it."""
    if price is not None:
        return price
    if not console.is_terminal:
        raise UsageError(f"nothing was bought: --price {block.upfront:.2f} buys it without a terminal")
    typed = console.ask(f"type the price to buy it, {block.upfront:.2f}").strip().lstrip("$").replace(",", "")
    try:
        return float(typed)
    except ValueError:
        raise UsageError(f"{typed!r} is no price: nothing was bought") from None


def clear(offering: str, yes: bool, console: Console) -> int:
    """Let an offering be bought again of whose purchase nobody heard, once the account has been asked and a word typed.

    Raises:
        UsageError: it was bought, may be under way, or nobody typed the word.
        SkywardError: the account cannot be asked.
    """
    purchase = capacity.in_doubt(offering)
    block = Block(**purchase.block)
    console.note(
        f"{field(block.id)} ({money(block.upfront)}) was asked for {_when(purchase.asked_at)}, and the account has no "
        "reservation with its tag: the call was never made, as far as AWS can tell"
    )
    if not yes:
        if not console.is_terminal:
            raise UsageError(f"nothing was changed: --yes has {offering} count as not bought")
        if console.ask("type clear to have it count as not bought").strip() != "clear":
            raise UsageError("nothing was changed")
    capacity.clear(purchase)
    console.note(f"{field(block.id)} counts as not bought, and may be bought again")
    console.result({"cleared": purchase.block})
    return errors.OK


def ls(provider: str, settings: Sequence[str], console: Console) -> int:
    """What was bought from here, what became of it, and all that the account holds."""
    bought = capacity.purchases()
    held = capacity.reserved(provider, dict(map(_setting, settings)))
    rows: list[tuple[str, ...]] = [("id", "type", "machines", "free", "where", "from", "until", "state")]
    rows += [_row(each) for each in held]
    doubtful = [(row, why) for row, found, why in bought if found is None and row.state == "asked"]
    for row, why in doubtful:
        block = Block(**row.block)
        console.note(
            f"{block.id} ({money(block.upfront)}) was asked for {_when(row.asked_at)}, and nobody knows whether it was "
            f"bought: {why or 'no reservation with its tag is seen'}; `skyward-tui capacity clear "
            f"{field(block.id)}` lets it be bought again"
        )
    console.result(
        {
            "reservations": [asdict(each) for each in held],
            "unknown": [{"block": row.block, "asked_at": row.asked_at, "why": why} for row, why in doubtful],
        }
    )
    if not console.as_json:
        for line in table(rows) if held else ["nothing is held for this account there"]:
            console.say(line)
    return errors.UNVERIFIED if doubtful else errors.OK


def _row(each: Reservation) -> tuple[str, ...]:
    until = "-" if each.ends_at is None else _when(each.ends_at)
    kind = f"{field(each.state)}, Capacity Block" if each.is_block else field(each.state)
    begins = _when(each.starts_at) if each.starts_at else "-"
    names = field(each.id), field(each.instance_type)
    return (*names, str(each.count), str(each.free), field(each.zone), begins, until, kind)


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _setting(text: str) -> tuple[str, str]:
    name, equals, given = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--set {text}: write a setting of the provider as KEY=VALUE")
    return name, given


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
    return errors.OK if fitting else errors.FAILED


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
    return errors.OK if found else errors.FAILED


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
    return [_offer_row(markets) for markets in lines.values()]


def _offer_row(markets: dict[str, Offer]) -> Sequence[str]:
    best = next(iter(markets.values()))
    spot = markets.get("spot")
    # All told, as the price that stands beside it.
    lately = "–".join(money(each + spot.beside_hourly) for each in (spot and spot.lately) or ()) if spot else ""
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


def costs(console: Console, *, seconds: float, by: str) -> int:
    """A table, and all of it added up."""
    with opened(console) as session:
        note_silent(session, console)  # a pool that has ended itself costs nothing since
    since = max(0.0, time.time() - seconds)
    found = add_up(since)
    if console.as_json:
        console.result(
            {
                "since": since,
                "dollars": found.dollars,
                "pools": [asdict(each) for each in found.pools],
                "functions": dict(found.by_function),
                "days": dict(found.by_day),
            }
        )
        return errors.OK
    if not found.pools:
        console.say("no pool has cost anything in that time")
        return errors.OK
    rows = {
        "pool": lambda: _pools(found.pools),
        "function": lambda: _sums("function", found.by_function),
        "day": lambda: _sums("day", dict(sorted(found.by_day.items()))),
    }[by]()
    for line in table([*rows, ("all", *[""] * (len(rows[0]) - 2), money(found.dollars))]):
        console.say(line)
    unknown = sum(each.dollars is None for each in found.pools)
    if unknown:
        console.note(f"of {unknown} of these pools nobody knows what they cost")
    return errors.OK


def _pools(pools: Sequence[PoolCost]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("pool", "provider", "made", "ran", "cost")]
    for each in pools:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.since))
        cost = "$?" if each.dollars is None else money(each.dollars)
        ran = field(", ".join(each.functions)) or "-"
        rows.append((field(each.pool), field(each.provider), made, ran, cost + (" so far" if each.goes_on else "")))
    return rows


def _sums(head: str, sums: Mapping[str, float]) -> list[Sequence[str]]:
    return [(head, "cost"), *((field(name) or "-", money(dollars)) for name, dollars in sums.items())]
