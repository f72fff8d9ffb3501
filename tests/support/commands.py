"""All commands of ``skyward-tui`` by name."""

from __future__ import annotations

import shlex

import click

from skyward_tui.cli.main import cli

_CONTEXT = click.Context(cli)
COMMANDS: dict[str, click.Command] = {
    name: command for name in cli.list_commands(_CONTEXT) if (command := cli.get_command(_CONTEXT, name))
}


def parse_command_line(text: str) -> click.Context:
    """Parse a command line of ``skyward-tui`` without running the command.

    ``args`` of the returned context holds the options that belong to the script's function.

    Raises:
        click.UsageError: If the command or an option does not exist.
    """
    _, *words = shlex.split(text, comments=True)
    while words and words[0].startswith("-"):
        option = next((each for each in cli.get_params(_CONTEXT) if words[0] in each.opts), None)
        if not isinstance(option, click.Option):
            raise click.UsageError(f"no option {words[0]}")
        words = words[1 if option.is_flag or option.count else 2 :]
    if not words:
        return _CONTEXT
    name, *arguments = words
    if name not in COMMANDS:
        raise click.UsageError(f"no command {name}")
    return COMMANDS[name].make_context(name, arguments, parent=click.Context(cli, **cli.context_settings))
