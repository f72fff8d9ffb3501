"""Markers of requirements, such as ``sys_platform == 'linux'``, for interpreters without a package that knows them.

Locks hold many; environments that uv makes have neither pip nor packaging. What cannot be told here is left open.
"""

from __future__ import annotations

import ast
import operator
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_HERE: dict[str, Callable[[], str]] = {
    "os_name": lambda: os.name,
    "sys_platform": lambda: sys.platform,
    "platform_machine": platform.machine,
    "platform_system": platform.system,
    "platform_python_implementation": platform.python_implementation,
    "implementation_name": lambda: sys.implementation.name,
    "python_version": lambda: ".".join(map(str, sys.version_info[:2])),
    "python_full_version": lambda: ".".join(map(str, sys.version_info[:3])),
    "extra": lambda: "",
}
_VERSIONS = ("python_version", "python_full_version")


def holds(marker: str) -> bool | None:
    """Whether a marker is true for the interpreter that runs this; None where that cannot be told."""
    try:
        return _truth(ast.parse(marker.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError):
        return None


def _truth(node: ast.expr) -> bool:
    """Markers are written as comparisons of Python's."""
    if isinstance(node, ast.BoolOp):
        parts = [_truth(each) for each in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise ValueError("no comparison")
    left, right, kind = node.left, node.comparators[0], node.ops[0]
    if isinstance(kind, ast.In | ast.NotIn):
        return (_text(left) in _text(right)) is isinstance(kind, ast.In)
    if any(isinstance(each, ast.Name) and each.id in _VERSIONS for each in (left, right)):
        return _COMPARE[type(kind)](_numbers(_text(left)), _numbers(_text(right)))
    return _COMPARE[type(kind)](_text(left), _text(right))


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return _HERE[node.id]()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("neither a name nor a text")


def _numbers(version: str) -> tuple[int, ...]:
    """``3.11`` and ``3.11.0`` are the same."""
    found = [int(each) for each in version.split(".")]
    while found and not found[-1]:
        found.pop()
    return tuple(found)
