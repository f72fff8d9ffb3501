"""What the documentation has to name: every command with its options, and every page by a link."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.support.commands import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "command-line.md").read_text("utf-8")
COMMON = {"--help", "--debug", "--json"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_page_of_the_command_line_names_all(name: str) -> None:
    assert re.search(rf"^\| `{name}[ `]", PAGE, re.MULTILINE), f"{name} is not in the list of commands"
    options = {max(each.opts, key=len) for each in COMMANDS[name].params if isinstance(each, click.Option)}
    assert {option for option in options - COMMON if f"{option}" not in PAGE} == set()


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    linked = {ROOT / target for target in re.findall(r"\]\((docs/[^)#]+)", readme)}
    for index in ("plugins", "reference"):
        linked |= set((DOCS / index).glob("*.md")) if DOCS / index / "index.md" in linked else set()
    assert {str(page.relative_to(ROOT)) for page in set(DOCS.rglob("*.md")) - linked} == {"docs/index.md"}


def test_contributing_tells_how_to_add_what_can_be_added() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for part in ("provider", "plugin", "panel", "screen", "frame"):
        assert re.search(rf"^## Add a {part}\b", contributing, re.MULTILINE), part
