"""``skyward-tui offers``, ``capacity`` and ``costs``: machines for rent, capacity reservations, and costs of pools."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import click

from skyward_core.client import offers_and_block_purchases
from skyward_core.client.launch.launch_option_declarations import parse_setting
from skyward_core.client.offers_and_block_purchases import list_blocks, list_offers, save_listed_blocks
from skyward_core.client.pool_costs import PoolCost
from skyward_core.client.pool_costs import costs as add_up
from skyward_core.model import accelerators, errors
from skyward_core.model.errors import Unreachable, UsageError
from skyward_core.model.offers_and_rental_plans import (
    Block,
    MachineRequirements,
    Offer,
    Reservation,
    describe_nearest,
    matching_offers,
)
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.pool_and_run_lookup import note_unreachable, open_session
from skyward_tui.cli.shared_options_and_command_class import Duration, command, offer_options, settings_option
from skyward_tui.text.hardware_and_offer_cells import offer_price, offers_by_place
from skyward_tui.text.number_time_and_run_state_format import ago, count, date_time, money


@command()
@click.argument("offering")
@click.option("--price", metavar="$", type=float, help="Expected price, as listed by offers --block.")
@settings_option
def buy(console: Console, offering: str, price: float | None, settings: Sequence[str]) -> int:
    """Buy a capacity block listed by offers --block, by its id.

    The purchase is charged at once and cannot be refunded. Confirm the price at the terminal or with --price.
    """
    texts = dict(map(parse_setting, settings))
    block = offers_and_block_purchases.find_offering(offering, texts)
    console.note(
        f"{count(block.count, 'machine')} of {sanitize_line(block.instance_type)} in {sanitize_line(block.zone)} for "
        f"{block.hours} hours from {date_time(block.starts_at)}: ${block.upfront:,.2f}, charged at once and not "
        "refundable"
    )
    confirmed = _ask_price(block, price, console)
    try:
        found = offers_and_block_purchases.buy(block, confirmed, texts)
    # without a valid answer, it is unknown whether AWS has sold the reservation
    except Unreachable as error:
        console.report_error(error)
        return errors.UNVERIFIED
    console.note(f"bought reservation {found.id}. When it starts, use it with sky.AWS(reservation={found.id!r})")
    console.result({"bought": asdict(found)})
    if not console.as_json:
        console.print_line(found.id)
    return errors.OK


def _ask_price(block: Block, price: float | None, console: Console) -> float:
    """Return the price that the user confirms."""
    if price is not None:
        return price
    if not console.is_terminal:
        raise UsageError(f"nothing was bought. Without a terminal, confirm the price with --price {block.upfront:.2f}")
    typed = console.ask(f"type the price to buy it, {block.upfront:.2f}").strip().lstrip("$").replace(",", "")
    try:
        return float(typed)
    except ValueError:
        raise UsageError(f"nothing was bought: {typed!r} is not a price") from None


@command()
@click.argument("offering")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def clear(console: Console, offering: str, yes: bool) -> int:
    """Allow buying an offering again after an unconfirmed purchase.

    Checks the account first. Does nothing if the account has the reservation, or cannot be read.
    """
    purchase = offers_and_block_purchases.find_doubtful_purchase(offering)
    block = Block(**purchase.block)
    console.note(
        f"{sanitize_line(block.id)} ({money(block.upfront)}) was ordered at {date_time(purchase.asked_at)}, "
        "but the account has no reservation with its tag: AWS has no record of the purchase"
    )
    if not yes:
        if not console.is_terminal:
            raise UsageError(f"nothing was changed. Mark {offering} as not bought with --yes")
        if console.ask('type "clear" to mark it as not bought').strip() != "clear":
            raise UsageError("nothing was changed")
    offers_and_block_purchases.clear_purchase(purchase)
    console.note(f"{sanitize_line(block.id)} is marked as not bought, and can be bought again")
    console.result({"cleared": purchase.block})
    return errors.OK


@command("ls")
@click.option("--provider", metavar="NAME", default="aws", show_default=True, help="List the account of this provider.")
@settings_option
def list_offerings(console: Console, provider: str, settings: Sequence[str]) -> int:
    """List the capacity reservations of the account, and purchases from this machine.

    Exits with 3 if a purchase is unconfirmed.
    """
    bought = offers_and_block_purchases.purchases()
    held = offers_and_block_purchases.list_reservations(provider, dict(map(parse_setting, settings)))
    rows: list[tuple[str, ...]] = [("id", "type", "machines", "free", "where", "from", "until", "state")]
    rows += [_row(each) for each in held]
    doubtful = [(row, reason) for row, found, reason in bought if found is None and row.state == "asked"]
    for row, reason in doubtful:
        block = Block(**row.block)
        console.note(
            f"the purchase of {block.id} ({money(block.upfront)}) at {date_time(row.asked_at)} is unconfirmed: "
            f"{reason or 'the account has no reservation with its tag'}. Allow another purchase with: skyward-tui "
            f"capacity clear {sanitize_line(block.id)}"
        )
    unknown = [{"block": row.block, "asked_at": row.asked_at, "why": reason} for row, reason in doubtful]
    console.result({"reservations": [asdict(each) for each in held], "unknown": unknown})
    if not console.as_json:
        console.print_table(rows if held else [("the account has no capacity reservations",)])
    return errors.UNVERIFIED if doubtful else errors.OK


@click.group()
def capacity() -> None:
    """List, buy or clear capacity reservations."""


for _each in (buy, clear, list_offerings):
    capacity.add_command(_each)


def _row(each: Reservation) -> tuple[str, ...]:
    until = "-" if each.ends_at is None else date_time(each.ends_at)
    kind = f"{sanitize_line(each.state)}, Capacity Block" if each.is_block else sanitize_line(each.state)
    begins = date_time(each.starts_at) if each.starts_at else "-"
    names = sanitize_line(each.id), sanitize_line(each.instance_type)
    return (*names, str(each.count), str(each.free), sanitize_line(each.zone), begins, until, kind)


@command()
@offer_options
def offers(
    console: Console, *, accelerator: str | None, max_hourly: float | None, spot: bool, regions: Sequence[str],
    zones: Sequence[str], vcpus: int, memory: float, architecture: str | None, efa: bool,
    block: int | None, nodes: int | None,
) -> int:  # fmt: skip
    """List machines for rent and their prices.

    Creates nothing. By default, lists machines with any accelerator. With --vcpus, --memory or --arch, but without
    --accelerator, lists machines without an accelerator. Prices are per hour and machine, including its disk and public
    address. Exits with 1 if no machine matches.
    """
    requirements = MachineRequirements(
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
            raise UsageError("--spot cannot be combined with --block: spot capacity cannot be reserved. Remove one")
        return _show_blocks(console, requirements, nodes or 1, block)
    if nodes is not None:
        raise UsageError("--nodes needs --block: other prices are per machine. Remove --nodes")
    found = list_offers(requirements)
    fitting = matching_offers(found.offers, requirements)
    missed = [] if fitting else describe_nearest(found.offers, requirements)
    for note in found.notes:
        console.note(note)
    if console.as_json:
        rows = [asdict(each) | {"billed_hourly": each.billed_hourly} for each in fitting]
        console.result({"offers": rows, "nearest": missed, "notes": list(found.notes)})
    elif fitting:
        console.print_table([_HEAD, *map(_offer_row, offers_by_place(fitting))])
    else:
        console.print_line("no matching machines; closest offers:" if missed else "no matching machines")
        for line in missed:
            console.print_line(f"  {sanitize_line(line)}")
    return errors.OK if fitting else errors.FAILED


def _show_blocks(console: Console, requirements: MachineRequirements, nodes: int, hours: int) -> int:
    """Print the table of capacity blocks."""
    # Drop --max-hourly from the search for machines, because here it limits the hourly price of the block, not of the
    # machine.
    asked = replace(requirements, allocation="on-demand", max_hourly=None)
    most = requirements.max_hourly
    found = [
        each
        for each in list_blocks(asked, nodes, hours)
        if (most is None or each.hourly <= most) and (not requirements.zones or each.zone in requirements.zones)
    ]
    try:
        save_listed_blocks(found)
    except OSError as error:
        console.note(f"cannot buy these by their ids, because the ids could not be saved: {error}")
    rows = [("provider", "type", "machines", "where", "from", "hours", "total", "each", "id")]
    for each in found:
        names = sanitize_line(each.provider), sanitize_line(each.instance_type), str(each.count)
        place = sanitize_line(each.zone), date_time(each.starts_at), str(each.hours)
        rows.append((*names, *place, money(each.upfront), f"{money(each.hourly)}/h", sanitize_line(each.id)))
    console.result({"blocks": [asdict(each) | {"hourly": each.hourly} for each in found]})
    if not console.as_json:
        console.print_table(rows if found else [("no matching capacity blocks for sale now",)])
    return errors.OK if found else errors.FAILED


_HEAD = (
    "provider", "type", "accelerator", "vCPUs", "memory", "where", "on demand", "spot", "3 days", "price of",
)  # fmt: skip


def _offer_row(markets: dict[str, Offer]) -> Sequence[str]:
    best = next(iter(markets.values()))
    spot = markets.get("spot")
    # Range of earlier spot prices. The prices of disk and address are added, as in the displayed current price.
    lately = "–".join(money(each + spot.beside_hourly) for each in (spot and spot.lately) or ()) if spot else ""
    of_each = f" {best.memory_each_gb:.0f} GB" if best.memory_each_gb else ""
    gpus = f"{best.count} × {sanitize_line(best.accelerator)}{of_each}" if best.count else "-"
    machine = sanitize_line(best.provider), sanitize_line(best.instance_type), gpus, str(best.vcpus)
    prices = offer_price(markets.get("on-demand")), offer_price(spot), lately
    return (*machine, f"{best.memory_gb:g} GB", sanitize_line(best.zone or best.region), *prices, _age(best))


def _age(offer: Offer) -> str:
    if not offer.priced_at:
        return "?"
    if offer.shipped:
        return f"{time.strftime('%Y-%m-%d', time.gmtime(offer.priced_at))} (this release)"
    return ago(time.time() - offer.priced_at)


@command()
@click.option("--since", type=Duration(), default="30d", show_default=True, help='Period: "12h", "30d", "4w".')
@click.option(
    "--by",
    type=click.Choice(["pool", "function", "day"]),
    default="pool",
    show_default=True,
    help="Group the sums by pool, function or day.",
)
def costs(console: Console, since: float, by: str) -> None:
    """Show the cost of pools.

    Counts all machines, also replaced ones, from their creation to the start of their termination, at the prices known
    at their creation. The provider's bill is authoritative.
    """
    began = max(0.0, time.time() - since)
    with open_session(console) as session:
        # probing the pools also records the end of pools that have shut themselves down
        note_unreachable(session, console)
    found = add_up(began)
    if console.as_json:
        sums = {"functions": dict(found.by_function), "days": dict(found.by_day)}
        pools = [asdict(each) for each in found.pools]
        console.result({"since": began, "dollars": found.dollars, "pools": pools} | sums)
        return
    if not found.pools:
        console.print_line("no costs in that time")
        return
    rows = {
        "pool": _pool_rows(found.pools),
        "function": _sum_rows("function", found.by_function),
        "day": _sum_rows("day", dict(sorted(found.by_day.items()))),
    }[by]
    console.print_table([*rows, ("all", *[""] * (len(rows[0]) - 2), money(found.dollars))])
    if unknown := sum(each.dollars is None for each in found.pools):
        console.note(f"the cost of {count(unknown, 'pool')} is unknown")


def _pool_rows(pools: Sequence[PoolCost]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("pool", "provider", "made", "ran", "cost")]
    for each in pools:
        cost = ("$?" if each.dollars is None else money(each.dollars)) + (" so far" if each.goes_on else "")
        pool, provider, ran = map(sanitize_line, (each.pool, each.provider, ", ".join(each.functions)))
        rows.append((pool, provider, date_time(each.since), ran or "-", cost))
    return rows


def _sum_rows(head: str, sums: Mapping[str, float]) -> list[Sequence[str]]:
    return [(head, "cost"), *((sanitize_line(name) or "-", money(dollars)) for name, dollars in sums.items())]
