"""Agent starters of this process: forked with all modules imported, as the workers of their agents."""

from __future__ import annotations

import subprocess
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.transport import local_transport_and_environments as local
from tests.support.forked import LOOP, Loaded

# What a starter does once it has imported all.
MAIN = "main()\n"
FIRST = """
import sys
sys.path.insert(0, {root!r})
from tests.support.quick_workers import WorkerForks, become_worker, fork_workers, load_worker
del sys.path[0]
load_worker({root!r})
"""
AGENTS = """
from skyward_core.node.agent.__main__ import preload_modules
preload_modules()
"""
WORKERS = f"""
try:
    main()
except WorkerForks:
    sys.argv.append("500")
{LOOP}
exec(compile(become_worker(), "<string>", "exec"))
"""


@cache
def loaded(forks_workers: bool, python: str, *options: str) -> Loaded:
    """Run a starter up to the point where it serves."""
    *options_, flag, code = options
    first, main, rest = code.rpartition(MAIN)
    assert (flag, main, rest) == ("-c", MAIN, "")
    if not forks_workers:
        return Loaded([python, *options_], first + AGENTS, MAIN)
    assert options_ == ["-I", "-S"]  # which workers have not
    return Loaded([python], FIRST.format(root=local.ROOT) + first + AGENTS + "fork_workers()\n", WORKERS)


def use_quick_starters(patch: pytest.MonkeyPatch, *, forks_workers: bool) -> None:
    """Fork agent starters until the patch is undone.

    Args:
        forks_workers: Whether to fork the workers, too.
    """

    def begun(command: list[str], **more: Any) -> subprocess.Popen[Any]:
        return loaded(forks_workers, *command).start(["-c"], **more)

    patch.setattr(local, "subprocess", SimpleNamespace(Popen=begun, PIPE=subprocess.PIPE, run=subprocess.run))
