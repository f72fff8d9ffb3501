"""``skyward-tui shim``: the older name ``skyward`` for scripts that are run by a plain ``python``."""

from __future__ import annotations

import click

from skyward_core.client import skyward_alias
from skyward_core.model import errors
from skyward_tui.cli.console import Console
from skyward_tui.cli.shared_options import command

python_option = click.option(
    "--python",
    metavar="PATH",
    help="The environment's interpreter; by default the one that scripts here get.",
)


@command()
@python_option
def install(console: Console, python: str | None) -> int:
    """Write the alias module into an environment; refused where another `skyward` is installed."""
    alias = skyward_alias.install(python)
    word = "now finds" if alias.changed else "finds, as before,"
    return _report(alias, f"`import skyward` of {alias.python} {word} skyward_core, by {alias.path}", console)


@command()
@python_option
def remove(console: Console, python: str | None) -> int:
    """Take the alias module away."""
    alias = skyward_alias.remove(python)
    word = "is gone" if alias.changed else "was not there"
    return _report(alias, f"the alias of {alias.python}, {alias.path}, {word}", console)


@click.group()
def shim() -> None:
    """Let plain `python script.py` find this library as `skyward`.

    Scripts that skyward-tui runs need none of it.
    """


for _each in (install, remove):
    shim.add_command(_each)


def _report(alias: skyward_alias.AliasModule, words: str, console: Console) -> int:
    if console.as_json:
        console.result({"path": str(alias.path), "python": alias.python, "changed": alias.changed})
    else:
        console.print_line(words)
    return errors.OK
