"""Script for another Python than ours, for pools on any machines: its output and its files."""

from __future__ import annotations

from pathlib import Path

from .cli import Cli
from .pythons import another_python

TEXT = """# /// script
# requires-python = "=={minor}.*"
# ///
import os, sys

minor = "%d.%d" % sys.version_info[:2]
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "has", minor, *sys.argv[1:])
with open(f"out-{{os.environ['RANK']}}.pt", "w") as file:
    file.write(minor)
"""


def torchrun_with_another_python(folder: Path, *options: str) -> None:
    """Run the script on two nodes by ``skyward-tui torchrun``, and fetch the files that it writes."""
    known = another_python()
    minor = ".".join(known.version.split(".")[:2])
    cli = Cli(folder)
    cli.write("train.py", TEXT.format(minor=minor))
    ended = cli("torchrun", "--nnodes", "2", *options, "--output", "*.pt", "train.py", "--epochs", "3")
    for rank in range(2):
        assert f"rank {rank} of 2 has {minor} --epochs 3" in ended.stdout
    assert "created 2, verified gone 2, unaccounted 0" in ended.stderr
    fetched = sorted(folder.glob("outputs/**/*.pt"))
    assert [path.name for path in fetched] == ["out-0.pt", "out-1.pt"], "each once"
    assert {path.read_text() for path in fetched} == {minor}
