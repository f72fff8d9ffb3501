"""A GPU is lost during a run: screens and commands report it.

The driver is a compiled stand-in, and the kernel log is a file mounted over ``/dev/kmsg`` for the pool's processes.
Pool, agent, sampler, commands and app are real.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import COMMAND, PATIENCE, Cli
from tests.support.fake_driver import compiled, needs_compiler
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

SCRIPT = """
import pathlib, time
import skyward_core as sky

@sky.function
def train(failed: str):
    print("trains", flush=True)
    while not pathlib.Path(failed).exists():
        time.sleep(0.02)
    raise RuntimeError("CUDA error: unspecified launch failure")
"""
WORDS = "Xid 79 (the GPU has fallen off the bus), lost by the driver"

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("unshare") is None, reason="a kernel log of its own needs root"
    ),
]


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path)
    cli.env |= {
        "LD_LIBRARY_PATH": str(compiled(tmp_path)),
        "FAKE_GPUS": "ww", "FAKE_GPU_MIB": "81920", "FAKE_GPU_FILE": str(tmp_path / "gpus"),
    }  # fmt: skip
    measured(tmp_path, "util=98 used=40000")
    (tmp_path / "kmsg").write_text("4,1,1,-;NVRM: Xid (PCI:0000:11:00): 31, of long before\n")
    yield cli
    cli("down", "--all", "-y", "--discard", status=None)


def measured(folder: Path, second: str) -> None:
    """Set the driver's values of both GPUs."""
    (folder / "gpus.new").write_text(f"util=97 used=40000\n{second}\n")
    (folder / "gpus.new").replace(folder / "gpus")


@pytest.mark.proof("3 s of a processor")
def test_lost_gpu_is_shown_on_screens_and_command_line(cli: Cli, tmp_path: Path) -> None:
    cli.write("train.py", SCRIPT)
    failed = tmp_path / "failed"
    words = ["run", "train.py", "--pool", "gpus", "--detach", "--json", "--arg", f"failed={failed}"]
    own_log = f'mount --bind {tmp_path}/kmsg /dev/kmsg && exec "$@"'
    begun = subprocess.run(
        ["unshare", "--mount", "sh", "-c", own_log, "sh", *COMMAND, *words],
        cwd=cli.folder, env=cli.env, text=True, capture_output=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    run = json.loads(begun.stdout.splitlines()[-1])["run"]
    terminal = Terminal(tmp_path / "home", size=(160, 48), cwd=tmp_path)
    try:
        terminal.until("▶ gpus")
        terminal.press("enter", until="trains")
        wait_until(lambda: '"util": 98' in cli("top", "gpus", "--once", "--json").stdout)
        assert "GPU  n0" not in terminal.text
        with open(tmp_path / "kmsg", "a") as log:
            log.write("4,2,2,-;NVRM: Xid (PCI:0000:11:00): 79, pid=7, GPU has fallen off the bus.\n")
        measured(tmp_path, "lost")
        terminal.until(lambda text: "✗ GPU  n0 GPU 1 since " in text and WORDS in text)  # the strip

        def in_table() -> bool:
            shown = cli("top", "gpus", "--once").stdout
            return "lost by the driver; Xid 79" in shown and f"run {run}: gpu: n0 GPU 1 since" in shown

        wait_until(in_table)
        failed.touch()
        terminal.until("✗ FAILED")
        terminal.press("e")
        # Where the line is wrapped depends on how long before it was.
        parts = ("ROOT CAUSE", "GPU 1 Xid 79", "lost by")
        terminal.until(lambda text: all(each in text for each in parts))
        assert "CUDA error: unspecified launch failure" in terminal.text
        terminal.press("q", "q", until="✗ 1 failure")
        terminal.press("F", until=lambda text: "pools › failures" in text and "Xid 79" in text)
    finally:
        terminal.close()
    output = cli("results", run, status=1)
    assert f" earlier: GPU 1 {WORDS}" in output.stderr
    cli("down", "gpus", "-y")
    (inbox,) = cli.json("failures")["runs"]
    assert inbox["run"] == run and f"GPU 1 {WORDS}" in inbox["figures"]["words"], "out of what was kept"
