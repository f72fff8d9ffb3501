"""Scripts that were written for torchrun: what comes of them here is what comes of them there, to the last bit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.cli import Cli

SCRIPTS = Path(__file__).with_name("scripts")
NOT_INSTALLED = (
    "sklearn scipy pandas pyarrow datasets torch._dynamo"  # optional there, and loaded where they are
)


def by_us(cli: Cli, script: str, *args: str) -> None:
    cli("torchrun", "--standalone", "--nproc-per-node", 2, script, *args)


# torchrun as its command line has it, but for its ranks: they are forked from it and find loaded what they import.
TORCHRUN = """
import runpy, sys
import accelerate, torch._dynamo, transformers
from torch.distributed import run
from torch.distributed.launcher.api import elastic_launch

transformers.Trainer
args = run.parse_args(sys.argv[1:])
args.rdzv_backend, args.rdzv_endpoint = "c10d", "localhost:0"
config, _, (_, script, *words) = run.config_from_args(args)
config.start_method = "fork"

def rank():
    sys.argv[:] = [script, *words]
    sys.path[0] = ""
    runpy.run_path(script, run_name="__main__")

elastic_launch(config, rank)()
"""


def by_torchrun(cli: Cli, script: str, *args: str) -> None:
    command = [sys.executable, "-c", TORCHRUN, "--standalone", "--nproc-per-node", "2", script, *args]
    done = subprocess.run(command, cwd=cli.folder, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_shapes_that_people_bring_train_to_the_same_weights(tmp_path):
    """accelerate, transformers' Trainer, DDP with snapshots, a GPT, FSDP2 and tensor parallelism."""
    import torch

    cli = Cli(tmp_path)
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, cli.folder)
    words = [
        "--max_steps=4",
        "--per_device_train_batch_size=4",
        "--report_to=none",
        "--save_strategy=no",
        "--use_cpu",
    ]
    for whose, by in (("ours", by_us), ("theirs", by_torchrun)):
        by(cli, "trainer_shapes.py", f"{whose}.pt", "--output_dir", whose, *words)
    ours, theirs = (
        torch.load(cli.folder / f"{whose}.pt", weights_only=False) for whose in ("ours", "theirs")
    )
    assert ours.keys() == theirs.keys() and len(ours) == 6
    for shape, weights in theirs.items():
        same = {name: torch.equal(value, ours[shape][name]) for name, value in weights.items()}
        assert same and all(same.values()), (shape, same)
