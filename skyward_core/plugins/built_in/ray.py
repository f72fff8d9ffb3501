"""Plugin ``ray``: one Ray cluster of the pool's nodes, which ``ray.init()`` finds in every rank.

Started as in https://docs.ray.io/en/latest/cluster/vms/user-guides/launching-clusters/on-premises.html, with the token
authentication of https://docs.ray.io/en/latest/ray-security/token-auth.html, so that other users of the network cannot
use the cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from skyward_core.model.errors import PoolError
from skyward_core.plugins.plugin import requirement, with_pip
from skyward_core.plugins.plugin_server_start_and_stop import (
    ServerPlugin,
    await_server,
    check_port_free,
    generated_field,
    make_private_folder,
    port_field,
    set_variables,
    stop_server,
)
from skyward_core.util.safe_file_access import try_lock

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo

START_TIMEOUT = 120.0  # seconds for Ray's head to start, and for a node to join the cluster
WITH_TOKENS = (2, 52)  # first version of Ray with token authentication
PAUSE = 0.1  # seconds between two attempts to join the cluster
SAID, STARTED = "ray-start.log", "Ray runtime started"
LOCK = "lock"
GRACE = 10.0  # seconds for Ray's processes to end after SIGTERM
# With these values Ray detects a dead host within about 30 s. Most of that time is spent waiting for answers, because
# busy machines answer late, and Ray never readmits a node that it declared dead. Ray's defaults are in parentheses.
HEALTH_CHECK_OPTIONS = {
    # The head checks each node every 3 s. A node counts as dead after three checks without an answer within 8 s (Ray's
    # defaults: five checks, 10 s).
    "health_check_period_ms": "3000",
    "health_check_timeout_ms": "8000",
    "health_check_failure_threshold": "3",
    # A process checks a peer after 10 s of silence, and waits 20 s for the answer (Ray's defaults: five minutes, two
    # minutes). With the defaults, drivers wait for minutes although the head knows that the node is dead. All processes
    # of a cluster need the same values.
    "grpc_client_keepalive_time_ms": "10000",
    "grpc_client_keepalive_timeout_ms": "20000",
}


@dataclass(frozen=True)
class Ray(ServerPlugin):
    """One Ray cluster of the pool's nodes, with the head on node 0. It starts before the ranks are set up, and stops
    after the ranks have ended.

    ``ray.init()`` in a rank connects to the cluster. At this time some nodes may not have joined yet. Ray lets tasks
    wait for the nodes that they need. Each node provides its CPUs, and its GPUs as counted by ``info.accelerators``.

    Args:
        version: "latest", an exact version, or constraints such as ">=2.52". Older versions have no token
            authentication, so anyone with network access could run code. Nodes reject older versions at the start.
        dashboard: Whether the head serves Ray's dashboard, on its loopback address.
        port: Port of the head; the dashboard uses the next one. None for a port derived from the pool's name.

    Attributes:
        token: Authentication token of the cluster, generated for each plugin object, and redacted in logs.

    Raises:
        UsageError: If ``port`` is invalid.
    """

    name: ClassVar[str] = "ray"
    help: ClassVar[str] = "one Ray cluster of the pool's nodes"
    place: ClassVar[int] = 10
    gang: ClassVar[bool] = False
    needs_peers = "one cluster of all nodes"
    pool_ports = (20_000, 10_000)
    ports_per_pool = 2  # the second port is for the dashboard
    version: str = field(default="latest", metadata={"help": "version of ray"})
    dashboard: bool = field(default=True, metadata={"help": "serve Ray's dashboard on the head's loopback"})
    port: int | None = port_field("the Ray head")
    token: str = generated_field(lambda: secrets.token_hex(32))

    def secrets(self) -> Sequence[str]:
        return (self.token,)

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return with_pip(image, [requirement("ray[default]" if self.dashboard else "ray", self.version)])

    @contextmanager
    def around_app(self, info: InstanceInfo) -> Iterator[None]:
        _check_tokens()
        port = self.port_of(info.pool)
        if info.node:
            _await_head(info, port)
        else:
            check_port_free(self.name, info.address, port)
        with _private_folder(self.token) as folder:
            log = folder / f"{SAID}.{info.node}"
            with _run_ray(self._start(info, port, folder), self._variables(info, port), log) as node:
                # The node has joined the cluster when ``ray start`` prints this text.
                await_server("ray start", node, lambda: STARTED in log.read_text(errors="replace"), START_TIMEOUT, log)
                yield

    def around_process(self, info: InstanceInfo) -> contextlib.AbstractContextManager[object]:
        return set_variables(self._variables(info, self.port_of(info.pool)))

    def dashboard_at(self, pool: str) -> tuple[int, str] | None:
        """Return the port and path of the dashboard on the head's loopback address. None without a dashboard.

        Args:
            pool: Name of the pool.
        """
        return (self.port_of(pool) + 1, "") if self.dashboard else None

    def _variables(self, info: InstanceInfo, port: int) -> dict[str, str]:
        return {
            "RAY_ADDRESS": f"{info.head_addr}:{port}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            # no wait at shutdown, because the whole cluster ends and no other node can take over work
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            **{f"RAY_{name}": os.environ.get(f"RAY_{name}", value) for name, value in HEALTH_CHECK_OPTIONS.items()},
        }

    def _start(self, info: InstanceInfo, port: int, folder: Path) -> list[str]:
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        words += [f"--node-ip-address={info.address}", f"--num-gpus={info.accelerators}"]
        words += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
        if info.node:
            return [*words, f"--address={info.head_addr}:{port}"]
        words += ["--head", f"--port={port}", f"--temp-dir={folder / 'ray'}"]
        words += [f"--include-dashboard={str(self.dashboard).lower()}"]
        return [*words, "--dashboard-host=127.0.0.1", f"--dashboard-port={port + 1}"]


@contextmanager
def _private_folder(token: str) -> Iterator[Path]:
    """Provide Ray's folder on disk.

    The path is the same on all nodes, because each node uses the path on the head. It is short, because the folder
    contains sockets. If several nodes share a host, the node that created the folder removes it at its end. Other
    nodes of the host that end later remove the folder again, because their processes may have written files.
    """
    folder = Path("/tmp", f"sky-ray-{hashlib.sha256(token.encode()).hexdigest()[:12]}")
    make_private_folder(folder)
    # The process that gets the lock is responsible for the folder: it created the folder, or took it over from a killed
    # process.
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    has_it = try_lock(lock)
    try:
        yield folder
    finally:
        if has_it or try_lock(lock):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def _run_ray(command: Sequence[str], variables: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run Ray's processes of a node. At the end of the block, end them with all their children."""
    with log.open("wb") as file:
        node = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        yield node
    finally:
        stop_server(node, GRACE)


def _check_tokens() -> None:
    """Reject versions of Ray without token authentication, because anyone with network access could run code."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("ray")
    except PackageNotFoundError as error:
        raise PoolError(
            f'ray is not installed for {sys.executable} on this node. Install it there, or use sky.Image(pip=["ray"]).'
        ) from error
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if numbers < WITH_TOKENS:
        least = ".".join(map(str, WITH_TOKENS))
        raise PoolError(f"ray {found} has no token authentication. Use version {least} or newer.")


def _await_head(info: InstanceInfo, port: int) -> None:
    until = time.monotonic() + START_TIMEOUT
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((info.head_addr, port), timeout=1):
            return
        time.sleep(PAUSE)
    raise PoolError(f"the Ray head does not listen at {info.head_addr}:{port} after {START_TIMEOUT:g} s")


PLUGIN = Ray
