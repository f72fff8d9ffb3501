"""Budgets for the structure of the code: modules, code lines, small modules, crowded folders, names, circles."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import skyward_core
from tests.support.sources import nodes_of, text_of

ROOT = Path(skyward_core.__file__).parent.parent
PACKAGES = ("skyward_core", "skyward_tui")
BUDGETS = {
    "modules": 430,
    "code lines": 79_000,  # 72,000, and later allowances: 1,500 for faults, 3,500 for restarts, 750 for printed
    # metrics, 870 for charts and the run screen, and 380 for the table of runs
    "small modules with one importer": 40,
    "crowded folders": 0,
    "unclear module names": 0,
    "import circles": 0,
    "missing contracts": 0,
}
SMALL = 60  # code lines
CROWDED = 32  # modules in one folder
# Names that modules once had and that no reader could interpret.
UNCLEAR = {
    "about", "admission", "asked", "audience", "beat", "beside", "call_check", "check_ups", "gists", "heed", "insides",
    "marks", "meant", "moments", "own_end", "past_looks", "put_off", "said", "told", "told_all", "used_up", "words",
}  # fmt: skip


class Sources:
    """The modules of a source tree and their imports.

    Args:
        root: The folder of the packages.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = {
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
            for package in PACKAGES
            for path in (root / package).rglob("*.py")
        }
        self.imports = {name: set(self._imports(name)) - {name} for name in self.paths}

    def _imports(self, name: str) -> Iterator[str]:
        path = self.paths[name]
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.paths)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield from [name for name in (f"{base}.{alias.name}", base) if name in self.paths][:1]

    def code_lines(self, name: str) -> int:
        """Count the lines of a module that are neither blank, nor comments, nor docstrings."""
        path = self.paths[name]
        docstrings: set[int] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
                first = node.body[0]
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        return sum(
            1
            for number, line in enumerate(text_of(path).splitlines(), 1)
            if number not in docstrings and line.strip() and not line.strip().startswith("#")
        )

    def circles(self) -> list[str]:
        """Return the modules in import cycles, by repeatedly removing modules that are in none."""
        left = {
            name: {each for each in imports if not self._is_package(each)} for name, imports in self.imports.items()
        }
        while True:
            over = {name for name, imports in left.items() if not imports & left.keys()}
            if not over:
                break
            for name in over:
                del left[name]
        reached = {name: self._reached(name, left) for name in left}
        return sorted(name for name in left if name in reached[name])

    def _is_package(self, name: str) -> bool:
        return self.paths[name].name == "__init__.py"

    @staticmethod
    def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
        found: set[str] = set()
        stack = [*imports[start]]
        while stack:
            name = stack.pop()
            if name in imports and name not in found:
                found.add(name)
                stack += imports[name]
        return found


def measured(root: Path) -> dict[str, list[str] | int]:
    """Return each measure of a source tree: a number, or the list of offences."""
    sources = Sources(root)
    lines = {name: sources.code_lines(name) for name in sources.paths}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, imports in sources.imports.items():
        for each in imports:
            importers[each].add(name)
    special = ("__init__.py", "__main__.py")
    folders = Counter(path.parent for path in sources.paths.values())
    project = root / "pyproject.toml"
    return {
        "modules": len(sources.paths),
        "code lines": sum(lines.values()),
        "small modules with one importer": [
            name
            for name, path in sources.paths.items()
            if path.name not in special and lines[name] < SMALL and len(importers[name]) == 1
        ],
        "crowded folders": [str(folder) for folder, number in folders.items() if number > CROWDED],
        "unclear module names": [name for name in sources.paths if name.rpartition(".")[2] in UNCLEAR],
        "import circles": sources.circles(),
        "missing contracts": [] if "[tool.importlinter]" in project.read_text() else ["pyproject.toml"],
    }


def exceeded(found: dict[str, list[str] | int]) -> dict[str, list[str] | int]:
    """Return the measures that are above their budgets."""
    return {
        name: value
        for name, value in found.items()
        if (value if isinstance(value, int) else len(value)) > BUDGETS[name]
    }


def test_project_stays_within_its_structure_budgets() -> None:
    assert exceeded(measured(ROOT)) == {}


def make_modules(number: int, text: str = "value = 1\n") -> dict[str, str]:
    """Return modules in folders of 30, none of which imports another."""
    return {f"skyward_core/f{index // 30}/m{index}.py": text for index in range(number)}


OFFENCES: dict[str, Callable[[], dict[str, str]]] = {
    "modules": lambda: make_modules(431),
    "code lines": lambda: {"skyward_core/long.py": "value = 1\n" * 79_001},
    "small modules with one importer": lambda: {
        **make_modules(41),
        "skyward_core/all_of_them.py": "".join(
            f"from skyward_core.f{index // 30} import m{index}\n" for index in range(41)
        ),
    },
    "crowded folders": lambda: {f"skyward_tui/m{index}.py": "value = 1\n" for index in range(33)},
    "unclear module names": lambda: {"skyward_core/told.py": "value = 1\n"},
    "import circles": lambda: {
        "skyward_core/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from skyward_core import b\n",
        "skyward_core/b.py": "def late():\n    from . import c\n",
        "skyward_core/c.py": "import skyward_core.a\n",
    },
    "missing contracts": lambda: {"pyproject.toml": ""},
}


@pytest.mark.parametrize("row", BUDGETS)
def test_each_structure_budget_detects_an_offence(row: str, tmp_path: Path) -> None:
    files = {"pyproject.toml": "[tool.importlinter]\n", "skyward_core/__init__.py": "", **OFFENCES[row]()}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert exceeded(measured(tmp_path)).keys() == {row}
