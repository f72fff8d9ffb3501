"""What the pool needs of a way to reach a node: start an agent there, and a byte pipe to its socket."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from skyward_core.model.errors import UsageError
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.tasks.client_interpreter import is_own_environment

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"

T = TypeVar("T")

OnData = Callable[[bytes | memoryview], None]  # what it is given is valid during the call only
OnLost = Callable[[Exception | None], None]
Report = Callable[..., None]  # report(phase, detail="", retry_at=None, address="")


class StartBarrier:
    """What the nodes of one start have in common: where they wait for each other (nobody passes before all have
    come), and what is made once for all of them.

    Args:
        nodes: how many there are.
    """

    def __init__(self, nodes: int) -> None:
        self.missing = set(range(nodes))
        self._open = asyncio.Event()
        self._results: dict[Any, Any] = {}

    def compute_once(self, key: Any, make: Callable[[], T]) -> T:
        """What the first node to ask has made, for all."""
        if key not in self._results:
            self._results[key] = make()
        return self._results[key]  # type: ignore[no-any-return]

    async def wait(self, node: int) -> None:
        """Be there, and wait for the others; a node may come again after it had to start anew."""
        self.missing.discard(node)
        if not self.missing:
            self._open.set()
        await self._open.wait()


class FlowControl:
    """Whether the other side takes more: what asyncio and asyncssh tell of it."""

    def __init__(self) -> None:
        self._clear = asyncio.Event()
        self._clear.set()

    def pause_writing(self) -> None:
        self._clear.clear()

    def resume_writing(self) -> None:
        self._clear.set()

    async def drain(self) -> None:
        """Wait while it is behind."""
        await self._clear.wait()


def check_python(image: Mapping[str, Any], interpreter: Mapping[str, Any] | None) -> None:
    """Refuse another Python than the one that pickles the pool's functions.

    Args:
        interpreter: that one, as ``script_interpreter.Interpreter.describe`` gives it; None for the client's own.

    Raises:
        UsageError: the image asks for one.
    """
    chosen = Interpreter.from_json(interpreter) if interpreter else None
    wanted, minor = image.get("python"), chosen.minor if chosen else MINOR
    if not wanted or re.fullmatch(rf"{re.escape(minor)}(\.\d+)?", wanted):
        return
    asked = f"Image(python={wanted!r}): functions travel as bytecode, so the nodes' Python must be the one that"
    if chosen is None or is_own_environment(chosen.prefix):
        raise UsageError(f"{asked} runs here, {minor}. Start skyward from Python {wanted}, or leave python out.")
    raise UsageError(
        f"{asked} loads the script, {chosen}. Have it loaded with Python {wanted} (--python), or leave python out."
    )


def needs_install(image: Mapping[str, Any]) -> bool:
    """Whether an image asks for more than files and variables."""
    return any(image.get(part) for part in ("pip", "apt", "setup", "pinned"))


def image_for_hosts(image: Mapping[str, Any], interpreter: Mapping[str, Any] | None) -> dict[str, Any]:
    """An image for other machines than this one, with what the script's inline metadata asks for.

    Args:
        interpreter: as :func:`check_python` has it.

    Raises:
        UsageError: the image, or the script, has packages of a folder that is here alone.
    """
    _reject_local_folders(image.get("find_links") or (), "image")
    if not interpreter:
        return dict(image)
    chosen = Interpreter.from_json(interpreter)
    _reject_local_folders(chosen.environment.get("find_links") or (), chosen.source)
    return with_script_requirements(image, chosen)


def with_script_requirements(image: Mapping[str, Any], chosen: Interpreter) -> dict[str, Any]:
    """An image with what the inline metadata of the script asks for that an interpreter was chosen for."""
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
            raise UsageError(f"The {source} takes packages from {link}, which other machines do not have: use an index")


class Pipe(Protocol):
    """One open connection to an agent. Writes never block."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class HostCommands(Protocol):
    """An open way to have things done on a host, in the process that waits there for them (``node.bootstrap``)."""

    async def ask(self, do: str, payload: bytes = b"", **values: Any) -> Any:
        """Have one done.

        Raises:
            PoolError: it could not be done.
            ConnectionError: the link is gone.
        """

    def close(self) -> None: ...


@runtime_checkable
class SupportsHostCommands(Protocol):
    """A transport by which things can be done on a node's host beside its agent.

    ``interpreter``: that of the node's ranks, once it is prepared.
    """

    interpreter: str

    async def channel(self) -> HostCommands:
        """A way that the caller closes."""


class Transport(Protocol):
    """The way to one node.

    ``shares_files`` tells that client and node see the same files, so that large things need no copying. ``sent`` is
    what of the working folder this client has sent, by path, as it was then: time of change in ns, and size; None where
    it has sent nothing.
    """

    shares_files: bool
    sent: dict[str, tuple[int, int]] | None

    @property
    def direct(self) -> str | None:
        """The address of the machine that the connection really goes to; None where something is in between."""

    async def prepare(
        self, config: dict[str, Any], report: Report, gate: StartBarrier | None = None, *, first: bool = False
    ) -> dict[str, str] | None:
        """Reach the node and have its agent running: starts one, or finds the one that runs.

        ``config`` is the agent's (see ``agent.config``); it travels by standard input, never by argv.
        Idempotent. Progress goes to ``report`` as phases. What installs something waits at the ``gate`` first,
        so that nothing is installed anywhere before all nodes are synced. ``first``: the pool has never been there, so
        a start that ends early has left nothing.

        Returns:
            The packages of its environment, version by name, where the image asks for some; see
            ``installed_packages.list_packages``.

        Raises:
            PoolError: the node cannot be reached or cannot run an agent; says why and what to do.
        """

    async def installed(self) -> dict[str, str] | None:
        """The packages of the ranks' interpreter, as ``prepare`` gives them, where its image asked for none; None where
        that cannot be told from here."""

    async def send_folder(
        self, cwd: str, image: Mapping[str, Any], gate: StartBarrier, said: Callable[[str], None]
    ) -> None:
        """Bring the node's copy of the working folder up to date, where it has one of its own.

        Args:
            cwd: the client's working folder.
            image: as JSON; says what travels.
            gate: of all nodes that it is sent to now.
            said: takes lines about what ranks wrote there.

        Raises:
            PoolError: it cannot travel, or the node cannot be reached.
        """

    async def forward_port(self, address: str, port: int) -> tuple[str, int]:
        """Address and port here at which a port of the node is reached, until ``close``: on loopback, or its own.

        Args:
            address: at which the node listens there.

        Raises:
            OSError: there is no way to it.
        """

    async def finish_uploads(self) -> None:
        """Have done, in bounded time, what ``prepare`` has put off until nobody waits for it; ``close`` gives it up."""

    async def open(self, on_data: OnData, on_lost: OnLost) -> Pipe:
        """Connect to the agent's socket. ``on_lost`` is called once, when the connection is gone.

        Raises:
            OSError: no agent answers (it may be gone, or the link is down).
            HostKeyError, CredentialsRefused: its host must not be talked to, or lets nobody in.
        """

    async def put(self, source: Path, name: str) -> None:
        """Copy or link a file of the client into the agent's folder, as ``blobs/<name>``, atomically."""

    async def fetch(self, name: str, target: Path, offset: int, size: int) -> bool:
        """Take ``size`` bytes from ``offset`` of a file in the agent's folder without the agent's help.

        Returns:
            False where this transport has no shorter way than asking the agent.
        """

    async def close(self) -> None:
        """Close what is open; the agent goes on."""
