"""What a script imports from beside itself: other machines have that only where its folder is sent to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ..model.errors import UsageError
from ..store.user_files import is_file, read_bytes, resolved
from ..store.working_folder import unfit
from .parsing import parsed


def check_travels(script: Path) -> None:
    """Refuse a script whose folder is sent nowhere, such as the person's home, and that imports modules of it.

    Raises:
        UsageError: it is such a one; names them.
    """
    folder = resolved(script).parent
    if not (why := unfit(folder)):
        return
    if beside := sorted(set(_beside(script, folder))):
        raise UsageError(
            f"{script} imports {', '.join(beside)} from beside itself, and other machines are not sent that folder "
            f"({why}): put the script and what it imports into a folder of their own"
        )


def _beside(script: Path, folder: Path) -> Iterator[str]:
    try:
        tree = parsed(read_bytes(script))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return  # whoever loads it tells
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in (each.partition(".")[0] for each in names):
            if is_file(folder / f"{name}.py") or is_file(folder / name / "__init__.py"):
                yield name
