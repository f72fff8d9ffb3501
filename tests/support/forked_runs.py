"""Processes of a parallel test run (``-n``) that start with all tests imported: forked from one that has collected
them.

Each process would otherwise import all tests itself, which takes most of the collection.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from tests.support.forked import Loaded

# Collects as they do. What is wrong with a test they tell; what is printed here is for nobody.
FIRST = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads cannot be forked
os.chdir({folder!r})
sys.path[:] = {path!r}
from _pytest.config import _prepareconfig
config = _prepareconfig([*{arguments!r}, "--collect-only", "-qq"])
from xdist.remote import setup_config
setup_config(config, None)
config.workerinput, config.workeroutput = {{"workerid": "none"}}, {{}}
config.hook.pytest_cmdline_main(config=config)
del config
if len(os.listdir("/proc/self/task")) > 1:  # a library's, imported at the top of a test
    sys.exit()
"""


def fork_runs(config: pytest.Config) -> None:
    """Fork the processes of this run. Processes for other interpreters and machines are started."""
    given = config.invocation_params
    first = FIRST.format(folder=str(given.dir), path=sys.path, arguments=list(map(str, given.args)))
    loaded = Loaded([sys.executable, "-u"], first, gateway_io.popen_bootstrapline)

    class Forked(gateway_io.Popen2IOMaster):
        def __init__(self, args: Sequence[str], execmodel: Any) -> None:
            plain = [sys.executable, "-u", "-c", gateway_io.popen_bootstrapline]
            pipe = execmodel.subprocess.PIPE
            try:
                process = loaded.start(["-c"], stdin=pipe, stdout=pipe) if list(args) == plain else None
            except OSError:  # there is none to fork from
                process = None
            if process is None:
                super().__init__(args, execmodel)
                return
            self.popen = process
            Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel)

    gateway_io.Popen2IOMaster = Forked  # type: ignore[misc]
