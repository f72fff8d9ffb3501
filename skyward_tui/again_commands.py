"""The commands about what ran before: to find it, and to launch it again."""

from __future__ import annotations

from typing import Any

import click

from .command_console import console_of, of_json
from .shared_options import of_variables, of_watch


@click.command(context_settings={"allow_interspersed_args": True})
@click.argument("run", metavar="RUN")
@click.argument("script_args", metavar="[-- ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-a", "--arg", "arguments", metavar="NAME=VALUE", multiple=True, help="Another argument; repeatable."
)
@click.option("--pool", metavar="NAME", help="Run on this pool, which is up, and not on its own.")
@click.option("--missing", is_flag=True, help="Of a sweep over arguments: run what has no result yet.")
@of_variables
@click.option("--detach", is_flag=True, help="Leave as soon as the function runs; implies --keep.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be made and run, and what it would cost.")
@of_watch
@of_json
def rerun(
    run: str,
    script_args: tuple[str, ...],
    arguments: tuple[str, ...],
    pool: str | None,
    missing: bool,
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    detach: bool,
    dry_run: bool,
    watch: bool,
    as_json: bool,
) -> int:
    """Launch a run again, as it was, or with other arguments.

    On its pool where that is up, else on a new one made as that one was. What has changed of the script and its git
    commit since is told. A job runs whole, whichever of its steps is named; values of secrets are not kept, and come
    from --secret, this shell, or the terminal.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with console_of(as_json) as console:
        from .commands.rerun import rerun as execute

        said: dict[str, Any] = {}
        if env or secrets:
            from skyward_core.front.shell_tasks import said_variables

            said = {"env": said_variables("--env", env), "secrets": said_variables("--secret", secrets)}
        return execute(
            run, arguments, script_args, pool, console,
            missing=missing, detach=detach, dry_run=dry_run, watch=watch, **said,
        )  # fmt: skip


@click.command()
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--failed", is_flag=True, help="Only what failed or was lost.")
@click.option("--since", metavar="TIME", help='How far back: "12h", "7d", "4w".  [default: all]')
@click.option("--in-logs", is_flag=True, help="Look for the words in what runs printed and gave, too.")
@click.option("--all", "everything", is_flag=True, help="Also what is older than the newest hundred.")
@of_json
def history(
    words: tuple[str, ...], failed: bool, since: str | None, in_logs: bool, everything: bool, as_json: bool
) -> int:
    """List every past run: outcome, duration, cost.

    Each WORD has to be in it: in its id, its pool, its function, its script, its arguments, its outcome or its error.
    Pools that had no run are listed, too. With --in-logs, words that are in none of these may stand together in a line
    that a rank printed, in a result, or in what a rank failed by, as far as that is kept on this machine; the newest
    runs come first, and after 30 seconds it tells what it has, unless --all is given.
    """
    if in_logs and not words:
        raise click.UsageError("--in-logs looks for words: give one")
    with console_of(as_json) as console:
        import time

        from skyward_core.model.spec_checks import duration

        from .commands.history import history as execute

        try:
            began = 0.0 if since is None else max(0.0, time.time() - duration(since))
        except ValueError as error:
            raise click.BadParameter(f"it {error}", param_hint="--since") from error
        return execute(words, console, failed=failed, since=began, everything=everything, in_logs=in_logs)


@click.command()
@click.argument("left", metavar="RUN")
@click.argument("right", metavar="RUN")
@of_json
def compare(left: str, right: str, as_json: bool) -> int:
    """Show two runs side by side.

    What they were launched with, how they went, what they logged and what they gave; what differs is marked.

    RUN is a run's id or a pool's name (its latest run), or as much of one as tells it from others.
    """
    with console_of(as_json) as console:
        from .commands.compare import compare as execute

        return execute(left, right, console)


@click.command()
@click.option("--dismiss", metavar="RUN", multiple=True, help="Tell of this one no more; repeatable.")
@click.option("--dismiss-all", is_flag=True, help="Tell of none of these any more.")
@of_json
def failures(dismiss: tuple[str, ...], dismiss_all: bool, as_json: bool) -> int:
    """List failures of late that nobody has dismissed.

    Of all pools, of the last 30 days.
    """
    if dismiss and dismiss_all:
        raise click.UsageError("name the failures to dismiss, or give --dismiss-all")
    with console_of(as_json) as console:
        from .commands.history import failures as execute

        return execute(console, dismiss=dismiss, dismiss_all=dismiss_all)
