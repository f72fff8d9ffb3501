"""SSH transport: sends code and files to a host, starts the agent there, and relays its socket."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from skyward_core.model.errors import (
    CredentialsRefused,
    HostKeyError,
    PoolError,
    SkywardError,
    Unreachable,
    UsageError,
    convert_errors,
)
from skyward_core.model.specs import Interpreter
from skyward_core.protocol.frame_codec import AnyHeader
from skyward_core.protocol.node_paths import NodePaths, pools_folder
from skyward_core.store.debug_log import get_logger, log_duration
from skyward_core.tasks.python_compatibility import check_python
from skyward_core.transport.bundle_builder import bundle_for
from skyward_core.transport.ssh.asyncssh_patches import asyncssh
from skyward_core.transport.ssh.connection import (
    AnswerWait,
    HostConnection,
    answer_timeout,
    channel_error,
    connect,
    link_lost_error,
    stalled_host_error,
)
from skyward_core.transport.ssh.host_address_and_python import (
    LIST_PYTHONS,
    SET_PATH,
    HostPythons,
    Target,
    WantedPython,
    minor_of,
    parse_pythons,
)
from skyward_core.transport.ssh.host_command_channel import (
    CHUNK,
    WINDOW,
    CommandChannel,
    CommandOutput,
    NoFittingPython,
    OnLine,
    open_session,
)
from skyward_core.transport.transport import OnData, OnLost, Pipe, Report, StartBarrier, image_for_hosts, needs_install
from skyward_core.transport.working_folder_upload import (
    find_local_packages_once,
    get_snapshot,
    map_paths,
    send_packages,
    send_workdir,
)
from skyward_core.util.safe_file_access import resolve_path

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import EnvironmentDone, HostFacts


async def send_bundle(channel: CommandChannel) -> str:
    """Send the code bundle unless the host has it already. Return a description of the transfer."""
    if channel.facts["bundle"]:
        return "bundle is up to date"
    bundle = bundle_for(channel.facts["nvml"], channel.python.minor)
    if not channel.python.is_client_version:
        await asyncio.to_thread(bundle.compile_bytecode, channel.python.here)
    archive = bundle.archive
    await channel.ask("bundle", archive)
    return f"bundle sent ({len(archive) / 1e3:.0f} kB)"


async def lend_bundle(channel: CommandChannel) -> None:
    """Make the code bundle available to a channel: load it from the host's disk, or send a copy into the host's memory.

    Raises:
        PoolError: If the bundle cannot be built.
        ConnectionError: If the connection is lost.
    """
    if not channel.facts.get("bundle"):
        await channel.ask("lend", bundle_for(channel.facts["nvml"], channel.python.minor).archive)


MOST_NOISE = 1 << 20  # maximum bytes that a login shell may print before the relay's marker


class _ChannelPipe:
    """Base of the pipes that run over SSH channels; see :class:`~skyward_core.transport.transport.Pipe`."""

    def __init__(self, on_data: OnData, on_lost: OnLost) -> None:
        super().__init__()
        self._on_data = on_data
        self._on_lost: OnLost | None = on_lost
        self._chan: asyncssh.SSHUNIXChannel[bytes] | asyncssh.SSHClientChannel[bytes]

    def connection_made(self, chan: Any) -> None:
        self._chan = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype is None:
            self._on_data(data)

    def eof_received(self) -> bool:
        """Treat the end of data as the end of the connection, because some SSH servers report nothing else."""
        self._chan.close()
        self.connection_lost(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(exc)

    def write(self, data: bytes) -> None:
        if not self._chan.is_closing():
            self._chan.write(data)

    def close(self) -> None:
        self._chan.close()


class ForwardedSocket(_ChannelPipe, asyncssh.SSHUNIXSession[bytes]):
    """Pipe to the agent's socket, which the SSH server forwards."""


class RelayedSocket(AnswerWait, _ChannelPipe, asyncssh.SSHClientSession[bytes]):
    """Pipe to the agent's socket, which ``node.bootstrap.socket_relay`` relays.

    ``joined`` resolves when the agent is reached. Output before the line with the relay's marker is text of a login
    shell.
    """

    def __init__(self, on_data: OnData, on_lost: OnLost, word: bytes) -> None:
        super().__init__(on_data, on_lost)
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._word = b"\n" + word
        self._before: bytearray | None = bytearray(b"\n")

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self.joined.cancelled():
            return  # Ignore the data, because the caller has stopped waiting.
        if self._before is None or datatype is not None:
            super().data_received(data, datatype)
            return
        self.heard_at = time.monotonic()
        self._before += data
        at = self._before.find(self._word)
        end = self._before.find(b"\n", at + len(self._word))
        if at < 0 or end < 0:
            if len(self._before) > MOST_NOISE:
                self._before.clear()
                # Close the channel: a login shell would not print this much, so the marker is missing.
                self._chan.close()
            return
        failure = bytes(self._before[at + len(self._word) : end]).decode(errors="replace").strip()
        rest, self._before = bytes(self._before[end + 1 :]), None
        if failure:
            self.joined.set_exception(ConnectionRefusedError(f"no agent answers: {failure}"))
            self._on_lost = None
        else:
            self.joined.set_result(None)
            if rest:
                self._on_data(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.joined.done():
            output = bytes(self._before or b"").decode(errors="replace").strip()[-500:]
            self.joined.set_exception(ConnectionError(f"the relay ended before it reached the agent: {output}"))
            self._on_lost = None
        super().connection_lost(exc)


_log = get_logger("ssh")

# Seconds before each attempt to upload the rest of the bundle, because the user's first results have priority.
PAUSES = (1.0, 5.0, 30.0)
# held while the bundle is packed, which is slow once per release; all hosts need the same content
_packing = threading.Lock()
FINISH_TIMEOUT = 10.0  # seconds for the last upload attempt when the client leaves the pool


class DeferredUpload:
    """Background upload of the rest of the bundle, which a node does not need to start, to one host.

    Args:
        host: Name of the host, for the log.
        channel: Opens a command channel if the host is connected, else raises ConnectionError.
    """

    def __init__(self, host: str, channel: Callable[[], Awaitable[CommandChannel]]) -> None:
        self._host = host
        self._channel = channel
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self, pause: float = 0.0) -> None:
        """Start the upload after a pause in seconds, limited to the range of the first two PAUSES."""
        if self._task is None or self._task.done():
            self._hurry.clear()
            self._task = asyncio.create_task(self._upload(max(PAUSES[0], min(pause, PAUSES[1]))))

    async def finish(self) -> None:
        """Upload the rest of the bundle now. Otherwise ranks that need it get an error after the client has left."""
        if self._task is not None:
            self._hurry.set()
            await asyncio.wait([self._task], timeout=FINISH_TIMEOUT)

    async def cancel(self) -> None:
        """Stop the upload. The host deletes incomplete data."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # An upload error must not prevent that the connection is closed.

    async def _upload(self, first: float) -> None:
        for pause in (first, *PAUSES[1:]):
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            try:
                with closing(await self._channel()) as channel:
                    if not channel.facts["rest"]:
                        rest = await asyncio.to_thread(_pack_rest, channel.python.minor)
                        await channel.ask("rest", rest)
                    return
            except (PoolError, UsageError, OSError) as error:
                _log.info("%s: the rest of the bundle was not sent: %s", self._host, error)
                if self._hurry.is_set():
                    return


def _pack_rest(minor: str) -> bytes:
    """Pack the rest of the bundle, which is the same for hosts with and without an NVIDIA driver."""
    with _packing:
        return bundle_for(False, minor).rest


PATIENCE = 30.0  # seconds until a host counts as unreachable; hosts that the user names are expected to be up
CLOCK_SLACK = 30.0  # seconds by which a host's clock may differ from the client's; a larger offset is reported

# Code that runs a module's main() without importing the package's __init__, whose import takes most of the time.
_MODULE = "import sys;sys.path.append(sys.argv[1]);import {0};{0}.main(*sys.argv[2:])"


class SSHTransport:
    """Transport to one node over SSH; see :class:`~skyward_core.transport.transport.Transport`.

    Args:
        target: The host, and how the host is reached.
        folder: Name of the pool's folder on the host; unique to pool, node and client.
        python: Interpreter that the user chose for the host; None to search for one.
        loaded_with: Interpreter that loads the pool's scripts, in the format of ``Interpreter.for_hosts``; None for
            this process's. An interpreter in the config of :meth:`prepare` replaces it.
        patience: Seconds of attempts until a host counts as unreachable; None for :data:`PATIENCE`.
    """

    shares_files = False
    sent: dict[str, tuple[int, int]] | None = None
    # Transports of connected pools. Providers query hosts over their connections.
    live: ClassVar[WeakSet[SSHTransport]] = WeakSet()

    def __init__(
        self, target: Target, folder: str, *, python: str | None = None,
        loaded_with: Sequence[str] | None = None, patience: float | None = None,
    ) -> None:  # fmt: skip
        self.target = target
        self.folder = folder
        self.python = WantedPython.of(python, loaded_with)
        self.interpreter = ""
        self.patience = PATIENCE if patience is None else patience
        self.loop = asyncio.get_running_loop()
        self._link: HostConnection | None = None
        self._connect_lock = asyncio.Lock()
        nothing: AnyHeader = {}
        self._facts: HostFacts = nothing  # facts about the host, set from its first answer
        self._facts_link: HostConnection | None = None  # connection on which the host sent the facts in ``_facts``
        # held during an upload of the bundle, because several transfers may need the bundle
        self._bundle_lock = asyncio.Lock()
        self._can_forward = True  # whether the host may allow forwarding of its sockets; false after it rejected one
        self._deferred_upload = DeferredUpload(target.host, self._channel_if_up)
        self.is_untouched = False  # whether the first prepare() is running and has written nothing to the host yet

    async def prepare(
        self, config: dict[str, Any], report: Report, gate: StartBarrier | None = None, *, first: bool = False
    ) -> dict[str, str] | None:
        """Connect, send missing code and files, and make sure that the agent runs.

        In addition to the agent's own keys, ``config`` may contain ``image`` (an :class:`~skyward_core.Image` as JSON).
        ``cwd`` and ``path`` are paths on the client and are mapped to the host. ``folder``, ``socket``, ``bundle``,
        ``python`` and a missing ``address`` are filled in.
        """
        image, python = config.get("image") or {}, config.get("interpreter")
        check_python(image, python)
        config = config | {"image": image_for_hosts(image, python)}
        if python:
            self.python = WantedPython.of(self.python.named, Interpreter.from_json(python).for_hosts)
        if not self.python.is_client_version:
            # Build the bundle for another Python version in a thread, because it may take long.
            await asyncio.to_thread(bundle_for, True, self.python.minor)
        report("running", detail=f"connecting to {self.target.host}")
        if gate is not None and config.get("cwd"):
            # Start building bundle and snapshot in the background, so that they are ready when the host is connected.
            get_snapshot(config["cwd"], config.get("image") or {}, gate)
            find_local_packages_once(config, gate)
        self.is_untouched = first
        SSHTransport.live.add(self)
        deadline = time.monotonic() + self.patience
        while True:
            link = await self._ensure_connected(report, max(0.0, deadline - time.monotonic()))
            report("running", detail=f"waiting for the login shell of {self.target.host}")
            try:
                return await self._prepare(link, dict(config), report, gate)
            except ConnectionError as error:
                if not link.lost.is_set():
                    raise PoolError(f"Cannot prepare host {self.target.host}: {error}.") from error
                if time.monotonic() > deadline:
                    raise Unreachable(f"Cannot prepare host {self.target.host}: {error}.") from error
                report("running", detail=f"{error}; reconnecting")

    async def _ensure_connected(self, report: Report | None, patience: float) -> HostConnection:
        async with self._connect_lock:
            if self._link is None or self._link.lost.is_set():

                def waiting(reason: str, at: float) -> None:
                    if report is not None:
                        report("running", detail=f"{self.target.host}: {reason}", retry_at=at)

                self._link = await connect(self.target, patience=patience, waiting=waiting)
            return self._link

    async def channel(self, on_line: OnLine = lambda line: None, *, status: bool = False) -> CommandChannel:
        """Open a command channel on this node, connecting if necessary; the caller closes it."""
        link = await self._ensure_connected(None, self.patience)
        return await CommandChannel.open(link, python=self.python, folder=self.folder, on_line=on_line, status=status)

    async def _channel_if_up(self) -> CommandChannel:
        if not self.is_up:
            raise link_lost_error(self.target.host)
        return await self.channel()

    @property
    def is_up(self) -> bool:
        """Whether the transport is connected to the host."""
        return self._link is not None and not self._link.lost.is_set()

    @property
    def direct(self) -> str | None:
        """Address of the host; None if the connection uses a jump host or proxy command."""
        if self._link is None or self._link.route.jump or self._link.route.proxy_command:
            return None
        peer = self._link.ssh.get_extra_info("peername")
        return str(peer[0]).partition("%")[0] if peer else None

    @property
    def ssh_address(self) -> tuple[str, int] | None:
        """Address and port at which other nodes reach the host's SSH server; None until the host has reported them."""
        address = self._facts.get("address")
        return (address, self._facts["port"]) if address else None

    async def _prepare(
        self, link: HostConnection, config: dict[str, Any], report: Report, gate: StartBarrier | None
    ) -> dict[str, str] | None:
        phase, installed = "connected", None
        channel = await CommandChannel.open(
            link,
            python=self.python,
            folder=self.folder,
            on_line=lambda line: report(phase, detail=line),
            starts=True,
        )
        with closing(channel):
            facts = self._facts = channel.facts
            self._facts_link = link
            address = facts["address"]
            report("connected", detail="; ".join(filter(None, [describe_host(facts), link.login.silent_agent])))
            self._check_room(facts)
            phase = "synced"
            sent = await send_bundle(channel)
            facts["bundle"] = True
            local = find_local_packages_once(config, gate)
            image = config.pop("image", None) or {}
            config.pop("interpreter", None)
            given = {part: config.get(part) or [] for part in ("path_before", "path")}
            config |= {part: [] for part in given}
            if facts["running"]:
                report("synced", detail=sent)
                report("installed", detail="the agent is already running")
            else:
                workdir, detail = await self._send_workdir(channel, config.get("cwd") or "", image, gate)
                copies, details = await send_packages(channel, await local, config.get("cwd") or "", gate)
                report("synced", detail="; ".join([sent, detail, *details]))
                phase = "installed"
                config["python"] = facts["python"]
                if needs_install(image):
                    if gate is not None:
                        await gate.wait(config["node"])
                    report("installed", detail="checking the environment")
                    env = config.get("env") or {}
                    # Drop the client's folders, because the host's import path contains their copies.
                    image.pop("folders", None)
                    made: EnvironmentDone = await channel.ask("environment", image=image, env=env, cwd=workdir)
                    config["python"], installed = made["python"], made["installed"] or None
                else:
                    report("installed", detail="nothing to install")
                cwd = config.get("cwd") or ""
                config |= {part: map_paths(paths, cwd, workdir, gate) for part, paths in given.items()}
                inside = [each.entry for each in await local]
                beside = [path for folder, copy in copies.items() for path in map_paths(inside, folder, copy, gate)]
                config["path"] += [*map_paths(inside, cwd, workdir, gate), *beside]
                config["client_cwd"] = str(resolve_path(cwd)) if workdir else ""
                config["cwd"] = workdir
            config |= {
                "folder": f"{pools_folder(facts['root'])}/{self.folder}",
                "socket": facts["socket"],
                "bundle": f"{facts['root']}/{bundle_for(facts['nvml'], self.python.minor).name}",
                "address": config.get("address") or address or "127.0.0.1",
            }
            self.is_untouched = False
            self.interpreter = config.get("python") or facts["python"]
            with log_duration(_log, f"{self.target.host}: starting an agent"):
                started = await channel.start(config)
            facts["socket"] = started["socket"]
        if not facts["rest"] and gate is not None:
            gate.deferred.append(self._deferred_upload.begin)
        elif not facts["rest"]:
            self._deferred_upload.begin()
        return installed

    async def _send_workdir(
        self, channel: CommandChannel, cwd: str, image: Mapping[str, Any], gate: StartBarrier | None
    ) -> tuple[str, str]:
        workdir, detail, items = await send_workdir(channel, cwd, image, gate)
        self.sent = {item.path: (item.mtime, item.size) for item in items}
        return workdir, detail

    async def installed(self) -> dict[str, str] | None:
        return None  # Return no packages, because querying them would start another Python on the host.

    async def send_folder(self, cwd: str, image: Mapping[str, Any], gate: StartBarrier, report: OnLine) -> None:
        try:
            with closing(await self.channel(report)) as channel:
                await lend_bundle(channel)
                await self._send_workdir(channel, cwd, image, gate)
        except ConnectionError as error:
            raise Unreachable(f"Cannot send the working folder to host {self.target.host}: {error}.") from error

    def _check_room(self, facts: HostFacts) -> None:
        if not facts["root"]:
            tried = "; ".join(facts["unusable"])
            raise PoolError(
                f"Host {self.target.host} has no writable folder with enough free space "
                f"({tried}). Free some space, or set XDG_CACHE_HOME in ~/.ssh/environment or the shell of the host."
            )

    async def open(self, on_data: OnData, on_lost: OnLost) -> Pipe:
        """Connect to the agent's socket. Reconnect to the host over SSH if necessary."""
        SSHTransport.live.add(self)
        try:
            link = await self._ensure_connected(None, 0)
            await self._update_facts(link)
            if self._can_forward:
                forwarded = await self._forward(link, on_data, on_lost)
                if forwarded is not None:
                    return forwarded
            with log_duration(_log, f"{self.target.host}: relay"):
                return await self._relay(link, on_data, on_lost)
        except (HostKeyError, CredentialsRefused):
            raise
        except PoolError as error:
            raise ConnectionError(str(error)) from error

    async def forward_port(self, address: str, port: int) -> tuple[str, int]:
        with convert_errors("", OSError, PoolError):
            link = await self._ensure_connected(None, self.patience)
        try:
            listener = await link.ssh.forward_local_port("127.0.0.1", 0, address, port)
        except Exception as error:  # asyncssh raises many types of exceptions; see LOGIN_FAILURES
            raise link_lost_error(self.target.host, error) from error
        return "127.0.0.1", listener.get_port()

    async def _update_facts(self, link: HostConnection) -> None:
        """Query the facts about the host.

        If other users can write next to the pool's folder, the facts are queried on every new connection, because the
        host may have been restarted and the folder replaced.
        """
        if not self._facts or (self._facts["shared"] and self._facts_link is not link):
            channel = await CommandChannel.open(link, python=self.python, folder=self.folder)
            channel.close()
            self._check_room(channel.facts)
            self._facts, self._facts_link = channel.facts, link
            if channel.facts["bundle"] and not channel.facts["rest"]:
                # Upload the rest of the bundle: an earlier client may have lost its connection before it did so.
                self._deferred_upload.begin()

    async def _forward(self, link: HostConnection, on_data: OnData, on_lost: OnLost) -> Pipe | None:
        pipe, seconds = ForwardedSocket(on_data, on_lost), answer_timeout()
        try:
            async with asyncio.timeout(seconds):
                await link.ssh.create_unix_connection(lambda: pipe, self._facts["socket"], window=WINDOW)
        except TimeoutError as error:
            raise stalled_host_error(self.target.host, seconds, "its agent's socket") from error
        except Exception as error:  # asyncssh raises many types of exceptions; see LOGIN_FAILURES
            if isinstance(error, asyncssh.ChannelOpenError) and not await link.is_lost():
                # OpenSSH gives the same answer if forwarding is disabled and if nothing listens. The relay, which is
                # tried next, distinguishes these cases.
                return None
            raise channel_error(self.target.host, error, lost=await link.is_lost()) from error
        return pipe

    async def _module_command(self, link: HostConnection, module: str, *arguments: str) -> str:
        """Return the command that runs a module of ``node.bootstrap`` on the host.

        Sends the bundle if the host lacks it, because a client of another release may have started the pool.
        """
        async with self._bundle_lock:
            if not self._facts["bundle"]:
                with closing(await CommandChannel.open(link, python=self.python, folder=self.folder)) as channel:
                    await send_bundle(channel)
                self._facts["bundle"] = True
        bundle = bundle_for(self._facts["nvml"], self.python.minor)
        folder = f"{self._facts['root']}/{bundle.name}/skyward_core/node/bootstrap"
        return module_command(self._facts["python"], folder, module, *arguments)

    async def _relay(self, link: HostConnection, on_data: OnData, on_lost: OnLost) -> Pipe:
        word = f"skyward-{secrets.token_hex(8)}"
        command = await self._module_command(link, "socket_relay", self._facts["socket"], word)
        pipe = RelayedSocket(on_data, on_lost, word.encode())
        await open_session(link, command, pipe)
        seconds = answer_timeout()
        try:
            await pipe.wait_within(seconds, lambda: asyncio.shield(pipe.joined))
        except BaseException as error:
            pipe.joined.cancel()
            pipe.close()
            if isinstance(error, TimeoutError):
                raise stalled_host_error(self.target.host, seconds, "its agent's socket") from error
            raise
        self._can_forward = False
        return pipe

    async def put(self, source: Path, name: str) -> None:
        """Copy a local file into the agent's folder as ``blobs/<name>``, atomically.

        After a lost connection the transfer resumes, as long as each attempt makes progress and a new connection
        succeeds within the patience.

        Raises:
            ConnectionError: If the host cannot be reached.
            PoolError: If the host rejects the login or the file. The message has the reason.
            UsageError: If the client has no usable credentials.
        """
        attempts = secrets.token_hex(8)
        deadline, taken, progresses = time.monotonic() + self.patience, 0, True

        def on_resume(at: int) -> None:
            nonlocal taken, progresses
            if at > taken:
                taken, progresses = at, True

        while True:
            try:
                link = await self._ensure_connected(None, max(0.0, deadline - time.monotonic()))
                await self._update_facts(link)
                with log_duration(_log, f"{self.target.host}: incoming {name}"):
                    return await self._put(link, source, name, attempts, on_resume)
            except Unreachable as error:
                raise ConnectionError(str(error)) from error
            except ConnectionError:
                if progresses:
                    # Patience is counted from the loss of the connection, because one attempt may take longer than the
                    # patience.
                    deadline, progresses = time.monotonic() + self.patience, False
                if not link.lost.is_set() or time.monotonic() > deadline:
                    raise

    async def _put(
        self, link: HostConnection, source: Path, name: str, attempts: str, on_resume: Callable[[int], None]
    ) -> None:
        """Make one attempt to copy a file. Call ``on_resume`` with the number of bytes that the host already has."""
        size = source.stat().st_size
        word = f"skyward-{secrets.token_hex(8)}"
        blobs = NodePaths(f"{pools_folder(self._facts['root'])}/{self.folder}").blobs
        lines = CommandOutput()
        command = await self._module_command(link, "receive_file", blobs, name, str(size), attempts, word)
        channel = await open_session(link, command, lines)
        try:
            at = await self._read_answer(lines, word)
            if at is not None:
                on_resume(int(at))
                # The write fails if the command has ended. The command's output contains the reason.
                with source.open("rb") as file, suppress(BrokenPipeError):
                    file.seek(int(at))
                    while data := file.read(CHUNK):
                        channel.write(data)
                        await lines.wait_within(answer_timeout(), lines.drain)
                    channel.write_eof()
                if await self._read_answer(lines, word) is not None:
                    return
        except TimeoutError as error:
            raise stalled_host_error(self.target.host, answer_timeout(), "a transfer") from error
        except SkywardError:
            raise
        except Exception as error:  # asyncssh raises many types of exceptions; see LOGIN_FAILURES
            raise link_lost_error(self.target.host) from error
        finally:
            channel.close()
        output = lines.errors.decode(errors="replace").strip()
        failure = f"host {self.target.host} rejected the file {name} ({size} bytes)"
        if link.lost.is_set() or not output:
            raise ConnectionError(f"{failure}: the connection was lost")
        raise PoolError(f"{failure}: {output}")

    async def _read_answer(self, lines: CommandOutput, word: str) -> bytes | None:
        """Return the text after a command's marker; None if the command prints no marker. Ignore all other lines."""
        while (line := await lines.read_line(self.target.host, "a transfer")) is not None:
            if line.startswith(word.encode()):
                return line.removeprefix(word.encode())
        return None

    async def fetch(self, name: str, target: Path, offset: int, size: int) -> bool:
        """Return False, because no way to fetch files is faster than requests to the agent."""
        return False

    async def finish_uploads(self) -> None:
        await self._deferred_upload.finish()

    async def close(self) -> None:
        """Close the connection to the host. The agent continues to run."""
        await self._deferred_upload.cancel()
        if self._link is not None:
            await self._link.close()
            self._link = None


def module_command(python: str, folder: str, module: str, *arguments: str) -> str:
    """Return a command line for any login shell that runs a module's ``main`` with the given arguments."""
    return shlex.join(["exec", python, "-I", "-S", "-c", _MODULE.format(module), folder, *arguments])


def describe_host(facts: HostFacts) -> str:
    """Return one line that describes a host from its facts."""
    version = ".".join(map(str, facts["version"]))
    parts = [f"Python {version}", f"{facts['system']} {facts['machine']}", f"{facts['cpus']} CPUs"]
    gpus = facts["gpus"]
    parts += [f"{len(gpus)} x {gpus[0]}" if len(set(gpus)) == 1 else ", ".join(gpus)] if gpus else []
    parts += [f"{facts['free'] / 1e9:.0f} GB free"] if "free" in facts else []
    offset = facts["time"] - time.time()
    if abs(offset) > CLOCK_SLACK:
        parts.append(f"its clock is {abs(offset):.0f} s {'ahead' if offset > 0 else 'behind'}")
    return ", ".join(parts)


async def open_inspection_channel(transport: SSHTransport) -> CommandChannel:
    """Open a command channel that runs in the wanted Python, or else in the newest Python of the host.

    If the newest Python is used, the transport uses it from then on.

    Raises:
        NoFittingPython: If the host has no usable Python, or not the chosen one.
        PoolError, ConnectionError: As in :meth:`SSHTransport.channel`.
    """
    transport.python = required_python = replace(transport.python, fetches=False)
    try:
        return await transport.channel()
    except NoFittingPython as error:
        if required_python.named or not error.found.usable:
            raise
        minor = minor_of(error.found.usable[0])
    transport.python = replace(required_python, minor=minor, here="")
    # Build the bundle for another Python version in a thread, because it may take long.
    await asyncio.to_thread(bundle_for, True, minor)
    return await transport.channel()


async def query_pythons(link: HostConnection) -> HostPythons:
    """Return the Python interpreters on a host. Change nothing on the host.

    Raises:
        PoolError: If the host opens no channel, or does not answer.
        ConnectionError: If the connection is lost.
    """
    word = f"skyward-{secrets.token_hex(8)}"
    shell = f'{SET_PATH}W=$1;{LIST_PYTHONS}echo;echo "$W" $f'
    output = CommandOutput()
    with closing(await open_session(link, f"exec sh -c '{shell}' skyward {shlex.join([word, '', ''])}", output)):
        while (line := await output.read_line(link.target.host)) is not None:
            if line.startswith(word.encode()):
                return parse_pythons(line)
    return HostPythons(())
