"""Agents as processes of this machine; local images."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from skyward_core.model.errors import PoolError
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.protocol.node_paths import NodePaths
from skyward_core.store.debug_log import get_logger, log_duration
from skyward_core.store.state_folder import ENVIRONMENTS_FOLDER, state_home
from skyward_core.tasks import client_interpreter
from skyward_core.tasks.client_interpreter import is_own_environment
from skyward_core.transport.transport import (
    MINOR,
    OnData,
    OnLost,
    Report,
    StartBarrier,
    check_python,
    needs_install,
)
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.user_files import exists

ROOT = str(Path(__file__).parents[2])
# Isolated and without site: an agent needs the standard library and this package, nothing else. What is imported here
# stays: nobody looks for garbage among it.
_CODE = f"""
import gc, sys
gc.disable()
sys.path.insert(0, {ROOT!r})
from skyward_core.node.deferred_imports import import_asyncio
import_asyncio()
from skyward_core.node.agent.agent_fork_server import main
main()
"""


class AgentStarter:
    """Runs while somebody is inside its ``with`` block; blocks may nest, from any thread.

    Entering costs nothing but a process: it gets ready while the client goes on. It raises PoolError where there can
    be none.
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
                    raise PoolError(f"no process can be started for the agents: {error}") from error
            self._users += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._interpreter is not None:
                self._interpreter.close()
                self._interpreter = None

    async def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start an agent; its config is the request, its answer what comes back.

        Raises:
            PoolError: no agent came of it; says why.
        """
        with self:
            interpreter = self._interpreter
            answer = await interpreter.ask(request) if interpreter else {}
        if not answer.get("ok"):
            reason = answer.get("error") or "it said nothing"
            raise PoolError(f"the agent of {request['folder']} did not start: {reason}")
        return answer


class _ForkServer(asyncio.Protocol):
    """The process, and what it says, read on the loop of who first asks it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a ctrl-c in the terminal is for the client alone
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[asyncio.WriteTransport] | None = None
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._unread = b""
        self._stderr_text = ""

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
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
        """It has ended, as it should or not: its last words are for those who still wait."""
        if self._process.stderr is not None:
            with self._process.stderr as errors:
                self._stderr_text = errors.read().decode(errors="replace").strip()
        self._process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"ok": False, "error": self._stderr_text})

    def close(self) -> None:
        """Let it end. What it is asked still gets its answer."""
        if self._opening is None or self._loop is None:
            self._process.kill()  # it has started nothing
            self._process.communicate()
        else:
            self._loop.call_soon_threadsafe(self._opening.add_done_callback, _close)


def _close(opened: asyncio.Task[asyncio.WriteTransport]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


@value
class RankEnvironment(Value):
    """One pool's.

    Attributes:
        python: the interpreter's program.
        version: its first two numbers.
        own: whether it is the one that runs this.
        made: what its environment was made of, where that was made here for a script; None where it was not.
        root: the folder that has our package, for it to run.
        first: an entry before all others of the import path, or "".
        before, behind: entries before its standard library, and after all that it has itself.
    """

    python: str
    version: tuple[int, ...]
    own: bool
    made: tuple[str, ...] | None
    root: str
    first: str
    before: tuple[str, ...]
    behind: tuple[str, ...]


async def prepare_environment(config: Mapping[str, Any], said: Callable[[str], None]) -> RankEnvironment:
    """What an agent's config asks for; an environment that is not there is made.

    Args:
        said: takes lines that tell how long that goes on.

    Raises:
        PoolError: the interpreter is gone, or its environment cannot be made.
    """
    found = config.get("interpreter")
    chosen = Interpreter.from_json(found) if found else None
    if chosen is None or is_own_environment(chosen.prefix) or _is_replaced(chosen):
        behind = (ROOT, *(config.get("path") or sys.path))
        before = tuple(config.get("path_before", ()))
        return RankEnvironment(sys.executable, sys.version_info[:2], True, None, ROOT, "", before, behind)
    from skyward_core.node.bootstrap import image_environment
    from skyward_core.tasks.bounded_subprocess import CancellationToken
    from skyward_core.tasks.script_interpreters import ensure_interpreter, library_path_entries

    if chosen.base:
        stop = CancellationToken()
        try:
            await asyncio.to_thread(ensure_interpreter, chosen, said, stop)
        finally:
            stop.cancel()  # who takes the start back wants no environment
    if not exists(chosen.path):
        raise PoolError(
            f"{chosen.path} ({chosen.source}), with which the ranks of this pool run, is not there any more: make it "
            "anew, or make the pool anew"
        )
    ours = await asyncio.to_thread(library_path_entries)
    image = config.get("image") or {}
    local = [entry for _, entry in image.get("folders") or ()]
    made = tuple(image_environment.list_requirements(chosen.environment)) if chosen.base else None
    version = tuple(map(int, chosen.minor.split(".")))
    behind = tuple(filter(None, (image.get("workdir"), *local, ours.last)))
    before = tuple(client_interpreter.script_folders())
    return RankEnvironment(chosen.path, version, False, made, ours.first, ours.first, before, behind)


def extra_import_path(there: RankEnvironment) -> tuple[str, ...]:
    """What an environment that is made over an interpreter must have on its import path to find what that finds.

    Raises:
        PoolError: the interpreter cannot be run.
    """
    from skyward_core.tasks.packages.package_specs import find_local_packages

    version = ".".join(map(str, there.version))
    local = tuple(each.entry for each in find_local_packages({}, str(Path(there.python).parents[1]), version))
    return local if there.own else (*_query_import_path(there.python), *local)


def packages_of(there: RankEnvironment) -> dict[str, str]:
    """The packages that an interpreter has by itself, as ``installed_packages.list_packages`` tells them.

    Raises:
        OSError: it cannot tell.
    """
    from skyward_core.node.bootstrap.installed_packages import list_packages

    if there.own:
        return list_packages(there.behind)
    packages = Path(there.python).parents[1] / "lib" / f"python{'.'.join(map(str, there.version))}"
    try:
        changed = (packages / "site-packages").stat().st_mtime_ns
    except OSError:
        changed = 0
    return _query_packages(there.python, there.root, changed)


@lru_cache(maxsize=8)
def _query_packages(python: str, root: str, _changed: int) -> dict[str, str]:
    from skyward_core.node.bootstrap.image_environment import list_installed_packages

    return list_installed_packages(python, root)


def _query_import_path(python: str) -> tuple[str, ...]:
    """What an interpreter itself has on its import path, as text."""
    command = [python, "-I", "-c", "import json, sys; print(json.dumps(sys.path))"]
    done = subprocess.run(command, capture_output=True, check=False)
    try:
        return tuple(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        said = done.stderr.decode(errors="replace").strip()
        raise PoolError(f"{python} does not tell where it finds modules: {said}") from None


def _is_replaced(chosen: Interpreter) -> bool:
    """Whether nobody chose it, it is gone, and ours can do what it did: that of a tool that was installed anew. A
    Python that is part of another program has no path."""
    there = bool(chosen.path) and exists(chosen.path)
    return not chosen.chosen and not there and chosen.minor == MINOR


_log = get_logger("local")

BUFFER = 1 << 18


class SocketPipe(asyncio.BufferedProtocol):
    """A Unix socket as a ``transport.Pipe``."""

    def __init__(self, on_data: OnData, on_lost: OnLost) -> None:
        self._on_data = on_data
        self._buffer = memoryview(bytearray(BUFFER))
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
        """Read what the peer sent before it closed: after a failed write asyncio drops the unread bytes."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        with suppress(OSError):  # reset, or nothing more for now
            while sock is not None and (data := os.read(sock.fileno(), BUFFER)):
                self._on_data(memoryview(data))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class LocalTransport:
    """See ``transport.Transport``."""

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
        there = self._environment = await self._get_environment(config, report, gate)
        python, detail, behind = there.python, "", list(there.behind)
        installed: dict[str, str] | None = None
        asked = needs_install(image)
        if asked:
            for phase in ("connected", "synced"):
                report(phase)
            report("installed", detail="looking at the environment")
            python, detail, installed = await self._prepare_interpreter(there, config, report, gate)
            if python != there.python:
                behind += await asyncio.to_thread(extra_import_path, there)
        request = config | {
            "folder": str(self.folder),
            "socket": str(self.socket),
            "bundle": there.first,
            "path_before": self._existing_entries(list(there.before)),
            "path": self._existing_entries(behind),
            "python": python,
            "cwd": config.get("cwd") or str(Path.cwd()),
            "env": self._thread_variables(config) | config.get("env", {}),
        }
        with log_duration(_log, f"{self.folder}: starting an agent"):
            await self._starter.start(request)
        for phase in () if asked else ("connected", "synced"):
            report(phase)
        report("installed", detail=detail)
        if there.made is not None:
            from skyward_core.node.bootstrap.image_environment import list_installed_packages

            return await asyncio.to_thread(list_installed_packages, there.python) | (installed or {})
        return installed

    async def installed(self) -> dict[str, str] | None:
        if self._environment is None:
            return None
        return await asyncio.to_thread(packages_of, self._environment)

    @staticmethod
    async def _get_environment(config: dict[str, Any], report: Report, gate: StartBarrier) -> RankEnvironment:
        """The same for all nodes of a start."""
        loop = asyncio.get_running_loop()

        def said(line: str) -> None:
            loop.call_soon_threadsafe(report, "running", line)

        return await gate.compute_once("ground", lambda: asyncio.ensure_future(prepare_environment(config, said)))

    async def _prepare_interpreter(
        self, there: RankEnvironment, config: dict[str, Any], report: Report, gate: StartBarrier
    ) -> tuple[str, str, dict[str, str] | None]:
        """The same for all nodes of a start."""

        async def work() -> tuple[str, str, dict[str, str] | None]:
            image, cwd = config["image"], config.get("cwd") or str(Path.cwd())
            try:
                return await prepare_interpreter(
                    image, config.get("env", {}), cwd, lambda line: report("installed", detail=line), there
                )
            except OSError as error:
                raise PoolError(f"The environment of the image cannot be had on this machine: {error}") from error

        return await gate.compute_once("interpreter", lambda: asyncio.ensure_future(work()))

    @staticmethod
    def _existing_entries(path: list[str]) -> list[str]:
        """Those of an import path that are there; "" is our working folder."""
        return list(dict.fromkeys(str(Path(entry).absolute()) for entry in path if exists(entry)))

    @staticmethod
    def _thread_variables(config: dict[str, Any]) -> dict[str, str]:
        """All nodes share this machine's cores: every rank gets its part of them, not all."""
        if "OMP_NUM_THREADS" in os.environ:
            return {}
        per_node = config["ranks_per_node"]
        ranks = config["nodes"] * (per_node if isinstance(per_node, int) else 1)  # "gpu": told once it runs
        return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, ranks)))}

    async def send_folder(
        self, cwd: str, image: Mapping[str, Any], gate: StartBarrier, said: Callable[[str], None]
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
            await asyncio.to_thread(self._copy, source, target)  # another file system

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
LONGEST = 1 << 20  # bytes of a line that an installer prints


async def prepare_interpreter(
    image: Mapping[str, Any],
    env: Mapping[str, str],
    cwd: str,
    said: Callable[[str], None],
    there: RankEnvironment,
) -> tuple[str, str, dict[str, str] | None]:
    """The interpreter to run ranks with, how it came to that, in words, and the packages that are installed there where
    the image asks for some.

    Args:
        image: an :class:`~skyward_core.Image` as JSON.
        env: variables of the set-up commands.
        cwd: where these run.
        said: takes lines that tell how long work goes on.
        there: what ranks run on without it.

    Raises:
        PoolError: the environment cannot be made; holds the installer's last lines.
    """
    from skyward_core.node.bootstrap import image_environment
    from skyward_core.node.bootstrap.host_inspection import NVIDIA_DEVICES
    from skyward_core.node.bootstrap.missing_requirements import unmet_requirements

    asked = image.get("apt") or ()
    absent = await asyncio.to_thread(lambda: [each for each in asked if not image_environment.has_package(each)])
    if absent and not (image.get("allow_apt") and os.getuid() == 0):
        raise PoolError(
            f"Image(apt=...): {', '.join(absent)} would be installed for all of this machine, not for a pool. Install "
            "it by hand, or let a pool of root's do so with Options(allow_apt=True)"
        )
    more = [each for each in image_environment.list_requirements(image) if each not in (there.made or ())]
    pip = [str(each) for each in image.get("pip") or ()]
    image = {**image, "pip": pip if any(map(os.path.exists, NVIDIA_DEVICES)) else without_cuda(pip)}
    wanted = image_environment.list_requirements(image)
    if not image.get("setup") and not absent:
        lacks = (
            unmet_requirements
            if there.own
            else partial(image_environment.find_unmet_requirements, there.python, root=there.root)
        )
        missing = await asyncio.to_thread(lacks, wanted) if more else []
        if not missing:
            return (
                there.python,
                "all packages are here" if wanted else "nothing to install",
                await asyncio.to_thread(image_environment.list_installed_packages, there.python) if wanted else None,
            )
    root = state_home() / ENVIRONMENTS_FOLDER
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if made := image_environment.find_ready_environment(image, root, there.python, there.version, there.root):
        found = await asyncio.to_thread(image_environment.list_installed_packages, made) if wanted else None
        return made, "the environment is there already", found
    order = {"image": image, "root": str(root), "env": dict(env), "cwd": cwd}
    made, found = await _run_builder(
        image_environment.module_command(there.python, "image_environment", there.root), order, said
    )
    return made, f"environment made in {root}", found if wanted else None


def without_cuda(requirements: Sequence[str]) -> list[str]:
    """Requirements as a machine without an NVIDIA driver can use them: ``jax[cuda12]`` is ``jax`` there."""
    return [_EXTRAS.sub(_strip_cuda_extra, text, count=1) for text in requirements]


def _strip_cuda_extra(found: re.Match[str]) -> str:
    extras = [each.strip() for each in found["extras"].split(",")]
    left = ",".join(each for each in extras if "cuda" not in each.lower())
    return found["name"] + (f"[{left}]" if left else "")


async def _run_builder(
    command: list[str], wanted: dict[str, Any], said: Callable[[str], None]
) -> tuple[str, dict[str, str]]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LONGEST,
        start_new_session=True,  # a ctrl-c in the terminal is for the client alone
    )
    made = ""
    try:
        # Variables may be secrets: they come by standard input.
        errors = asyncio.ensure_future(_read_all(process.stderr))
        answer = await _exchange(process, wanted, said)
        await process.wait()
        if made := str(answer.get("python") or ""):
            return made, dict(answer.get("installed") or {})
        reason = (
            answer.get("error") or (await errors).decode(errors="replace").strip()[-2000:] or _describe_exit(process)
        )
        raise PoolError(f"The environment of the image cannot be made on this machine: {reason}")
    finally:
        if not made:  # what it has started may live on where it was killed, and write into the next attempt's folder
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _describe_exit(process: asyncio.subprocess.Process) -> str:
    code = process.returncode or 0
    by = signal.Signals(-code).name if -code in set(signal.Signals) else str(code)
    return f"the process that makes it was ended by {by}" if code < 0 else f"it ended with exit code {code}"


async def _exchange(
    process: asyncio.subprocess.Process, wanted: dict[str, Any], said: Callable[[str], None]
) -> dict[str, Any]:
    """What the process says last."""
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: why, it tells otherwise
        process.stdin.write(json.dumps(wanted).encode())  # type: ignore[union-attr]
        await process.stdin.drain()  # type: ignore[union-attr]
        process.stdin.close()  # type: ignore[union-attr]
    answer: dict[str, Any] = {}
    while line := await _read_line(process.stdout):
        try:
            told = json.loads(line)
        except ValueError:
            continue  # a start-up file of the interpreter's may print what it likes
        if type(told) is not dict:
            continue
        if "line" in told:
            said(str(told["line"]))
        else:
            answer = told
    return answer


async def _read_line(stream: asyncio.StreamReader | None) -> bytes:
    """The next line, b"" at the end; one that is too long to be an answer is passed over."""
    while stream is not None:
        with suppress(ValueError):
            return await stream.readline()
    return b""


async def _read_all(stream: asyncio.StreamReader | None) -> bytes:
    return await stream.read() if stream is not None else b""
