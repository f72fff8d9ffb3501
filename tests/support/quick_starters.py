"""Agent starters of this process: forked with all modules imported."""

from __future__ import annotations

import subprocess
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.transport import local_transport_and_environments as local
from tests.support.forked import Loaded

# What a starter does once it has imported all.
MAIN = "main()\n"


@cache
def loaded(python: str, *options: str) -> Loaded:
    """Run a starter up to the point where it serves."""
    *options_, flag, code = options
    first, main, rest = code.rpartition(MAIN)
    assert (flag, main, rest) == ("-c", MAIN, "")
    return Loaded(
        [python, *options_],
        f"{first}from skyward_core.node.agent.__main__ import preload_modules as preload\npreload()\n",
        main,
    )


def use_quick_starters(patch: pytest.MonkeyPatch) -> None:
    """Fork agent starters until the patch is undone."""

    def begun(command: list[str], **more: Any) -> subprocess.Popen[Any]:
        return loaded(*command).start(["-c"], **more)

    patch.setattr(local, "subprocess", SimpleNamespace(Popen=begun, PIPE=subprocess.PIPE, run=subprocess.run))
