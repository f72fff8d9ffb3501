"""Commands about machines that are rented: what there is, what is held, what it cost, what is left."""

from __future__ import annotations

from typing import Any

import click

from .command_console import console_of, of_json
from .shared_options import of_offers, of_settings


@click.command()
@of_offers
@of_json
def offers(as_json: bool, **asked: Any) -> int:
    """List the machines that could be rented, and their prices.

    Nothing is made. Without --accelerator those with any accelerator are listed, and with --vcpus, --memory or --arch
    those without one. A price is that of an hour of a machine with its disk and its public address. Ends with 1 where
    nothing fits.
    """
    with console_of(as_json) as console:
        from .commands.offers import offers as execute

        return execute(console, **asked)


@click.group()
def capacity() -> None:
    """Machines that are bought ahead, or held for an account."""


@capacity.command("buy")
@click.argument("offering")
@click.option("--price", metavar="$", type=float, help="What it costs, as offers --block says it.")
@of_settings
@of_json
def buy(offering: str, price: float | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Buy what offers --block has listed, by its id.

    It is paid at once, and not given back. At a terminal the price is asked for; elsewhere --price has to say it.
    """
    with console_of(as_json) as console:
        from .commands.capacity import buy as execute

        return execute(offering, price, settings, console)


@capacity.command("clear")
@click.argument("offering")
@click.option("-y", "--yes", is_flag=True, help="Without a word at the terminal.")
@of_json
def clear(offering: str, yes: bool, as_json: bool) -> int:
    """Let an offering be bought again whose purchase nobody heard of.

    The account is asked first: what it shows, or cannot tell, is not cleared.
    """
    with console_of(as_json) as console:
        from .commands.capacity import clear as execute

        return execute(offering, yes, console)


@capacity.command("ls")
@click.option("--provider", metavar="NAME", default="aws", show_default=True, help="Whose account.")
@of_settings
@of_json
def held(provider: str, settings: tuple[str, ...], as_json: bool) -> int:
    """List what is held for the account, and what was bought from here.

    Ends with 3 where nobody knows whether something was bought.
    """
    with console_of(as_json) as console:
        from .commands.capacity import ls as execute

        return execute(provider, settings, console)


@click.command()
@click.option(
    "--since", metavar="TIME", default="30d", show_default=True, help='How far back: "12h", "30d", "4w".'
)
@click.option("--by", type=click.Choice(["pool", "function", "day"]), default="pool", show_default=True)
@of_json
def costs(since: str, by: str, as_json: bool) -> int:
    """Add up what pools have cost.

    Machines are counted from when they were made to when they began to end, replaced ones too, at the prices that were
    known when they were made. What the provider bills is what counts.
    """
    with console_of(as_json) as console:
        from skyward_core.model.spec_checks import duration

        from .commands.costs import costs as execute

        try:
            seconds = duration(since)
        except ValueError as error:
            raise click.BadParameter(f"it {error}", param_hint="--since") from error
        return execute(console, seconds=seconds, by=by)


@click.command()
@click.option("--provider", metavar="NAME", help="Look through its account only, such as aws.")
@of_settings
@click.option("--all-regions", is_flag=True, help="Look in all regions, not only where pools have been.")
@click.option(
    "--ledger", "ledgers", metavar="ID", multiple=True, help="Also what this other ledger made; repeatable."
)
@click.option("-y", "--yes", is_flag=True, help="End what is left without asking.")
@of_json
def sweep(
    provider: str | None,
    settings: tuple[str, ...],
    all_regions: bool,
    ledgers: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> int:
    """Find what was rented from here and is left, and end it.

    Cloud accounts are looked through, whatever the ledger says. What is left belongs to pools that are over, or that
    no ledger here has. Nothing is ended without --yes, or a yes at the terminal. What has no tag of ours, and what
    other ledgers made, is never touched.
    """
    with console_of(as_json) as console:
        from .commands.sweep import sweep as execute

        return execute(provider, settings, all_regions, ledgers, yes, console)


@click.command()
@click.argument("names", metavar="[GROUP|HOST]...", nargs=-1)
@of_json
def hosts(names: tuple[str, ...], as_json: bool) -> int:
    """Show who uses the GPUs of your hosts.

    Of each GPU: whether it is free, or by whose process and with how much memory it is used. Without names those of all
    groups of skyward.toml are shown. Nothing is left on the hosts. Ends with 1 where one does not answer.
    """
    with console_of(as_json) as console:
        from .commands.shared_hosts import hosts as execute

        return execute(names, console)
