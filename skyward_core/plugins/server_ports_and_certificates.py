"""Ports and certificates of plugins' own servers."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.plugins.plugin import Plugin

PAUSE = 0.02  # seconds between looks
PR_SET_PDEATHSIG = 1


class ServerPlugin(Plugin):
    """Base of plugins whose server has a port of its own.

    Attributes:
        port: the server's; None for one made of the pool's name.
        pool_ports: where those begin, and how many there are. Linux assigns none of them by itself.
        ports_per_pool: how many in a row the server has.
    """

    pool_ports: ClassVar[tuple[int, int]]
    ports_per_pool: ClassVar[int] = 1
    port: int | None

    def __post_init__(self) -> None:
        last = 65536 - self.ports_per_pool
        if self.port is not None and not 1024 <= self.port <= last:
            raise UsageError(f"port must be from 1024 to {last}, not {self.port}; None takes one by the pool's name")

    def port_of(self, pool: str) -> int:
        """Return the server's port: the same for all nodes of a pool, and in each epoch of the gang.

        Args:
            pool: Its name.
        """
        first, count = self.pool_ports
        return self.port or first + zlib.crc32(pool.encode()) % (count // self.ports_per_pool) * self.ports_per_pool


def check_port_free(plugin: str, address: str, port: int) -> None:
    """See whether a server can have its port: those there are would take another one, where nobody looks for it, or end
    and say little.

    Args:
        plugin: what takes another port.

    Raises:
        PoolError: it cannot.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            words = f"port {port} of {address} cannot be had ({error.strerror}): give another one, {plugin}(port=...)"
            raise PoolError(words) from error


def end_with_parent() -> Callable[[], None]:
    """Return the function for a child's start by which the kernel kills it once its parent has ended."""
    libc = ctypes.CDLL(None)  # loaded here: a forked child must not load anything
    return lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def await_server(
    name: str, child: subprocess.Popen[bytes], is_ready: Callable[[], bool], seconds: float, log: Path
) -> None:
    """Wait until a server is ready.

    Args:
        name: What it is called in errors.
        is_ready: Asked again and again; may raise OSError for a server that does not listen yet.
        seconds: How long it may take.
        log: The file that it writes to.

    Raises:
        PoolError: It has ended, or took too long.
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
    """End a server: by SIGTERM, and by SIGKILL if that takes too long."""
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    child.kill()
    child.wait()


def make_private_folder(folder: Path) -> None:
    """Make a folder below /tmp, or take over the one that a killed process left there.

    Raises:
        PoolError: It belongs to another user, or other users may enter it.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PoolError(f"{folder} belongs to somebody else: remove it")


def last_line(log: Path) -> str:
    """Return the last line of a server's log that is not blank."""
    lines = log.read_text(errors="replace").split("\n")
    return next(filter(None, map(str.strip, reversed(lines))), "it said nothing")


@contextmanager
def set_variables(given: Mapping[str, str]) -> Iterator[None]:
    """Have variables in this process while the block runs."""
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
    """An authority that signs once and is forgotten: its certificate, the one that it signed, and that one's key; PEM.

    Args:
        name: what the authority is called.
    """
    from skyward_core.plugins.certificates import Authority  # late: only the client makes any

    papers = Authority(name).issue(f"{name}'s own")
    return papers.authority, papers.certificate, papers.key
