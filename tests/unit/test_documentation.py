"""Completeness of the documentation: commands, options, pages of the navigation, links and pictures."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import click
import pytest

from tests.support.commands import COMMANDS, parse_command_line

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def _navigation() -> list[str]:
    """Return the pages of the site's navigation."""
    settings = (ROOT / ".ci" / "mkdocs.yml").read_text("utf-8")
    navigation = settings.partition("\nnav:\n")[2].partition("\nvalidation:")[0]
    return re.findall(r"[\w/.-]+\.md", navigation)


PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{page}" for page in _navigation())]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_cli_reference_covers_command_and_its_options_have_help(name: str) -> None:
    page = (DOCS / "reference" / "cli.md").read_text("utf-8")
    assert "::: mkdocs-click\n    :module: skyward_tui.cli.main\n    :command: cli\n" in page
    options = [each for each in COMMANDS[name].params if isinstance(each, click.Option)]
    assert COMMANDS[name].help
    assert [each.name for each in options if not each.help and not each.hidden] == []


def test_every_documentation_page_is_in_the_navigation() -> None:
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(_navigation()) == sorted(pages), "add the page to `nav` of .ci/mkdocs.yml"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_images_of_a_page_exist(page: str) -> None:
    path = ROOT / page
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", _prose(path)) if "://" not in target]
    missing = []
    for target in targets:
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        # A hook of mkdocs adds the pictures to the site.
        on_site = not page.startswith("docs/") or not {DOCS, ROOT / "screenshots"}.isdisjoint(file.parents)
        if not file.exists() or not on_site or (anchor and file.name != "cli.md" and anchor not in _anchors(file)):
            missing.append(target)
    assert missing == []
    assert re.findall(r"^#.*\{ ?#.*$", _prose(path), re.MULTILINE) == [], "GitHub shows these attributes as text"


@cache
def _prose(path: Path) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)


@cache
def _anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, the same on the site and on GitHub."""
    anchors = set()
    for heading in re.findall(r"^#+ (.+)$", _prose(path), re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        anchors.add(re.sub(r"[-\s]+", "-", words))
    return anchors


@pytest.mark.parametrize("page", PAGES)
def test_commands_quoted_on_a_page_parse(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_LOG", "")  # parsing --debug sets it
    blocks = re.findall(r"^```(?:sh|console)?\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^(?:\$ )?(?:\w+=\S+ )*(skyward-tui.*)$", "\n".join(blocks), re.MULTILINE)
    for line in lines:
        try:
            parse_command_line(re.split(r" [|>&] ?", line)[0])
        except click.BadParameter as error:
            assert "does not exist" in error.message, line  # a file of the reader


@pytest.mark.parametrize("matrix", ["failure-matrix", "attack-matrix"])
def test_test_matrices_name_existing_test_files(matrix: str) -> None:
    page = (DOCS / "internals" / f"{matrix}.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+\.py)`", page))
    assert named and named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}


def test_ssh_messages_quoted_in_the_documentation_exist() -> None:
    table = (DOCS / "where" / "ssh.md").read_text("utf-8").partition("## Troubleshooting")[2]
    quoted = re.findall(r'^\| "([^"]+)"', table, re.MULTILINE)
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "skyward_core").rglob("*.py"))
    for message in quoted:
        fixed = max(re.split(r"[\d:(]+| \.\.\.", message), key=len).strip()  # numbers and details vary
        assert fixed in sources, message


def test_contributing_explains_how_to_add_each_kind_of_part() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for part in ("provider", "plugin", "panel", "screen", "frame"):
        assert re.search(rf"^## Add a {part}\b", contributing, re.MULTILINE), part


def test_readers_tour_names_existing_functions() -> None:
    page = (DOCS / "internals" / "architecture.md").read_text("utf-8")
    tour = page.partition("## A reader's tour")[2].partition("\n## ")[0]
    trips = [re.findall(r"^\d+\. `(\S+)`: `(\S+)`", trip, re.MULTILINE) for trip in tour.split("\n### ")[1:]]
    assert len(trips) == 5
    for trip in trips:
        assert 2 <= len(trip) <= 8 and len(set(trip)) == len(trip), trip
        for file, function in trip:
            assert function in _functions(ROOT / file), f"{file} has no {function}"


def test_architecture_page_names_existing_modules_and_members() -> None:
    page = (DOCS / "internals" / "architecture.md").read_text("utf-8")
    roots = (ROOT, ROOT / "skyward_core", ROOT / "skyward_tui")
    modules = set(re.findall(r"`([\w/]+/\w+\.py)`", page))
    assert {name for name in modules if not any((root / name).exists() for root in roots)} == set()
    words = {word for root in roots[1:] for path in root.rglob("*.py") for word in re.findall(r"\w+", path.read_text())}
    members = set(re.findall(r"`([A-Z][A-Za-z]+\.\w+)`", page))
    assert {name for name in members if not set(name.split(".")) <= words} == set()


def _functions(path: Path) -> set[str]:
    """Return the names of the functions and methods of a module."""
    tree = ast.parse(path.read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    owners = [("", tree.body), *((f"{each.name}.", each.body) for each in classes)]
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {prefix + node.name for prefix, body in owners for node in body if isinstance(node, kinds)}
