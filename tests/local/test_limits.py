"""Disks that fill up, results as large as the machine takes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from tests.support.faults import worker_pids

QUIET = sky.Options(console=False)


@pytest.fixture
def small_disk(home: Path) -> Iterator[Path]:
    """Nodes whose folders are on a disk of 16 MB."""
    if os.geteuid() != 0:
        pytest.skip("making a small disk needs root")
    folder = home / "local"
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_under_the_spool_is_named_and_leaves_a_pool_that_ends(small_disk: Path) -> None:
    def flood() -> None:
        for _ in range(1000):
            print("x" * 50_000)

    def big() -> bytes:
        return b"y" * 30_000_000

    with sky.Compute(nodes=2, options=QUIET) as compute:
        with pytest.raises(sky.RunError, match=r"disk under node \d's spool is full") as caught:
            sky.function(flood)() @ compute
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(sky.RunError, match="spool is full"):
            sky.function(big)() >> compute
    assert compute.receipt is not None
    assert compute.receipt.ok


@pytest.mark.proof("2 s of a processor")
def test_a_result_of_500_megabytes_arrives(home: Path) -> None:
    def huge() -> bytes:
        return bytes(500_000_000)

    with sky.Compute(nodes=1, options=QUIET) as compute:
        value = sky.function(huge)() >> compute
        assert len(value) == 500_000_000
        assert not list(compute.pool.archive.results.iterdir())
        assert len(worker_pids(compute)) == 1


def test_a_workers_environment_is_the_images(home: Path) -> None:
    def look() -> str | None:
        return os.environ.get("FROM_IMAGE")

    with sky.Compute(nodes=1, image=sky.Image(env={"FROM_IMAGE": "yes"}), options=QUIET) as compute:
        assert sky.function(look)() >> compute == "yes"
