"""Console sessions of the documentation: each command runs, and its output is compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOT_INSTALLED = "torch._dynamo"  # training has a stand-in for the parts that it uses
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


@pytest.mark.proof("1 s of a processor for each command", after=4)
@pytest.mark.parametrize("page", PAGES)
def test_sessions_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
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
