"""The interpreter that runs this client."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from skyward_core.model.errors import UsageError
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.util.user_files import resolve_path

MINOR_VERSION = ".".join(map(str, sys.version_info[:2]))
OWN_SOURCE = "this program's own"


def own_interpreter(notes: tuple[str, ...] = (), source: str = OWN_SOURCE, *, chosen: bool = False) -> Interpreter:
    """The interpreter that runs this program."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Interpreter(sys.executable, sys.prefix, version, source, chosen=chosen, notes=notes)


def is_own_environment(prefix: str) -> bool:
    """Whether that is the folder of the environment that this program runs in."""
    return os.path.realpath(prefix) == os.path.realpath(sys.prefix)


def incompatibility(task: Interpreter | None, pool: Interpreter | None, *, here: bool) -> str:
    """Why what one interpreter has pickled cannot run in a pool of another; "" where it can.

    Args:
        task: the one that has pickled; None for the one that runs this.
        pool: the one that the pool was made with; None where that is not known.
        here: whether ranks run with that one itself, and not with one of its version on another machine.
    """
    if pool is None or (task is None and pool.minor == MINOR_VERSION):
        return ""
    task = task or own_interpreter()
    if pool.source == OWN_SOURCE and not is_own_environment(pool.prefix):
        pool = replace(pool, source="that of the program which made it")
    if task.minor and task.minor != pool.minor:
        return f"that is {pool}, and this was loaded with {task}: functions travel as bytecode of one version"
    if here and task.chosen and os.path.realpath(task.prefix) != os.path.realpath(pool.prefix):
        return f"that is {pool}, and this was loaded with {task}, which has packages of its own"
    return ""


def require_compatible(
    name: str, pool: str, of_task: Interpreter | None, of_pool: Interpreter | None, *, here: bool
) -> None:
    """Refuse to have run in a pool of one interpreter what another has pickled, or would.

    Args:
        name: of what is called.
        pool: its name.
        of_task: as :func:`incompatibility` has it, and so are ``of_pool`` and ``here``.

    Raises:
        UsageError: it cannot run there.
    """
    if said := incompatibility(of_task, of_pool, here=here):
        raise UsageError(
            f"{name} cannot run in pool {pool}, whose ranks have one interpreter: {said}. "
            "Run it in a pool of its own, or end that one first"
        )


_script_folders: list[str] = []


def add_script_folder(script: Path) -> None:
    """Ranks find what lies beside a script that another process has loaded, as they would had it run here. It does not
    go into our own import path, where it could shadow what we import."""
    beside = str(resolve_path(script).parent)
    if beside in _script_folders:
        _script_folders.remove(beside)
    _script_folders.insert(0, beside)


def script_folders() -> list[str]:
    """The folders of the scripts alone, for an interpreter that has an import path of its own."""
    return list(_script_folders)


def import_path_entries() -> tuple[list[str], list[str]]:
    """Those before the standard library, which win over everything, and those behind it."""
    path = sys.path[1:] if _script_folders and _starts_with_command_folder() else sys.path
    before = _library_index(tuple(path))
    return [*_script_folders, *path[:before]], path[before:]


def _starts_with_command_folder() -> bool:
    """Whether Python put there the folder of the installed command that it was started as. What lies in that is no
    script's to import, and would win over the standard library."""
    command = Path(sys.argv[0]) if sys.argv else Path()
    return not command.suffix and sys.path[:1] == [str(resolve_path(command).parent)]


@lru_cache(maxsize=1)  # each node of a pool is told
def _library_index(path: tuple[str, ...]) -> int:
    library = resolve_path(os.__file__).parent
    return next((i for i, entry in enumerate(path) if entry and resolve_path(entry) == library), 0)


SPAWN_MODULE = "multiprocessing.spawn"
ALIAS_FOLDER = Path(__file__).parent / "alias"
"""A folder with a module of the older name."""


def install_alias() -> None:
    """Children that are no forks find that module, behind all that they find else."""
    from skyward_core.runtime.import_hooks import call_when_imported

    call_when_imported(_patch_spawn, SPAWN_MODULE)


def _patch_spawn(spawn: Any) -> None:
    told = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = told(name)
        return data | {"sys_path": [*data["sys_path"], str(ALIAS_FOLDER)]}

    spawn.get_preparation_data = get_preparation_data


def reject_pool_in_child() -> None:
    """A script that makes a pool when it is imported would make another in each child that imports it, and so on.

    Raises:
        UsageError: this is such a child, which begins; says what to change in the script.
    """
    process = getattr(sys.modules.get("multiprocessing"), "process", None)
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise UsageError(
            "This script makes a pool when it is imported, and a child process that it has started imports it. Put the "
            'lines that make the pool under if __name__ == "__main__":'
        )
