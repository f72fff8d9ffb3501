"""Gang without a pool: real processes with ranks' places, for tests of plugins."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, Peer

PRELUDE = """
import json, os, sys
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, set_current
from skyward_core.plugins.plugin import enter_process
from skyward_core import plugins
info = InstanceInfo.from_json(sys.argv[1])
set_current(info)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def places(nodes: int, ranks_per_node: int = 1) -> list[InstanceInfo]:
    """Return the place of every rank of a gang on this machine."""
    port = free_port()
    ports = [tuple(free_port() for _ in range(ranks_per_node)) for _ in range(nodes)]
    return [
        InstanceInfo(
            node=rank // ranks_per_node,
            total_nodes=nodes,
            rank=rank,
            world_size=nodes * ranks_per_node,
            local_rank=rank % ranks_per_node,
            ranks_per_node=ranks_per_node,
            head_port=port,
            peers=tuple(Peer(node, "127.0.0.1", ports[node]) for node in range(nodes)),
        )
        for rank in range(nodes * ranks_per_node)
    ]


def run_gang(code: str, infos: list[InstanceInfo], timeout: float = 90, **env: str) -> list[Any]:
    """Run code in one fresh interpreter per rank, and return the last output line of each in rank order.

    The code has the names ``info``, ``plugins``, ``enter_process``, ``json``, ``os`` and ``sys``.
    """
    import os

    root = str(Path(__file__).parents[2])
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GLOO_"))}
    paths = filter(None, (root, environ.get("PYTHONPATH")))  # a module may have packages hidden
    environ |= {"PYTHONPATH": os.pathsep.join(paths)} | env
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code), info.to_json()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        for info in infos
    ]
    try:
        ends = [process.communicate(timeout=timeout) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, (out, err) in zip(ranks, ends, strict=True):
        if process.returncode:
            raise AssertionError(f"a rank ended with {process.returncode}\n{out}\n{err}")
    return [json.loads(out.splitlines()[-1]) for out, _ in ends]
