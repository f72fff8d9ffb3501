"""Commands that look into what runs."""

from __future__ import annotations

import click

from .command_console import console_of, of_json


@click.command()
@click.argument("run", metavar="RUN|POOL")
@click.option("--signal", is_flag=True, help="Ask ranks that cannot be read by a signal.")
@click.option("--threads", is_flag=True, help="Show all threads, not only those that run the function.")
@of_json
def stacks(run: str, signal: bool, threads: bool, as_json: bool) -> int:
    """Show where every rank is: its Python stack.

    Equal stacks are shown once, with their ranks, and above them who is inside which collective and who is not.
    """
    with console_of(as_json) as console:
        from .commands.stacks import stacks as execute

        return execute(run, console, signal=signal, threads=threads)


@click.command()
@click.argument("rank", metavar="RUN:RANK")
@click.option("--seconds", type=click.FloatRange(1, 600), default=10, show_default=True, help="For how long.")
@click.option("--to", metavar="DIR", help="Where the files come to.  [default: the current folder]")
@of_json
def profile(rank: str, seconds: float, to: str | None, as_json: bool) -> int:
    """Show where a rank spends its time, by py-spy.

    The hottest lines, a file for speedscope.app, and a flame graph. The rank is not stopped.
    """
    with console_of(as_json) as console:
        from .commands.profile import profile as execute

        return execute(rank, seconds, to, console)


@click.command()
@click.argument("rank", metavar="RUN[:RANK]")
def debug(rank: str) -> int:
    """Debug a rank that waits at a breakpoint.

    Its pdb has this terminal, until you leave it with q or Ctrl-D: the rank goes on then.
    """
    with console_of(False) as console:
        from .commands.debug import debug as execute

        return execute(rank, console)


@click.command()
@click.argument("pool")
@click.option("--once", is_flag=True, help="One table, and no more.")
@of_json
def top(pool: str, once: bool, as_json: bool) -> int:
    """Show what a pool's machines do, every second."""
    with console_of(as_json) as console:
        from .commands.numbers import top as execute

        return execute(pool, once, console)


@click.command()
@click.argument("run")
@click.option("--prometheus", is_flag=True, help="The newest, in Prometheus' text format.")
@click.option("-o", "--output", metavar="FILE", help="Write all: .csv, .json or .parquet.")
@of_json
def metrics(run: str, prometheus: bool, output: str | None, as_json: bool) -> int:
    """Show what a run's ranks logged and its machines did."""
    with console_of(as_json) as console:
        from .commands.numbers import metrics as execute

        return execute(run, prometheus, output, console)
