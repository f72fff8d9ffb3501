"""The scripts shown in the documentation, run as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in
DOCS = Path(__file__).parents[2] / "docs"
WITH_TORCH = pytest.mark.proof("torch; 3 s of a processor")
SCRIPT = re.compile(r"^```python(?: title=[^\n]*)?\n(.*?__main__.*?)^```$", re.MULTILINE | re.DOTALL)

# What each script prints on its own standard output, in the order of the page.
PRINTS = {
    "start/quickstart.md": [
        r"\[124500, 124750, 125000, 125250\] 499500",
        r"9\n\(9, 16\)\n\(0, 1, 4, 9, 16, 25, 36, 49\)\n25",
        r"\{'step': 0, 'loss': 1\.0\}\n\{'step': 1, 'loss': 0\.5\}\n\{'step': 2, .*\}",
        r"1 ValueError bad shard\nValueError raised",
        r"\[0\.\d+, 0\.\d+\]",
    ],
    "run/python.md": [r"\[0, 1, 4, 9\]\n\[9, 9\]\n1024"],
    "start/concepts.md": [
        r"\(0, 0, 0\)\n\(0, 1, 1\)\n\(1, 0, 2\)\n\(1, 1, 3\)",
    ],
}


def scripts() -> list[Any]:
    cases: list[Any] = []
    for page, patterns in PRINTS.items():
        found = SCRIPT.findall((DOCS / page).read_text(encoding="utf-8"))
        assert len(found) == len(patterns), f"{page} shows {len(found)} scripts"
        cases += [
            pytest.param(script, pattern, id=f"{page}-{number}", marks=WITH_TORCH if "plugins.torch" in script else ())
            for number, (script, pattern) in enumerate(zip(found, patterns, strict=True), 1)
        ]
    return cases


@pytest.mark.proof("1 s of a processor", after=4)
@pytest.mark.parametrize(("script", "prints"), scripts())
def test_script_runs_as_written(script: str, prints: str, tmp_path: Path) -> None:
    if "plugins.torch" in script:
        pytest.importorskip("torch")
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"SKYWARD_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 0, done.stderr
    # The ranks' own lines may stand between those of the script.
    assert re.search(prints, own_lines(done.stdout)), done.stdout


def own_lines(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if not re.match(r"\s*r\d+\s*\|", line))
