"""Installed packages of an interpreter and their versions, and requirements that the interpreter does not meet.

Hosts and clients run this module in the interpreter that they inspect. It imports none of the packages.
"""

from __future__ import annotations

import ast
import json
import operator
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from skyward_core.node.bootstrap.package_index_restrictions import normalize_name


def list_packages(path: Iterable[str]) -> dict[str, str]:
    """Return the version of each package on an import path; "" for packages installed from a folder or an address.

    Reads only the names of metadata folders, because reading the metadata of all packages takes long.
    """
    found = {}
    for entry in reversed(list(dict.fromkeys(path))):
        try:
            with os.scandir(entry or ".") as inside:
                names = [each.name for each in inside]
        except OSError:  # The path's entry is an archive, or does not exist.
            continue
        for name in names:
            if name.endswith(".dist-info") and name.count("-") == 2:
                package, version = name[:-10].split("-")
                found[normalize_name(package)] = "" if Path(entry, name, "direct_url.json").exists() else version
    return found


_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def unmet_requirements(requirements: Sequence[str]) -> list[str]:
    """Return the requirements that this interpreter does not meet, or that cannot be checked.

    Args:
        requirements: Requirements in pip's format.
    """
    results = {text: _is_met(text) for text in requirements}
    unsure = [text for text, met in results.items() if met is None]
    missing = _check_with_packaging(unsure) if unsure else set()
    return [text for text in requirements if results[text] is False or text in missing]


def _check_with_packaging(requirements: Sequence[str]) -> set[str]:
    """Return the unmet requirements, checked with the ``packaging`` library, which takes long to import."""
    packaging: Any
    try:
        from packaging import requirements as packaging
    except ImportError:
        try:
            from pip._vendor.packaging import requirements as packaging
        except ImportError:
            return set(requirements)
    return {text for text in requirements if _find_unmet(packaging, text, [], set())}


def _is_met(text: str) -> bool | None:
    """Check a requirement of the form ``name`` or ``name==version``. Return None if it needs ``packaging``."""
    plain, _, marker = text.partition(";")
    if marker and (needed := is_marker_true(marker)) is not True:
        return True if needed is False else None
    name, _, version = (each.strip() for each in plain.partition("=="))
    if not _NAME.fullmatch(name):
        return None
    from importlib import metadata  # late, because it takes 20 ms, and starts of local pools only list packages

    try:
        return True if version in ("", metadata.version(name)) else None
    except metadata.PackageNotFoundError:
        return False


def _find_unmet(packaging: Any, text: str, extras: Sequence[str], seen: set[tuple[str, tuple[str, ...]]]) -> list[str]:
    from importlib import metadata

    try:
        requirement = packaging.Requirement(text)
    except packaging.InvalidRequirement:
        return [text]
    if requirement.marker and not any(requirement.marker.evaluate({"extra": each}) for each in (extras or [""])):
        return []
    key = requirement.name, tuple(sorted(requirement.extras))
    if key in seen:
        return []
    seen.add(key)
    try:
        found = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return [text]
    if requirement.url or not requirement.specifier.contains(found.version, prereleases=True):
        return [text]
    return [
        each
        for other in found.requires or []
        if "extra" in other and requirement.extras
        for each in _find_unmet(packaging, other, sorted(requirement.extras), seen)
    ]


def main() -> None:
    """Read requirements as JSON from standard input, and print the unmet ones. Without input, print all packages."""
    request = sys.stdin.read()
    # Skip the first entry of sys.path: the folder or bundle of this module.
    answer = unmet_requirements(json.loads(request)) if request else list_packages(sys.path[1:])
    sys.stdout.write(json.dumps(answer))


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MARKER_VALUES: dict[str, Callable[[], str]] = {
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


def is_marker_true(marker: str) -> bool | None:
    """Evaluate a requirement's marker for this interpreter; None if the marker is not supported."""
    try:
        return _evaluate(ast.parse(marker.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError):
        return None


def _evaluate(node: ast.expr) -> bool:
    """Evaluate a marker's syntax tree. Markers have the syntax of Python comparisons."""
    if isinstance(node, ast.BoolOp):
        parts = [_evaluate(each) for each in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise ValueError("not a comparison")
    left, right, kind = node.left, node.comparators[0], node.ops[0]
    if isinstance(kind, ast.In | ast.NotIn):
        return (_marker_value(left) in _marker_value(right)) is isinstance(kind, ast.In)
    if any(isinstance(each, ast.Name) and each.id in _VERSIONS for each in (left, right)):
        return _COMPARE[type(kind)](_parse_version(_marker_value(left)), _parse_version(_marker_value(right)))
    return _COMPARE[type(kind)](_marker_value(left), _marker_value(right))


def _marker_value(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return _MARKER_VALUES[node.id]()
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("neither a name nor a string")


def _parse_version(version: str) -> tuple[int, ...]:
    """Parse a version without trailing zeros: ``3.11`` equals ``3.11.0``."""
    found = [int(each) for each in version.split(".")]
    while found and not found[-1]:
        found.pop()
    return tuple(found)
