"""What the documentation has to name: every command with its options, and every page by a link."""

from __future__ import annotations

import ast
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


def test_the_readers_tour_names_functions_that_exist() -> None:
    page = (DOCS / "architecture.md").read_text("utf-8")
    tour = page.partition("## A reader's tour")[2].partition("\n## ")[0]
    trips = [re.findall(r"^\d+\. `(\S+)`: `(\S+)`", trip, re.MULTILINE) for trip in tour.split("\n### ")[1:]]
    assert len(trips) == 5
    for trip in trips:
        assert 2 <= len(trip) <= 8 and len(set(trip)) == len(trip), trip
        for file, function in trip:
            assert function in _functions(ROOT / file), f"{file} has no {function}"


def _functions(path: Path) -> set[str]:
    """Return the names of the functions and methods of a module."""
    tree = ast.parse(path.read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    owners = [("", tree.body), *((f"{each.name}.", each.body) for each in classes)]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {prefix + node.name for prefix, body in owners for node in body if isinstance(node, kinds)}
