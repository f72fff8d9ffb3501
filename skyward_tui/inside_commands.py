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
