"""Scripts that were written for torchrun: what comes of them here is what comes of them there, to the last bit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import Cli

SCRIPTS = Path(__file__).with_name("scripts")


def by_torchrun(folder: Path, script: str, *args: str) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        script,
        *args,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("script", ["torch_shapes.py"])
def test_a_script_trains_to_the_same_weights(script, tmp_path):
    import torch

    cli = Cli(tmp_path)
    shutil.copy(SCRIPTS / script, cli.folder)
    cli("torchrun", "--standalone", "--nproc-per-node", 2, script, "ours.pt")
    by_torchrun(cli.folder, script, "theirs.pt")
    ours, theirs = (
        torch.load(cli.folder / f"{whose}.pt", weights_only=False) for whose in ("ours", "theirs")
    )
    assert ours.keys() == theirs.keys() and len(ours) > 1
    for shape, weights in theirs.items():
        same = {name: torch.equal(value, ours[shape][name]) for name, value in weights.items()}
        assert same and all(same.values()), (shape, same)
