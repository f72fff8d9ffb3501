"""Who starts us may have closed our streams (``>&-``): that is no error, and nothing of ours takes their places."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
import skyward_core as sky

@sky.function
def f():
    print("from the rank")
    return 7

if __name__ == "__main__":
    with sky.Compute(nodes=1) as compute:
        Path(sys.argv[1]).write_text(str(f() @ compute))
"""


def run_without_stdout(*command: str) -> subprocess.CompletedProcess[str]:
    line = '"$0" "$@" >&-'
    return subprocess.run(["sh", "-c", line, sys.executable, *command], stderr=subprocess.PIPE, text=True, timeout=90)


def test_a_script_whose_output_is_closed(home: Path, tmp_path: Path) -> None:
    script, result = tmp_path / "closed.py", tmp_path / "result"
    script.write_text(SCRIPT)
    done = run_without_stdout(str(script), str(result))
    assert (done.returncode, result.read_text()) == (0, "[7]"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.proof("1 s of a processor")
def test_the_command_line_with_its_output_closed(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "closed.py"
    script.write_text(SCRIPT)
    done = run_without_stdout("-m", "skyward_tui", "run", f"{script}:f", "--nodes", "1")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
