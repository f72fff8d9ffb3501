"""``skyward-tui leftovers``: resources of ours that cloud accounts still hold, listed and removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from skyward_core.client.leftover_cleanup import JudgedLeftover, LeftoverScan, scannable_providers
from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_tui.cli.console import Console
from skyward_tui.cli.follow_run import Follower
from skyward_tui.cli.pool_and_run_lookup import open_session
from skyward_tui.cli.run_report import table
from skyward_tui.cli.shared_options import command, settings_option
from skyward_tui.text.receipts_and_leftovers import (
    leftovers_line,
    leftovers_table,
    other_ledgers_lines,
    unchecked_line,
)


@command()
@click.option("--provider", metavar="NAME", help="Look through its account only, such as aws.")
@settings_option
@click.option("--all-regions", is_flag=True, help="Look in all regions, not only where pools have been.")
@click.option("--ledger", "ledgers", metavar="ID", multiple=True, help="Also what this other ledger made; repeatable.")
@click.option("-y", "--yes", is_flag=True, help="End what is left without asking.")
def leftovers(
    console: Console,
    provider: str | None,
    settings: Sequence[str],
    all_regions: bool,
    ledgers: Sequence[str],
    yes: bool,
) -> int:
    """Find what was rented from here and is left, and end it.

    Cloud accounts are looked through, whatever the ledger says. What is left belongs to pools that are over, or that
    no ledger here has. Nothing is ended without --yes, or a yes at the terminal. What has no tag of ours, and what
    other ledgers made, is never touched.
    """
    if settings and provider is None:
        raise UsageError("--set is of one provider: name it by --provider")
    asked = {name: settings for name in ([provider] if provider else scannable_providers())}
    with open_session(console) as session:
        found = session.scan_leftovers(asked, everywhere=all_regions, ledgers=ledgers).result()
        _show(found, console)
        ended = bool(found.removable) and _confirm_deletion(found, yes, console)
        remains = _delete(session, found, console) if ended else []
    console.result(
        {
            "found": [_row(each) for each in found.found],
            "others": [
                {"ledger": ledger, "owner": owner, "machines": machines, "more": more}
                for (ledger, owner), (machines, more) in found.others.items()
            ],
            "unknown": dict(found.unknown),
            "ended": ended,
            "remains": remains,
        }
    )
    return errors.UNVERIFIED if remains else errors.FAILED if found.unknown else errors.OK


def note_leftovers(session: Session, specs: Iterable[Mapping[str, Any]], console: Console) -> None:
    """After pools have ended: tell what is left of any, where their machines were rented."""
    if not any(spec.get("rents") for spec in specs):
        return
    found = session.scan_leftovers().result()
    for line in (leftovers_line(found), unchecked_line(found)):
        if line:
            console.note(line)


def _show(found: LeftoverScan, console: Console) -> None:
    if found.found:
        head, *lines = table(leftovers_table(found.found))
        console.print_line(head, 1)
        for line in lines:
            console.print_line(line)
    elif not found.unknown:
        console.note("nothing that was made from here is there")
    for line in (*other_ledgers_lines(found), unchecked_line(found), leftovers_line(found)):
        if line:
            console.note(line)


def _confirm_deletion(found: LeftoverScan, yes: bool, console: Console) -> bool:
    """Whether the person wants it ended."""
    if yes:
        return True
    if not console.is_terminal:
        console.note("nothing was ended: --yes ends what is left")
        return False
    what = "what nobody has fetched from there goes with it"
    said = console.confirm(f"end what is left ({len(found.removable)} things)? {what}")
    if not said:
        console.note("nothing was ended")
    return said


def _delete(session: Session, found: LeftoverScan, console: Console) -> list[str]:
    """End it, and see it gone; gives what remains."""
    follower = Follower(console)
    with follower.catch_signals():
        remains: list[str] = follower.wait(session.remove_leftovers(found, console.note), heed=False)
    for each in remains:
        console.note(f"still there: {each}")
    if not remains:
        console.note(f"ended, and verified gone: {len(found.removable)}")
    return remains


def _row(each: JudgedLeftover) -> dict[str, object]:
    return asdict(each.thing) | {"state": each.verdict}
