"""A worker that is told to end while it gets ready for that ends in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENDS_EARLY = """
import os, signal, threading
from skyward_core.node.worker.stop_signal import StopSignal

start = threading.Thread.start

def told_first(thread):
    os.kill(os.getpid(), signal.SIGTERM)
    start(thread)

threading.Thread.start = told_first
StopSignal(interrupts=True)
"""


def test_who_is_told_to_end_as_it_gets_ready_for_that_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS_EARLY],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (143, "")
