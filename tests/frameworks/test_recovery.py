"""Public checkpointing examples with a killed rank end with the result of an undisturbed run."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.waiting import wait_until

SCRIPTS = Path(__file__).with_name("scripts")
PATTERNS = {  # pattern -> number of ranks, file of an early checkpoint, needed package
    "snapshot": (2, "snapshot.pt", "torch"),
    "dcp": (2, "dcp/2/.metadata", "torch"),
    "trainer": (2, "trained/checkpoint-4/trainer_state.json", "transformers"),
    "accelerate": (2, "epoch_2/complete", "accelerate"),
    "lightning": (2, "trained/last.ckpt", "lightning"),
    "keras": (1, "backup/training_metadata.json", "keras"),
}


def rank_pid(folder: Path, rank: int) -> int:
    """Return the process whose output is the log of a rank of a pool below the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            target = str(path.readlink())
            if target.startswith(str(folder)) and target.endswith(f"/r{rank:03}.out"):
                found.append(int(path.parts[2]))
    return min(found)


@pytest.mark.proof("25 s of a processor")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_public_checkpointing_example_resumes_after_a_killed_rank(tmp_path: Path, pattern: str) -> None:
    ranks, checkpoint, package = PATTERNS[pattern]
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    import torch

    results = []
    for disturbed in (False, True):
        (folder := tmp_path / str(disturbed)).mkdir()
        cli = Cli(folder)
        for script in SCRIPTS.glob("*.py"):
            shutil.copy(script, folder)
        command = ("torchrun", "--nproc-per-node", ranks, "--restarts", 1, "recovery_patterns.py", pattern, "out.pt")
        with cli.begin(*command) as running:
            if disturbed:
                wait_until((folder / checkpoint).exists, 90)
                os.kill(rank_pid(folder, ranks - 1), signal.SIGKILL)
            _, errors = running.communicate(timeout=90)
        assert running.returncode == 0, errors
        assert ("restart 1 of 1 after a lost rank" in errors) is disturbed
        results.append(torch.load(folder / "out.pt", weights_only=False))
    weights = [result["weights"] for result in results]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert 0 < results[1]["steps"] < results[0]["steps"]  # the second attempt has not begun again
