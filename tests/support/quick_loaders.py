"""Script loader processes for this process: forked with all modules imported that a loader needs."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.tasks import script_loader_parent
from tests.support.forked import Loaded, ending_at_once

MAIN = "main(sys.argv[1])"
IMPORTED = (
    "\nimport cloudpickle"
    "\nfrom skyward_core.tasks import function_pickling as payload"
    "\nfrom skyward_core.tasks import pickled_calls_and_blobs as task"
    "\nfrom skyward_core.tasks import missing_packages\n"
)


@cache
def loaded(python: str, *options: str) -> Loaded:
    """Run a loader up to the point where it reads its request."""
    *options_, flag, code = options
    first, main, rest = code.rpartition(MAIN)
    assert (flag, main, rest) == ("-c", MAIN, "")
    return Loaded([python, *options_], f"{first}{IMPORTED}", ending_at_once(main))


def use_quick_loaders(patch: pytest.MonkeyPatch) -> None:
    """Fork script loaders until the patch is undone. Other interpreters are started."""

    def begun(command: list[str], **more: Any) -> subprocess.Popen[Any]:
        if command[0] != sys.executable:
            return subprocess.Popen(command, **more)
        *loader, folder = command
        return loaded(*loader).start(["-c", folder], **more)

    patch.setattr(script_loader_parent, "subprocess", SimpleNamespace(Popen=begun, PIPE=subprocess.PIPE))
