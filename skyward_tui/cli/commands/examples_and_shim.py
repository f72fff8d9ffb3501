"""``skyward-tui examples`` and ``shim``: packaged scripts, and ``import skyward`` for a plain ``python``."""

from __future__ import annotations

from pathlib import Path

import click

from skyward_core.client import skyward_alias
from skyward_core.model import errors
from skyward_core.model.errors import UsageError
from skyward_tui.cli.console import Console
from skyward_tui.cli.shared_options import command
from skyward_tui.launch_form.form import PREFIX, example_path, example_paths, script_summary


@command()
@click.argument("name", required=False)
@click.option("--copy", is_flag=True, help="Copy it into the current folder; overwrites nothing.")
def examples(console: Console, name: str | None, copy: bool) -> int:
    """List the packaged examples, or show one.

    "run example:NAME" runs it.
    """
    if copy and name is None:
        raise click.UsageError("name the example to copy")
    return _list(console) if name is None else _show(name, copy, console)


def _list(console: Console) -> int:
    found = [{"name": path.stem, "path": str(path), "about": script_summary(path)} for path in example_paths()]
    if not console.as_json:
        width = max(len(each["name"]) for each in found)
        for each in found:
            console.print_line(f"{each['name']:<{width}}  {each['about']}")
        console.note(f"run one with: skyward-tui run {PREFIX}NAME; copy it here with: skyward-tui examples NAME --copy")
    console.result({"examples": found})
    return errors.OK


def _show(name: str, copy: bool, console: Console) -> int:
    """Print an example, or copy it into the current folder.

    Raises:
        UsageError: there is no such example, or a file of its name is here already.
    """
    path = example_path(name)
    text = path.read_text(encoding="utf-8")
    if copy:
        target = Path(path.name)
        try:
            with open(target, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise UsageError(f"{target} is here already, and is left as it is; copy in another folder") from None
        console.note(f"{target.absolute()} written")
    elif not console.as_json:
        console.print_line(text.rstrip("\n"))
    console.result({"name": path.stem, "path": str(Path(path.name).absolute() if copy else path)})
    return errors.OK


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


def _report(alias: skyward_alias.AliasModule, words: str, console: Console) -> int:
    if console.as_json:
        console.result({"path": str(alias.path), "python": alias.python, "changed": alias.changed})
    else:
        console.print_line(words)
    return errors.OK


for _each in (install, remove):
    shim.add_command(_each)
