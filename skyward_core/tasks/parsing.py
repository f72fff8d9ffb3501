"""Reading Python without running it, from any thread."""

from __future__ import annotations

import ast
import threading

# Python 3.11 counts how deep trees are for all threads together: where one lets another go on in the middle of making a
# tree, as it does to collect garbage, the first fails with "AST constructor recursion depth mismatch".
_ONE_AT_A_TIME = threading.Lock()


def parsed(source: str | bytes, name: str = "<unknown>") -> ast.Module:
    """The tree of a source.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: there is none.
    """
    with _ONE_AT_A_TIME:
        return ast.parse(source, name)
