"""SSH configuration: a host's options as resolved by ``ssh -G``, early TCP connections, and export of pools.

Imports asyncssh only if ``ssh`` is not installed, because connections to hosts are opened before that slow import.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import pwd
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from skyward_core.model.errors import UsageError, convert_errors
from skyward_core.store import state_folder
from skyward_core.transport.ssh.host_address_and_python import SSH_PORT, Target, format_host, why_unsafe
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import exists, read_bytes, read_text, write_atomic
from skyward_core.util.terminal_safe_text import sanitize_line

ANSWER = 10.0  # maximum seconds for one `ssh -G`, which runs the commands of `Match exec`
FIRST = 1.0  # seconds that queries for other hosts wait for the first answer, which may also apply to these hosts
MAX_ANSWER_SIZE = 1 << 18  # maximum bytes of the output of `ssh -G`
MAX_PARALLEL = 8
MAX_INCLUDED = 64  # maximum number of files that one line of the SSH configuration includes for the list of hosts
# Seconds for which the answer of `ssh -G` is reused: by all connections of one command. Later commands must see network
# changes.
CACHE_LIFETIME = 60.0
MOST_JUMPS = 16
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
DEFAULT_KEYS = tuple(
    f"~/.ssh/id_{kind}" for kind in ("ed25519_sk", "ecdsa_sk", "ed448", "ed25519", "ecdsa", "rsa", "dsa")
)

UNEXPANDED = ("proxycommand", "proxyjump", "identityfile", "certificatefile", "controlpath", "remotecommand")
# Pattern of host names that `ssh -G` prints unchanged as `hostname`.
PLAIN_NAME = r"[a-z][a-z0-9.-]*|(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})"
# prefixes of those lines of `ssh -v` that do not explain a failure
DEBUG_PREFIXES = ("debug", "OpenSSH_", "Pseudo-terminal")
FILES_READ = "files read"  # key under which the configuration files that `ssh -G` read are added to the options

T = TypeVar("T")
HostOptions = Mapping[str, Sequence[str]]  # options by lower-case name, as printed by `ssh -G`


@value
class Route(Value):
    """Route to a target according to the SSH configuration.

    Attributes:
        name: Name of the host in known_hosts files.
        has_alias: Whether ``name`` is a ``HostKeyAlias``.
        jump: Jump hosts in the syntax of ``ssh -J``, the last hop last.
        revoked: Files of revoked host keys.
        identities: Files of private keys, or of public keys whose private keys the ssh-agent has.
        certificates: Files of certificates; if empty, the certificates next to the keys are used.
        agent: Socket of the ssh-agent; "" for none.
        proxy_command: Command line with replaced tokens.
        options: Other options that differ from OpenSSH's defaults.
    """

    host: str
    port: int
    user: str
    name: str
    has_alias: bool
    jump: str | None
    known_hosts: tuple[Path, ...]
    revoked: tuple[Path, ...]
    identities: tuple[str, ...]
    certificates: tuple[str, ...]
    agent: str
    proxy_command: str | None
    options: HostOptions = field(default_factory=dict)

    def __str__(self) -> str:
        return format_host(self.host, self.user, self.port)

    @property
    def known_port(self) -> int:
        """Port of the host in known_hosts files; 22 with a ``HostKeyAlias``, because the files then contain no port."""
        return SSH_PORT if self.has_alias else self.port

    def option(self, name: str) -> str:
        """Return an option's value in the SSH configuration; "" if it is OpenSSH's default."""
        return " ".join(self.options.get(name, ()))


def own_known_hosts_file() -> Path:
    """Return the known_hosts file to which keys are added that the user accepts."""
    return state_folder.state_home() / "known_hosts"


async def resolve(target: Target) -> Route:
    """Return the route to a host according to the SSH configuration.

    Raises:
        UsageError: If the configuration is invalid, a name in it is unsafe, the jump hosts form a cycle, or the user
            has no name.
    """
    chain, route = [target], await _resolve_cached(target)
    last = route
    while last.jump:
        hop = jump_target(chain[-1], last.jump)
        if hop in chain or len(chain) > MOST_JUMPS:
            ways = " -> ".join(each.login for each in (*chain, hop))
            raise UsageError(
                f"Host {target.host} cannot be reached: its jump hosts form a cycle ({ways:.300}). Exclude "
                "the jump host from its own ProxyJump: `Host * !JUMPHOST` in ~/.ssh/config."
            )
        chain.append(hop)
        last = await _resolve_cached(hop)
    return route


def jump_target(target: Target, jump: str) -> Target:
    """Return a target's last jump host. Its own route leads through the earlier jump hosts."""
    if target.via is not None:
        return target.via
    before, _, last = jump.rpartition(",")
    return replace(target, user=None, port=None, jump=before or None).with_host(last)


async def _resolve(target: Target) -> Route:
    program = _program() if target.config else None
    defaults: HostOptions = {}
    if program is not None:
        host_query = asyncio.ensure_future(_query_host(program, target))
        defaults_query = asyncio.ensure_future(_query((program, "-T", "-G", "-F", "none", "--", "localhost")))
        # Wait until both queries have ended, because asyncio hangs if a task is cancelled during a process start.
        await asyncio.wait([host_query, defaults_query])
        defaults_query.exception()  # Retrieve the exception, so that asyncio does not log it if both queries fail.
        answer, defaults = host_query.result(), defaults_query.result()
    else:
        answer = await _by_asyncssh(target) if target.config else {}

    def one(name: str) -> str | None:
        found = answer.get(name, [""])[0]
        return None if found.lower() in ("", "none") else found

    host = one("hostname") or target.host
    user = target.user or one("user") or _own_name()
    port = int(one("port") or target.port or SSH_PORT)
    alias = one("hostkeyalias")
    command = None if target.jump or target.via else one("proxycommand")
    jump = target.via.login if target.via else target.jump or one("proxyjump")
    tokens = {"h": host, "k": alias or target.host, "n": target.host, "p": str(port), "r": user, "%": "%"}
    if reason := why_unsafe(host, user if command or jump else ""):
        raise _config_error(target, reason)
    if command and one("proxyusefdpass") == "yes":
        raise _config_error(target, "ProxyUseFdpass is not supported: disable it for this host")
    if one("bindinterface"):
        raise _config_error(target, "BindInterface is not supported: use BindAddress")
    files = (*answer.get("identityfile", DEFAULT_KEYS), *answer.get("certificatefile", ()))
    paths = dict(zip(files, await _expand_tokens(program, target, files), strict=True))

    def own(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(paths[name] for name in names if name.lower() != "none")

    users = _paths(answer.get("userknownhostsfile", ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")))
    system = _paths(answer.get("globalknownhostsfile", ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")))
    return Route(
        host=host,
        port=port,
        user=user,
        name=alias or host,
        has_alias=bool(alias),
        jump=_replace_tokens(target, jump, tokens) if jump else None,
        known_hosts=(
            (Path(_expand_user(target.known_hosts)),)
            if target.known_hosts
            else (own_known_hosts_file(), *users, *system)
        ),
        revoked=_paths(answer.get("revokedhostkeys", ())),
        identities=tuple(map(_expand_user, target.keys)) or own(answer.get("identityfile", DEFAULT_KEYS)),
        certificates=() if target.keys else own(answer.get("certificatefile", ())),
        agent=_agent_socket(answer.get("identityagent", ["SSH_AUTH_SOCK"])[0]),
        proxy_command=_replace_tokens(target, command, tokens) if command and not jump else None,
        options={name: texts for name, texts in answer.items() if texts != defaults.get(name)},
    )


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise UsageError("This account has no name: set the login name with user@host or user=.") from error


def _replace_tokens(target: Target, text: str, tokens: Mapping[str, str]) -> str:
    def token(found: re.Match[str]) -> str:
        if found[1] not in tokens:
            raise _config_error(target, f"%{found[1]} is not a token of ProxyCommand and ProxyJump")
        return tokens[found[1]]

    return re.sub("%(.?)", token, text, flags=re.DOTALL)


def _config_error(target: Target, reason: str) -> UsageError:
    return UsageError(f"Cannot use ~/.ssh/config for host {target.host}: {reason}.")


# -- paths ---------------------------------------------------------------------------------------------------


def _expand_user(path: str) -> str:
    if path.startswith("/"):
        return path
    with convert_errors(f"The path {path} of the SSH configuration cannot be used", UsageError, RuntimeError):
        return str(Path(path).expanduser())


def _map_home(path: str) -> str:
    """Expand ``~`` in a path, or replace the account's home folder, which OpenSSH uses, by the folder ``HOME``."""
    home = _account_home()
    if home is not None and path.startswith(f"{home}/") and not _is_home(home):
        return str(Path.home() / path[len(str(home)) + 1 :])
    return _expand_user(path)


def _is_home(account: Path | None) -> bool:
    """Check whether the account's home folder is the folder ``HOME``, following links."""
    try:
        return account is not None and Path.home().samefile(account)
    except OSError:
        return Path.home() == account


def _paths(names: Sequence[str]) -> tuple[Path, ...]:
    """Split an option of `ssh -G` into paths. Spaces separate the paths, but may also be part of a path."""
    each = [name for line in names for name in re.split(" (?=[/~])", line)]
    return tuple(Path(_map_home(name)) for name in each if name.lower() != "none")


def _account_home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def _agent_socket(named: str) -> str:
    if named == "none":
        return ""
    if named == "SSH_AUTH_SOCK" or named.startswith("$"):
        return os.environ.get(named.strip("${}"), "")
    return _map_home(named)


# -- OpenSSH -------------------------------------------------------------------------------------------------


def _program() -> str | None:
    """Return the path of ``ssh``; None if it is not installed, or would fail because the user has no account.

    Relative folders of PATH are ignored, because they may belong to an untrusted project.
    """
    if _account_home() is None:
        return None
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which("ssh", path=os.pathsep.join(each for each in path if Path(each).is_absolute()))


def _command(program: str, target: Target, *options: str) -> tuple[str, ...]:
    words = [program, "-v", "-T", "-G", *options]
    if not _is_home(_account_home()):
        # Use -F only if HOME is not the account's home folder, because -F disables the system's configuration.
        file = Path("~/.ssh/config").expanduser()
        words += ["-F", str(file) if os.access(file, os.F_OK) else "none"]
    words += ["-l", target.user] if target.user else []
    words += ["-p", str(target.port)] if target.port else []
    words += ["-J", target.jump] if target.jump else []
    return (*words, "--", target.host)


async def _query_host(program: str, target: Target) -> HostOptions:
    """Return the output of `ssh -G` for a host, or for another host that provably has the same options."""
    cache, (*words, host) = _query_cache(), _command(program, target)
    flags = (_config_mtime(), *words)
    if flags not in cache.blocks:
        with suppress(UsageError, TimeoutError):  # An error of the first host must not delay the other hosts.
            async with asyncio.timeout(FIRST):
                await _run_once(cache.readings, flags, lambda: _read(flags, host))
    same = cache.blocks[flags].matching(host) if flags in cache.blocks else None
    first = host if same is None else cache.first.setdefault((*flags, same), host)
    try:
        answer = await _query((*words, first))
    except UsageError:
        if first == host:
            raise
        return await _query((*words, host))  # Query this host separately, so that an error names this host.
    own = {"host": [host]} | ({"hostname": [host]} if answer["hostname"] == [first] else {})
    return {**answer, **own}


async def _read(flags: tuple[object, ...], host: str) -> None:
    """Read the ``Host`` patterns of those configuration files that the output of `ssh -G` lists."""
    cache, words = _query_cache(), flags[1:]
    answer = await _query((*map(str, words), host))
    known = answer[FILES_READ] or "-F none" in " ".join(map(str, words))
    cache.blocks[flags] = blocks = _HostBlocks.of(answer[FILES_READ]) if known else _HostBlocks(None, set())
    cache.first.setdefault((*flags, blocks.matching(host)), host)


class _HostBlocks:
    """Lines of the SSH configuration whose effect depends on the host's name.

    Attributes:
        patterns: Patterns of all ``Host`` lines; None if other parts depend on the name, too, or a line is unclear.
        hosts: Values of ``HostName`` lines.
    """

    def __init__(self, patterns: Sequence[str] | None, hosts: set[str]) -> None:
        self.patterns = patterns
        self.hosts = hosts

    @classmethod
    def of(cls, files: Sequence[str]) -> _HostBlocks:
        patterns: list[str] = []
        hosts: set[str] = set()
        for file in files:
            try:
                lines = read_bytes(file).decode("latin-1").split("\n")
            except OSError:
                return cls(None, hosts)
            for line in lines:
                text = line.strip(" \t\r\f")
                if not text or text.startswith("#"):
                    continue
                found = re.fullmatch(r"([A-Za-z0-9]+)(?:[ \t]+|[ \t]*=[ \t]*)([^\0-\10\12-\37]*)", text)
                option, given = (found[1].lower(), found[2]) if found else ("", "")
                conditions = option in ("host", "match", "hostname")
                if (
                    not found
                    or (conditions and set("\"'\\=#") & set(given))
                    or ("%" in given and option not in UNEXPANDED)
                    or option.startswith("canonical")
                    or (option == "match" and not set(given.lower().split()) <= {"all", "final", "!final"})
                ):
                    return cls(None, hosts)
                if option == "host":
                    patterns += given.split()
                elif option == "hostname":
                    hosts.add(given.lower())
        return cls(patterns, hosts)

    def matching(self, name: str) -> tuple[bool, ...] | None:
        """Return which patterns a host name matches; None if unclear. Hosts with equal results have equal options."""
        if self.patterns is None or name in self.hosts or not re.fullmatch(PLAIN_NAME, name):
            return None
        return tuple(
            re.fullmatch(_pattern_regex(pattern), name, flags) is not None
            for pattern in self.patterns
            for flags in (re.DOTALL, re.DOTALL | re.IGNORECASE)
        )


def _pattern_regex(pattern: str) -> str:
    return re.escape(pattern.removeprefix("!")).replace(r"\*", ".*").replace(r"\?", ".")


async def _expand_tokens(program: str | None, target: Target, files: Sequence[str]) -> Sequence[str]:
    """Expand tokens and variables in file names by letting OpenSSH expand them as a ``ControlPath``."""
    if program is None or not any("%" in file or "${" in file for file in files):
        return [_expand_user(file) for file in files]
    text = "\x01".join(files).replace("\\", "\\\\").replace('"', '\\"')
    answer = await _query(_command(program, target, "-o", f'ControlPath="{text}"'))
    return [_map_home(file) for file in answer["controlpath"][0].split("\x01")]


class _QueryCache:
    """Running and answered queries to `ssh -G`, on one event loop."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(MAX_PARALLEL)
        self.began = time.monotonic()
        self.routes: dict[object, asyncio.Task[Route]] = {}
        self.answers: dict[object, asyncio.Task[HostOptions]] = {}
        self.readings: dict[object, asyncio.Task[None]] = {}
        self.blocks: dict[object, _HostBlocks] = {}
        self.first: dict[object, str] = {}


_caches: WeakKeyDictionary[asyncio.AbstractEventLoop, _QueryCache] = WeakKeyDictionary()


def _query_cache() -> _QueryCache:
    loop = asyncio.get_running_loop()
    cache = _caches.get(loop)
    if cache is None or time.monotonic() - cache.began > CACHE_LIFETIME:
        cache = _caches[loop] = _QueryCache()
    return cache


def _config_mtime() -> int:
    with suppress(OSError):
        return Path("~/.ssh/config").expanduser().stat().st_mtime_ns
    return 0


async def _resolve_cached(target: Target) -> Route:
    return await _run_once(_query_cache().routes, (_config_mtime(), target), lambda: _resolve(target))


async def _query(command: tuple[str, ...]) -> HostOptions:
    """Run `ssh -G` unless its answer is cached, and return its output.

    Raises:
        UsageError: If the command fails or times out.
    """
    cache = _query_cache()
    return await _run_once(cache.answers, (_config_mtime(), *command), lambda: _run(command, cache.gate))


async def _run_once(
    tasks: dict[object, asyncio.Task[T]], question: object, ask: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Return the answer to a query, which concurrent callers share. The next caller repeats a failed query."""
    answer = tasks.get(question)
    if answer is None or (answer.done() and (answer.cancelled() or answer.exception())):
        answer = tasks[question] = asyncio.create_task(ask())
        # Retrieve the exception, so that asyncio does not log it if all callers were cancelled.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(answer)


async def _run(command: Sequence[str], gate: asyncio.Semaphore) -> HostOptions:
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    async with gate:
        # Do not read the output to its end, because a command of `Match exec` may keep it open.
        read_end, errors = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(errors, False)
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=nothing, stdout=pipe, stderr=errors, start_new_session=True
                )
            finally:
                os.close(errors)
            output = await _read_output(process)
            if output is None:
                raise _query_error(command, f"no answer within {ANSWER:g} s (does a `Match exec` hang?)")
            log = ""
            with suppress(BlockingIOError):
                log = os.read(read_end, MAX_ANSWER_SIZE).decode("utf-8", "replace")
            if process.returncode:
                words = " ".join(line for line in log.split("\n") if not line.startswith(DEBUG_PREFIXES))
                raise _query_error(
                    command, sanitize_line(" ".join(words.split())) or f"exit status {process.returncode}"
                )
        except OSError as error:
            raise _query_error(command, error.strerror or str(error)) from error
        finally:
            os.close(read_end)
    found: dict[str, list[str]] = {
        FILES_READ: re.findall(r"^debug1: Reading configuration data (.*?)\r?$", log, re.MULTILINE)
    }
    for line in output.decode("utf-8", "surrogateescape").split("\n"):
        name, _, text = line.partition(" ")
        if name:
            found.setdefault(name.lower(), []).append(text)
    return found


async def _read_output(process: asyncio.subprocess.Process) -> bytes | None:
    """Return a process's output; None if the process takes too long or prints too much."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(ANSWER):
            try:
                await process.stdout.readexactly(MAX_ANSWER_SIZE)
            except asyncio.IncompleteReadError as error:
                await process.wait()
                return error.partial
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return None


def _query_error(command: Sequence[str], reason: str) -> UsageError:
    return UsageError(f"Cannot use ~/.ssh/config for host {command[-1]}: `ssh -G` failed: {reason:.500}")


def configured_hosts() -> list[str]:
    """Return the names of hosts in ``~/.ssh/config`` and in the files that it includes, without patterns.

    Unreadable files are left out, and so are the pools that :func:`write_pool_config` has added.
    """
    folder, own = Path("~/.ssh").expanduser(), state_folder.state_home()
    files, found = [folder / "config"], dict[str, None]()
    for file in files:  # included files are appended to the list
        with suppress(OSError):
            for line in read_text(file, "latin-1").splitlines():
                option, *words = re.split(r"[\s=]+", line.strip().replace('"', ""))
                if option.lower() == "host":
                    found |= dict.fromkeys(word for word in words if re.fullmatch(r"[\w.:-]+", word, re.ASCII))
                for word in words if option.lower() == "include" else ():
                    paths = sorted(Path("/").glob(str(folder / Path(word).expanduser())[1:]))
                    files += [path for path in paths if path not in files and own not in path.parents][:MAX_INCLUDED]
    return list(found)


# -- asyncssh ------------------------------------------------------------------------------------------------


async def _by_asyncssh(target: Target) -> HostOptions:
    """Return a host's options as read by asyncssh, for machines without the ``ssh`` program."""
    files = [file for file in (Path("~/.ssh/config").expanduser(), SYSTEM_CONFIG) if file.exists()]
    try:
        return await _read_config(files, target.host, target.user, target.port)
    except (ValueError, OSError, RecursionError) as error:
        reason = "it includes itself" if isinstance(error, RecursionError) else error
        raise _config_error(target, f"{reason}. Install the ssh program, which supports all options") from error


async def _read_config(files: Sequence[Path], host: str, user: str | None, port: int | None) -> dict[str, list[str]]:
    """Read a host's options with asyncssh, and return them in the format of `ssh -G`.

    Raises:
        ValueError: If the files are invalid, or asyncssh cannot evaluate them.
        OSError: If the files cannot be read.
    """
    # imported late, because asyncssh is slow to import and only needed without the ssh program
    from skyward_core.transport.ssh.asyncssh_patches import asyncssh

    arguments: dict[str, Any] = {} if user is None else {"username": user}
    if port is not None:
        arguments["port"] = port
    options = await asyncssh.SSHClientConnectionOptions.construct(
        host=host, config=[*files], client_keys=None, known_hosts=b"", x509_trusted_certs=None, **arguments
    )
    found = {name.lower(): _option_texts(given) for name, given in options.config.get_options(False).items()}
    if found.get("canonicalizehostname", ["no"]) != ["no"]:
        raise ValueError("CanonicalizeHostname is not supported")
    # asyncssh has already replaced the tokens, so escape percent signs.
    found |= {"proxycommand": [text.replace("%", "%%") for text in found.get("proxycommand", ["none"])]}
    return found


def _option_texts(given: Any) -> list[str]:
    if isinstance(given, bool):
        return ["yes" if given else "no"]
    if isinstance(given, socket.AddressFamily):
        return [{socket.AF_INET: "inet", socket.AF_INET6: "inet6"}.get(given, "any")]
    if isinstance(given, tuple):  # asyncssh returns RekeyLimit as a tuple.
        return [" ".join(part or "0" for part in given)]
    return [*given] or ["none"] if isinstance(given, list) else ["none" if given is None else str(given)]


CONNECT_TIMEOUT = 15.0


class PreopenedSockets:
    """TCP connections that are opened in advance, to hosts without jump hosts and proxy commands.

    Args:
        targets: The hosts.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._sockets: dict[Target, asyncio.Task[socket.socket | None]] = {}

    async def open(self) -> None:
        """Start to connect to the hosts in the background."""
        for target in self._targets:
            self._sockets[target] = asyncio.create_task(_dial(target))

    async def claim(self, target: Target) -> socket.socket | None:
        """Return the TCP connection to a host, which then belongs to the caller; None if there is none.

        Raises:
            OSError: If the host cannot be reached.
            UsageError: As in :func:`resolve`.
        """
        if target not in self._sockets:
            return None
        found = await self._sockets[target]
        del self._sockets[target]
        return found

    async def close(self) -> None:
        """Close the connections that no caller has claimed."""
        for task in self._sockets.values():
            task.cancel()
        for found in await asyncio.gather(*self._sockets.values(), return_exceptions=True):
            if isinstance(found, socket.socket):
                found.close()
        self._sockets.clear()


async def _dial(target: Target) -> socket.socket | None:
    """Open a TCP connection to a host. Return None if its route needs more, such as a jump host or a proxy command."""
    route = await resolve(target)
    if route.jump or route.proxy_command or route.option("addressfamily") or route.option("bindaddress"):
        return None
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    async with asyncio.timeout(CONNECT_TIMEOUT):
        # Encode ASCII names here: getaddrinfo() would load the tables for IDNA, which takes as long as a key exchange.
        host = route.host.encode() if route.host.isascii() else route.host
        for family, kind, protocol, _, address in await loop.getaddrinfo(host, route.port, type=socket.SOCK_STREAM):
            found = socket.socket(family, kind, protocol)
            try:
                found.setblocking(False)
                await loop.sock_connect(found, address)
            except OSError as error:
                found.close()
                failure = error
            except BaseException:
                found.close()
                raise
            else:
                return found
    raise failure or OSError(f"{route.host} has no address")


# -- export of pools for plain ``ssh POOL`` and ``ssh POOL-1`` -----------------------------------------------
#
# Each pool has its own configuration file for ssh. One main file includes the files of all pools. On request, a line
# that includes the main file is added to the user's ``~/.ssh/config``. All options of a host are written out, because
# OpenSSH does not resolve the user's aliases a second time.


def main_file() -> Path:
    """Return the path of the main configuration file, which includes the files of all pools."""
    return state_folder.state_home() / "ssh_config"


def include_line() -> str:
    """Return the line that includes the main file, for the top of the user's ``~/.ssh/config``."""
    return f"Include {_quoted(str(main_file()))}"


async def write_pool_config(pool: str, targets: Sequence[Target]) -> Path:
    """Write the SSH configuration of a pool's nodes: ``POOL`` is node 0, ``POOL-1`` is node 1, and so on.

    SkyPilot's names, such as ``POOL-worker1`` for node 1, are aliases.

    Returns:
        File for ``ssh -F``, with these entries and the user's own.

    Raises:
        UsageError: If ``~/.ssh/config`` is invalid.
        OSError: If a file cannot be written.
    """
    entries = [await _exported_block(pool, node, target) for node, target in enumerate(targets)]
    folder = state_folder.state_home() / "ssh_config.d"
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomic(folder / f"{pool}.conf", "\n".join(entries).encode())
    write_atomic(main_file(), f"Include {_quoted(f'{folder}/*.conf')}\n".encode())
    whole = state_folder.state_home() / "ssh_config.whole"
    user = _quoted(str(Path("~/.ssh/config").expanduser()))
    write_atomic(whole, f"{include_line()}\nInclude {user}\nInclude {SYSTEM_CONFIG}\n".encode())
    return whole


def remove_pool_config(pool: str) -> None:
    """Delete the SSH configuration of a pool's nodes."""
    (state_folder.state_home() / "ssh_config.d" / f"{pool}.conf").unlink(missing_ok=True)


def add_include_line() -> bool:
    """Add :func:`include_line` at the top of the user's ``~/.ssh/config``; return False if it contains the line
    already.
    """
    file = Path("~/.ssh/config").expanduser()
    text = read_text(file) if exists(file) else ""
    if include_line() in text.splitlines():
        return False
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_atomic(file.resolve(), f"{include_line()}\n\n{text}".encode())
    return True


async def _exported_block(pool: str, node: int, target: Target) -> str:
    route = await resolve(target)
    names = f"{pool} {pool}-{node}" if node == 0 else f"{pool}-{node} {pool}-worker{node}"
    lines = [f"HostName {route.host}", f"Port {route.port}", f"User {_quoted(route.user)}"]
    lines += [f"HostKeyAlias {route.name}"] if route.has_alias else []
    lines += [f"IdentityFile {_file(file)}" for file in route.identities]
    lines += [f"CertificateFile {_file(file)}" for file in route.certificates]
    if agent := route.option("identityagent"):
        lines.append(f"IdentityAgent {agent if agent.startswith('$') else _file(agent)}")
    lines += [f"IdentitiesOnly {route.option('identitiesonly')}"] if route.option("identitiesonly") else []
    lines.append("UserKnownHostsFile " + " ".join(_file(str(file)) for file in route.known_hosts))
    lines += [f"RevokedHostKeys {_file(str(file))}" for file in route.revoked]
    lines.append("StrictHostKeyChecking yes")
    if route.jump:
        lines.append(f"ProxyJump {route.jump}")
    elif route.proxy_command:
        lines.append(f"ProxyCommand {route.proxy_command.replace('%', '%%')}")
    return f"Host {names}\n" + "".join(f"  {line}\n" for line in lines)


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text


def _file(name: str) -> str:
    return _quoted(name.replace("%", "%%"))
