"""The scripts that the pages on plugins and data show, run as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in
DOCS = Path(__file__).parents[2] / "docs"
PRINTS = [  # page, number of the script on it, what that prints
    ("train/data-sharding.md", 0, r"^\[\[0, 3, 6\], \[1, 4\], \[2, 5\]\] 21$"),
    ("train/index.md", 1, r"^332833500$"),
    ("train/plugins/index.md", 0, r"^499500 True\n499500 True$"),
    ("train/index.md", 0, r"^True True$"),
]


def scripts(page: str) -> list[str]:
    return re.findall(r"^```python\n([^`]*?__main__.*?)^```$", (DOCS / page).read_text(), re.M | re.S)


def test_every_script_is_run() -> None:
    for page in {page for page, _, _ in PRINTS}:
        assert len(scripts(page)) == sum(page == each for each, _, _ in PRINTS), page


@pytest.mark.proof("torch; 3 s of a processor", after=2)
@pytest.mark.parametrize(("page", "number", "prints"), PRINTS)
def test_script_runs_as_written(page: str, number: int, prints: str, tmp_path: Path) -> None:
    script = scripts(page)[number]
    path = tmp_path / "script.py"
    path.write_text(script)
    environment = os.environ | {"SKYWARD_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    # A rank's line may come between two pieces of what the script prints itself.
    own = re.sub(r"r\d{3}\| [^\n]*\n", "", done.stdout)
    assert re.search(prints, own, re.M), done.stdout


def test_every_plugin_has_a_page() -> None:
    from skyward_core import plugins

    listed = (DOCS / "train" / "plugins" / "index.md").read_text()
    for info in plugins.available():
        page = DOCS / "train" / "plugins" / ("joblib.md" if info.name == "sklearn" else f"{info.name}.md")
        assert f"sky.plugins.{info.name}(" in page.read_text()
        assert info.name in listed
