"""The typed script under strict pyright."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("typed_script.py")


@pytest.mark.proof("pyright, which brings a Node.js of its own: pip install pyright; 10 s of a processor")
def test_pyright_reports_no_error_in_strict_mode() -> None:
    beside = Path(sys.executable).with_name("pyright")
    pyright = str(beside) if beside.exists() else shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    done = subprocess.run(
        [pyright, "--outputjson", "--pythonpath", sys.executable, str(SCRIPT)],
        capture_output=True, text=True, timeout=110, check=False, cwd=SCRIPT.parents[2],
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert [f"{each['range']['start']['line'] + 1}: {each['message']}" for each in report["generalDiagnostics"]] == []
