"""``skyward-tui cancel``, ``down``, ``leftovers`` and ``prune``: stop runs, tear down pools, remove old resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from skyward_core.client import run_history as run_history
from skyward_core.client.leftover_cleanup import LeftoverScan, scannable_providers
from skyward_core.client.session import Session
from skyward_core.model import errors, spec_field_checks
from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.util.number_size_and_time_format import format_size
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.follow_run import Follower
from skyward_tui.cli.pool_and_run_lookup import live_and_retained_pools, open_session, resolve_run
from skyward_tui.cli.result_tables_failures_and_receipts import drop_receipts, queue_receipt, receipt_line
from skyward_tui.cli.shared_options_and_command_class import Duration, command, repeatable_option, settings_option
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.number_time_and_run_state_format import count, date_time
from skyward_tui.text.teardown_and_leftovers import (
    leftovers_line,
    leftovers_table,
    other_ledgers_lines,
    unchecked_line,
    unfetched_lines,
)


@command()
@click.argument("run")
@click.option(
    "--grace", type=Duration(),
    help="Time between SIGTERM and SIGKILL, even for ranks that are already stopping.  [default: the pool's]",
)  # fmt: skip
@click.option("--save", is_flag=True, help="Give ranks time to save their work first, as before a preemption.")
def cancel(console: Console, run: str, grace: float | None, save: bool) -> None:
    """Stop a run on all its ranks; the pool stays up.

    RUN is the id of a run or the name of a pool (its running run, else its last), or a unique prefix.
    """
    with open_session(console) as session:
        row = resolve_run(session, run)
        run, state = row.run, row.state
        if state == "running":
            pool = session.ledger.pool(row.token).key
            session.attach(pool).result()
            follower = Follower(console)
            session.subscribe(pool, follower.on_event).result()
            session.cancel(pool, run, grace, save=save).result()
            state = follower.wait(session.wait(pool, run)).state
            if save:
                for note in follower.wait(session.fetch_files(pool, run, None)).notes:
                    console.note(note)
    console.note(f"run {run} is {state}")
    console.result({"run": run, "state": state})


@command()
@click.argument("pools", metavar="POOL...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Tear down all running pools.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--discard", is_flag=True, help="Discard unfetched results.")
@click.option("--now", is_flag=True, help="Terminate rented machines at once, with all data on them.")
def down(console: Console, pools: Sequence[str], everything: bool, yes: bool, discard: bool, now: bool) -> int:
    """Tear pools down, and show the receipts.

    Unfetched results are downloaded first, including those of named pools that have already ended. Exits with 3 if
    something may still be running.
    """
    if bool(pools) == everything:
        raise click.UsageError("name the pools to tear down, or give --all")
    follower = Follower(console)
    status, receipts = errors.OK, dict[str, run_history.Receipt]()
    with open_session(console) as session:
        live, ended = live_and_retained_pools(
            session, [row.key for row in session.ledger.live_pools()] if everything else pools
        )
        if (discard or now) and not yes and not console.is_terminal:
            raise UsageError(
                "cannot ask for confirmation without a terminal. Pass --yes to discard data without confirmation"
            )
        if not live and not ended:
            console.note("no pools are up")
        elif not yes and console.is_terminal:
            question = _confirmation(session, live, ended, discard)
            for line in () if discard or now else _unfetched_files(session, live):
                console.note(line)
            if now:
                names = ", ".join(row.name for row in live)
                console.note(f"{names}: all data on the machines is lost, even if it was not fetched")
            typed = not now or console.ask('type "now" to terminate them at once').strip() == "now"
            if not typed or (not now and not console.confirm(question)):
                console.note("nothing was torn down")
                return errors.FAILED
        with follower.catch_signals():
            for row in ended:
                for line in follower.wait(session.fetch(row.token, give_up=discard), interruptible=False):
                    console.note(line)
            for row, future in [(row, session.tear_down(row.key, give_up=discard, now=now)) for row in live]:
                try:
                    receipt = follower.wait(future, interruptible=False)
                except Exception as error:  # noqa: BLE001  the other pools must still be torn down
                    console.note(f"error: pool {row.name} could not be torn down: {format_error(error)}")
                    status = errors.UNVERIFIED
                    continue
                # The receipt is saved before it is printed, because the client may be killed in between.
                queue_receipt(session, row.key, receipt)
                console.note(receipt_line(receipt))
                receipts[row.token] = receipt
                status = status if receipt.ok else errors.UNVERIFIED
        note_leftovers(session, [row.spec for row in live], console)
        console.result({"receipts": [each.to_json() for each in receipts.values()]})
        if receipts and (console.shows_notes or console.shows_results):
            drop_receipts(session, receipts)
    return status


def _confirmation(
    session: Session, live: Sequence[run_history.PoolRow], ended: Sequence[run_history.PoolRow], discard: bool
) -> str:
    """Return the confirmation prompt, listing all unfetched results."""
    keys = {row.key for row in live}
    views = [view for view in session.refresh().result() if view.key in keys and view.is_live]
    waiting = [f"run {run} of {view.name} ({size:,} bytes)" for view in views for run, size in view.unfetched.items()]
    waiting += [f"{results} of {row.name}" for row in ended for results in session.ledger.unfetched_results(row.token)]
    question = f"tear down {', '.join(row.name for row in live)}? Its runs are stopped" if live else "continue?"
    if not waiting:
        return question
    fate = "unfetched results to be DISCARDED" if discard else "results to be downloaded first"
    return f"{question}; {fate}: {'; '.join(waiting)}"


def _unfetched_files(session: Session, live: Sequence[run_history.PoolRow]) -> Iterator[str]:
    """Yield lines about the unfetched files of ranks, and about what the teardown does with these files."""
    for row in live:
        try:
            unfetched = session.unfetched_files(row.key).result()
        except SkywardError as error:
            yield f"cannot list the files of the ranks of pool {row.name}: {format_error(error)}"
            continue
        yield from (f"{row.name}: {line}" for line, _ in unfetched_lines(unfetched))
        if unfetched.exceeds_limit:
            yield (
                f"{row.name}: only the newest {format_size(float(unfetched.download_limit))} are downloaded; "
                f"download all with: skyward-tui fetch {row.name}"
            )


@command()
@click.option("--provider", metavar="NAME", help="Search only the account of this provider, such as aws.")
@settings_option
@click.option("--all-regions", is_flag=True, help="Search all regions, not only those used by pools.")
@repeatable_option("--ledger", "ledgers", metavar="ID", help="Also list resources of the ledger ID.")
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
            _show_leftovers(found, console)
        ended = bool(found.removable) and _confirm_deletion(found, yes, console)
        remains = _delete_leftovers(session, found, console) if ended else []
    things = [asdict(each.thing) | {"state": each.verdict} for each in found.found]
    others = [
        {"ledger": ledger, "owner": owner, "machines": machines, "more": more}
        for (ledger, owner), (machines, more) in found.others.items()
    ]
    scan = {"found": things, "others": others, "unknown": dict(found.unknown)}
    console.result(scan | {"ended": ended, "remains": remains})
    return errors.UNVERIFIED if remains else errors.FAILED if found.unknown else errors.OK


def note_leftovers(session: Session, specs: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Scan the accounts of the ledger's pools for leftovers after the teardown of pools with rented machines."""
    if not any(spec.get("rents") for spec in specs):
        return
    found = session.scan_leftovers().result()
    for line in (leftovers_line(found), unchecked_line(found)):
        if line and not found.is_unconfigured:
            console.note(line)


def _show_leftovers(found: LeftoverScan, console: Console) -> None:
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


def _delete_leftovers(session: Session, found: LeftoverScan, console: Console) -> list[str]:
    """Remove the leftovers and verify their removal. Return the resources that remain."""
    follower = Follower(console)
    with follower.catch_signals():
        remains: list[str] = follower.wait(session.remove_leftovers(found, console.note), interruptible=False)
    for each in remains:
        console.note(f"still there: {each}")
    if not remains:
        console.note(f"removed and verified gone: {len(found.removable)}")
    return remains


@command()
@click.option(
    "--older", type=Duration(), default="90d", show_default=True, help="Remove pools that ended at least this long ago."
)
@click.option(
    "--most",
    metavar="SIZE",
    default="20 GB",
    show_default=True,
    help="Also remove the oldest pools until the others have at most this total size.",
)
@click.option("--checkpoints", is_flag=True, help="Also remove the checkpoints of these pools.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed without removing it.")
def prune(console: Console, older: float, most: str, checkpoints: bool, dry_run: bool) -> None:
    """Remove logs, results and recordings of old pools.

    Unfetched results on hosts stay. The same cleanup runs automatically once a day.
    """
    try:
        limit = spec_field_checks.size(most)
    except ValueError as error:
        raise UsageError(f"--most {error}") from error
    with open_session(console) as session:
        delete = partial(session.delete_checkpoints, only_look=dry_run) if checkpoints else None
        gone = run_history.prune_pools(session.ledger, age=older, most=limit, only_look=dry_run, delete_files=delete)
        unused = run_history.prune_environments(session.ledger, age=older, only_look=dry_run)
        clones = run_history.prune_clones(session.ledger, only_look=dry_run)
    done = "would remove" if dry_run else "removed"
    for each in gone:
        console.note(f"{done} pool {each.pool}, ended {date_time(each.ended_at)}: {each.size:,} bytes")
    for one in unused:
        console.note(f"{done} environment {one.folder}, last used {date_time(one.used_at)}: {one.size:,} bytes")
    for folder, size in clones:
        console.note(f"{done} unused repository clone {folder}: {size:,} bytes")
    if not gone and not unused and not clones:
        console.note("nothing is old or large enough to remove")
    rows = {"pruned": [asdict(each) for each in gone], "environments": [asdict(one) for one in unused]}
    rows["clones"] = [{"folder": folder, "size": size} for folder, size in clones]
    console.result(rows)
