"""Compatibility of Python interpreters and versions: of tasks with pools, and with ``requires-python``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from skyward_core.model.errors import UsageError
from skyward_core.model.specs import Interpreter

MINOR_VERSION = ".".join(map(str, sys.version_info[:2]))
OWN_SOURCE = "this program's own"


def own_interpreter(notes: tuple[str, ...] = (), source: str = OWN_SOURCE, *, chosen: bool = False) -> Interpreter:
    version = ".".join(map(str, sys.version_info[:3]))
    return Interpreter(sys.executable, sys.prefix, version, source, chosen=chosen, notes=notes)


def is_own_environment(prefix: str) -> bool:
    """Check whether a folder is the environment of this program."""
    return os.path.realpath(prefix) == os.path.realpath(sys.prefix)


def incompatibility(task: Interpreter | None, pool: Interpreter | None, *, here: bool) -> str:
    """Return the reason why a task cannot run in a pool of another interpreter; "" if it can.

    Args:
        task: Interpreter that pickled the task; None for this process's interpreter.
        pool: Interpreter that the pool was created with; None if unknown.
        here: Whether ranks run with the pool's interpreter itself. Otherwise they use the same version on another
            machine.
    """
    if pool is None or (task is None and pool.minor == MINOR_VERSION):
        return ""
    task = task or own_interpreter()
    if pool.source == OWN_SOURCE and not is_own_environment(pool.prefix):
        pool = replace(pool, source="of the program that created the pool")
    if task.minor and task.minor != pool.minor:
        return f"the pool has {pool}, the task was loaded with {task}, and bytecode needs the same Python version"
    if here and task.chosen and os.path.realpath(task.prefix) != os.path.realpath(pool.prefix):
        return f"the pool has {pool}, and the task was loaded with {task}, which has other packages"
    return ""


def require_compatible(
    name: str, pool: str, of_task: Interpreter | None, of_pool: Interpreter | None, *, here: bool
) -> None:
    """Reject a task whose interpreter is not compatible with the interpreter of the pool.

    Args:
        name: Name of the function.
        pool: Name of the pool.
        of_task, of_pool, here: As in :func:`incompatibility`.

    Raises:
        UsageError: If the task cannot run in the pool.
    """
    if reason := incompatibility(of_task, of_pool, here=here):
        raise UsageError(f"{name} cannot run in pool {pool}: {reason}. Use another pool, or tear this one down first")


def check_python(image: Mapping[str, Any], interpreter: Mapping[str, Any] | None) -> None:
    """Reject an image whose Python differs from the one that pickles the pool's functions.

    Args:
        image: Image as JSON.
        interpreter: The interpreter that loads the script, from ``Interpreter.describe``; None for this process's.

    Raises:
        UsageError: If the image requests another Python.
    """
    chosen = Interpreter.from_json(interpreter) if interpreter else None
    version, minor = image.get("python"), chosen.minor if chosen else MINOR_VERSION
    if not version or re.fullmatch(rf"{re.escape(minor)}(\.\d+)?", version):
        return
    prefix = f"Image(python={version!r}): functions are sent as bytecode, so the nodes' Python must be the one that"
    if chosen is None or is_own_environment(chosen.prefix):
        raise UsageError(f"{prefix} runs here, {minor}. Start skyward from Python {version}, or remove python.")
    raise UsageError(
        f"{prefix} loads the script, {chosen}. Load it with Python {version} (--python), or remove python."
    )


MIN_PYTHON = (3, 11)  # oldest version of Python that runs this library
MAX_MINOR = MAX_PATCH = 40  # largest minor version and patch number of Python that are assumed to exist

VersionNumbers = tuple[int, ...]


class VersionError(ValueError):
    """Text that is not a version specifier."""


def parse_version(version: str) -> VersionNumbers:
    """Return the numbers of a version, up to the first part that is not a number: "3.12.1" becomes ``(3, 12, 1)``."""
    # At most nine digits per number, because int() rejects numbers with thousands of digits.
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def satisfies(version: str, specifier: str) -> bool:
    """Check whether a Python version matches a version specifier.

    Args:
        version: Such as "3.12.1". For a partial version, such as "3.12" or "", check whether any full version matches.
        specifier: Specifier in ``requires-python`` syntax, such as ">=3.12,<3.14"; "" for any.

    Raises:
        VersionError: If ``specifier`` is not a version specifier.
    """
    if not specifier.strip():
        return True
    from packaging.specifiers import SpecifierSet  # imported late, because most launches compare no versions

    known = parse_version(version)
    possible = [known] if len(known) > 2 else [(*known, patch) for patch in range(MAX_PATCH)]
    try:
        specifiers = SpecifierSet(specifier)
        found = any(specifiers.contains(".".join(map(str, each)), prereleases=True) for each in possible)
    except ValueError as error:
        raise VersionError(
            f'{specifier!r:.80} is not a Python version specifier. Write it as in ">=3.12,<3.14"'
        ) from error
    return found or not known


def is_satisfiable(specifier: str) -> bool:
    """Check whether any Python version that runs this library can match a specifier."""
    minors = [*((3, minor) for minor in range(MIN_PYTHON[1], MAX_MINOR)), *((4, minor) for minor in range(MAX_MINOR))]
    return any(satisfies(f"{major}.{minor}", specifier) for major, minor in minors)
