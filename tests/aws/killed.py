"""Clients that are killed at a stage that a test chooses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.child import Child
from tests.support.forked import Loaded, read_by_python

from . import Bed

CLIENTS = Loaded(
    [sys.executable],
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); import boto3, tests.aws.dying_client",
    "\ntests.aws.dying_client.main()\n",
)


@contextmanager
def client(stage: str, bed: Bed, tmp_path: Path, nodes: str = "2:2", *, stormy: bool = False) -> Iterator[Child]:
    """Start a client that is killed at a stage. Its output goes to the file ``file``.

    Args:
        nodes: Requested number of nodes, as a range.
        stormy: Whether time-outs are short and no host answers, so that the client may end before the stage.
    """
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SKYWARD_HOME": str(tmp_path / "home")}
    env |= read_by_python(os.environ)  # else each would begin as an interpreter of its own
    address = "10.0.0.1/32" if stormy else f"{bed.client_address()}/32"
    with (tmp_path / "said").open("w") as file:
        argv = ["client", stage, address, nodes, *(["stormy"] if stormy else [])]
        with CLIENTS.start(
            argv, env=env | bed.environment(), cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True,
        ) as child:  # fmt: skip
            yield child


def killed_at(stage: str, bed: Bed, tmp_path: Path, nodes: str = "2:2", *, stormy: bool = False) -> None:
    """Run a client until it is killed at a stage, or earlier if it is stormy. Arguments as for :func:`client`."""
    with client(stage, bed, tmp_path, nodes, stormy=stormy) as child:
        status = child.wait(90)
        assert status == -signal.SIGKILL or stormy, (tmp_path / "said").read_text()
