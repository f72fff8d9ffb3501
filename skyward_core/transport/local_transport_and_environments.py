"""Local transport: agents as processes of this machine, and Python environments for their ranks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from skyward_core.model.errors import PoolError, convert_errors
from skyward_core.model.specs import Interpreter
from skyward_core.protocol.node_paths import NodePaths
from skyward_core.store.debug_log import get_logger, log_duration
from skyward_core.store.state_folder import ENVIRONMENTS_FOLDER, state_home
from skyward_core.tasks import import_path
from skyward_core.tasks.python_compatibility import MINOR_VERSION, check_python, is_own_environment
from skyward_core.transport.transport import OnData, OnLost, Report, StartBarrier, needs_install
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import exists

ROOT = str(Path(__file__).parents[2])
# Options of an agent's interpreter: isolated mode and no site module, because an agent needs only the standard library
# and this package. The garbage collector is off, because imported modules stay in memory.
_CODE = f"""
import gc, sys
gc.disable()
sys.path.insert(0, {ROOT!r})
from skyward_core.node.deferred_imports import import_asyncio
import_asyncio()
from skyward_core.node.agent.local_agent_fork_server import main
main()
"""


class AgentStarter:
    """Process that forks agents, shared by all users of its ``with`` block. Blocks may nest, from any thread.

    Entering starts the process without waiting for it. Raises PoolError if no process can be started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._interpreter: _ForkServer | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._interpreter is None:
                try:
                    self._interpreter = _ForkServer()
                except OSError as error:
                    from skyward_core.node.agent.worker_processes import describe_shortage

                    reason = describe_shortage(error, "this machine")
                    raise PoolError(f"cannot start a process for the agents: {reason}") from error
            self._users += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._interpreter is not None:
                self._interpreter.close()
                self._interpreter = None

    async def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start an agent on this machine.

        Args:
            request: Config of the agent.

        Returns:
            The agent's answer.

        Raises:
            PoolError: If the agent does not start. The message has the reason.
        """
        with self:
            interpreter = self._interpreter
            answer = await interpreter.ask(request) if interpreter else {}
        if not answer.get("ok"):
            reason = answer.get("error") or "no output"
            raise PoolError(f"the agent of {request['folder']} did not start: {reason}")
        return answer


class _ForkServer(asyncio.Protocol):
    """Process that forks agents. The event loop of the first request reads the output of this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # In a session of its own, the process does not receive the terminal's Ctrl-C, which is meant for the
            # client.
            start_new_session=True,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[asyncio.WriteTransport] | None = None
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._unread = b""
        self._stderr_text = ""

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send the fork server a request to start an agent, and return its answer."""
        if self._process.returncode is not None:
            return {"ok": False, "error": self._stderr_text}
        if self._opening is None:
            self._loop = asyncio.get_running_loop()
            self._opening = self._loop.create_task(self._open(self._loop))
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[request["folder"]] = answer
        (await asyncio.shield(self._opening)).write(json.dumps(request).encode() + b"\n")
        return await answer

    async def _open(self, loop: asyncio.AbstractEventLoop) -> asyncio.WriteTransport:
        await loop.connect_read_pipe(lambda: self, self._process.stdout)
        stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        return stdin

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            answer: dict[str, Any] = json.loads(line)
            waiting = self._waiting.pop(answer["folder"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let waiting requests fail after the process has ended. Their error contains the process's error output."""
        if self._process.stderr is not None:
            with self._process.stderr as errors:
                self._stderr_text = errors.read().decode(errors="replace").strip()
        self._process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"ok": False, "error": self._stderr_text})

    def close(self) -> None:
        """Close the process's input, so that it exits after it has answered all requests."""
        if self._opening is None or self._loop is None:
            # Killing is safe, because the process has received no request and so has not forked an agent.
            self._process.kill()
            self._process.communicate()
        else:
            self._loop.call_soon_threadsafe(self._opening.add_done_callback, _close)


def _close(opened: asyncio.Task[asyncio.WriteTransport]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


@value
class RankEnvironment(Value):
    """Python environment of a local pool's ranks.

    Attributes:
        python: Path of the interpreter.
        version: Major and minor version of the interpreter.
        own: Whether the interpreter is the one of this process.
        made: Requirements of the environment that was created for a script; None if no environment was created.
        root: Folder that contains this package.
        first: First entry of ``sys.path``, or "".
        before: Entries of ``sys.path`` before the standard library.
        behind: Entries of ``sys.path`` after all others.
    """

    python: str
    version: tuple[int, ...]
    own: bool
    made: tuple[str, ...] | None
    root: str
    first: str
    before: tuple[str, ...]
    behind: tuple[str, ...]


async def prepare_environment(config: Mapping[str, Any], report: Callable[[str], None]) -> RankEnvironment:
    """Return the Python environment that an agent's config requests. Create the environment if necessary.

    Args:
        report: Receives progress lines.

    Raises:
        PoolError: If the interpreter no longer exists, or its environment cannot be created.
    """
    found = config.get("interpreter")
    chosen = Interpreter.from_json(found) if found else None
    if chosen is None or is_own_environment(chosen.prefix) or _is_replaced(chosen):
        behind = (ROOT, *(config.get("path") or sys.path))
        before = tuple(config.get("path_before", ()))
        return RankEnvironment(sys.executable, sys.version_info[:2], True, None, ROOT, "", before, behind)
    from skyward_core.node.bootstrap import image_environment
    from skyward_core.tasks.script_interpreter_and_environment import ensure_interpreter, library_path_entries

    if chosen.base:
        await _run_cancellable(ensure_interpreter, chosen, report)
    if not exists(chosen.path):
        raise PoolError(
            f"{chosen.path} ({chosen.source}), the interpreter of this pool's ranks, no longer exists: recreate it, "
            "or start a new pool"
        )
    ours = await asyncio.to_thread(library_path_entries)
    image = config.get("image") or {}
    local = [entry for _, entry in image.get("folders") or ()]
    made = tuple(image_environment.list_requirements(chosen.environment)) if chosen.base else None
    version = tuple(map(int, chosen.minor.split(".")))
    behind = tuple(filter(None, (image.get("workdir"), *local, ours.last)))
    before = tuple(import_path.script_folders())
    return RankEnvironment(chosen.path, version, False, made, ours.first, ours.first, before, behind)


def extra_import_path(base: RankEnvironment) -> tuple[str, ...]:
    """Return the import path entries that an environment on top of ``base`` needs to find the packages of ``base``.

    Raises:
        PoolError: If the interpreter cannot be run.
    """
    from skyward_core.tasks.packages.package_specs_and_local_packages import find_local_packages

    version = ".".join(map(str, base.version))
    local = tuple(each.entry for each in find_local_packages({}, str(Path(base.python).parents[1]), version))
    return local if base.own else (*_query_import_path(base.python), *local)


def packages_of(environment: RankEnvironment) -> dict[str, str]:
    """Return the packages of an environment, in the format of ``installed_packages.list_packages``.

    Raises:
        OSError: If the interpreter cannot list its packages.
    """
    from skyward_core.node.bootstrap.installed_packages import list_packages

    if environment.own:
        return list_packages(environment.behind)
    version = ".".join(map(str, environment.version))
    packages = Path(environment.python).parents[1] / "lib" / f"python{version}"
    try:
        changed = (packages / "site-packages").stat().st_mtime_ns
    except OSError:
        changed = 0
    return _query_packages(environment.python, environment.root, changed)


@lru_cache(maxsize=8)
def _query_packages(python: str, root: str, _changed: int) -> dict[str, str]:
    from skyward_core.node.bootstrap.image_environment import list_installed_packages

    return list_installed_packages(python, root)


def _query_import_path(python: str) -> tuple[str, ...]:
    """Run an interpreter to return its import path."""
    command = [python, "-I", "-c", "import json, sys; print(json.dumps(sys.path))"]
    done = subprocess.run(command, capture_output=True, check=False)
    try:
        return tuple(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        output = done.stderr.decode(errors="replace").strip()
        raise PoolError(f"{python} did not report its import path: {output}") from None


def _is_replaced(chosen: Interpreter) -> bool:
    """Check whether an automatically chosen interpreter no longer exists, so that this process's one replaces it.

    For example, a tool may have been reinstalled with another interpreter.
    """
    exists_here = bool(chosen.path) and exists(chosen.path)
    return not chosen.chosen and not exists_here and chosen.minor == MINOR_VERSION


_log = get_logger("local")

BUFFER = 1 << 18


class SocketPipe(asyncio.BufferedProtocol):
    """Unix socket connection that implements ``transport.Pipe``."""

    # All pipes of a thread share one buffer, because a pipe has processed its data before another pipe receives data.
    _received = threading.local()

    def __init__(self, on_data: OnData, on_lost: OnLost) -> None:
        self._on_data = on_data
        if not hasattr(self._received, "buffer"):
            self._received.buffer = memoryview(bytearray(BUFFER))
        self._buffer: memoryview = self._received.buffer
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._on_data(self._buffer[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._read_rest()
        self._on_lost(exc)

    def _read_rest(self) -> None:
        """Read the bytes that the peer sent before a write failed, because asyncio drops these bytes."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        with suppress(OSError):  # The peer reset the connection, or there is no data.
            while sock is not None and (data := os.read(sock.fileno(), BUFFER)):
                self._on_data(memoryview(data))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class LocalTransport:
    """Transport to a node on this machine; implements ``transport.Transport``."""

    shares_files = True
    direct = None
    sent: dict[str, tuple[int, int]] | None = None

    def __init__(self, folder: Path, socket: Path, starter: AgentStarter) -> None:
        self.folder = folder
        self.socket = socket
        self._starter = starter
        self._environment: RankEnvironment | None = None

    async def prepare(
        self, config: dict[str, Any], report: Report, gate: StartBarrier | None = None, *, first: bool = False
    ) -> dict[str, str] | None:
        gate = gate or StartBarrier(1)
        report("running", f"starting an agent in {self.folder}")
        image = config.get("image") or {}
        check_python(image, config.get("interpreter"))
        environment = self._environment = await self._get_environment(config, report, gate)
        python, detail, behind = environment.python, "", list(environment.behind)
        installed: dict[str, str] | None = None
        installs = needs_install(image)
        if installs:
            for phase in ("connected", "synced"):
                report(phase)
            report("installed", detail="checking the environment")
            python, detail, installed = await self._prepare_interpreter(environment, config, report, gate)
            if python != environment.python:
                behind += await asyncio.to_thread(extra_import_path, environment)
        request = config | {
            "folder": str(self.folder),
            "socket": str(self.socket),
            "bundle": environment.first,
            "path_before": self._existing_entries(environment.before, gate),
            "path": self._existing_entries(behind, gate),
            "python": python,
            "cwd": config.get("cwd") or str(Path.cwd()),
            "env": self._thread_variables(config) | config.get("env", {}),
        }
        with log_duration(_log, f"{self.folder}: starting an agent"):
            await self._starter.start(request)
        for phase in () if installs else ("connected", "synced"):
            report(phase)
        report("installed", detail=detail)
        if environment.made is not None:
            from skyward_core.node.bootstrap.image_environment import list_installed_packages

            return await asyncio.to_thread(list_installed_packages, environment.python) | (installed or {})
        return installed

    async def installed(self) -> dict[str, str] | None:
        return None if self._environment is None else await asyncio.to_thread(packages_of, self._environment)

    @staticmethod
    async def _get_environment(config: dict[str, Any], report: Report, gate: StartBarrier) -> RankEnvironment:
        """Return the ranks' environment, which is prepared once for all nodes of a start."""
        loop = asyncio.get_running_loop()

        def emit(line: str) -> None:
            loop.call_soon_threadsafe(report, "running", line)

        return await gate.compute_once("ground", lambda: asyncio.ensure_future(prepare_environment(config, emit)))

    async def _prepare_interpreter(
        self, environment: RankEnvironment, config: dict[str, Any], report: Report, gate: StartBarrier
    ) -> tuple[str, str, dict[str, str] | None]:
        """Return the ranks' interpreter with the image's packages, which is prepared once for all nodes of a start."""

        async def work() -> tuple[str, str, dict[str, str] | None]:
            image, cwd = config["image"], config.get("cwd") or str(Path.cwd())
            with convert_errors("Cannot create the image's environment on this machine"):
                return await prepare_interpreter(
                    image, config.get("env", {}), cwd, lambda line: report("installed", detail=line), environment
                )

        return await gate.compute_once("interpreter", lambda: asyncio.ensure_future(work()))

    @staticmethod
    def _existing_entries(path: Sequence[str], gate: StartBarrier) -> list[str]:
        """Return those entries of an import path that exist. "" is the current folder."""

        def find() -> list[str]:
            return list(dict.fromkeys(str(Path(entry).absolute()) for entry in path if exists(entry)))

        return gate.compute_once(("entries", *path), find)

    @staticmethod
    def _thread_variables(config: dict[str, Any]) -> dict[str, str]:
        """Return environment variables that limit each rank to its share of this machine's cores."""
        if "OMP_NUM_THREADS" in os.environ:
            return {}
        per_node = config["ranks_per_node"]
        # With ranks_per_node="gpu", the number of ranks is unknown.
        ranks = config["nodes"] * (per_node if isinstance(per_node, int) else 1)
        return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, ranks)))}

    async def send_folder(
        self, cwd: str, image: Mapping[str, Any], gate: StartBarrier, report: Callable[[str], None]
    ) -> None:
        return None

    async def forward_port(self, address: str, port: int) -> tuple[str, int]:
        return address, port

    async def finish_uploads(self) -> None:
        return None

    async def open(self, on_data: OnData, on_lost: OnLost) -> SocketPipe:
        loop = asyncio.get_running_loop()
        with log_duration(_log, f"{self.folder}: connecting to its agent"):
            _, pipe = await loop.create_unix_connection(lambda: SocketPipe(on_data, on_lost), str(self.socket))
        return pipe

    async def put(self, source: Path, name: str) -> None:
        target = Path(NodePaths(str(self.folder)).blobs, name)
        if target.exists():
            return
        try:
            await asyncio.to_thread(os.link, source, target)
        except FileExistsError:
            return
        except OSError:
            # The target is on another file system, so copy the file.
            await asyncio.to_thread(self._copy, source, target)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        import shutil

        partial = target.with_suffix(f".{os.getpid()}.part")
        shutil.copyfile(source, partial)
        partial.replace(target)

    async def fetch(self, name: str, target: Path, offset: int, size: int) -> bool:
        if offset:
            return False
        try:
            await asyncio.to_thread(os.link, Path(NodePaths(str(self.folder)).spool, name), target)
        except OSError:
            return False
        return True

    async def close(self) -> None:
        return None


_EXTRAS = re.compile(r"^(?P<name>\s*[\w.-]+)\s*\[(?P<extras>[^\]]*)\]")


async def prepare_interpreter(
    image: Mapping[str, Any],
    env: Mapping[str, str],
    cwd: str,
    on_line: Callable[[str], None],
    base: RankEnvironment,
) -> tuple[str, str, dict[str, str] | None]:
    """Return the ranks' interpreter, a description of its origin, and its packages if the image requests any.

    Args:
        image: An :class:`~skyward_core.Image` as JSON.
        env: Variables for the setup commands.
        cwd: Working folder of the setup commands.
        on_line: Receives progress lines.
        base: Environment of the ranks without the image.

    Raises:
        PoolError: If the environment cannot be created. The message has the installer's last lines.
    """
    from skyward_core.node.bootstrap import image_environment
    from skyward_core.node.bootstrap.host_inspection import NVIDIA_DEVICES
    from skyward_core.node.bootstrap.installed_packages import unmet_requirements

    packages = image.get("apt") or ()
    absent = await asyncio.to_thread(lambda: [each for each in packages if not image_environment.has_package(each)])
    if absent and not (image.get("allow_apt") and os.getuid() == 0):
        raise PoolError(
            f"Image(apt=...): {', '.join(absent)} would be installed for the whole machine. Install them by hand, "
            "or run as root with Options(allow_apt=True)"
        )
    more = [each for each in image_environment.list_requirements(image) if each not in (base.made or ())]
    pip = [str(each) for each in image.get("pip") or ()]
    image = {**image, "pip": pip if any(map(os.path.exists, NVIDIA_DEVICES)) else without_cuda(pip)}
    needed = image_environment.list_requirements(image)
    if not image.get("setup") and not absent:
        find_missing = (
            unmet_requirements
            if base.own
            else partial(image_environment.find_unmet_requirements, base.python, root=base.root)
        )
        missing = await asyncio.to_thread(find_missing, needed) if more else []
        if not missing:
            return (
                base.python,
                "all packages are installed" if needed else "nothing to install",
                await asyncio.to_thread(image_environment.list_installed_packages, base.python) if needed else None,
            )
    root = state_home() / ENVIRONMENTS_FOLDER
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if made := image_environment.find_ready_environment(image, root, base.python, base.version, base.root):
        found = await asyncio.to_thread(image_environment.list_installed_packages, made) if needed else None
        return made, "the environment exists already", found
    from skyward_core.tasks.script_interpreter_and_environment import run_builder

    order = {"image": image, "root": str(root), "env": dict(env), "cwd": cwd}
    loop = asyncio.get_running_loop()
    answer = await _run_cancellable(
        run_builder, base.python, base.root, order, lambda line: loop.call_soon_threadsafe(on_line, line)
    )
    if not answer.get("python"):
        raise PoolError(f"Cannot create the image's environment on this machine: {answer['error']}")
    found = dict(answer.get("installed") or {}) if needed else None
    return str(answer["python"]), f"created the environment in {root}", found


async def _run_cancellable(work: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a thread. If this call is cancelled, cancel the token that is the function's last argument."""
    from skyward_core.tasks.bounded_subprocess import CancellationToken

    stop = CancellationToken()
    try:
        return await asyncio.to_thread(work, *args, stop)
    finally:
        stop.cancel()


def without_cuda(requirements: Sequence[str]) -> list[str]:
    """Remove CUDA extras from requirements for a machine without an NVIDIA driver: ``jax[cuda12]`` becomes ``jax``."""
    return [_EXTRAS.sub(_strip_cuda_extra, text, count=1) for text in requirements]


def _strip_cuda_extra(found: re.Match[str]) -> str:
    extras = [each.strip() for each in found["extras"].split(",")]
    remaining = ",".join(each for each in extras if "cuda" not in each.lower())
    return found["name"] + (f"[{remaining}]" if remaining else "")
