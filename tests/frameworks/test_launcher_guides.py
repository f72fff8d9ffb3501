"""Guides of frameworks with their own launchers have bit-identical results on a pool."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli

GUIDES = Path(__file__).with_name("guides")
PATIENCE = 90


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    for guide in GUIDES.glob("*.py"):
        shutil.copy(guide, cli.folder)
    return cli


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def alone(cli: Cli, *commands: list[str]) -> None:
    """Run the framework's own launcher, all of its commands at the same time."""
    running = [
        subprocess.Popen([sys.executable, *each], cwd=cli.folder, stderr=subprocess.PIPE, text=True)
        for each in commands
    ]
    try:
        for process in running:
            output = process.communicate(timeout=PATIENCE)[1]
            assert process.returncode == 0, output[-4000:]
    finally:
        for process in running:
            process.kill()


def weights(cli: Cli, whose: str) -> dict[str, Any]:
    import torch

    loaded: dict[str, Any] = torch.load(cli.folder / f"{whose}.pt", weights_only=False)
    return loaded


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    import torch

    assert ours.keys() == theirs.keys() and len(theirs) > 2
    differ = [
        name
        for name, value in theirs.items()
        # Threads, of which a rank has its share, add up in another order.
        if not torch.allclose(torch.as_tensor(value), torch.as_tensor(ours[name]), rtol=0, atol=1e-6)
    ]
    assert not differ


@pytest.mark.proof("lightning; 40 s of a processor")
@pytest.mark.timeout(3 * PATIENCE)
def test_lightning_trainer_has_equal_weights_with_and_without_plugin(cli: Cli) -> None:
    pytest.importorskip("lightning")
    alone(cli, ["lightning_ddp.py", "theirs.pt", "2", "1"])
    cli("torchrun", "--nproc-per-node", 2, "lightning_ddp.py", "ranks.pt", 2, 1)
    cli("torchrun", "--nnodes", 2, "lightning_ddp.py", "nodes.pt", 1, 2)
    cli("run", "lightning_ddp.py", "--nodes", 2, "--plugin", "torch", "--", "plugin.pt", 1, 2)
    for whose in ("ranks", "nodes", "plugin"):
        assert_same(weights(cli, whose), weights(cli, "theirs"))
    # A launch of another shape than the Trainer's is said, and not waited for.
    refused = cli("torchrun", "--nnodes", 2, "lightning_ddp.py", "no.pt", 2, 2, status=1)
    assert "devices=2" in refused.stderr


@pytest.mark.proof("keras; 25 s of a processor")
@pytest.mark.timeout(3 * PATIENCE)
def test_keras_guide_has_equal_weights_with_own_and_pool_processes(cli: Cli) -> None:
    alone(cli, ["keras_ddp.py", "theirs.pt", str(free_port())])
    cli("run", "keras_ddp.py", "--nodes", 1, "--", "own.pt", free_port())
    cli("torchrun", "--nproc-per-node", 2, "keras_ddp.py", "ours.pt")
    for whose in ("own", "ours"):
        assert_same(weights(cli, whose), weights(cli, "theirs"))


@pytest.mark.proof("jax; 15 s of a processor")
@pytest.mark.timeout(3 * PATIENCE)
def test_jax_multi_process_guide_has_equal_results_with_and_without_plugin(cli: Cli) -> None:
    import numpy as np

    place = [f"127.0.0.1:{free_port()}", "2"]
    alone(cli, *(["jax_multi_process.py", "theirs.npz", *place, str(rank)] for rank in (0, 1)))
    cli("torchrun", "--nnodes", 2, "jax_multi_process.py", "ours.npz")
    cli("run", "jax_multi_process.py", "--nodes", 2, "--plugin", "jax", "--", "plugin.npz")
    theirs = np.load(cli.folder / "theirs.npz")
    for whose in ("ours", "plugin"):
        found = np.load(cli.folder / f"{whose}.npz")
        assert {name: found[name].tobytes() for name in found} == {name: theirs[name].tobytes() for name in theirs}
    assert theirs["world"] == 2
