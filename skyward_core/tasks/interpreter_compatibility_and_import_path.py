"""Python interpreter of this client: its compatibility with pools, and its import path."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from skyward_core.model.errors import UsageError
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.util.untrusted_files import resolve_path

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


_script_folders: list[str] = []


def add_script_folder(script: Path) -> None:
    """Put a script's folder on the import path of ranks, as if this process had run the script.

    The folder is not added to this process's own path, where its modules could shadow imports.
    """
    beside = str(resolve_path(script).parent)
    if beside in _script_folders:
        _script_folders.remove(beside)
    _script_folders.insert(0, beside)


def script_folders() -> list[str]:
    """Return the folders of scripts, for a rank's interpreter that has its own import path."""
    return list(_script_folders)


def import_path_entries() -> tuple[list[str], list[str]]:
    """Return two parts of ``sys.path``: the entries before the standard library, and the entries after it."""
    path = sys.path[1:] if _script_folders and _starts_with_command_folder() else sys.path
    before = _library_index(tuple(path))
    return [*_script_folders, *path[:before]], path[before:]


def _starts_with_command_folder() -> bool:
    """Check whether ``sys.path`` begins with the folder of the installed command that Python was started with.

    That folder is not meant for scripts, and modules in it would shadow the standard library.
    """
    command = Path(sys.argv[0]) if sys.argv else Path()
    return not command.suffix and sys.path[:1] == [str(resolve_path(command).parent)]


@lru_cache(maxsize=1)  # called for each node of a pool
def _library_index(path: tuple[str, ...]) -> int:
    library = resolve_path(os.__file__).parent
    return next((i for i, entry in enumerate(path) if entry and resolve_path(entry) == library), 0)


SPAWN_MODULE = "multiprocessing.spawn"
ALIAS_FOLDER = Path(__file__).parent / "alias"
"""Folder with a module named ``skyward``."""


def install_alias() -> None:
    """Make the ``skyward`` module importable in spawned child processes, with the lowest precedence."""
    from skyward_core.runtime.import_hooks_and_gc_pause import call_when_imported

    call_when_imported(_patch_spawn, SPAWN_MODULE)


def _patch_spawn(spawn: Any) -> None:
    original = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        return data | {"sys_path": [*data["sys_path"], str(ALIAS_FOLDER)]}

    spawn.get_preparation_data = get_preparation_data


def reject_pool_in_child() -> None:
    """Reject a pool that a child process would create while importing the script: each child would start another child.

    Raises:
        UsageError: If this process is such a child. The message describes how to change the script.
    """
    process = getattr(sys.modules.get("multiprocessing"), "process", None)
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise UsageError(
            "The script creates a pool on import, and a child process of it imports the script. Put the "
            'lines that create the pool under if __name__ == "__main__":'
        )
