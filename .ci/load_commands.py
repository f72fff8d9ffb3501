"""Hook of mkdocs: import all commands of ``skyward-tui``, because mkdocs-click lists only loaded ones."""

from __future__ import annotations

from typing import Any

import click

from skyward_tui.cli.main import cli


def on_config(config: Any) -> Any:
    """Load every command before pages are built."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        cli.get_command(context, name)
    return config
