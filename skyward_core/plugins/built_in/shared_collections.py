"""Plugin ``shared``: a Redis server on node 0 for collections that all ranks share."""

from __future__ import annotations

import ipaddress
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, ClassVar

from skyward_core.plugins.plugin import requirement, with_pip
from skyward_core.plugins.plugin_server_start_and_stop import (
    EXTRA_PATH,
    ServerPlugin,
    await_server,
    check_port_free,
    end_with_parent,
    find_program,
    generated_field,
    make_certificates,
    make_private_folder,
    port_field,
    stop_server,
)
from skyward_core.plugins.redis_shared_state_client import SOCKET, SharedStateConnection, private_folder

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo


@dataclass(frozen=True)
class Shared(ServerPlugin):
    """State shared by ranks and client: ``sky.dict``, ``sky.set``, ``sky.counter``, ``sky.queue``, ``sky.lock``,
    ``sky.barrier``.

    Node 0 runs the Valkey or Redis server that is installed there, in memory only. The server starts before the first
    rank is set up, and ends with the pool.

    Args:
        version: Version of the Python package redis: "latest", an exact version, or constraints such as ">=6".
        port: Port of the server on the head's address, with TLS. None for a port derived from the pool's name. No port
            is used if all nodes are on this machine.

    Attributes:
        papers: Certificate of the authority, and certificate and key of the server.
        token: Password of ranks and client; redacted in logs, like the key.

    Raises:
        UsageError: If ``port`` is invalid.
    """

    name: ClassVar[str] = "shared"
    help: ClassVar[str] = "dicts, counters, queues, locks that all ranks share"
    place: ClassVar[int] = 12
    gang: ClassVar[bool] = False
    needs_peers = "one store of all ranks"
    pool_ports = (19_000, 1_000)
    version: str = field(default="latest", metadata={"help": "version of the Python package redis"})
    port: int | None = port_field("the server")
    papers: tuple[str, str, str] = generated_field(lambda: make_certificates("a pool's shared state"))
    token: str = generated_field(lambda: secrets.token_hex(32))

    def secrets(self) -> Sequence[str]:
        return (self.papers[2], self.token)

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return with_pip(image, [requirement("redis", self.version)])

    def around_app(self, info: InstanceInfo) -> AbstractContextManager[object]:
        if info.node:
            return nullcontext()
        return run_server(self.token, self.papers, info.address, self.port_of(info.pool))

    @contextmanager
    def around_process(self, info: InstanceInfo) -> Iterator[None]:
        from skyward_core.plugins import redis_shared_state_client

        at = (info.head_addr, self.port_of(info.pool))
        redis_shared_state_client.set_current(
            redis_shared_state_client.SharedState(
                SharedStateConnection(info.pool, self.token, self.papers[0], lambda: at)
            )
        )
        try:
            yield
        finally:
            redis_shared_state_client.set_current(None)


PLUGIN = Shared


PROGRAMS = ("valkey-server", "redis-server")
START_TIMEOUT = 30.0  # seconds for the Redis server to start
GRACE = 5.0  # seconds for the Redis server to end after SIGTERM
# the server uses at most 1/SHARE of the machine's memory, so that the kernel need not kill ranks for lack of memory
SHARE = 4


@contextmanager
def run_server(token: str, papers: tuple[str, str, str], address: str, port: int) -> Iterator[None]:
    """Run the Redis server for the duration of a ``with`` block. The server stores nothing on disk.

    Args:
        token: Password of all clients.
        papers: Certificate of the authority, and the server's certificate and key.
        address: This node's address for other nodes. With a loopback address, or none, the server only has a Unix
            socket.
        port: Port at that address.

    Raises:
        PoolError: If no server is installed, or if it does not start.
    """
    program = find_program(PROGRAMS, "redis-server", EXTRA_PATH)
    folder = private_folder(token)
    make_private_folder(folder)
    child: subprocess.Popen[bytes] | None = None
    ended = Event()
    try:
        tls = _tls_settings(folder, papers, address, port)
        log = folder / "log"
        child = _start(program, _format_settings(folder, token, tls), log)
        answers = partial(_answers, folder / SOCKET, token)
        await_server("the server of the shared state", child, answers, START_TIMEOUT, log)
        for each in (log, *folder.glob("*.pem")):
            each.unlink()  # files are deleted once the server has opened the log and read the certificates
        Thread(target=_exit_with_server, args=(child, ended), name="shared-server", daemon=True).start()
        yield
    finally:
        ended.set()
        if child is not None:
            stop_server(child, GRACE)
        shutil.rmtree(folder, ignore_errors=True)


def _tls_settings(folder: Path, papers: tuple[str, str, str], address: str, port: int) -> list[tuple[str, str]]:
    """Return the settings for connections from other hosts."""
    if _is_loopback(address):
        return []
    check_port_free("shared", address, port)
    names = [folder / f"{name}.pem" for name in ("authority", "certificate", "key")]
    for path, text in zip(names, papers, strict=True):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
    authority, certificate, key = map(str, names)
    return [("tls-port", str(port)), ("bind", address), ("tls-ca-cert-file", authority),
            ("tls-cert-file", certificate), ("tls-key-file", key), ("tls-auth-clients", "no")]  # fmt: skip


def _is_loopback(address: str) -> bool:
    """Check whether all nodes are on this machine: the address is a loopback address, or empty for standalone ranks."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address in ("", "localhost")


def _format_settings(folder: Path, token: str, tls: list[tuple[str, str]]) -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE
    rows = [("port", "0"), *tls, ("unixsocket", str(folder / SOCKET)), ("unixsocketperm", "600"),
            ("requirepass", token), ("save", '""'), ("appendonly", "no"), ("daemonize", "no"), ("dir", "/"),
            ("loglevel", "warning"), ("maxmemory", str(memory)), ("maxmemory-policy", "noeviction")]  # fmt: skip
    return "".join(f"{name} {value}\n" for name, value in rows)


def _start(program: str, settings: str, log_path: Path) -> subprocess.Popen[bytes]:
    """Start the server. Its settings go to standard input, so that process lists and files do not show the password."""
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            [program, "-"], stdin=subprocess.PIPE, stdout=log, stderr=log, preexec_fn=end_with_parent()
        )
    if child.stdin is not None:
        # writing fails if the server has ended already; its log then contains the reason
        with suppress(BrokenPipeError), child.stdin as given:
            given.write(settings.encode())
    return child


def _answers(path: Path, token: str) -> bool:
    """Check whether the server accepts commands."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(START_TIMEOUT)
        probe.connect(str(path))
        probe.sendall(f"AUTH {token}\r\nPING\r\n".encode())
        return probe.makefile("rb").readline().startswith(b"+OK")


def _exit_with_server(child: subprocess.Popen[bytes], ended: Event) -> None:
    """Exit this process if the server ends unexpectedly, because the shared state is lost.

    The gang then ends with this reason, and the next gang gets a new server.
    """
    status = child.wait()
    if not ended.is_set():
        sys.stderr.write(f"the server of the shared state ended with status {status}\n")
        sys.stderr.flush()
        os._exit(1)
