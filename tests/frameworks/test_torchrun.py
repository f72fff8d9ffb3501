"""Scripts for torchrun have bit-identical results on a pool."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli

SCRIPTS = Path(__file__).with_name("scripts")
NOT_INSTALLED = "sklearn scipy pandas pyarrow datasets torch._dynamo"  # optional there, and loaded where they are


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


WORDS = ["--max_steps=4", "--per_device_train_batch_size=4", "--report_to=none", "--save_strategy=no", "--use_cpu"]
SHAPES = 6  # accelerate, transformers' Trainer, DDP with snapshots, a GPT, FSDP2 and tensor parallelism


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    cli = Cli(tmp_path_factory.mktemp("shapes"))
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, cli.folder)
    return cli


@pytest.fixture(scope="module")
def ours(cli: Cli) -> dict[str, Any]:
    return trained(cli, "ours", by_us)


def trained(cli: Cli, whose: str, by: Callable[..., None]) -> dict[str, Any]:
    """Return the trained weights of each script."""
    import torch

    by(cli, "trainer_shapes.py", f"{whose}.pt", "--output_dir", whose, *WORDS)
    found: dict[str, Any] = torch.load(cli.folder / f"{whose}.pt", weights_only=False)
    return found


def test_torchrun_command_runs_a_script_with_ranks_and_arguments(cli):
    (cli.folder / "places.py").write_text(
        "import os, sys\nprint(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE')), *sys.argv[1:])\n"
    )
    done = cli("torchrun", "--standalone", "--nproc-per-node", 2, "places.py", "--lr", "0.1")
    assert {"r000| 0 2 --lr 0.1", "r001| 1 2 --lr 0.1"} <= set(done.stdout.splitlines())


@pytest.mark.proof("9 s of a processor")
def test_training_scripts_of_common_shapes_run(ours):
    assert len(ours) == SHAPES and all(ours.values())


@pytest.mark.proof("7 s of a processor")
def test_training_scripts_have_the_same_weights_as_with_torchrun(cli, ours):
    import torch

    theirs = trained(cli, "theirs", by_torchrun)
    assert ours.keys() == theirs.keys()
    for shape, weights in theirs.items():
        same = {name: torch.equal(value, ours[shape][name]) for name, value in weights.items()}
        assert same and all(same.values()), (shape, same)
