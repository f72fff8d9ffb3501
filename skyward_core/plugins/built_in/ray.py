"""Ray: one cluster of the pool's nodes, which ``ray.init()`` finds in every rank.

Started as https://docs.ray.io/en/latest/cluster/vms/user-guides/launching-clusters/on-premises.html does it, with the
tokens of https://docs.ray.io/en/latest/ray-security/token-auth.html: who reaches its ports cannot use it.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from skyward_core.plugins.server_ports_and_certificates import (
    ServerPlugin,
    await_server,
    check_port_free,
    make_private_folder,
    set_variables,
    stop_server,
)

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info import InstanceInfo

START_TIMEOUT = 120.0  # seconds for the head to be there, and for a node to join it
WITH_TOKENS = (2, 52)  # Ray's first version that asks for one
PAUSE = 0.1  # seconds between looks
SAID, STARTED = "ray-start.log", "Ray runtime started"
LOCK = "lock"
GRACE = 10.0  # seconds that Ray's processes have to end
# How soon Ray misses a host without power: within about half a minute, all of it together. Most of that is time for an
# answer, as a busy machine's comes late, and who is taken for dead stays out. Ray's own values stand in brackets.
HEALTH_CHECK_OPTIONS = {
    # The head asks each node every 3 s: it is gone when it has not answered three times, within 8 s each (five, 10 s).
    "health_check_period_ms": "3000",
    "health_check_timeout_ms": "8000",
    "health_check_failure_threshold": "3",
    # A process asks another one that is silent for so long whether it lives, and waits so long for its answer (five
    # minutes, and two: a driver waits for that, though the head knows better). All of a cluster have to have the same.
    "grpc_client_keepalive_time_ms": "10000",
    "grpc_client_keepalive_timeout_ms": "20000",
}


@dataclass(frozen=True)
class Ray(ServerPlugin):
    """One Ray cluster of the pool's nodes: the head on node 0, from before the ranks are set up until they have ended.

    ``ray.init()`` in a rank connects to it; other nodes may still be on their way then, and what asks for them waits,
    as Ray does. Each node brings its processors, and its GPUs as ``info.accelerators`` counts them.

    Args:
        version: "latest", a bare version to pin, or constraints such as ">=2.52". Older ones know no tokens, and
            whoever reached their ports could run code: they are refused where the nodes start.
        dashboard: whether the head has Ray's dashboard, on its loopback.
        port: of the head; the dashboard has the next one. None for one made of the pool's name.

    Attributes:
        token: what lets its processes and the ranks into the cluster; made for each, and blanked in logs.

    Raises:
        UsageError: ``port`` is no port.
    """

    name: ClassVar[str] = "ray"
    help: ClassVar[str] = "one Ray cluster of the pool's nodes"
    place: ClassVar[int] = 10
    gang: ClassVar[bool] = False
    needs_peers = "one cluster of all nodes"
    pool_ports = (20_000, 10_000)
    ports_per_pool = 2  # the dashboard has the next one
    version: str = field(default="latest", metadata={"help": "of ray"})
    dashboard: bool = field(default=True, metadata={"help": "have the head serve Ray's dashboard on its loopback"})
    port: int | None = field(default=None, metadata={"help": "of the head; one made of the pool's name"})
    token: str = field(default_factory=lambda: secrets.token_hex(32), init=False, repr=False, compare=False)

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
            said = folder / f"{SAID}.{info.node}"
            with _run_ray(self._start(info, port, folder), self._variables(info, port), said) as node:
                # Ray says so once the node is one of the cluster's.
                await_server(
                    "ray start", node, lambda: STARTED in said.read_text(errors="replace"), START_TIMEOUT, said
                )
                yield

    @contextmanager
    def around_process(self, info: InstanceInfo) -> Iterator[None]:
        with set_variables(self._variables(info, self.port_of(info.pool))):
            yield

    def dashboard_at(self, pool: str) -> tuple[int, str] | None:
        """Port and path of the dashboard, on the head's loopback; None without one.

        Args:
            pool: its name.
        """
        return (self.port_of(pool) + 1, "") if self.dashboard else None

    def _variables(self, info: InstanceInfo, port: int) -> dict[str, str]:
        return {
            "RAY_ADDRESS": f"{info.head_addr}:{port}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # all nodes go at once: there is nobody to move work to
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
    """Where Ray keeps what it keeps on disk: of one name on all nodes, as each writes where the head says; and of a
    short one, as sockets are made in it. Of several nodes on a host the one that made it removes it, and those that
    end after it what they have written since."""
    folder = Path("/tmp", f"sky-ray-{hashlib.sha256(token.encode()).hexdigest()[:12]}")
    make_private_folder(folder)
    # Whoever has its lock made it, or took it over from one that was killed.
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    has_it = _try_lock(lock)
    try:
        yield folder
    finally:
        if has_it or _try_lock(lock):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    """Whether we have a lock now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _run_ray(command: Sequence[str], variables: Mapping[str, str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Ray's processes of a node, ended with all that they have started."""
    with said.open("wb") as file:
        node = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        yield node
    finally:
        stop_server(node, GRACE)


def _check_tokens() -> None:
    """What knows no tokens lets everybody in who reaches its ports, and runs what they say."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("ray")
    except PackageNotFoundError as error:
        raise PoolError(
            f"ray is not installed for {sys.executable} on this node: install it there, or have the pool do so with "
            'sky.Image(pip=["ray"])'
        ) from error
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if numbers < WITH_TOKENS:
        least = ".".join(map(str, WITH_TOKENS))
        raise PoolError(f"ray {found} knows no tokens, and would let everybody in: have {least} or newer")


def _await_head(info: InstanceInfo, port: int) -> None:
    until = time.monotonic() + START_TIMEOUT
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((info.head_addr, port), timeout=1):
            return
        time.sleep(PAUSE)
    raise PoolError(f"Ray's head does not listen at {info.head_addr}:{port} after {START_TIMEOUT:g} s")


PLUGIN = Ray
