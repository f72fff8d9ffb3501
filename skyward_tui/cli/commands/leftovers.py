"""``skyward-tui leftovers``: listing and removal of resources that cloud accounts still hold after the end of pools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from skyward_core.client.leftover_cleanup import LeftoverScan, scannable_providers
from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.follow_run import Follower
from skyward_tui.cli.pool_and_run_lookup import open_session
from skyward_tui.cli.shared_options_and_command_class import command, settings_option
from skyward_tui.text.number_time_and_run_state_format import count
from skyward_tui.text.teardown_and_leftovers import (
    leftovers_line,
    leftovers_table,
    other_ledgers_lines,
    unchecked_line,
)


@command()
@click.option("--provider", metavar="NAME", help="Search only the account of this provider, such as aws.")
@settings_option
@click.option("--all-regions", is_flag=True, help="Search all regions, not only those used by pools.")
@click.option(
    "--ledger", "ledgers", metavar="ID", multiple=True, help="Also list resources of this other ledger. Repeatable."
)
@click.option("-y", "--yes", is_flag=True, help="Remove the leftovers without confirmation.")
def leftovers(
    console: Console,
    provider: str | None,
    settings: Sequence[str],
    all_regions: bool,
    ledgers: Sequence[str],
    yes: bool,
) -> int:
    """Find and remove leftover cloud resources of this machine.

    Searches cloud accounts independently of the ledger. Leftovers belong to pools that have ended or that the ledger
    does not know. Nothing is removed without --yes or a confirmation at the terminal. Resources without our tag, and
    resources of other ledgers, are never removed.
    """
    if settings and provider is None:
        raise UsageError("--set needs a provider. Name it with --provider")
    asked = {name: settings for name in ([provider] if provider else scannable_providers())}
    with open_session(console) as session:
        found = session.scan_leftovers(asked, everywhere=all_regions, ledgers=ledgers).result()
        if found.is_unconfigured and provider is None and not (found.found or found.others):
            console.note("no machines were rented from this state folder; no cloud account to check")
            found = LeftoverScan()
        else:
            _show(found, console)
        ended = bool(found.removable) and _confirm_deletion(found, yes, console)
        remains = _delete(session, found, console) if ended else []
    console.result(
        {
            "found": [asdict(each.thing) | {"state": each.verdict} for each in found.found],
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
    """Report leftovers after the teardown of pools with rented machines."""
    if not any(spec.get("rents") for spec in specs):
        return
    found = session.scan_leftovers().result()
    for line in (leftovers_line(found), unchecked_line(found)):
        if line and not found.is_unconfigured:
            console.note(line)


def _show(found: LeftoverScan, console: Console) -> None:
    if found.found:
        console.print_table(leftovers_table(found.found), [1])
    elif not found.unknown:
        console.note("no cloud resources created from this machine were found")
    for line in (*other_ledgers_lines(found), unchecked_line(found), leftovers_line(found)):
        if line:
            console.note(line)


def _confirm_deletion(found: LeftoverScan, yes: bool, console: Console) -> bool:
    """Ask the user to confirm the removal, unless ``yes`` is true."""
    if yes:
        return True
    if not console.is_terminal:
        console.note("nothing was removed. Remove the leftovers with --yes")
        return False
    number = count(len(found.removable), "leftover resource")
    confirmed = console.confirm(f"remove {number}? Unfetched results on them are lost")
    if not confirmed:
        console.note("nothing was removed")
    return confirmed


def _delete(session: Session, found: LeftoverScan, console: Console) -> list[str]:
    """Remove the leftovers and verify their removal. Return the resources that remain."""
    follower = Follower(console)
    with follower.catch_signals():
        remains: list[str] = follower.wait(session.remove_leftovers(found, console.note), heed=False)
    for each in remains:
        console.note(f"still there: {each}")
    if not remains:
        console.note(f"removed and verified gone: {len(found.removable)}")
    return remains
