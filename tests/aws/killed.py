"""Clients that die where a test says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.forked import Loaded, read_by_python

from . import Bed

CLIENTS = Loaded(
    [sys.executable],
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import boto3, tests.aws.dying_client",
    "\ntests.aws.dying_client.main()\n",
)


def killed_at(stage: str, bed: Bed, tmp_path: Path, nodes: str = "2:2") -> None:
    """Have a client die there.

    Args:
        nodes: how many it asks for, as a range.
    """
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SKYWARD_HOME": str(tmp_path / "home")}
    env |= read_by_python(os.environ)  # else each would begin as an interpreter of its own
    with (tmp_path / "said").open("w") as said:
        child = CLIENTS.start(
            ["client", stage, f"{bed.client_address()}/32", nodes], env=env | bed.environment(), cwd=tmp_path,
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
        assert child.wait(90) == -signal.SIGKILL, (tmp_path / "said").read_text()
