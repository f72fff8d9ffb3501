"""Generator of docs/internals/modules.md from module docstrings: ``python -m tests.modules_page`` writes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "internals" / "modules.md"
PACKAGES = ("skyward_core", "skyward_tui")

HEAD = """# Module by module

This page lists the purpose of each module; [Architecture](architecture.md) describes how they work together. It is
generated from the first paragraph of each module's docstring: `python -m tests.modules_page` writes it, and a test
compares it.
"""


@cache
def page() -> str:
    parts = [HEAD]
    for folder in _folders():
        parts.append(f"\n## {folder.relative_to(ROOT).as_posix()}\n")
        if purpose := _purpose_of(folder / "__init__.py"):
            parts.append(f"\n{purpose}\n")
        files = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        rows = [f"- `{path.name}`: {_purpose_of(path)}\n" for path in files]
        parts += ["\n", *rows] if rows else []
    return "".join(parts)


def _folders() -> Iterator[Path]:
    """Return the folders that contain modules, each before its subfolders."""
    for name in PACKAGES:
        found = {path.parent for path in (ROOT / name).rglob("*.py")}
        yield from sorted(found)


def _purpose_of(path: Path) -> str:
    """Return the first paragraph of a module's docstring as Markdown; "" for none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else None
    first = " ".join((docstring or "").partition("\n\n")[0].split())
    first = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", first)
    return first.replace("``", "`").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
