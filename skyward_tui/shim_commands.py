"""Commands for scripts of the older name."""

from __future__ import annotations

import click

from .command_console import console_of, of_json

of_python = click.option(
    "--python",
    metavar="PATH",
    help="The environment's interpreter; by default the one that scripts here get.",
)


@click.group()
def shim() -> None:
    """Let plain `python script.py` find this library as `skyward`.

    Scripts that skyward-tui runs need none of it.
    """


@shim.command()
@of_python
@of_json
def install(python: str | None, as_json: bool) -> int:
    """Write the alias module into an environment; refused where another `skyward` is installed."""
    with console_of(as_json) as console:
        from .commands.shim import install as execute

        return execute(python, console)


@shim.command()
@of_python
@of_json
def remove(python: str | None, as_json: bool) -> int:
    """Take the alias module away."""
    with console_of(as_json) as console:
        from .commands.shim import remove as execute

        return execute(python, console)
