"""Receipts, retained results and leftovers in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from skyward_core.util.byte_sizes import format_size
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.text.number_and_time_format import ago, clip, count, duration, money

if TYPE_CHECKING:
    from skyward_core.client.leftover_cleanup import JudgedLeftover, LeftoverScan
    from skyward_core.client.run_history import Receipt
    from skyward_core.model.machines import Leftover
    from skyward_core.model.output_files import Unfetched, WrittenFile


NAMED = 3  # files of a pool that a question names
MAX_NAME_CHARS = 50  # characters of a name
Line = tuple[str, str]
"""Text, and its style."""


def total_size(files: Sequence[WrittenFile]) -> str:
    """Of all of them, in words."""
    return format_size(float(sum(file.size for file in files)))


def unfetched_lines(left: Unfetched) -> Iterator[Line]:
    """What a teardown would make of them."""
    if left.asked:
        yield f"{_files_text(left.asked, 'of the outputs', 'comes', 'come')} here first:", ""
        yield from _largest_files(left.asked, "")
    if left.others:
        mark, verbs, where, style = "", ("stays", "stay"), "on the hosts", ""
        if left.exceeds_limit:
            mark, verbs, where, style = "! ", ("goes", "go"), "with the machines", "$text-warning"
        elif left.goes:
            verbs, where = ("comes", "come"), "here first"
        said = _files_text(left.others, "that nobody has fetched", *verbs)
        yield f"{mark}{said} {where}:", style
        yield from _largest_files(left.others, style)
    if left.untold:
        yield f"! {count(left.untold, 'more file')} that the nodes do not name at once", "$text-warning"
    for node, reason in left.failures.items():
        yield f"! node {node} cannot be asked what its ranks wrote: {sanitize_line(reason)}", "$text-warning"


def _files_text(files: Sequence[WrittenFile], which: str, one: str, more: str) -> str:
    return f"{count(len(files), 'file')} ({total_size(files)}) {which} {one if len(files) == 1 else more}"


def _largest_files(files: Sequence[WrittenFile], style: str) -> Iterator[Line]:
    """The largest by name, a line each."""
    largest = sorted(files, key=lambda file: (-file.size, file.node, file.path))[:NAMED]
    for file in largest:
        yield f"{total_size([file]):>11}  {clip(sanitize_line(file.path), MAX_NAME_CHARS)}", style
    if len(files) > len(largest):
        yield f"{'':>11}  and {len(files) - len(largest):,} more", style


def receipt_lines(receipt: Receipt) -> Iterator[Line]:
    """The proof, then a line for each thing that is lost, or lies somewhere."""
    proof = replace(receipt, kept=(), lost=())
    good = receipt.ok
    style = "bold $text-success" if good else "bold $text-error"
    yield f"{'✓' if good else '✗'} {proof} ({receipt.seconds:.1f} s)", style
    yield from ((f"! lost: {sanitize_line(each)}", "$text-warning") for each in receipt.lost)
    yield from ((f"kept: {sanitize_line(each)}", "") for each in receipt.kept)
    yield from ((sanitize_line(each), "$muted") for each in receipt.notes)


def receipt_line(receipt: Receipt) -> str:
    """All of it as one line."""
    return "; ".join([f"{receipt} ({receipt.seconds:.1f} s)", *receipt.notes])


COMMAND = "skyward-tui leftovers"


def leftovers_amount(found: Sequence[JudgedLeftover]) -> str:
    """How many machines and other things, and what they cost an hour."""
    prices = [each.thing.hourly for each in found if each.thing.is_machine]
    machines = len(prices)
    total = f" ({said})" if (said := _total_price(prices)) else ""
    parts = [f"{count(machines, 'machine')}{total}"] if machines else []
    parts += [count(len(found) - machines, "other thing")] if len(found) > machines else []
    return " and ".join(parts)


def leftovers_line(found: LeftoverScan, how: str = COMMAND) -> str:
    """What nobody needs, as one line that ends with how to have it ended; "" where there is nothing."""
    if not found.removable:
        return ""
    is_are = "is" if len(found.removable) == 1 else "are"
    return f"{leftovers_amount(found.removable)} of pools that are over {is_are} left: {how}"


def unchecked_line(found: LeftoverScan) -> str:
    """What could not be looked at, as one line; "" where all was."""
    said = "; ".join(f"{place} ({reason})" for place, reason in found.unknown.items())
    return f"could not look for what is left: {said}" if said else ""


def other_ledgers_lines(found: LeftoverScan) -> Iterator[str]:
    """What other ledgers have there."""
    for (ledger, owner), (machines, more) in found.others.items():
        things = _count_things(machines, more)
        yield f"not looked at: {things} of ledger {ledger} ({owner}): --ledger {ledger} has them looked at"


def leftovers_table(found: Sequence[JudgedLeftover]) -> list[tuple[str, ...]]:
    """A table: what it is, of which pool, where, how old, and what is to be made of it."""
    rows: list[tuple[str, ...]] = [("pool", "what", "id", "where", "age", "cost", "expires", "state")]
    now = time.time()
    for each in _sorted(found):
        cells = leftover_cells(each, now)
        spent = "" if "-" in (cells["COST"], cells["SO FAR"]) else f", {cells['SO FAR']} so far"
        shown = cells | {"COST": cells["COST"] + spent, "STATE": verdict_text(each)}
        rows.append(tuple(shown[name.upper()] for name in rows[0]))
    return rows


def _sorted(found: Sequence[JudgedLeftover]) -> list[JudgedLeftover]:
    return sorted(found, key=lambda one: (one.thing.pool, one.thing.token, not one.thing.is_machine))


def verdict_text(found: JudgedLeftover) -> str:
    """What is to be made of it, in words."""
    if found.verdict == "left":
        return f"left: {'its pool is over' if found.pool else 'no pool here has it'}"
    return _STATES[found.verdict]


_OVER = "its time is over, and "
_STATES = {"up": "its pool is up", "expired": f"{_OVER}no agent lives there"}


@dataclass(frozen=True)
class LeftoverRow:
    """A row of the screen: a thing, or what a ledger of others has, or a place that could not be looked at.

    Attributes:
        id: what tells it from the others.
        text: in words; of a thing, what follows its state where there is room.
        ledger: of others; only that row has one.
    """

    id: str
    text: str
    found: JudgedLeftover | None = None
    ledger: str = ""


def leftover_rows(found: LeftoverScan) -> list[LeftoverRow]:
    """All that a look has found."""
    rows = [
        LeftoverRow(
            f"{each.thing.what} {each.thing.id}",
            f": {verdict_text(each).removeprefix('left: ').removeprefix(_OVER)}",
            each,
        )
        for each in _sorted(found.found)
    ]
    for (ledger, owner), (machines, more) in found.others.items():
        text = f"{_count_things(machines, more)} of ledger {ledger or '?'} ({owner or 'nobody'})"
        rows.append(LeftoverRow(f"ledger {ledger} {owner}", text, ledger=ledger))
    for place, reason in found.unknown.items():
        rows.append(
            LeftoverRow(f"place {place}", f"! {sanitize_line(place)} could not be looked at: {sanitize_line(reason)}")
        )
    return rows


def leftover_cells(found: JudgedLeftover, now: float) -> dict[str, str]:
    """A thing by column."""
    thing = found.thing
    return {
        "POOL": thing.pool,
        "WHAT": thing.what,
        "ID": thing.id,
        "WHERE": thing.place,
        "AGE": duration(now - thing.since) if thing.since else "-",
        "COST": _hourly(thing) or "-",
        "SO FAR": money(spent) if (spent := thing.spent_by(now)) else "-",
        "EXPIRES": _expires(found, now),
    }


def row_detail(row: LeftoverRow, now: float) -> str:
    """All that is known of what is chosen."""
    if row.found is None:
        if not row.ledger:
            return f"{row.text}\nWhat is there is not known: it may cost money."
        return f"{row.text}\nNothing of it is touched. Enter has it looked at, as if it were made from here."
    thing = row.found.thing
    facts = _facts(thing, now, " when it was made")
    if thing.expires is not None:
        facts.append(f"{'expired' if thing.expires < now else 'expires'} {_expires(row.found, now)}")
    whose = "" if thing.ours else f"\nIt is of ledger {thing.ledger} ({thing.owner}), not of this one."
    return f"{', '.join(facts)}\npool {thing.pool}: {verdict_text(row.found).removeprefix('left: ')}{whose}"


def _facts(thing: Leftover, now: float, priced: str = "") -> list[str]:
    facts = [f"{thing.what} {thing.id} in {thing.place}"]
    facts += [] if thing.since is None else [f"{duration(now - thing.since)} old"]
    if total := _hourly(thing):
        spent = thing.spent_by(now)
        facts += [f"{total}{priced}", *([] if spent is None else [f"{money(spent)} so far"])]
    return facts


def deletion_lines(found: Sequence[JudgedLeftover], now: float) -> Iterator[str]:
    """What is to be ended, a line for each pool and for each thing of it."""
    pool = None
    for each in _sorted(found):
        thing = each.thing
        if pool != (thing.pool, thing.token):
            pool = thing.pool, thing.token
            yield f"pool {thing.pool}: {verdict_text(each).removeprefix('left: ')}"
        yield f"  {', '.join(_facts(thing, now))}"


def _count_things(machines: int, more: int) -> str:
    return " and ".join(count(many, what) for many, what in ((machines, "machine"), (more, "other thing")) if many)


def _total_price(prices: Sequence[float | None]) -> str:
    """Of machines, an hour; "" where they cost nothing."""
    if None in prices:
        return "$?/h"
    return f"{money(total)}/h" if (total := sum(filter(None, prices))) else ""


def _hourly(thing: Leftover) -> str:
    """By the price when it was made; "" of what costs nothing worth a word."""
    return _total_price([thing.hourly]) if thing.is_machine else ""


def _expires(found: JudgedLeftover, now: float) -> str:
    at = found.thing.expires
    if at is None:
        return "-"
    return ago(now - at) if at < now else f"in {duration(at - now)}"
