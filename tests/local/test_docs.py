"""Scripts and console sessions of the documentation, run and compared."""

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
SCRIPT = re.compile(
    r"^```python(?: title=[^\n]*)?\n((?:(?!```).*\n)*?.*__main__.*\n(?:(?!```).*\n)*)```$", re.MULTILINE
)

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
    "start/concepts.md": [r"\(0, 0, 0\)\n\(0, 1, 1\)\n\(1, 0, 2\)\n\(1, 1, 3\)"],
    "train/data-sharding.md": [r"^\[\[0, 3, 6\], \[1, 4\], \[2, 5\]\] 21$"],
    "train/index.md": [r"^True True$", r"^332833500$"],
    "train/plugins/index.md": [r"^\['part-0', 'part-1'\]$", r"^499500 True\n499500 True$"],
    "train/restarts.md": [r"^\[20, 20\]$"],
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
def test_documentation_script_runs_as_written(script: str, prints: str, tmp_path: Path) -> None:
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
    assert re.search(prints, own_lines(done.stdout), re.MULTILINE), done.stdout


def test_every_plugin_has_a_documentation_page() -> None:
    from skyward_core import plugins

    listed = (DOCS / "train" / "plugins" / "index.md").read_text()
    for info in plugins.available():
        page = DOCS / "train" / "plugins" / ("joblib.md" if info.name == "sklearn" else f"{info.name}.md")
        assert f"sky.plugins.{info.name}(" in page.read_text()
        assert info.name in listed


def own_lines(output: str) -> str:
    """Return the lines that a script prints itself. A line of a rank may be between two pieces of a script's line."""
    return re.sub(r"[ \t]*r\d{3}[ \t]*\|[^\n]*\n", "", output)


ROOT = Path(__file__).parents[2]
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r'^```\w+ title="([\w.-]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = ["README.md"]
PAGES += sorted(
    str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if SESSION.search(page.read_text("utf-8"))
)
# Parts that differ from run to run, and their stand-ins.
VARIABLE = (
    (r"\b[0-9a-f]{10}\b", "RUN"),
    (r"\b([a-z_]+)-[0-9a-f]{4}\b", r"\1-POOL"),
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b", "DATE"),
    (r"\b\d+:\d\d\b", "DURATION"),
    (r"\b\d[\d.,]* (ms|s)\b", "DURATION"),
    (r'File "/\S+/(skyward_tui/)', r'File "\1'),
    (r"\s+", " "),
)


@pytest.mark.proof("1 s of a processor for each command", after=1)
@pytest.mark.parametrize("page", PAGES)
def test_documentation_console_sessions_print_the_shown_output(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(content, "utf-8")
    for session in SESSION.findall(text):
        for exchange in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
            command, _, shown = exchange.partition("\n")
            printed = _run(command, tmp_path)
            assert _comparable(printed) == _comparable(shown), f"{command}\n{printed}"


def _run(command: str, folder: Path) -> str:
    """Return the output and error messages of a command."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = folder.with_name(f"{folder.name}-home")
    environment = os.environ | {"PATH": path, "SKYWARD_HOME": str(home), "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        env=environment,
        check=False,
    )
    return done.stdout.replace(f"{folder}/", "")


def _comparable(text: str) -> list[str]:
    """Return the lines in alphabetical order, because ranks print in any order."""
    for pattern, stand_in in VARIABLE:
        text = "\n".join(re.sub(pattern, stand_in, line) for line in text.splitlines())
    return sorted(line.strip() for line in text.splitlines() if line.strip())
