"""Children that a script of the older name starts by :mod:`multiprocessing`, in the process that we run it in. Those
that are no forks load the script anew, and nobody there knows what ``import skyward`` means."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..model.errors import UsageError

SPAWN = "multiprocessing.spawn"
ALIAS = Path(__file__).parent / "alias"
"""A folder with a module of the older name."""


def have_alias() -> None:
    """Children that are no forks find that module, behind all that they find else."""
    if SPAWN in sys.modules:
        _patch(sys.modules[SPAWN])
    else:
        from ..node.worker.children import AtImport

        sys.meta_path.insert(0, AtImport(_patch, SPAWN))


def _patch(spawn: Any) -> None:
    told = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = told(name)
        return data | {"sys_path": [*data["sys_path"], str(ALIAS)]}

    spawn.get_preparation_data = get_preparation_data


def refuse_pool_of_child() -> None:
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
