"""Whole scripts, run as by a user, with their provider replaced by this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import run_command

ROOT = Path(__file__).parents[2]


def run_script(text: str, folder: Path, seconds: float, **env: str) -> subprocess.CompletedProcess[str]:
    """Write a script into a folder and run it there. It must succeed within the time limit."""
    path = folder / "script.py"
    path.write_text(text)
    done = run_command(
        [sys.executable, "-m", "skyward_core", "--provider", "local", str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))} | env,
        cwd=folder,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return done
