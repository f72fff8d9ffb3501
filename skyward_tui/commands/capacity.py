"""``skyward-tui capacity``: machines that are bought ahead, and those that are held for an account."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from skyward_core.front import capacity
from skyward_core.model import exit_status
from skyward_core.model.errors import Unreachable, UsageError
from skyward_core.model.offer import Block, Reservation
from skyward_core.wire.safe_text import field

from ..words import count, money
from .console import Console
from .report import table


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
        return exit_status.UNVERIFIED
    console.note(
        f"bought: {found.id}; sky.AWS(reservation={found.id!r}) has machines of it once it has begun"
    )
    console.result({"bought": asdict(found)})
    if not console.as_json:
        console.say(found.id)
    return exit_status.OK


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
    return exit_status.OK


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
    return exit_status.UNVERIFIED if doubtful else exit_status.OK


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
