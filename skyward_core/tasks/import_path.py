"""Import path of scripts in this process and on ranks, and the alias module for import skyward."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from skyward_core.model.errors import UsageError
from skyward_core.util.safe_file_access import resolve_path

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
    """Return the folders from :func:`add_script_folder`, for a rank whose interpreter has its own ``sys.path``."""
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


@lru_cache(maxsize=1)  # cached, because the client needs the index for each node of a pool
def _library_index(path: tuple[str, ...]) -> int:
    library = resolve_path(os.__file__).parent
    return next((i for i, entry in enumerate(path) if entry and resolve_path(entry) == library), 0)


ALIAS_FOLDER = Path(__file__).parent / "alias"


def install_alias() -> None:
    """Make the ``skyward`` module importable in spawned child processes, with the lowest precedence."""
    from skyward_core.runtime.import_hooks_gc_pause_and_alias import call_when_imported

    call_when_imported(_patch_spawn, "multiprocessing.spawn")


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
