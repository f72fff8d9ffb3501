"""The command that launches again what was launched before."""

from __future__ import annotations

import click

from .command_console import console_of, of_json


@click.command(context_settings={"allow_interspersed_args": True})
@click.argument("run", metavar="RUN")
@click.argument("script_args", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-a", "--arg", "arguments", metavar="NAME=VALUE", multiple=True, help="Another argument; repeatable."
)
@click.option("--pool", metavar="NAME", help="Run on this pool, which is up, and not on its own.")
@click.option("--missing", is_flag=True, help="Of a sweep over arguments: run what has no result yet.")
@click.option("--detach", is_flag=True, help="Leave as soon as the function runs; implies --keep.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run, and what it would cost.")
@of_json
def rerun(
    run: str,
    script_args: tuple[str, ...],
    arguments: tuple[str, ...],
    pool: str | None,
    missing: bool,
    detach: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Launch a run again, as it was, or with other arguments.

    On its pool where that is up, else on a new one made as that one was. What has changed of the script and its git
    commit since is told.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with console_of(as_json) as console:
        from .commands.rerun import rerun as execute

        return execute(
            run, arguments, script_args, pool, console, missing=missing, detach=detach, dry_run=dry_run
        )
