"""Sources of the product, read and parsed once for all rules."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a file's syntax tree, its module first, in the order of :func:`ast.walk`."""
    gc.disable()  # nothing of it is garbage, and to look for some, again and again, takes longer than to parse it
    try:
        return tuple(ast.walk(ast.parse(text_of(path))))
    finally:
        gc.freeze()
        gc.enable()
