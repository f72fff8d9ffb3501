"""``skyward-tui examples`` and ``shim``: packaged scripts, and the alias module for ``import skyward``."""

from __future__ import annotations

from pathlib import Path

import click

from skyward_core.client import skyward_alias_installer
from skyward_core.model.errors import UsageError
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.cli.shared_options_and_command_class import command
from skyward_tui.launch_form.form import PREFIX, example_path, example_paths, script_summary


@command()
@click.argument("name", required=False)
@click.option("--copy", is_flag=True, help="Copy the example to the current folder, without overwriting files.")
def examples(console: Console, name: str | None, copy: bool) -> None:
    """List the packaged examples, or show one.

    "run example:NAME" runs it.
    """
    if copy and name is None:
        raise click.UsageError("--copy needs the NAME of an example")
    if name is None:
        _list(console)
    else:
        _show(name, copy, console)


def _list(console: Console) -> None:
    found = [{"name": path.stem, "path": str(path), "about": script_summary(path)} for path in example_paths()]
    if not console.as_json:
        console.print_table([(each["name"], each["about"]) for each in found])
        console.note(f"run one: skyward-tui run {PREFIX}NAME; copy one: skyward-tui examples NAME --copy")
    console.result({"examples": found})


def _show(name: str, copy: bool, console: Console) -> None:
    """Print an example, or copy it into the current folder.

    Raises:
        UsageError: If the example does not exist, or the current folder already has a file of its name.
    """
    path = example_path(name)
    text = path.read_text(encoding="utf-8")
    if copy:
        target = Path(path.name)
        try:
            with open(target, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise UsageError(f"{target} already exists and was not changed. Run this in another folder") from None
        console.note(f"{target.absolute()} written")
    elif not console.as_json:
        console.print_line(text.rstrip("\n"))
    console.result({"name": path.stem, "path": str(Path(path.name).absolute() if copy else path)})


python_option = click.option(
    "--python", metavar="PATH", help="Python of the environment.  [default: the Python for scripts in this folder]"
)


@command()
@python_option
def install(console: Console, python: str | None) -> None:
    """Install the alias module in an environment, unless another `skyward` package is installed there."""
    alias = skyward_alias_installer.install(python)
    verb = "now imports" if alias.changed else "already imports"
    _report(alias, f"`import skyward` in {alias.python} {verb} skyward_core, through {alias.path}", console)


@command()
@python_option
def remove(console: Console, python: str | None) -> None:
    """Remove the alias module from an environment."""
    alias = skyward_alias_installer.remove(python)
    state = "removed" if alias.changed else "not installed"
    _report(alias, f"alias module of {alias.python} {state}: {alias.path}", console)


@click.group()
def shim() -> None:
    """Let plain `python script.py` find this library as `skyward`.

    Scripts that skyward-tui runs do not need this.
    """


def _report(alias: skyward_alias_installer.AliasModule, words: str, console: Console) -> None:
    console.result({"path": str(alias.path), "python": alias.python, "changed": alias.changed})
    if not console.as_json:
        console.print_line(words)


for _each in (install, remove):
    shim.add_command(_each)
