"""Channel to ``bootstrap.host_command_server``, which executes the client's commands on a host.

The login shell of a channel may be slow and print anything. Answers are therefore lines that begin with a random
marker. Answers are validated before use, like frames (``protocol.frame_schemas_and_size_limits``).
"""

from __future__ import annotations

import asyncio
import io
import json
import marshal
import re
import secrets
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import IO, TYPE_CHECKING, Any, TypeGuard

from skyward_core.model.errors import PoolError, convert_errors
from skyward_core.protocol.frame_codec import AnyHeader, WireError
from skyward_core.protocol.validators import (
    Checks,
    is_bool,
    is_count,
    is_file_name,
    is_number,
    is_port,
    is_text,
    list_of,
    object_of,
    optional,
    split_keys,
)
from skyward_core.store.debug_log import get_logger, log_duration
from skyward_core.transport.bundle_builder import bundle_for
from skyward_core.transport.ssh.asyncssh_patches import asyncssh
from skyward_core.transport.ssh.connection import (
    AnswerWait,
    HostConnection,
    answer_timeout,
    channel_error,
    link_lost_error,
    noisy_shell_error,
    silent_host_error,
    stalled_host_error,
    swallowed_input_error,
)
from skyward_core.transport.ssh.host_address_and_python import (
    LIST_PYTHONS,
    PYENV_S,
    SET_PATH,
    UV_S,
    HostPythons,
    WantedPython,
    parse_pythons,
)
from skyward_core.transport.transport import FlowControl
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentDone, HostFacts

_log = get_logger("ssh")

CHUNK = 1 << 18
MAX_NOISE = 2000  # maximum characters of a login shell's output that are stored for an error message
WINDOW = 1 << 22
# Maximum bytes of an answer, which may list a large folder, and maximum number of unread lines.
MAX_ANSWER_SIZE, MOST_LINES = 64 << 20, 100_000
# Factors by which the timeout for answers is multiplied. The first one applies if the login shell prints text before
# the server runs. The second one applies while uv downloads a Python, because uv prints nothing during the download.
NOISY_START_FACTOR, UV_TIMEOUT_FACTOR = 6, 30

# Modules that run on a host before ``bootstrap.host_command_server``, which imports nothing else of the package.
BOOTSTRAP_MODULES = (
    "skyward_core.protocol.node_paths",
    "skyward_core.node.deferred_imports",
    "skyward_core.node.bootstrap.host_inspection",
)

_OLD_MARSHAL = 2  # version of the marshal format that every Python version reads
OnLine = Callable[[str], None]

# This script is one quoted word of a command. To work in any login shell, it contains no newline, single quote,
# backslash or "!". Its arguments:
# $1 version, $2 the version with a comma in place of the dot, $3 the chosen interpreter, $4 the client's interpreter,
# $5 the end marker, $6 the name of the pool or its folder, shown in process lists, $7 non-empty if uv must not install
# a Python.
# The client's path is only tried if no other user could have written the program on this host: own() checks owners and
# modes of all folders of the path, including links and their targets. A group with the user's own number counts as the
# user.
# An interpreter with another version or another bytecode, for example PyPy's, or without modules that an agent needs
# (Debian's python3-minimal), exits without reading standard input, and the next one is tried.
# The marker is the first line on standard input. If it is missing, startup files have read a part of the input (exit
# status 96).
# The garbage collector is off: imported modules stay in memory, and everything else ends with the channel.
_PYTHON = (
    "import gc,marshal,os,sys;i=sys.implementation;"
    "sys.version_info[:2]==($2)and i.name==i.cache_tag[:7]or os._exit(97);gc.disable();"
    "all(any(f.find_spec(m,None)for f in sys.meta_path)for m in sys.argv[4].split())or os._exit(95);"
    "r=lambda n,s:all(iter(lambda:len(s)<n and(s.extend(os.read(0,n-len(s))or os._exit(98))or 1),False))and s;"
    "w=sys.argv[2].encode();h=r(len(w)+8,bytearray());h[:-8]==w or os._exit(96);s=r(int(h[-8:],16),bytearray());"
    "[exec(c,vars(sys.modules.setdefault(n,type(sys)(n))))for n,c in marshal.loads(s)]"
)
_SHELL = (
    SET_PATH + 'm=;try(){ "$1" -I -S -c "$B" skyward-agent "$W" "$N" "asyncio zlib";r=$?;'
    'case $r in 2|97|126|127)return 0;;95)m="lacks;";return 0;;'
    '96)echo;echo "$W swallowed";;esac;exit $r;};'
    'own(){ u=$(id -u);e=$1;l=;set -- /;while test -n "$e";do set -- "$@" "$e";d=${e%/*};'
    'test "$d" = "$l"||{ l=$d;r=$(cd "$d/" && pwd -P)||return 1;'
    'for q in "$d" "$r";do while test -n "$q";do set -- "$@" "$q";q=${q%/*};done;done;};'
    'if test -L "$e";then q=$(readlink "$e")||return 1;case $q in /*)e=$q;;*)e=$d/$q;;esac;else e=;fi;done;'
    'test -z "$(find "$@" -prune "(" -not -user 0 -not -user $u -o '
    '-not -type l "(" -perm -2 -o -perm -20 -not -group $u ")" ")" 2>&1)";};'
    f'B="{_PYTHON}";V=$1;W=$5;N=$6;'
    'if test -n "$3";then try "$3";else '
    'test -x "$4" && own "$4" && try "$4";'
    f"for p in python$V python3 python {UV_S}/cpython-$V.*/bin/python$V {PYENV_S}/$V.*/bin/python$V;"
    'do command -v "$p" >/dev/null 2>&1 && try "$p";done;'
    'if test -z "$7" && command -v uv >/dev/null 2>&1;then echo;echo "$W uv";uv python install $V >&2;'
    'p=$(uv python find --no-project $V) && try "$p";fi;fi;'
    f'{LIST_PYTHONS}echo;echo "$W none" $f $m;exit 97'
)


class HostCommandFailed(PoolError):
    """Error: the host could not execute a command."""


class NoFittingPython(PoolError):
    """Error: the host has no Python of the required minor version, and no uv that could install it.

    Attributes:
        tried: Whether uv is installed but could not install the Python.
        found: Interpreters on the host.
    """

    tried = False
    found = HostPythons(())


class CommandOutput(AnswerWait, FlowControl, asyncssh.SSHClientSession[bytes]):
    """Output lines of a command on a host, and flow control of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.errors = bytearray()
        self.noise = b""  # output that is not an answer, such as text of a login shell
        self._partial = bytearray()
        self._channel: asyncssh.SSHClientChannel[bytes]

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan

    async def read_line(self, host: str, doing: str = "", seconds: float | None = None) -> bytes | None:
        """Return the next line of output; None after the last one.

        Args:
            doing: Description of the request, for errors; "" until the server runs.
            seconds: Longest time without output; None for the answer timeout.

        Raises:
            Unreachable: If the host sends nothing for that time.
        """
        seconds = answer_timeout() if seconds is None else seconds
        try:
            return await self.wait_within(seconds, self.lines.get)
        except TimeoutError as error:
            raise (
                stalled_host_error(host, seconds, doing)
                if doing
                else silent_host_error(host, seconds, self.noise_text())
            ) from error

    def noise_text(self) -> str:
        """Return the last output that is not part of an answer, such as text of the login shell."""
        text = self.noise + bytes(self._partial) + bytes(self.errors)
        return text.decode(errors="replace").strip()[-500:]

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self.heard_at = time.monotonic()
        if datatype is not None:
            self.errors += data
            del self.errors[:-MAX_NOISE]
            return
        self._partial += data
        if b"\n" in data:
            *whole, rest = self._partial.split(b"\n")
            self._partial = rest
            for line in whole:
                self.lines.put_nowait(bytes(line))
        if len(self._partial) > MAX_ANSWER_SIZE or self.lines.qsize() > MOST_LINES:
            self._partial.clear()
            self._channel.close()  # Close the channel, because the host sends too much output.

    def eof_received(self) -> bool:
        self.lines.put_nowait(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lines.put_nowait(None)
        self.resume_writing()


class CommandChannel:
    """Channel to a running ``bootstrap.host_command_server``. ``facts`` is the server's first message."""

    def __init__(self, link: HostConnection, python: WantedPython) -> None:
        self.link = link
        self.python = python
        nothing: AnyHeader = {}
        self.facts: HostFacts = nothing  # facts about the host, set from the server's first message
        self._marker = f"skyward-{secrets.token_hex(8)}".encode()
        self._on_line: OnLine = lambda line: None
        self._request_name = ""  # current request, for error messages; "" until the server runs
        self._is_uv_running = False
        self._session = CommandOutput()
        self._channel: asyncssh.SSHClientChannel[bytes]

    @classmethod
    async def open(
        cls,
        link: HostConnection,
        *,
        python: WantedPython,
        folder: str,
        on_line: OnLine = lambda line: None,
        status: bool = False,
        starts: bool = False,
    ) -> CommandChannel:
        """Start ``bootstrap.host_command_server`` on a host, and return the channel to it.

        Args:
            python: Interpreter that runs the server.
            folder: Name of the pool's folder, or "".
            on_line: Receives progress lines.
            status: Whether the facts include orphaned workers.
            starts: Whether an agent will probably start next, so that the host can prepare the start.

        Raises:
            PoolError: If the host has no matching Python, or does not run commands.
            Unreachable: If the login shell blocks the server.
            ConnectionError: If the connection is lost.
        """
        early, link.early_channel = link.early_channel, None
        begun = early if isinstance(early, cls) and early.python == python else None
        if early is not None and begun is None:
            early.close()
        self = begun or await cls._begin(link, python, folder)
        self._on_line = on_line
        word = self._marker.decode()
        try:
            names = [bundle_for(nvml, python.minor).name for nvml in (False, True)]
            self._send({"word": word, "folder": folder, "bundles": names, "status": status, "starts": starts})
            with log_duration(_log, f"{link.target.host}: querying the host's facts"):
                async with asyncio.timeout(NOISY_START_FACTOR * answer_timeout()) as noisy:
                    self.facts = await self._answer(noisy)
            validate_facts(self.facts, status=status)
        except WireError as error:
            self.close()
            raise HostCommandFailed(f"Invalid response from host {link.target.host}: {error}") from error
        except TimeoutError as error:
            self.close()
            raise noisy_shell_error(
                link.target.host, NOISY_START_FACTOR * answer_timeout(), self._session.noise_text()
            ) from error
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    async def begin(cls, link: HostConnection, python: WantedPython, name: str) -> None:
        """Start ``bootstrap.host_command_server`` in advance. The first :meth:`open` on the connection uses it.

        Args:
            name: Name of the pool, shown in the host's process list.

        Raises:
            PoolError, ConnectionError: As in :meth:`open`.
        """
        link.early_channel = await cls._begin(link, python, name)

    @classmethod
    async def _begin(cls, link: HostConnection, python: WantedPython, name: str) -> CommandChannel:
        code = _bootstrap_code() if python.is_client_version else _bootstrap_source()
        self = cls(link, python)
        minor, word = python.minor, self._marker.decode()
        words = [minor, minor.replace(".", ","), python.named, python.here, word, name]
        words += [] if python.fetches else ["looks"]
        self._channel = await open_session(link, f"exec sh -c '{_SHELL}' skyward {shlex.join(words)}", self._session)
        self._write(self._marker + b"%08x" % len(code) + code)
        return self

    async def ask(self, do: str, payload: bytes | IO[bytes] = b"", **values: Any) -> AnyHeader:
        """Execute a command on the host, and return its answer, whose type depends on the command.

        Args:
            do: Name of the command.
            payload: Data after the request; its length is sent as ``size``.
            values: Arguments of the command.

        Raises:
            HostCommandFailed: If the command fails, or its answer is invalid.
            Unreachable: If the host stops responding.
            ConnectionError: If the connection is lost.
        """
        self._request_name = repr(do)
        source = io.BytesIO(payload) if isinstance(payload, bytes) else payload
        size = source.seek(0, io.SEEK_END)
        source.seek(0)
        with log_duration(_log, f"{self.link.target.host}: {do}, {size} bytes"):
            try:
                self._send(values | {"do": do, "size": size})
                while data := source.read(CHUNK):
                    self._channel.write(data)
                    await self._session.wait_within(answer_timeout(), self._session.drain)
            except TimeoutError as error:
                raise stalled_host_error(self.link.target.host, answer_timeout(), self._request_name) from error
            except OSError as error:
                raise self._ended_error() from error
            return self._validate_answer(do, await self._answer())

    async def start(self, config: dict[str, Any]) -> AgentDone:
        """Start the agent with a config, which may contain secrets. Close the channel afterwards.

        Raises:
            HostCommandFailed: If the agent does not start, or the answer is invalid.
            Unreachable: If the host stops responding.
            ConnectionError: If the connection is lost.
        """
        await self.ask("start")
        self._request_name = "its agent"
        # Keep standard input open, because the host starts an agent only while its client waits.
        self._channel.write(json.dumps(config).encode() + b"\n")
        answer = await self._reply()
        self.close()
        if not answer.get("ok"):
            raise HostCommandFailed(f"Host {self.link.target.host} cannot run the agent: {answer.get('error')}")
        done: AgentDone = self._validate_answer("agent", answer)
        return done

    def close(self) -> None:
        self._channel.close()

    def _send(self, request: dict[str, Any]) -> None:
        data = json.dumps(request).encode()
        self._write(b"%08x" % len(data) + data)

    def _write(self, data: bytes) -> None:
        with suppress(BrokenPipeError):  # The process has ended. Its output may contain the reason.
            self._channel.write(data)

    async def _answer(self, noisy: asyncio.Timeout | None = None) -> AnyHeader:
        answer = await self._reply(noisy)
        if "error" in answer:
            raise HostCommandFailed(f"Host {self.link.target.host}: {answer['error']}")
        return answer

    async def _reply(self, noisy: asyncio.Timeout | None = None) -> dict[str, Any]:
        """Return the answer to the last request. Ignore lines without the marker.

        Args:
            noisy: Time limit for a login shell that prints text. The limit is removed when uv starts.
        """
        while True:
            installs = self._is_uv_running and not self._request_name
            seconds = answer_timeout() * UV_TIMEOUT_FACTOR if installs else None
            if (line := await self._session.read_line(self.link.target.host, self._request_name, seconds)) is None:
                raise self._ended_error()
            marker, _, rest = line.partition(b" ")
            if marker != self._marker:
                self._session.noise += line + b"\n" if line else b""
                self._session.noise = self._session.noise[-MAX_NOISE:]
            elif rest.startswith(b"{"):
                answer = self._parse_answer(rest)
                if "line" not in answer:
                    return answer
                self._on_line(str(answer["line"]))
            elif rest.startswith(b"uv"):
                self._is_uv_running = True
                if noisy is not None:
                    noisy.reschedule(None)
                self._on_line(f"no Python {self.python.minor} here; uv installs it")
            elif rest.startswith(b"swallowed"):
                raise swallowed_input_error(self.link.target.host)
            else:
                raise self._no_python_error(parse_pythons(rest))

    def _parse_answer(self, line: bytes) -> dict[str, Any]:
        failure = f"Invalid response from host {self.link.target.host}"
        with convert_errors(failure, HostCommandFailed, (ValueError, RecursionError)):
            return dict(json.loads(line))

    def _validate_answer(self, done: str, answer: dict[str, Any]) -> AnyHeader:
        with convert_errors(f"Invalid response from host {self.link.target.host}", HostCommandFailed, WireError):
            validate_task_result(done, answer)
        return answer

    def _no_python_error(self, found: HostPythons) -> NoFittingPython:
        host, minor = self.link.target.host, self.python.minor
        missing = f"Host {host} has no Python {minor} ({found})"
        needs = f"Functions are sent as bytecode, so a host needs the version that {self.python.version_origin}"
        if named := self.python.named:
            error = NoFittingPython(
                f"Host {host}: the chosen interpreter {sanitize_line(named)} is not a working Python {minor} "
                f"({found}). {needs}: choose another interpreter, or remove python= to search for one. Nothing was "
                "sent to the host."
            )
        elif self._is_uv_running:
            output = " ".join(self._session.errors.decode(errors="replace").split())[-500:]
            error = NoFittingPython(
                f"{missing}, and its uv cannot install one: {sanitize_line(output) or 'no reason given'}. {needs}: "
                f"install python{minor} there, or choose an interpreter with python=. Nothing was sent to the host."
            )
        else:
            error = NoFittingPython(
                f"{missing}. {needs}: install python{minor} or uv there (uv then installs Python), or choose an "
                "interpreter (python= of its provider, --set python=PATH). Nothing was sent to the host."
            )
        error.tried, error.found = self._is_uv_running, found
        return error

    def _ended_error(self) -> ConnectionError:
        host = self.link.target.host
        if self.link.lost.is_set():
            return link_lost_error(host)
        output = self._session.noise_text()
        return ConnectionError(
            f"host {host} closed the connection before it answered"
            + (f"; its output: {output}" if output else " and printed nothing: check that its user may run commands")
        )


async def open_session(
    link: HostConnection, command: str, handler: asyncssh.SSHClientSession[bytes]
) -> asyncssh.SSHClientChannel[bytes]:
    """Run a command on a host in a new channel.

    Raises:
        PoolError: If the host opens no channel.
        ConnectionError: If the connection is lost.
    """
    seconds = answer_timeout()
    try:
        async with asyncio.timeout(seconds):
            channel, _ = await link.ssh.create_session(
                lambda: handler, command, encoding=None, window=WINDOW, request_pty=False
            )
    except TimeoutError as error:
        raise stalled_host_error(link.target.host, seconds, "a command channel") from error
    except Exception as error:  # asyncssh raises many types of exceptions; see LOGIN_FAILURES
        raise channel_error(link.target.host, error, lost=await link.is_lost()) from error
    return channel


@cache
def _bootstrap_code() -> bytes:
    """Return the modules that start the command server on a host, as bytecode by name; the last one is the server."""
    modules = [(name, _code(name)) for name in BOOTSTRAP_MODULES]
    return marshal.dumps([*modules, ("__main__", _code("skyward_core.node.bootstrap.host_command_server"))])


@cache
def _bootstrap_source() -> bytes:
    """Return the source text of the modules that start the command server on a host with any Python version."""
    modules = [(name, _source(name)) for name in BOOTSTRAP_MODULES]
    return marshal.dumps(
        [*modules, ("__main__", _source("skyward_core.node.bootstrap.host_command_server"))], _OLD_MARSHAL
    )


def _source(name: str) -> str:
    return Path(_code(name).co_filename).read_text(encoding="utf-8")


def _code(name: str) -> CodeType:
    loader: Any = getattr(find_spec(name), "loader", None)
    if loader is None:
        raise PoolError(f"The Python module {name} is not installed: reinstall this library.")
    code: CodeType = loader.get_code(name)
    return code


# names of the measurements for which a host may report the reason of a failure
MEASUREMENTS = {"gpus", "matmul", "disk", "port"}


def _is_path(value: Any) -> TypeGuard[str]:
    """Check whether a value is an absolute path."""
    return type(value) is str and value[:1] == "/" and len(value) <= 4096 and "\0" not in value


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return type(value) is dict


def _is_indexed_hash(value: Any) -> TypeGuard[tuple[int, str]]:
    """Check whether a value is a pair: the index of a file, and the hash of the host's version of the file."""
    return type(value) is list and len(value) == 2 and is_count(value[0]) and is_file_name(value[1])


def _is_gpu(value: Any) -> TypeGuard[tuple[str, float]]:
    """Check whether a value is a pair: the name of a GPU, and its memory in MiB."""
    return type(value) is list and len(value) == 2 and is_text(value[0]) and is_number(value[1])


def _is_short_text(value: Any) -> TypeGuard[str]:
    return type(value) is str and len(value) <= 300


# Keys of a process on a GPU, in the format of ``machines.GpuProcess``.
_GPU_PROCESS = object_of(
    {
        "pid": is_count,
        "user": _is_short_text,
        "command": _is_short_text,
        "memory": optional(is_count),
        "computes": is_bool,
    },
    only=True,
)
# Keys of a GPU's usage, in the format of ``machines.GpuUse``.
_GPU_USE = object_of(
    {
        "number": _is_short_text,
        "id": _is_short_text,
        "model": _is_short_text,
        "used": optional(is_count),
        "total": optional(is_count),
        "util": optional(is_count),
        "processes": list_of(_GPU_PROCESS),
        "holder": _is_short_text,
    },
    only=True,
)


def _is_reason_map(value: Any) -> TypeGuard[dict[str, str]]:
    """Check whether a value is an object with measurements as keys and the reasons of their failures as values."""
    return (
        type(value) is dict
        and value.keys() <= MEASUREMENTS
        and all(is_text(reason) and len(reason) <= 1000 for reason in value.values())
    )


def _is_version_map(value: Any) -> TypeGuard[dict[str, str]]:
    """Check whether a value is an object with packages as keys and their versions, which may be empty, as values."""
    return type(value) is dict and all(
        type(version) is str and _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version)
        for name, version in value.items()
    )


_PACKAGE, _VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"), re.compile(r"[A-Za-z0-9._+!-]{0,100}")

# Keys of the facts about a host. Hosts without a usable folder send fewer facts.
FACTS: Checks = {
    "python": is_text,
    "version": list_of(is_count),
    "home": is_text,
    "hostname": is_text,
    "system": is_text,
    "machine": is_text,
    "address": is_text,
    "port": is_port,
    "time": is_number,
    "root": is_text,
    "unusable": list_of(is_text),
    "doubted": is_text,
    "gpus": list_of(is_text),
    "nvml": is_bool,
    "cpus": optional(is_count),
}
FACTS_OF_ROOT: Checks = {
    "free": is_count,
    "bundle": is_bool,
    "rest": is_bool,
    "socket": is_text,
    "shared": is_bool,
    "running": is_bool,
}
FACTS_OF_POOL: Checks = {
    "kept": _is_object,  # The code that reads the retained results validates their content.
    "orphans": list_of(is_count),
    "left": is_bool,
    "ended": is_text,
    "ended_at": is_number,
}

# Command of the host command server -> keys of its result.
DONE: Mapping[str, Checks] = {
    "environment": {"python": _is_path, "installed": _is_version_map},
    "manifest": {
        "folder": _is_path,
        "wanted": list_of(is_count),
        "doubtful": list_of(_is_indexed_hash),
        "current?": is_bool,
    },
    "gpus": {"gpus": list_of(is_text)},
    "look": {"uses": list_of(_GPU_USE), "why": is_text},
    "probe": {
        "gpus": list_of(_is_gpu),
        "tflops": is_number,
        "disk": is_number,
        "port": is_port,
        "time": is_number,
        "whys": _is_reason_map,
    },
    "send": {"rate": is_number, "why": is_text},
    "reach": {"reached": list_of(is_bool)},
    "agent": {"socket": _is_path},
}


def validate_facts(facts: Mapping[str, Any], *, status: bool) -> None:
    """Validate the facts that a host sent about itself.

    Args:
        facts: The facts.
        status: Whether the state of a pool was requested, too.

    Raises:
        WireError: If the facts are invalid.
    """
    _validate(facts, FACTS | (FACTS_OF_ROOT | (FACTS_OF_POOL if status else {}) if facts.get("root") else {}))


def validate_task_result(what: str, result: dict[str, Any]) -> None:
    """Validate the result of a host command.

    Raises:
        WireError: If the result is invalid.
    """
    _validate(result, DONE.get(what, {}))


def _validate(answer: Mapping[str, Any], checks: Checks) -> None:
    needs, may = split_keys([checks])
    for key, check in (needs | may).items():
        if not check(answer[key]) if key in answer else key in needs:
            raise WireError(f"invalid {key!r} in its answer: {answer.get(key)!r:.80}")
