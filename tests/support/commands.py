"""Every command of ``skyward-tui``, by name."""

from __future__ import annotations

import click

from skyward_tui.cli.main import cli

_CONTEXT = click.Context(cli)
COMMANDS: dict[str, click.Command] = {
    name: command for name in cli.list_commands(_CONTEXT) if (command := cli.get_command(_CONTEXT, name))
}
