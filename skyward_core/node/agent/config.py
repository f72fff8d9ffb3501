"""What an agent is told when it is started. It comes by standard input, so that it may hold secrets (env)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skyward_core.node.bootstrap.host_inspection import NVIDIA_DEVICES
from skyward_core.protocol.node_paths import NodePaths, worker_socket_path

NVML_LIBRARY = "libnvidia-ml.so.1"  # the library by which it is asked, where it is in no usual place


class AgentConfig:
    """One node's part of a pool. Nobody changes one. (Agents wait for this; a dataclass takes two milliseconds.)

    Attributes:
        folder: the agent's own folder: lock, spool, blobs.
        socket: path of the Unix socket it listens on; the workers' one stands beside it.
        bundle: the zip file put first on the workers' ``sys.path``, or "".
        path_before: entries of the workers' ``sys.path`` before their standard library.
        path: entries added to its end.
        cwd: the ranks' working folder; the very last entry, unless others may write there.
        client_cwd: the client's folder that ``cwd`` is a copy of, "" where it has none; None where both see the same
            files.
        idle_timeout, ttl: the lease, in seconds; see ``agent.agent_state``.
        deadman: minutes after which the machine ends itself unless this agent puts that off; 0 where it never does.
        log_limit: bytes that a rank may print during one run, to each of its streams; 0 for no limit.
        keep_results: seconds that what nobody has fetched stays on the host after this agent's end; see
            ``agent.retained_results``.
        accelerators: how many GPUs the node has; None until that is known.
        accelerator: their model, or models.
        devices: for each rank of this node the device that it sees, as ``CUDA_VISIBLE_DEVICES`` has it; empty
            where ranks see all there are.
        free_gpus: which devices the node may take, as ``of``, and how many it takes, as ``count``, where it shares its
            machine's with others; see ``node.gpu_locks``. Empty where it takes none.
        rendezvous: whether ranks of a gang get the variables that torchrun sets.
        grace: seconds between SIGTERM and SIGKILL where a request names none.
        secrets: what is to be blanked beside those of ``env``.
        knows_env: whether these two are what the pool was made with. A client that came later may not know; workers
            that the last agent left do.
        debug_wait: seconds that a rank waits at a breakpoint for somebody who debugs it; 0 has it go on.
        notices: a program in Python that says when the machine is about to be taken back; "" where it never is.
        umask: what ranks start with; the agent's own files are for nobody else.
        nice: how much the ranks give way to other processes of the node, 0 (not at all) to 19.
    """

    pool: str
    node: int
    nodes: int
    folder: str
    socket: str
    idle_timeout: float
    grace: float
    ranks_per_node: int = 1
    concurrency: int = 1
    executor: str = "process"
    ttl: float | None = None
    deadman: int = 0
    log_limit: int = 0
    keep_results: float = 0.0
    rendezvous: bool = True
    debug_wait: float = 0.0
    notices: str = ""
    umask: int = 0o077
    nice: int = 0
    address: str = "127.0.0.1"
    accelerators: int | None = None
    accelerator: str = ""
    devices: list[str]
    free_gpus: dict[str, Any]
    bundle: str = ""
    path_before: list[str]
    path: list[str]
    cwd: str = ""
    client_cwd: str | None = None
    python: str = sys.executable
    env: dict[str, str]
    knows_env: bool = True
    secrets: list[str]

    def __init__(self, *values: Any, **named: Any) -> None:
        """Of values in the order above, and others by name.

        Raises:
            TypeError: one is missing, or there is none of that name.
        """
        empty: dict[str, Any] = {
            "devices": [], "free_gpus": {}, "path_before": [], "path": [], "env": {}, "secrets": [],
        }  # fmt: skip
        names = self.__annotations__
        given = dict(zip(names, values, strict=False)) | named
        if unknown := given.keys() - names.keys():
            raise TypeError(f"an agent's config has no {', '.join(sorted(unknown))}")
        self.__dict__.update(empty | given)
        if missing := [name for name in names if not hasattr(self, name)]:
            raise TypeError(f"an agent's config needs {', '.join(missing)}")

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AgentConfig:
        """The config that a client sent; for ``ranks_per_node`` "gpu" see ``agent.gpu_list``."""
        return cls(**{key: value for key, value in data.items() if key in cls.__annotations__})

    def replace(self, **values: Any) -> AgentConfig:
        """The same, but for these."""
        return AgentConfig(**vars(self) | values)

    def with_gpus(self, models: Sequence[str]) -> AgentConfig:
        """The same, of a node with these GPUs."""
        return self.replace(accelerators=len(models), accelerator=", ".join(dict.fromkeys(filter(None, models))))

    @property
    def may_have_gpus(self) -> bool:
        """Whether an NVIDIA driver may be here: to ask it costs the start of an interpreter."""
        folders = filter(None, (os.environ | self.env).get("LD_LIBRARY_PATH", "").split(":"))
        return any(map(os.path.exists, [*NVIDIA_DEVICES, *(f"{folder}/{NVML_LIBRARY}" for folder in folders)]))

    @property
    def paths(self) -> NodePaths:
        return NodePaths(self.folder)

    @property
    def spool(self) -> Path:
        return Path(self.paths.spool)

    @property
    def blobs(self) -> Path:
        return Path(self.paths.blobs)

    @property
    def worker_socket(self) -> str:
        return worker_socket_path(self.socket)

    @property
    def slots(self) -> int:
        """Worker processes per rank."""
        return self.concurrency if self.executor == "process" else 1

    @property
    def capacity(self) -> int:
        """Calls that one worker process takes at a time."""
        return self.concurrency if self.executor == "thread" else 1
