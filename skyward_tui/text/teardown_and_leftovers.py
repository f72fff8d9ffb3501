"""Text about teardown receipts, unfetched files and leftovers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.text.number_time_and_run_state_format import ago, count, duration, money
from skyward_tui.text.text_width_tables_and_ascii import clip

if TYPE_CHECKING:
    from skyward_core.client.leftover_cleanup import JudgedLeftover, LeftoverScan
    from skyward_core.client.run_history import Receipt
    from skyward_core.model.leftovers import Leftover
    from skyward_core.model.output_files import Unfetched, WrittenFile
    from skyward_core.model.specs import PoolSpec
    from skyward_core.views.pool_view import PoolView


NAMED = 3  # maximum number of unfetched files that a confirmation lists for each pool
MAX_NAME_CHARS = 50  # maximum characters of a displayed file name, to fit a dialog on a terminal of 80 columns
# A text and its style.
Line = tuple[str, str]


def kept_pool_text(pool: PoolSpec | PoolView, ends: str) -> str:
    """Return the text of a plan that keeps its pool. ``ends`` is the key or the command that tears down the pool."""
    from skyward_core.views.pool_view import PoolView  # imported late, so that the app paints its first screen earlier

    options = pool.spec.get("options", {}) if isinstance(pool, PoolView) else vars(pool.options)
    idle = options.get("idle_timeout")
    return f"pool stays up{f' until idle for {duration(idle)}' if idle else ''} ({ends}: tear down)"


def total_size(files: Sequence[WrittenFile]) -> str:
    return format_size(float(sum(file.size for file in files)))


def unfetched_lines(unfetched: Unfetched) -> Iterator[Line]:
    """Yield lines about unfetched files, and about what a teardown does with them."""
    if unfetched.asked:
        yield f"downloads {_files_text(unfetched.asked, 'output file')} first:", ""
        yield from _largest_files(unfetched.asked, "")
    if unfetched.others:
        files = _files_text(unfetched.others, "unfetched file")
        text, style = f"{files} {'stays' if len(unfetched.others) == 1 else 'stay'} on the hosts:", ""
        if unfetched.exceeds_limit:
            text, style = f"! deletes {files} with the machines:", "$text-warning"
        elif unfetched.is_lost_with_machines:
            text = f"downloads {files} first:"
        yield text, style
        yield from _largest_files(unfetched.others, style)
    if unfetched.unlisted:
        yield f"! {count(unfetched.unlisted, 'more file')} not listed: too many for one request", "$text-warning"
    for node, reason in unfetched.failures.items():
        yield f"! cannot list the files of node {node}: {sanitize_line(reason)}", "$text-warning"


def _files_text(files: Sequence[WrittenFile], what: str) -> str:
    return f"{count(len(files), what)} ({total_size(files)})"


def _largest_files(files: Sequence[WrittenFile], style: str) -> Iterator[Line]:
    """Yield a line for each of the largest files."""
    largest = sorted(files, key=lambda file: (-file.size, file.node, file.path))[:NAMED]
    for file in largest:
        yield f"{total_size([file]):>11}  {clip(sanitize_line(file.path), MAX_NAME_CHARS)}", style
    if len(files) > len(largest):
        yield f"{'':>11}  and {len(files) - len(largest):,} more", style


def receipt_lines(receipt: Receipt) -> Iterator[Line]:
    """Yield a line on how a teardown was verified, then a line for each lost result, retained result and note."""
    proof = replace(receipt, retained=(), lost=())
    good = receipt.ok
    style = "bold $text-success" if good else "bold $text-error"
    yield f"{'✓' if good else '✗'} {proof} ({receipt.seconds:.1f} s)", style
    yield from ((f"! lost: {sanitize_line(each)}", "$text-warning") for each in receipt.lost)
    yield from ((f"retained: {sanitize_line(each)}", "") for each in receipt.retained)
    yield from ((sanitize_line(each), "$muted") for each in receipt.notes)


def receipt_line(receipt: Receipt) -> str:
    """Return a receipt as one line."""
    return "; ".join([f"{receipt} ({receipt.seconds:.1f} s)", *receipt.notes])


COMMAND = "skyward-tui leftovers"


def leftovers_amount(found: Sequence[JudgedLeftover]) -> str:
    """Return the number of machines, with their hourly price, and the number of other resources."""
    prices = [each.thing.hourly for each in found if each.thing.is_machine]
    machines = len(prices)
    total = f" ({price})" if (price := _total_price(prices)) else ""
    parts = [f"{count(machines, 'machine')}{total}"] if machines else []
    parts += [count(len(found) - machines, "other resource")] if len(found) > machines else []
    return " and ".join(parts)


def leftovers_line(found: LeftoverScan, how: str = COMMAND) -> str:
    """Return a line about leftovers that can be removed; "" if there are none.

    Args:
        found: The result of a scan.
        how: Text about how to remove the leftovers, for the end of the line.
    """
    return f"leftovers of {found.pools}: {leftovers_amount(found.removable)}; {how}" if found.removable else ""


def unchecked_line(found: LeftoverScan) -> str:
    """Return a line about the places that could not be scanned; "" if there are none."""
    places = "; ".join(f"{place} ({reason})" for place, reason in found.unknown.items())
    return f"could not check for leftovers: {places}" if places else ""


def other_ledgers_lines(found: LeftoverScan) -> Iterator[str]:
    """Yield lines about resources of other ledgers."""
    for (ledger, owner), (machines, more) in found.others.items():
        things = _count_things(machines, more)
        yield f"not checked: {things} of ledger {ledger} ({owner}). Check them with --ledger {ledger}"


def leftovers_table(found: Sequence[JudgedLeftover]) -> list[tuple[str, ...]]:
    """Return the rows of a table of leftovers, its header first."""
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
    """Return the state of a leftover."""
    if found.verdict == "left":
        return f"left: {'its pool has ended' if found.pool else 'its pool is not in this ledger'}"
    return _STATES[found.verdict]


_OVER = "its lease has expired, and "
_STATES = {
    "up": "its pool is up",
    "unfinished": "the client of its pool exited during the start",
    "expired": f"{_OVER}it has no agent",
}


@dataclass(frozen=True)
class LeftoverRow:
    """Row of the leftovers screen: a resource, another ledger, or a place that could not be scanned.

    Attributes:
        id: Unique ID of the row.
        text: Text of the row. For a resource, the text after its state, shown if there is room.
        found: The resource; None for other rows.
        ledger: ID of the other ledger; "" for other rows.
    """

    id: str
    text: str
    found: JudgedLeftover | None = None
    ledger: str = ""


def leftover_rows(found: LeftoverScan) -> list[LeftoverRow]:
    """Return the rows for the result of a scan."""
    rows = list[LeftoverRow]()
    for each in _sorted(found.found):
        text = verdict_text(each).removeprefix("left: ").removeprefix(_OVER)
        rows.append(LeftoverRow(f"{each.thing.what} {each.thing.id}", f": {text}", each))
    for (ledger, owner), (machines, more) in found.others.items():
        text = f"{_count_things(machines, more)} of ledger {ledger or '?'} ({owner or 'unknown owner'})"
        rows.append(LeftoverRow(f"ledger {ledger} {owner}", text, ledger=ledger))
    for place, reason in found.unknown.items():
        rows.append(LeftoverRow(f"place {place}", f"! could not check {sanitize_line(place)}: {sanitize_line(reason)}"))
    return rows


def leftover_cells(found: JudgedLeftover, now: float) -> dict[str, str]:
    """Return the cells of a leftover by column."""
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
    """Return a text with all details of a row."""
    if row.found is None:
        if not row.ledger:
            return f"{row.text}\nUnknown resources there may cost money."
        return f"{row.text}\nResources of other ledgers are never removed. Enter: check these resources, too."
    thing = row.found.thing
    facts = _facts(thing, now, " at its creation")
    if thing.expires is not None:
        facts.append(f"{'expired' if thing.expires < now else 'expires'} {_expires(row.found, now)}")
    owner = "" if thing.ours else f"\nIt belongs to ledger {thing.ledger} ({thing.owner}), not to this one."
    return f"{', '.join(facts)}\npool {thing.pool}: {verdict_text(row.found).removeprefix('left: ')}{owner}"


def _facts(thing: Leftover, now: float, priced: str = "") -> list[str]:
    facts = [f"{thing.what} {thing.id} in {thing.place}"]
    facts += [] if thing.since is None else [f"{duration(now - thing.since)} old"]
    if total := _hourly(thing):
        spent = thing.spent_by(now)
        facts += [f"{total}{priced}", *([] if spent is None else [f"{money(spent)} so far"])]
    return facts


def deletion_lines(found: Sequence[JudgedLeftover], now: float) -> Iterator[str]:
    """Yield lines about leftovers to remove: one line for each pool, followed by one for each of its resources."""
    pool = None
    for each in _sorted(found):
        thing = each.thing
        if pool != (thing.pool, thing.token):
            pool = thing.pool, thing.token
            yield f"pool {thing.pool}: {verdict_text(each).removeprefix('left: ')}"
        yield f"  {', '.join(_facts(thing, now))}"


def _count_things(machines: int, more: int) -> str:
    return " and ".join(count(many, what) for many, what in ((machines, "machine"), (more, "other resource")) if many)


def _total_price(prices: Sequence[float | None]) -> str:
    """Format the total hourly price of machines; "" if they are free."""
    if None in prices:
        return "$?/h"
    return f"{money(total)}/h" if (total := sum(filter(None, prices))) else ""


def _hourly(thing: Leftover) -> str:
    """Format the hourly price of a machine, as known at its creation; "" for other resources."""
    return _total_price([thing.hourly]) if thing.is_machine else ""


def _expires(found: JudgedLeftover, now: float) -> str:
    at = found.thing.expires
    if at is None:
        return "-"
    return ago(now - at) if at < now else f"in {duration(at - now)}"
