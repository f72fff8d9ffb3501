"""A script that forks while a thread of ours is importing a module: the child imports it, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys, threading

from skyward_core.transport import background_loop as fork_after_imports
from skyward_core.transport.background_loop import submit

sys.begun, main = threading.Event(), threading.get_ident()

def waits():
    frame = sys._current_frames()[main]
    while frame and frame.f_code is not fork_after_imports.wait_for_imports.__code__:
        frame = frame.f_back
    return frame is not None

async def first_need():
    import late

sys.waits = waits
submit(first_need())
sys.begun.wait()
BEFORE
if child := os.fork():
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)
CHILD
os._exit(7)
"""

LATE = """
import sys, time

sys.begun.set()
while UNTIL:
    time.sleep(0.001)
"""


def _run(folder: Path, *, before: str, child: str, until: str) -> subprocess.CompletedProcess[str]:
    (folder / "late.py").write_text(LATE.replace("UNTIL", until))
    (folder / "forks.py").write_text(SCRIPT.replace("BEFORE", before).replace("CHILD", child))
    return subprocess.run(
        [sys.executable, "forks.py"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_child_can_import_what_a_thread_was_importing_at_the_fork(tmp_path: Path) -> None:
    # The import ends once the fork waits for it: never, where no fork does.
    done = _run(
        tmp_path,
        before="fork_after_imports.PATIENCE = 50",
        child="import late",
        until="not sys.waits()",
    )
    assert done.stdout == "child ended with 7\n", done.stderr


def test_an_import_that_does_not_end_does_not_hold_up_a_fork_for_ever(tmp_path: Path) -> None:
    done = _run(tmp_path, before="fork_after_imports.PATIENCE = 0.05", child="", until="True")
    assert done.stdout == "child ended with 7\n", done.stderr
