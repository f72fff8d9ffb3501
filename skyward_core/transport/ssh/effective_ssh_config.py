"""Options of a host as OpenSSH resolves them (ssh -G); limits on simultaneous logins.

Nothing here imports asyncssh unless there is no ``ssh``: hosts are dialled before it is imported.
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

from skyward_core.model.errors import UsageError
from skyward_core.store import state_folder
from skyward_core.transport.ssh.host_address import SSH_PORT, Target, why_unsafe
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.util.user_files import read_bytes

ANSWER = 10.0  # seconds for one `ssh -G`: it runs the commands of `Match exec`
FIRST = 1.0  # seconds that others wait for the first answer, which may spare their own
MAX_ANSWER_SIZE = 1 << 18  # bytes of its answer
MAX_PARALLEL = 8
# Seconds that an answer counts: a command's connections share it, a later one sees a changed network.
CACHE_LIFETIME = 60.0
MOST_JUMPS = 16
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
DEFAULT_KEYS = tuple(
    f"~/.ssh/id_{kind}" for kind in ("ed25519_sk", "ecdsa_sk", "ed448", "ed25519", "ecdsa", "rsa", "dsa")
)

UNEXPANDED = ("proxycommand", "proxyjump", "identityfile", "certificatefile", "controlpath", "remotecommand")
PLAIN_NAME = r"[a-z][a-z0-9.-]*|(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})"  # as it is in `hostname`, too
DEBUG_PREFIXES = ("debug", "OpenSSH_", "Pseudo-terminal")  # lines of `ssh -v` that tell nothing of a failure
FILES_READ = "files read"  # beside the options: the files that were read

T = TypeVar("T")
HostOptions = Mapping[str, Sequence[str]]  # options by their names in lower case, as `ssh -G` prints them


@value
class Route(Value):
    """The way to a target by the SSH configuration.

    Attributes:
        name: what known_hosts files know the host by.
        has_alias: whether that is a ``HostKeyAlias``.
        jump: the jump hosts, the last one last, as ``ssh -J`` takes them.
        revoked: files of keys that no host may show.
        identities: files of private keys, or of public ones whose private keys the ssh-agent has.
        certificates: files of certificates; without any, those beside the keys count.
        agent: the ssh-agent's socket; "" for none.
        proxy_command: a command line whose tokens are replaced.
        options: other options that are not as OpenSSH has them by default.
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
        return f"{self.user}@{self.host}:{self.port}"

    @property
    def known_port(self) -> int:
        """The port that known_hosts files know the host by: with an alias they go by none."""
        return SSH_PORT if self.has_alias else self.port

    def option(self, name: str) -> str:
        """Return an option that is not as it is by default; "" for one that is."""
        return " ".join(self.options.get(name, ()))


def own_known_hosts_file() -> Path:
    """Return the known_hosts file in which accepted keys are kept."""
    return state_folder.state_home() / "known_hosts"


async def resolve(target: Target) -> Route:
    """Return the way to a host.

    Raises:
        UsageError: If the configuration cannot be used, a name in it is unsafe, the jump hosts lead back to
            themselves, or the user has no name.
    """
    chain, route = [target], await _resolve_cached(target)
    last = route
    while last.jump:
        hop = jump_target(chain[-1], last.jump)
        if hop in chain or len(chain) > MOST_JUMPS:
            ways = " -> ".join(each.login for each in (*chain, hop))
            raise UsageError(
                f"Host {target.host} cannot be reached: its jump hosts lead back to themselves ({ways:.300}). Exclude "
                "the jump host from its own ProxyJump: `Host * !JUMPHOST` in ~/.ssh/config."
            )
        chain.append(hop)
        last = await _resolve_cached(hop)
    return route


def jump_target(target: Target, jump: str) -> Target:
    """Return the last of a target's jump hosts, which is reached through the others."""
    if target.via is not None:
        return target.via
    before, _, last = jump.rpartition(",")
    return replace(target, user=None, port=None, jump=before or None).with_host(last)


async def _resolve(target: Target) -> Route:
    program = _program() if target.config else None
    usual: HostOptions = {}
    if program is not None:
        about = asyncio.ensure_future(_query_host(program, target))
        usually = asyncio.ensure_future(_query((program, "-T", "-G", "-F", "none", "--", "localhost")))
        await asyncio.wait([about, usually])  # asyncio hangs if a process is given up while it starts
        usually.exception()  # retrieved, even if both have failed
        said, usual = about.result(), usually.result()
    else:
        said = await _by_asyncssh(target) if target.config else {}

    def one(name: str) -> str | None:
        found = said.get(name, [""])[0]
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
        raise _config_error(target, "ProxyUseFdpass is not supported, leave it out for this host")
    if one("bindinterface"):
        raise _config_error(target, "BindInterface is not supported, use BindAddress")
    files = (*said.get("identityfile", DEFAULT_KEYS), *said.get("certificatefile", ()))
    paths = dict(zip(files, await _expand_tokens(program, target, files), strict=True))

    def own(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(paths[name] for name in names if name.lower() != "none")

    users = _paths(said.get("userknownhostsfile", USER_KNOWN_HOSTS))
    system = _paths(said.get("globalknownhostsfile", SYSTEM_KNOWN_HOSTS))
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
        revoked=_paths(said.get("revokedhostkeys", ())),
        identities=tuple(map(_expand_user, target.keys)) or own(said.get("identityfile", DEFAULT_KEYS)),
        certificates=() if target.keys else own(said.get("certificatefile", ())),
        agent=_agent_socket(said.get("identityagent", ["SSH_AUTH_SOCK"])[0]),
        proxy_command=_replace_tokens(target, command, tokens) if command and not jump else None,
        options={name: given for name, given in said.items() if given != usual.get(name)},
    )


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise UsageError("This account has no name: name the user to log in as, user@host or user=.") from error


def _replace_tokens(target: Target, text: str, tokens: Mapping[str, str]) -> str:
    def token(found: re.Match[str]) -> str:
        if found[1] not in tokens:
            raise _config_error(target, f"%{found[1]} is not a token of ProxyCommand and ProxyJump")
        return tokens[found[1]]

    return re.sub("%(.?)", token, text, flags=re.DOTALL)


def _config_error(target: Target, reason: str) -> UsageError:
    return UsageError(f"~/.ssh/config cannot be used for host {target.host}: {reason}.")


# -- paths ---------------------------------------------------------------------------------------------------


def _expand_user(path: str) -> str:
    try:
        return str(Path(path).expanduser())
    except RuntimeError as error:
        raise UsageError(f"The path {path} of the SSH configuration cannot be used: {error}") from error


def _map_home(path: str) -> str:
    """Return a path that OpenSSH has expanded, by the account's home folder, as one below ``HOME``."""
    there = _account_home()
    if there is not None and path.startswith(f"{there}/") and not _is_home(there):
        return str(Path.home() / path[len(str(there)) + 1 :])
    return _expand_user(path)


def _is_home(account: Path | None) -> bool:
    """Return whether ``HOME`` is the account's home folder, whichever links lead there."""
    try:
        return account is not None and Path.home().samefile(account)
    except OSError:
        return Path.home() == account


def _paths(names: Sequence[str]) -> tuple[Path, ...]:
    """Return files of a list; a line of `ssh -G` separates them by spaces, which names may hold too."""
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
    """Return the ``ssh`` to ask; None if there is none, or if it would refuse a user without an account.

    A relative folder of PATH may be one of the project's, from which nothing is run.
    """
    if _account_home() is None:
        return None
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which("ssh", path=os.pathsep.join(each for each in path if Path(each).is_absolute()))


def _command(program: str, target: Target, *options: str) -> tuple[str, ...]:
    words = [program, "-v", "-T", "-G", *options]
    if not _is_home(_account_home()):  # else without, as `-F` leaves the system's configuration out
        file = Path("~/.ssh/config").expanduser()
        words += ["-F", str(file) if os.access(file, os.F_OK) else "none"]
    words += ["-l", target.user] if target.user else []
    words += ["-p", str(target.port)] if target.port else []
    words += ["-J", target.jump] if target.jump else []
    return (*words, "--", target.host)


async def _query_host(program: str, target: Target) -> HostOptions:
    """Return what `ssh -G` prints of a host, or of another one for which it provably prints the same."""
    asking, (*words, host) = _query_cache(), _command(program, target)
    flags = (_config_mtime(), *words)
    if flags not in asking.blocks:
        with suppress(UsageError, TimeoutError):  # of one host, in whose place the others do not wait
            async with asyncio.timeout(FIRST):
                await _run_once(asking.readings, flags, lambda: _read(flags, host))
    same = asking.blocks[flags].matching(host) if flags in asking.blocks else None
    first = host if same is None else asking.first.setdefault((*flags, same), host)
    try:
        said = await _query((*words, first))
    except UsageError:
        if first == host:
            raise
        return await _query((*words, host))  # whose name the error has
    own = {"host": [host]} | ({"hostname": [host]} if said["hostname"] == [first] else {})
    return {**said, **own}


async def _read(flags: tuple[object, ...], host: str) -> None:
    """Look into the files that the answer about a host names."""
    asking, words = _query_cache(), flags[1:]
    said = await _query((*map(str, words), host))
    known = said[FILES_READ] or "-F none" in " ".join(map(str, words))
    asking.blocks[flags] = blocks = _HostBlocks.of(said[FILES_READ]) if known else _HostBlocks(None, set())
    asking.first.setdefault((*flags, blocks.matching(host)), host)


class _HostBlocks:
    """The parts of the configuration that depend on a host's name.

    Attributes:
        patterns: Patterns of all ``Host`` lines; None if more than these depends on the name, or a line is unclear.
        hosts: What ``HostName`` lines name.
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
        """Return which patterns a name matches: names that match the same ones have the same options. None if that is
        not certain."""
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
    """Return names of files with tokens and variables replaced: by OpenSSH, for which they are a ``ControlPath``."""
    if program is None or not any("%" in file or "${" in file for file in files):
        return [_expand_user(file) for file in files]
    text = "\x01".join(files).replace("\\", "\\\\").replace('"', '\\"')
    said = await _query(_command(program, target, "-o", f'ControlPath="{text}"'))
    return [_map_home(file) for file in said["controlpath"][0].split("\x01")]


class _QueryCache:
    """Questions to `ssh -G` on one loop, and their answers."""

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
    asking = _caches.get(loop)
    if asking is None or time.monotonic() - asking.began > CACHE_LIFETIME:
        asking = _caches[loop] = _QueryCache()
    return asking


def _config_mtime() -> int:
    with suppress(OSError):
        return Path("~/.ssh/config").expanduser().stat().st_mtime_ns
    return 0


async def _resolve_cached(target: Target) -> Route:
    return await _run_once(_query_cache().routes, (_config_mtime(), target), lambda: _resolve(target))


async def _query(command: tuple[str, ...]) -> HostOptions:
    """Return what `ssh -G` prints.

    Raises:
        UsageError: If it fails, or gives no answer in time.
    """
    asking = _query_cache()
    return await _run_once(asking.answers, (_config_mtime(), *command), lambda: _run(command, asking.gate))


async def _run_once(
    kept: dict[object, asyncio.Task[T]], question: object, ask: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Return an answer that others may have asked for, too; what has failed is asked again."""
    answer = kept.get(question)
    if answer is None or (answer.done() and (answer.cancelled() or answer.exception())):
        answer = kept[question] = asyncio.create_task(ask())
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # all may have stopped waiting
    return await asyncio.shield(answer)


async def _run(command: Sequence[str], gate: asyncio.Semaphore) -> HostOptions:
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    async with gate:
        heard, errors = os.pipe()  # of which nobody waits for the end: a command of `Match exec` may keep it
        os.set_blocking(heard, False)
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
                raise _query_error(command, f"it gave no answer within {ANSWER:g} s (does a `Match exec` hang?)")
            said = ""
            with suppress(BlockingIOError):
                said = os.read(heard, MAX_ANSWER_SIZE).decode("utf-8", "replace")
            if process.returncode:
                words = " ".join(line for line in said.split("\n") if not line.startswith(DEBUG_PREFIXES))
                raise _query_error(
                    command, sanitize_line(" ".join(words.split())) or f"it ended with {process.returncode}"
                )
        except OSError as error:
            raise _query_error(command, error.strerror or str(error)) from error
        finally:
            os.close(heard)
    found: dict[str, list[str]] = {
        FILES_READ: re.findall(r"^debug1: Reading configuration data (.*?)\r?$", said, re.MULTILINE)
    }
    for line in output.decode("utf-8", "surrogateescape").split("\n"):
        name, _, given = line.partition(" ")
        if name:
            found.setdefault(name.lower(), []).append(given)
    return found


async def _read_output(process: asyncio.subprocess.Process) -> bytes | None:
    """Return what a process prints until it has ended; None if that takes too long, or is too much."""
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
    return UsageError(f"~/.ssh/config cannot be used for host {command[-1]}: `ssh -G` fails: {reason:.500}")


# -- asyncssh ------------------------------------------------------------------------------------------------


async def _by_asyncssh(target: Target) -> HostOptions:
    """Return the same as far as asyncssh reads it."""
    files = [file for file in (Path("~/.ssh/config").expanduser(), SYSTEM_CONFIG) if file.exists()]
    try:
        return await _read_config(files, target.host, target.user, target.port)
    except (ValueError, OSError, RecursionError) as error:
        reason = "it includes itself" if isinstance(error, RecursionError) else error
        raise _config_error(target, f"{reason}; there is no ssh program, which could read all of it") from error


async def _read_config(files: Sequence[Path], host: str, user: str | None, port: int | None) -> dict[str, list[str]]:
    """Return the options of a host, by their names in lower case, as `ssh -G` prints them.

    Raises:
        ValueError: If the files cannot be parsed, or asyncssh cannot evaluate them.
        OSError: If they cannot be read.
    """
    from skyward_core.transport.ssh.asyncssh_import import asyncssh  # late, see the module

    asked: dict[str, Any] = {} if user is None else {"username": user}
    if port is not None:
        asked["port"] = port
    options = await asyncssh.SSHClientConnectionOptions.construct(
        host=host, config=[*files], client_keys=None, known_hosts=b"", x509_trusted_certs=None, **asked
    )
    found = {name.lower(): _option_texts(given) for name, given in options.config.get_options(False).items()}
    if found.get("canonicalizehostname", ["no"]) != ["no"]:
        raise ValueError("CanonicalizeHostname is not supported")
    # Its tokens are replaced already.
    found |= {"proxycommand": [text.replace("%", "%%") for text in found.get("proxycommand", ["none"])]}
    return found


def _option_texts(given: Any) -> list[str]:
    if isinstance(given, bool):
        return ["yes" if given else "no"]
    if isinstance(given, socket.AddressFamily):
        return [{socket.AF_INET: "inet", socket.AF_INET6: "inet6"}.get(given, "any")]
    if isinstance(given, tuple):  # RekeyLimit
        return [" ".join(part or "0" for part in given)]
    return [*given] or ["none"] if isinstance(given, list) else ["none" if given is None else str(given)]


CONNECT_TIMEOUT = 15.0


class PreopenedSockets:
    """Connections to those of some hosts that nothing but TCP leads to.

    Args:
        targets: the hosts.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._sockets: dict[Target, asyncio.Task[socket.socket | None]] = {}

    async def open(self) -> None:
        """Begin to connect."""
        for target in self._targets:
            self._sockets[target] = asyncio.create_task(_dial(target))

    async def claim(self, target: Target) -> socket.socket | None:
        """The connection to a host, which is the caller's from now on; None if nobody opened one.

        Raises:
            OSError: the host was not reached.
            UsageError: as of :func:`resolve`.
        """
        if target not in self._sockets:
            return None
        found = await self._sockets[target]
        del self._sockets[target]
        return found

    async def close(self) -> None:
        """Close those that nobody has taken."""
        for task in self._sockets.values():
            task.cancel()
        for found in await asyncio.gather(*self._sockets.values(), return_exceptions=True):
            if isinstance(found, socket.socket):
                found.close()
        self._sockets.clear()


async def _dial(target: Target) -> socket.socket | None:
    """Connect to a host that nothing but TCP leads to, to no other address family, and from no other address."""
    route = await resolve(target)
    if route.jump or route.proxy_command or route.option("addressfamily") or route.option("bindaddress"):
        return None
    loop = asyncio.get_running_loop()
    trouble: OSError | None = None
    async with asyncio.timeout(CONNECT_TIMEOUT):
        # Names of plain letters need no encoding, whose tables take as long to load as a key exchange.
        host = route.host.encode() if route.host.isascii() else route.host
        places = await loop.getaddrinfo(host, route.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in places:
            found = socket.socket(family, kind, protocol)
            try:
                found.setblocking(False)
                await loop.sock_connect(found, address)
            except OSError as error:
                found.close()
                trouble = error
            except BaseException:
                found.close()
                raise
            else:
                return found
    raise trouble or OSError(f"{route.host} has no address")
