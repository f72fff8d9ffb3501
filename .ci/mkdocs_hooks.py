"""Hooks of mkdocs: all commands of ``skyward-tui`` are imported, and the pictures of ``screenshots/`` join the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File

from skyward_tui.cli.main import cli

ROOT = Path(__file__).parents[1]


def on_config(config: Any) -> Any:
    """Load every command before pages are built, because mkdocs-click lists only loaded ones."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        cli.get_command(context, name)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures, which are outside the folder of the documentation."""
    for path in sorted((ROOT / "screenshots").iterdir()):
        files.append(File(f"screenshots/{path.name}", str(ROOT), config["site_dir"], use_directory_urls=False))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the pictures' addresses in the repository by those on the site."""
    return markdown.replace("../screenshots/", "screenshots/")
