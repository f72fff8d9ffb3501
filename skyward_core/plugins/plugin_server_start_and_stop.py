"""Ports, processes and certificates of plugins' own servers."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.plugins.plugin import Plugin

PAUSE = 0.02  # seconds between two checks whether a server is ready
PR_SET_PDEATHSIG = 1
EXTRA_PATH = "/usr/sbin:/sbin:/usr/local/sbin:/usr/local/bin"  # folders that the PATH of an SSH login may lack


def port_field(server: str) -> Any:
    """Return the dataclass field of a server's port."""
    return field(default=None, metadata={"help": f"port of {server} (default: derived from the pool's name)"})


def generated_field(generate: Callable[[], object]) -> Any:
    """Return a dataclass field that each plugin generates itself, such as a password."""
    return field(default_factory=generate, init=False, repr=False, compare=False)


class ServerPlugin(Plugin):
    """Base of plugins whose server has its own port.

    Attributes:
        port: Port of the server. None for a port derived from the pool's name.
        pool_ports: First derived port, and the number of derived ports. Linux does not assign ports of this range
            automatically.
        ports_per_pool: Number of consecutive ports of the server.
    """

    pool_ports: ClassVar[tuple[int, int]]
    ports_per_pool: ClassVar[int] = 1
    port: int | None

    def __post_init__(self) -> None:
        last = 65536 - self.ports_per_pool
        if self.port is not None and not 1024 <= self.port <= last:
            raise UsageError(
                f"port must be from 1024 to {last}, got {self.port}. Use None to derive it from the pool's name."
            )

    def port_of(self, pool: str) -> int:
        """Return the server's port. It is the same on all nodes of a pool, and after each restart of the gang.

        Args:
            pool: Name of the pool.
        """
        first, count = self.pool_ports
        return self.port or first + zlib.crc32(pool.encode()) % (count // self.ports_per_pool) * self.ports_per_pool


def check_port_free(plugin: str, address: str, port: int) -> None:
    """Check that a server's port is available. Servers would otherwise silently use another port, or end without a
    clear error.

    Args:
        plugin: Name of the plugin with the option ``port``.
        address: Address of the server.
        port: Port of the server.

    Raises:
        PoolError: If the port is not available.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise PoolError(
                f"port {port} of {address} is not available ({error.strerror}). Choose another one: {plugin}(port=...)"
            ) from error


def find_program(names: Sequence[str], package: str, *folders: str, advice: str = "") -> str:
    """Return the path of the first installed program.

    Args:
        names: Names of the programs.
        package: Debian package that contains one of the programs.
        *folders: Folders to search in addition to PATH.
        advice: End of the error message.

    Raises:
        PoolError: If none of the programs is installed on this node.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *folders))
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    raise PoolError(
        f"{' or '.join(names)} is not installed on this node ({socket.gethostname()}). Install it (Debian: apt-get "
        f'install {package}), or use sky.Image(apt=["{package}"]).{advice}'
    )


def end_with_parent() -> Callable[[], None]:
    """Return a function for a child process to call at its start. The kernel then kills the child when its parent
    ends.
    """
    libc = ctypes.CDLL(None)  # loaded before the fork, because the forked child must not load libraries
    return lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def await_server(
    name: str, child: subprocess.Popen[bytes], is_ready: Callable[[], bool], seconds: float, log: Path
) -> None:
    """Wait until a server is ready.

    Args:
        name: Name of the server for errors.
        child: Process of the server.
        is_ready: Called repeatedly; may raise OSError while the server does not listen yet.
        seconds: Maximum duration in seconds.
        log: Log file of the server.

    Raises:
        PoolError: If the server has ended, or was not ready in time.
    """
    until = time.monotonic() + seconds
    while child.poll() is None:
        with suppress(OSError):
            if is_ready():
                return
        if time.monotonic() > until:
            raise PoolError(f"{name} has not started after {seconds:g} s: {last_line(log)}")
        time.sleep(PAUSE)
    raise PoolError(f"{name} ended with status {child.returncode}: {last_line(log)}")


def stop_server(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Stop a server with SIGTERM, and after the given seconds with SIGKILL."""
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    child.kill()
    child.wait()


def make_private_folder(folder: Path) -> None:
    """Create a folder below /tmp, or reuse the folder of a killed process.

    Raises:
        PoolError: If the folder belongs to another user, or is accessible to other users.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PoolError(f"{folder} belongs to another user or is not private. Remove it.")


def last_line(log: Path) -> str:
    """Return the last non-blank line of a server's log."""
    lines = log.read_text(errors="replace").split("\n")
    return next(filter(None, map(str.strip, reversed(lines))), "its log is empty")


@contextmanager
def set_variables(given: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the duration of a ``with`` block."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def make_certificates(name: str) -> tuple[str, str, str]:
    """Return a new authority's certificate, and one certificate and key that the authority signed, as PEM.

    The authority's key is discarded.

    Args:
        name: Name of the authority.
    """
    # Imported late, because only the client creates certificates.
    from skyward_core.plugins.pool_certificate_authority import Authority

    credentials = Authority(name).issue(f"{name}'s own")
    return credentials.authority, credentials.certificate, credentials.key
