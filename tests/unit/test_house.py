"""No circle of imports anywhere in the tree, imports for types alone included."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward_core

ROOT = Path(skyward_core.__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("skyward_core", "skyward_tui")
    for path in (ROOT / package).rglob("*.py")
}


def imported(name: str) -> Iterator[str]:
    """Modules of ours that a module imports anywhere in it."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                found = f"{base}.{alias.name}"
                yield found if found in MODULES else base


def circles() -> list[set[str]]:
    """Sets of modules of which each leads to each other (Tarjan's algorithm)."""
    arrows = {name: {each for each in imported(name) if each in MODULES} - {name} for name in MODULES}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(arrows[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(set(stack[at:]))
            del stack[at:]

    for name in sorted(arrows):
        if name not in index:
            visit(name)
    return found


def test_no_modules_import_each_other() -> None:
    assert circles() == []


@pytest.mark.parametrize(
    "package",
    [
        "pool",
        "api",
        "front",
        "providers",
        "transport",
        "tasks",
        "store",
        "views",
        "model",
        "node",
        "plugins",
        "wire",
    ],
)
def test_nothing_below_a_pool_knows_it(package: str) -> None:
    for name in MODULES:
        if name.startswith(f"skyward_core.{package}") and name != "skyward_core.pool.pool":
            allowed = package in ("api", "front")
            assert allowed or "skyward_core.pool.pool" not in set(imported(name)), name


def test_the_extra_of_the_test_command_holds_what_the_groups_hold() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    parts = [*groups["dev"], *groups["frameworks"], *groups["bench"]]
    assert sorted(project["project"]["optional-dependencies"]["test"]) == sorted(parts)
    assert not any(name.startswith(("torch", "jax", "keras", "transformers")) for name in groups["dev"])
