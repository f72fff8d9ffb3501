"""Where this client's modules come from, as its ranks are told: what it finds they must find, in the same order."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path

from ..store.user_files import resolved

_scripts: list[str] = []


def add_script(script: Path) -> None:
    """Ranks find what lies beside a script that another process has loaded, as they would had it run here. It does not
    go into our own import path, where it could shadow what we import."""
    beside = str(resolved(script).parent)
    if beside in _scripts:
        _scripts.remove(beside)
    _scripts.insert(0, beside)


def scripts() -> list[str]:
    """The folders of the scripts alone, for an interpreter that has an import path of its own."""
    return list(_scripts)


def entries() -> tuple[list[str], list[str]]:
    """Those before the standard library, which win over everything, and those behind it."""
    path = sys.path[1:] if _scripts and _begins_with_commands() else sys.path
    before = _before_library(tuple(path))
    return [*_scripts, *path[:before]], path[before:]


def _begins_with_commands() -> bool:
    """Whether Python put there the folder of the installed command that it was started as. What lies in that is no
    script's to import, and would win over the standard library."""
    command = Path(sys.argv[0]) if sys.argv else Path()
    return not command.suffix and sys.path[:1] == [str(resolved(command).parent)]


@lru_cache(maxsize=1)  # each node of a pool is told
def _before_library(path: tuple[str, ...]) -> int:
    library = resolved(os.__file__).parent
    return next((i for i, entry in enumerate(path) if entry and resolved(entry) == library), 0)
