"""Configuration of an agent. Sent through standard input, because ``env`` may contain secrets."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skyward_core.node.bootstrap.host_inspection import NVIDIA_DEVICES
from skyward_core.protocol.node_paths import NodePaths, worker_socket_path

# file name of NVIDIA's NVML library, which is searched in all folders of LD_LIBRARY_PATH
NVML_LIBRARY = "libnvidia-ml.so.1"

GRACE = 5.0  # default seconds between SIGTERM and SIGKILL for a process that is stopped
# seconds between SIGTERM and SIGKILL for ranks whose code handles SIGTERM, for example to save a checkpoint
HANDLER_GRACE = 30.0


class AgentConfig:
    """Immutable configuration of one node of a pool. (A dataclass would delay the start of each agent by 2 ms.)

    Attributes:
        folder: The agent's own folder: lock, spool, blobs.
        socket: Path of the Unix socket for clients; the socket for workers is beside it.
        bundle: Zip file put first on the workers' ``sys.path``, or "".
        path_before: Entries of the workers' ``sys.path`` before their standard library.
        path: Entries appended to the workers' ``sys.path``.
        cwd: Working folder of the ranks; also the last entry of ``sys.path``, unless other users can write to it.
        client_cwd: The client's folder that ``cwd`` is a copy of; "" if there is none; None if client and node share
            the file system.
        idle_timeout, ttl: Limits of the lease in seconds; see ``agent.agent_state_lease_deadman_and_network_info``.
        deadman: Minutes until the machine shuts itself down unless the agent postpones it; 0 to never shut down.
        log_limit: Bytes that a rank may print to each stream, and log as metrics, during one run; 0 for no limit.
        collect_metrics: Whether ranks record metrics that they print, or log with other libraries.
        keep_results: Seconds that unfetched results stay on the host after the agent's end; see
            ``agent.results_retained_after_node_end``.
        accelerators: Number of GPUs of the node; None if not yet known.
        accelerator: Model names of the GPUs.
        devices: ``CUDA_VISIBLE_DEVICES`` of each rank of this node; empty if ranks see all GPUs.
        free_gpus: On a shared machine, the devices the node may use (``of``) and how many it uses (``count``); see
            ``node.gpu_locks_and_usage``. Otherwise empty.
        rendezvous: Whether ranks of a gang get the environment variables of torchrun.
        grace: Seconds between SIGTERM and SIGKILL if a request does not specify them; None for the defaults above.
        secrets: Values to redact in addition to the secrets in ``env``.
        knows_env: Whether ``env`` and ``secrets`` are complete. A client that attaches later and starts this agent may
            not know them. Workers of an earlier agent send them.
        debug_wait: Seconds that a rank waits at a breakpoint for a debugger; 0 to skip breakpoints.
        notices: Source code of a Python program that reports preemption notices; "" if there are none.
        umask: umask of the ranks. Files of the agent are always private.
        nice: Niceness of the ranks, 0 to 19.
        file_limit: Limit of open files of the ranks; 0 for the limit of the agent.
    """

    pool: str
    node: int
    nodes: int
    folder: str
    socket: str
    idle_timeout: float
    grace: float | None
    ranks_per_node: int = 1
    concurrency: int = 1
    executor: str = "process"
    ttl: float | None = None
    deadman: int = 0
    log_limit: int = 0
    collect_metrics: bool = True
    keep_results: float = 0.0
    rendezvous: bool = True
    debug_wait: float = 0.0
    notices: str = ""
    umask: int = 0o077
    nice: int = 0
    file_limit: int = 0
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
        """Create a config from values in the order of the annotations and by name.

        Raises:
            TypeError: If a value is missing or a name is unknown.
        """
        empty: dict[str, Any] = {
            "devices": [], "free_gpus": {}, "path_before": [], "path": [], "env": {}, "secrets": [],
        }  # fmt: skip
        names = self.__annotations__
        given = dict(zip(names, values, strict=False)) | named
        if unknown := given.keys() - names.keys():
            raise TypeError(f"unknown fields of the agent config: {', '.join(sorted(unknown))}")
        self.__dict__.update(empty | given)
        if missing := [name for name in names if not hasattr(self, name)]:
            raise TypeError(f"missing fields of the agent config: {', '.join(missing)}")

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AgentConfig:
        """Create the config that a client sent. ``ranks_per_node="gpu"`` is resolved by ``agent.gpu_detection``."""
        return cls(**{key: value for key, value in data.items() if key in cls.__annotations__})

    def replace(self, **values: Any) -> AgentConfig:
        """Return a copy with some values replaced."""
        return AgentConfig(**vars(self) | values)

    @property
    def base_grace(self) -> float:
        """Seconds between SIGTERM and SIGKILL for processes whose user code has no SIGTERM handler."""
        return GRACE if self.grace is None else self.grace

    def with_gpus(self, models: Sequence[str]) -> AgentConfig:
        """Return a copy of the config with the models of the node's GPUs."""
        return self.replace(accelerators=len(models), accelerator=", ".join(dict.fromkeys(filter(None, models))))

    @property
    def may_have_gpus(self) -> bool:
        """Whether this machine may have an NVIDIA driver. If not, the agent does not start a process to query it."""
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
        """Number of worker processes per rank."""
        return self.concurrency if self.executor == "process" else 1

    @property
    def capacity(self) -> int:
        """Number of concurrent calls per worker process."""
        return self.concurrency if self.executor == "thread" else 1
