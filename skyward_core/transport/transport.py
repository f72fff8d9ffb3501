"""Protocols between a pool and its nodes' transports: starting an agent, and a byte pipe to its socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from skyward_core.model.errors import UsageError
from skyward_core.model.specs import Interpreter

T = TypeVar("T")

OnData = Callable[[bytes | memoryview], None]  # receives data, which is valid only during the call
OnLost = Callable[[Exception | None], None]
Report = Callable[..., None]  # signature: report(phase, detail="", retry_at=None, address="")


class StartBarrier:
    """Barrier at which the nodes of one pool start wait for each other, and a cache of values that all of them need.

    No node passes :meth:`wait` before all have reached it.

    Args:
        nodes: Number of nodes.

    Attributes:
        deferred: Functions that begin work which would delay the start. They take the pause in seconds before the work.
    """

    def __init__(self, nodes: int) -> None:
        self.deferred: list[Callable[[float], None]] = []
        self._began = time.monotonic()
        self.missing = set(range(nodes))
        self._open = asyncio.Event()
        self._results: dict[Any, Any] = {}

    def compute_once(self, key: Any, make: Callable[[], T]) -> T:
        """Return the cached value of a key. The first caller of a key computes the value."""
        if key not in self._results:
            self._results[key] = make()
        return self._results[key]  # type: ignore[no-any-return]

    async def wait(self, node: int) -> None:
        """Mark a node as ready, and wait until all nodes are ready. A node may call this again after a restart."""
        self.missing.discard(node)
        if not self.missing:
            self._open.set()
        await self._open.wait()

    def begin_deferred(self) -> None:
        """Begin the deferred work, because all nodes run now.

        The pause before the work is as long as the start was, so that the work does not delay the first results.
        """
        for begin in self.deferred:
            begin(time.monotonic() - self._began)


class FlowControl:
    """Write flow control: callbacks for asyncio and asyncssh, and a method that waits until the peer accepts data."""

    def __init__(self) -> None:
        self._clear = asyncio.Event()
        self._clear.set()

    def pause_writing(self) -> None:
        self._clear.clear()

    def resume_writing(self) -> None:
        self._clear.set()

    async def drain(self) -> None:
        """Wait until the peer accepts more data."""
        await self._clear.wait()


def needs_install(image: Mapping[str, Any]) -> bool:
    """Check whether an image requests the installation of packages, and not only files and variables."""
    return any(image.get(part) for part in ("pip", "apt", "setup", "pinned"))


def image_for_hosts(image: Mapping[str, Any], interpreter: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an image for other machines. Its packages include the requirements of the script's inline metadata.

    Args:
        image: Image as JSON.
        interpreter: As in ``check_python``.

    Raises:
        UsageError: If the image or the script requires packages from a local folder.
    """
    _reject_local_folders(image.get("find_links") or (), "image")
    if not interpreter:
        return dict(image)
    chosen = Interpreter.from_json(interpreter)
    _reject_local_folders(chosen.environment.get("find_links") or (), chosen.source)
    return with_script_requirements(image, chosen)


def with_script_requirements(image: Mapping[str, Any], chosen: Interpreter) -> dict[str, Any]:
    """Return an image whose packages include the requirements of the script's inline metadata."""
    asked = chosen.environment
    lists = ("pip", "pip_indexes", *(["find_links"] if "find_links" in asked else []))
    joined = {part: list(image.get(part) or ()) for part in lists}
    for part, given in joined.items():
        given += [each for each in asked.get(part) or () if each not in given]
    places = {part: asked[part] for part in ("index", "no_index") if part in asked}
    return dict(image) | joined | places


def _reject_local_folders(links: Sequence[str], source: str) -> None:
    for link in links:
        if link.startswith("file:"):
            raise UsageError(
                f"The {source} requires packages from {link}, a folder of this machine. Use an index instead"
            )


class Pipe(Protocol):
    """Open connection to an agent that transfers bytes. Writes never block."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class HostCommands(Protocol):
    """Open channel to the bootstrap process on a host (``node.bootstrap``)."""

    async def ask(self, do: str, payload: bytes = b"", **values: Any) -> Any:
        """Execute a command on the host, and return its answer.

        Raises:
            PoolError: If the command fails.
            ConnectionError: If the connection is lost.
        """

    def close(self) -> None: ...


@runtime_checkable
class SupportsHostCommands(Protocol):
    """Transport that can execute commands on a node's host without its agent.

    ``interpreter`` is the interpreter of the node's ranks, once the node is prepared.
    """

    interpreter: str

    async def channel(self) -> HostCommands:
        """Open a channel to the bootstrap process on the host. The caller closes the channel."""


class Transport(Protocol):
    """Connection to one node.

    ``shares_files`` is true if client and node see the same files, so large files need no copies. ``sent`` lists the
    working folder's files as this client sent them: path, modification time in ns, and size; None if none were sent.
    """

    shares_files: bool
    sent: dict[str, tuple[int, int]] | None

    @property
    def direct(self) -> str | None:
        """Address of the node's machine; None if the connection passes through another machine."""

    async def prepare(
        self, config: dict[str, Any], report: Report, gate: StartBarrier | None = None, *, first: bool = False
    ) -> dict[str, str] | None:
        """Connect to the node, and start its agent unless the agent runs already. Idempotent.

        ``config`` is the agent's config (see ``agent.config``). It is sent over standard input, never in argv.
        ``report`` receives the progress as phases. Installations wait at the ``gate``, so that nothing is installed
        anywhere before all nodes are synced. ``first`` states that the pool never used the node, so a failed start
        leaves nothing there.

        Returns:
            The packages of the node's environment, version by name, if the image requests any; see
            ``installed_packages.list_packages``.

        Raises:
            PoolError: If the node cannot be reached or cannot run an agent. The message has the cause and a remedy.
        """

    async def installed(self) -> dict[str, str] | None:
        """Return the packages of the ranks' interpreter if the image requests none; None if they cannot be listed."""

    async def send_folder(
        self, cwd: str, image: Mapping[str, Any], gate: StartBarrier, report: Callable[[str], None]
    ) -> None:
        """Update the node's copy of the working folder, if the node has its own copy.

        Args:
            cwd: Working folder of the client.
            image: Image as JSON; selects the files to send.
            gate: Barrier of all nodes that receive the folder now.
            report: Receives lines about files that ranks wrote into the copy.

        Raises:
            PoolError: If a file cannot be sent, or the node cannot be reached.
        """

    async def forward_port(self, address: str, port: int) -> tuple[str, int]:
        """Return a local address and port that lead to a port of the node until ``close``.

        Args:
            address: Address on which the node listens.
            port: Port on which the node listens.

        Raises:
            OSError: If the port cannot be reached.
        """

    async def finish_uploads(self) -> None:
        """Finish, within a time limit, the uploads that ``prepare`` deferred. Otherwise ``close`` abandons them."""

    async def open(self, on_data: OnData, on_lost: OnLost) -> Pipe:
        """Connect to the agent's socket.

        ``on_data`` receives its data, and ``on_lost`` is called once, when the connection is lost.

        Raises:
            OSError: If no agent answers, or the connection fails.
            HostKeyError, CredentialsRefused: If the host key is not trusted, or the host rejects the login.
        """

    async def put(self, source: Path, name: str) -> None:
        """Copy or link a local file into the agent's folder as ``blobs/<name>``, atomically."""

    async def fetch(self, name: str, target: Path, offset: int, size: int) -> bool:
        """Copy ``size`` bytes from ``offset`` of a file in the agent's folder, without a request to the agent.

        Returns:
            False if this transport has no faster way than requests to the agent.
        """

    async def close(self) -> None:
        """Close all connections to the node. The agent continues to run."""
