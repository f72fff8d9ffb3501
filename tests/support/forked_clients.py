"""Client scripts that start with all client modules imported. Tests about the start of a client use real processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from tests.support.child import Child
from tests.support.forked import Loaded, ending_at_once

IMPORTED = """
import os, sys
import skyward_core.client.session, skyward_core.api.compute, skyward_core.api.rank_output_printer
import skyward_core.providers.local.provider, skyward_core.pool.output_files, skyward_core.tasks.function_pickling
"""
OVER_SSH = "import skyward_core.providers.ssh.provider, asyncssh\n"
# As Python runs a script.
RUN = """
del sys.argv[0]
__file__ = sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(__file__))
with open(__file__, "rb") as _script:
    _script = compile(_script.read(), __file__, "exec")
""" + ending_at_once("exec(_script)")

LOCAL = Loaded([sys.executable], IMPORTED, RUN)
SSH = Loaded([sys.executable], IMPORTED + OVER_SSH, RUN)


def run_script(path: Path, *words: object, over_ssh: bool = False, **more: Any) -> Child:
    """Start a client script. ``more`` are arguments of Popen.

    Args:
        over_ssh: Whether the client reaches its hosts over SSH.
    """
    return (SSH if over_ssh else LOCAL).start([str(path), str(path), *map(str, words)], **more)


def script(home: Path, text: str) -> subprocess.Popen[str]:
    """Run a client whose output can be read line by line."""
    path = home.parent / f"client{time.monotonic_ns()}.py"
    path.write_text("import os, sys, time\nimport skyward_core as sky\n" + textwrap.dedent(text))
    return run_script(path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
