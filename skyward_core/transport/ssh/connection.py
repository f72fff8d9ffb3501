"""SSH connection to a host: routes through jump hosts, keep-alive, and errors with their cause and remedy."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from skyward_core.model.errors import (
    CredentialsRefused,
    PoolError,
    SkywardError,
    Unreachable,
    UsageError,
    error_message,
)
from skyward_core.store.debug_log import get_logger
from skyward_core.transport.ssh import host_key_prompt, known_hosts
from skyward_core.transport.ssh.asyncssh_patches import (
    asyncssh,
    get_certificate_algs,
    get_encryption_algs,
    get_kex_algs,
    get_mac_algs,
    get_public_key_algs,
)
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import (
    CONNECT_TIMEOUT,
    PreopenedSockets,
    Route,
    jump_target,
    resolve,
)
from skyward_core.util.safe_file_access import UnusableFile
from skyward_core.util.terminal_safe_text import sanitize_line

T = TypeVar("T")

# Seconds within which a host's kernel must acknowledge sent data, even on an idle connection. A lost host must be
# detected within five seconds, including a check from another host. A false alarm only costs a reconnection.
SILENCE = 2.5
_LIMITS = {
    "TCP_KEEPIDLE": 1,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": int(SILENCE * 1000),
}

ANSWER_TIMEOUT = "SKYWARD_ANSWER_TIMEOUT"  # environment variable with the seconds for which a host may be silent
# seconds that a host may be silent, by default and at least; a working host sends a byte every second
DEFAULT_TIMEOUT, LEAST_TIMEOUT = 10.0, 2.0
MAX_REASON = 300  # maximum characters of a host's text in an error message


def enable_keepalive(sock: socket.socket) -> None:
    """Make the kernel close a connection whose peer has not answered for :data:`SILENCE` seconds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, limit in _LIMITS.items():
        if hasattr(socket, name):  # macOS, for example, lacks some of these socket options.
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), limit)


def answer_timeout() -> float:
    """Return the maximum seconds for which a host may be silent while the client waits for an answer.

    Raises:
        UsageError: If ``SKYWARD_ANSWER_TIMEOUT`` is not a valid number.
    """
    text = os.environ.get(ANSWER_TIMEOUT, "")
    try:
        seconds = float(text or DEFAULT_TIMEOUT)
    except ValueError:
        seconds = math.nan
    if not LEAST_TIMEOUT <= seconds < math.inf:
        raise UsageError(
            f"{ANSWER_TIMEOUT}={text!r} is not valid: set it to a number of seconds, at least {LEAST_TIMEOUT:g}."
        )
    return seconds


class AnswerWait:
    """Record of when a host last sent a byte, for limits on the silence of the host.

    Attributes:
        heard_at: Time of the last byte, or of the start of the wait (monotonic clock).
    """

    heard_at = 0.0

    async def wait_within(self, seconds: float, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait for a host's answer as long as the host does not stop sending.

        Args:
            seconds: Longest time without a byte.
            wait: Starts the wait; called again after bytes that did not complete the answer.

        Raises:
            TimeoutError: If no byte arrives for that long.
        """
        self.heard_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(max(0.0, self.heard_at + seconds - time.monotonic())):
                    return await wait()
            except TimeoutError:
                if time.monotonic() >= self.heard_at + seconds:
                    raise


class LoginRecord:
    """Facts about one login attempt that asyncssh's errors do not contain.

    Attributes:
        failures: Number of rejected requests. The first request contains no key.
        methods: Login methods that the last rejection names.
        accepted: Whether the host accepted a key, and then required another method.
        unsigned: Problem of the ssh-agent with a signature that it was asked for, or "".
        problems: Other problems of the ssh-agent, and problems of certificates.
        silent_agent: Description of an ssh-agent that does not answer, or "".
        proxy_output: End of the proxy command's error output.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.methods: tuple[str, ...] = ()
        self.accepted = False
        self.problems: list[str] = []
        self.unsigned = self.silent_agent = self.proxy_output = ""

    def watch(self, conn: asyncssh.SSHClientConnection) -> None:
        """Record the login requests that the host rejects on a connection."""
        handle = conn._packet_handlers[asyncssh.MSG_USERAUTH_FAILURE]

        def record(owner: Any, kind: int, number: int, packet: Any) -> Any:
            fields = copy(packet)
            self.methods = tuple(each.decode("ascii", "replace") for each in fields.get_namelist())
            self.accepted = fields.get_boolean() or self.accepted
            self.failures += 1
            return handle(owner, kind, number, packet)

        conn._packet_handlers = {**conn._packet_handlers, asyncssh.MSG_USERAUTH_FAILURE: record}


class LoginFailure(NamedTuple):
    """One kind of failed login, with the message and the error class for it.

    Attributes:
        name: Name of the kind.
        applies: Checks whether an error, with the record of its attempt, is of this kind.
        text: Message, with the fields of :func:`connect_error`.
        error: Class of the error.
        retry: Whether the same attempt may succeed a little later.
    """

    name: str
    applies: Callable[[Exception, LoginRecord], bool]
    text: str
    error: type[PoolError] = Unreachable
    retry: bool = False


def _is_any(*kinds: type[Exception]) -> Callable[[Exception, LoginRecord], bool]:
    return lambda error, login: isinstance(error, kinds)


def _is_unsigned(error: Exception, login: LoginRecord) -> bool:
    return bool(login.unsigned) and isinstance(
        error, asyncssh.PermissionDenied | asyncssh.ConnectionLost | TimeoutError
    )


def _has_too_many_failures(error: Exception, login: LoginRecord) -> bool:
    # OpenSSH sends this reason when it rejects a login. Other servers only close the connection.
    closed = isinstance(error, asyncssh.ConnectionLost) and login.failures > SILENT_LIMIT
    return closed or (isinstance(error, asyncssh.DisconnectError) and "too many auth" in str(error).lower())


def _forbids_forwarding(error: Exception, login: LoginRecord) -> bool:
    codes = (asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, asyncssh.OPEN_UNKNOWN_CHANNEL_TYPE)
    through_channel = isinstance(error, asyncssh.ChannelOpenError) and error.code in codes
    return through_channel or "administratively prohibited" in login.proxy_output


def _is_denied_address(error: Exception, login: LoginRecord) -> bool:
    return isinstance(error, asyncssh.DisconnectError) and error.code == asyncssh.DISC_HOST_NOT_ALLOWED_TO_CONNECT


# If a host closes the connection after more rejected login requests than this, its limit (MaxAuthTries) is the likely
# reason. After fewer requests, the connection may have broken before the client offered a key that the host accepts.
SILENT_LIMIT = 3
_NAME = (
    "Host {target}: its name {name!r} cannot be resolved ({reason}). Check the spelling, your name service, or use "
    "its address (or HostName in ~/.ssh/config)."
)
_NO_SERVER = "{host} cannot be used: {reason}. Check that an SSH server listens on port {port}, and its algorithms."
# Kinds of failed logins; the first one that applies counts. asyncssh raises more exception types than its own errors
# and OSError: ValueError for an unusable option, UnicodeError for a name, and any error of key files, agents or
# proxies. All of these errors concern a single host.
LOGIN_FAILURES = (
    LoginFailure(
        "impossible name",
        lambda error, login: isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError),
        _NAME,
    ),
    LoginFailure(
        "busy name service",
        lambda error, login: isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN,
        _NAME,
        retry=True,
    ),
    LoginFailure("unknown name", _is_any(socket.gaierror), _NAME),
    LoginFailure(
        "unsigned by agent",
        _is_unsigned,
        "{host} accepts a key, but {unsigned}. Unlock the ssh-agent, confirm its prompt, or set keys= to a key file.",
        CredentialsRefused,
    ),
    LoginFailure(
        "second factor",
        lambda error, login: login.accepted and isinstance(error, asyncssh.PermissionDenied),
        "{host} accepts a key of user {user!r}, but then requires {methods}, and nothing here enters a password or "
        "second factor. Allow the key alone in its sshd_config (AuthenticationMethods publickey), or choose another "
        "user.",
        CredentialsRefused,
    ),
    LoginFailure(
        "too many keys",
        _has_too_many_failures,
        "{host} ended the login of user {user!r} after {rejected} rejected keys (MaxAuthTries). Name the right key: "
        "set keys=, or IdentityFile and `IdentitiesOnly yes` in ~/.ssh/config, so that the keys of your ssh-agent do "
        "not precede it.",
        CredentialsRefused,
    ),
    LoginFailure(
        "no key logins",
        lambda error, login: (
            isinstance(error, asyncssh.PermissionDenied) and bool(login.methods) and "publickey" not in login.methods
        ),
        "{host} accepts no keys for user {user!r}, only {methods}. Enable PubkeyAuthentication in its sshd_config, or "
        "choose another user.",
        CredentialsRefused,
    ),
    LoginFailure(
        "rejected keys",
        _is_any(asyncssh.PermissionDenied, asyncssh.IllegalUserName),
        "{host} rejects all keys offered for user {user!r} (tried: {keys}). Put your public key into its "
        "~/.ssh/authorized_keys (ssh-copy-id), or choose the right user or key: SSH(user=, keys=), `run --set "
        "keys=PATH` in a shell, or IdentityFile in ~/.ssh/config. `{ssh}` must work without a password. "
        "Add a key with a passphrase to your ssh-agent (ssh-add).",
        CredentialsRefused,
    ),
    LoginFailure(
        "forbidden forwarding",
        _forbids_forwarding,
        "{host} cannot be reached: the jump host forbids forwarding to it. Allow it in the jump host's sshd_config "
        "(AllowTcpForwarding, PermitOpen), or use another jump host.",
    ),
    LoginFailure(
        "unreachable from jump host",
        _is_any(asyncssh.ChannelOpenError),
        "{host} cannot be reached from the jump host: {reason}. Check the name and port there.",
        retry=True,
    ),
    LoginFailure(
        "refused address",
        _is_denied_address,
        "{host} does not accept connections from this address ({reason}). Allow the address on the host.",
    ),
    LoginFailure("no common algorithms", _is_any(asyncssh.KeyExchangeFailed), _NO_SERVER),
    LoginFailure("no SSH server", _is_any(asyncssh.ProtocolNotSupported, asyncssh.ProtocolError), _NO_SERVER),
    LoginFailure(
        "refused connection",
        _is_any(ConnectionRefusedError),
        "{host} refuses the connection: the host is up, but no SSH server listens on port {port}.",
        retry=True,
    ),
    LoginFailure(
        "no answer",
        _is_any(TimeoutError),
        "{host} does not answer: the host is off, unreachable, or behind a firewall.",
        retry=True,
    ),
    LoginFailure(
        "closed connection",
        _is_any(asyncssh.ConnectionLost),
        "{host} closed the connection before the login. Its SSH server may be at its limit of connections "
        "(MaxStartups), or block this address.",
        retry=True,
    ),
    LoginFailure(
        "local file",
        _is_any(FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError),
        "{host} could not be reached: {reason}.",
    ),
    LoginFailure(
        "broken connection", _is_any(OSError, asyncssh.Error), "{host} could not be reached: {reason}.", retry=True
    ),
    LoginFailure(
        "other error",
        _is_any(Exception),
        "Cannot connect to host {target}: {kind}. Check its name, its entries in ~/.ssh/config and its key files: "
        "`{ssh}` must work without a password.",
    ),
)


def classify(error: Exception, login: LoginRecord) -> LoginFailure:
    """Return the kind of login failure that an exception represents."""
    return next(each for each in LOGIN_FAILURES if each.applies(error, login))


def connect_error(target: Target, route: Route | None, error: Exception, login: LoginRecord) -> PoolError:
    """Return the error for a failed login, with its cause and remedy.

    Args:
        route: Route to the host; None if the SSH configuration did not yield one.
    """
    failure = classify(error, login)
    if route is None and not isinstance(error, UnicodeError):
        failure = LOGIN_FAILURES[-1]
    through = f" through {route.jump}" if route is not None and route.jump else ""
    fields = {
        "target": target.host,
        "host": f"Host {target.host} ({route}{through})",
        "name": target.host if route is None else route.host,
        "user": route.user if route else "",
        "port": route.port if route else "",
        "reason": short_reason(error),
        "kind": describe_error(error),
        "keys": ", ".join(target.keys) or "those of ~/.ssh, its config and your ssh-agent",
        "methods": ", ".join(login.methods)[:MAX_REASON] or "another login method",
        "unsigned": login.unsigned,
        "rejected": max(1, login.failures - 1),
        "ssh": target.ssh_command,
    }
    message = failure.text.format_map(fields)
    notes = [login.silent_agent, *dict.fromkeys(login.problems)] if failure.error is CredentialsRefused else []
    notes += [f"its ProxyCommand printed: {login.proxy_output}"] if login.proxy_output else []
    notes += _similar_groups(target.host) if failure.text == _NAME else []
    ends = (f"{note[:1].upper()}{note[1:]}{'' if note.endswith('?') else '.'}" for note in notes if note)
    return failure.error(" ".join([message, *ends]))


def _similar_groups(host: str) -> Iterator[str]:
    """Yield a hint that names the most similar host group, because the unknown host may be a misspelled group."""
    from skyward_core.store.skyward_toml import host_groups  # imported late, because it imports pydantic

    with suppress(UsageError):  # Ignore an invalid settings file, because the launch of a pool reports it.
        yield from (f"did you mean the host group {each!r}?" for each in get_close_matches(host, host_groups(), 1))


def key_error(target: Target, error: Exception) -> UsageError | None:
    """Return the error for a key file that the user chose but that is missing or invalid; None for other errors."""
    unread = asyncssh.KeyImportError | FileNotFoundError | PermissionError | IsADirectoryError | UnusableFile
    if target.keys and isinstance(error, unread):
        return UsageError(f"Cannot use a key file of host {target.host}: {error}.")
    return None


def channel_error(host: str, error: Exception, *, lost: bool) -> PoolError | ConnectionError:
    """Return the error for a command that could not be started on the host.

    Args:
        lost: Whether the connection is lost.
    """
    if not isinstance(error, OSError | asyncssh.Error):
        return PoolError(f"Host {host} opens no command channel: {describe_error(error)}.")
    if not isinstance(error, asyncssh.ChannelOpenError):
        return link_lost_error(host, error)
    if lost:
        return link_lost_error(host)
    return PoolError(
        f"Host {host} opens no command channel ({error.reason}): its SSH server's "
        "MaxSessions may be used up, or commands are not allowed for this key."
    )


def link_lost_error(host: str, reason: Exception | None = None) -> ConnectionError:
    """Return the error for a lost connection. Callers that get this error reconnect."""
    return ConnectionError(
        f"lost the connection to host {host}" + (f": {sanitize_line(str(reason))}" if reason else "")
    )


def silent_host_error(host: str, seconds: float, output: str = "") -> Unreachable:
    """Return the error for a host that stops sending before the command server runs on it.

    Args:
        seconds: Seconds without a byte.
        output: Output of the login shell before the silence.
    """
    printed = f" It printed: {sanitize_line(output)}." if output else ""
    return Unreachable(
        f"Host {host} accepted the login and then sent nothing for {seconds:g} s: its startup files probably read "
        f"standard input or wait.{printed} Guard these lines of its startup files (~/.bashrc, ~/.zshrc) with "
        f"`case $- in *i*) ...;; esac`. For a slow host set {ANSWER_TIMEOUT}=30."
    )


def swallowed_input_error(host: str) -> PoolError:
    """Return the error for a host whose shell startup files read a part of the command server's input."""
    return PoolError(
        f"Host {host} lost a part of its input: its startup files read standard input. Guard these lines of "
        "the startup files (~/.bashrc, ~/.zshrc) with `case $- in *i*) ...;; esac`."
    )


def noisy_shell_error(host: str, seconds: float, output: str) -> Unreachable:
    """Return the error for a host whose login shell prints endlessly."""
    return Unreachable(
        f"Host {host} accepted the login, but its startup files print endlessly; for {seconds:g} s nothing else was "
        f"received. Output: {sanitize_line(output)}. Guard these lines of its startup files with "
        "`case $- in *i*) ...;; esac`."
    )


def stalled_host_error(host: str, seconds: float, doing: str) -> Unreachable:
    """Return the error for a host that stopped responding during a request."""
    return Unreachable(
        f"Host {host} sent nothing for {seconds:g} s after a request for {doing}: its disk or file server may "
        f"hang. For a slow host set {ANSWER_TIMEOUT}=30."
    )


def describe_error(error: Exception) -> str:
    """Return the type and the message of an exception as one text."""
    message = sanitize_line(str(error)).rstrip(".")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def short_reason(error: Exception) -> str:
    """Return a short text with the reason why a connection attempt failed."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return error.strerror or "name not found"
    if isinstance(error, asyncssh.ConnectionLost):
        return "it closed the connection before the login (connection limit MaxStartups?)"
    if isinstance(error, UnicodeError):
        return sanitize_line(str(error.__cause__ or error))
    return sanitize_line(str(error))[:MAX_REASON] or type(error).__name__


_log = get_logger("ssh")

AGENT_TIMEOUT = 3.0  # seconds for an ssh-agent to list its keys
AGENT_PAUSE = 60.0  # seconds for which an unresponsive ssh-agent is not asked again
USER_CERTIFICATE = 1  # type of certificate in OpenSSH's PROTOCOL.certkeys
MAX_PROXY_OUTPUT = 1 << 16  # maximum bytes of a proxy command's error output that are read; the capacity of a pipe

# Seconds of one connection attempt if the caller's patience is shorter than this. A longer attempt is less useful: TCP
# pauses longer and longer between its retries, so a new attempt may succeed earlier.
SHORT_TIMEOUT = 5.0
LOGIN_TIMEOUT = 60.0
# Interval of SSH's own keep-alive messages, in seconds. They queue behind data, but also watch connections behind a
# jump host, where :func:`enable_keepalive` has no effect.
KEEPALIVE_INTERVAL = 4.0
KEEPALIVE_COUNT = 2
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
# If the CPU has AES instructions, AES-GCM takes OpenSSH half as much time as chacha20-poly1305.
AEAD = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com")
CIPHERS = (*AEAD, "aes128-ctr", "aes192-ctr", "aes256-ctr")
MSG_IGNORE = 2  # number of the SSH message that receivers ignore (RFC 4253, 11.2)

FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
TRUE_VALUES = ("yes", "true")
HOST_KEYS = (*get_public_key_algs(), *get_certificate_algs())

OnRetry = Callable[[str, float], None]  # arguments: reason of the failure, and time of the next attempt
BeginWork = Callable[["HostConnection"], Awaitable[None]]


class EarlyChannel(Protocol):
    """Command channel that was opened on a host before a caller needed it."""

    def close(self) -> None: ...


class HostConnection(asyncssh.SSHClient):
    """SSH connection to a host with a verified key.

    Attributes:
        ssh: The connection.
        route: Route to the host.
        has_connected: Whether the connection was established; it then owns its socket.
        lost: Set once the connection is lost.
        shown: Host key that the host presented, if any.
        showed_certificate: Whether the host presented a certificate.
        early_channel: Command channel that was opened in advance. The first caller that needs a channel gets it.
        login: Record of the login.
    """

    ssh: asyncssh.SSHClientConnection

    def __init__(self, target: Target, route: Route, known: known_hosts.KnownKeys, login: LoginRecord) -> None:
        self.target = target
        self.route = route
        self.known = known
        self.login = login
        self.shown: asyncssh.SSHKey | None = None
        self.showed_certificate = False
        self.has_connected = False
        self.lost = asyncio.Event()
        self.early_channel: EarlyChannel | None = None
        self.jump: _JumpConnection | None = None
        self.proxy: _ProxyProcess | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.has_connected = True
        self.login.watch(conn)
        _disable_ignore_packets(conn)
        sock = conn.get_extra_info("socket")
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return  # A connection through a jump host or a proxy command has no TCP socket.
        enable_keepalive(sock)

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Record the key that the host presents. Return to asyncssh whether known_hosts files trust it."""
        self.shown = key
        return self.known.verdict(key) == "known"

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Accept the signer of the host's certificate for asyncssh if known_hosts files trust the signer."""
        self.showed_certificate = True
        return key in self.known.authorities and not self.known.lists

    def connection_lost(self, exc: Exception | None) -> None:
        if self.has_connected:
            _log.info("%s: disconnected%s", self.route, f": {exc}" if exc else "")
        self.lost.set()
        if self.jump is not None:
            self.jump.release()
            self.jump = None
        if self.proxy is not None:
            self.proxy.terminate()

    async def is_lost(self) -> bool:
        """Check whether a channel could not be opened because the connection is lost.

        asyncssh rejects new channels one iteration of the event loop before it reports the loss.
        """
        await asyncio.sleep(0)
        return self.lost.is_set()

    async def close(self) -> None:
        """Close the connection. Processes on the host continue to run."""
        self.ssh.close()
        try:
            async with asyncio.timeout(2):
                await self.ssh.wait_closed()
                if self.proxy is not None:
                    await self.proxy.wait_ended()
        except Exception:  # noqa: BLE001  a timeout, or the connection's own error
            self.ssh.abort()


def _disable_ignore_packets(conn: asyncssh.SSHClientConnection) -> None:
    """Stop asyncssh from sending an empty message before every packet.

    The message protects CBC ciphers (RFC 4251, 9.3.1). Authenticated ciphers do not need it, and it doubles the
    number of packets, each of which costs a system call on the client and a wake-up on the host.
    """
    send = conn.send_packet

    def send_packet(pkttype: int, *args: bytes, handler: Any = None) -> None:
        if pkttype != MSG_IGNORE or conn.get_extra_info("send_cipher") not in AEAD:
            send(pkttype, *args, handler=handler)

    conn.send_packet = send_packet  # type: ignore[method-assign]


async def connect(target: Target, *, patience: float = 30.0, waiting: OnRetry | None = None) -> HostConnection:
    """Connect to a host. After a transient error, retry with increasing random pauses.

    Args:
        patience: Seconds of attempts after which the last error is raised; 0 for one attempt.
        waiting: Receives each error and the time of the next attempt.

    Raises:
        HostKeyError: If the host's key is unknown, changed or revoked; nothing was sent.
        UsageError: If the configuration or a key file is invalid.
        CredentialsRefused: If the host rejects all offered keys.
        Unreachable: If the connection fails. The message has the reason and a remedy.
    """
    early = _early.pop((asyncio.get_running_loop(), target), None)
    if early is not None and (link := await early) is not None:
        return link
    route: Route | None = None
    deadline = time.monotonic() + patience
    pause = FIRST_PAUSE
    while True:
        login = LoginRecord()
        try:
            route = route or await resolve(target)
            return await _attempt(target, route, login, min(max(patience, SHORT_TIMEOUT), CONNECT_TIMEOUT))
        except SkywardError:
            raise
        except Exception as error:  # asyncssh raises many types of exceptions; see LOGIN_FAILURES
            wait = random.uniform(pause / 2, pause)
            if not classify(error, login).retry or time.monotonic() + wait > deadline:
                raise connect_error(target, route, error, login) from error
            if waiting is not None:
                waiting(short_reason(error), time.time() + wait)
            await asyncio.sleep(wait)
            pause = min(pause * 2, LONGEST_PAUSE)


_early: dict[tuple[asyncio.AbstractEventLoop, Target], asyncio.Task[HostConnection | None]] = {}


async def open_early(targets: Sequence[Target], dials: PreopenedSockets, begin: BeginWork) -> None:
    """Log in to hosts in advance, and run ``begin`` there. The next :func:`connect` to a host reuses its connection."""
    loop = asyncio.get_running_loop()
    for target in targets:
        if (loop, target) not in _early:
            _early[loop, target] = loop.create_task(_try_early(target, dials, begin))


async def _try_early(target: Target, dials: PreopenedSockets, begin: BeginWork) -> HostConnection | None:
    """Log in to a host in advance. Return None after an error that a new attempt may avoid.

    Raises:
        CredentialsRefused: If the host rejects the login. Each further attempt may get the user banned.
    """
    link: HostConnection | None = None
    route: Route | None = None
    login = LoginRecord()
    try:
        route = await resolve(target)
        link = await _attempt(target, route, login, CONNECT_TIMEOUT, dials)
        await begin(link)
    except CredentialsRefused:  # The jump host rejected the login.
        raise
    except Exception as error:
        # Return None: the first call that needs the connection connects again, and reports a failure.
        if route is not None and link is None and classify(error, login).error is CredentialsRefused:
            raise connect_error(target, route, error, login) from error
    except BaseException:
        if link is not None:
            link.ssh.abort()
        raise
    return None if link is None or link.lost.is_set() else link


async def close_early(targets: Sequence[Target]) -> None:
    """Close the connections that were opened in advance but not used."""
    loop = asyncio.get_running_loop()
    for target in targets:
        task = _early.pop((loop, target), None)
        if task is not None:
            task.cancel()
            if not isinstance(link := (await asyncio.gather(task, return_exceptions=True))[0], HostConnection):
                continue
            await link.close()


async def _attempt(
    target: Target,
    route: Route,
    login: LoginRecord,
    seconds: float,
    dials: PreopenedSockets | None = None,
    *,
    certificates: bool = True,
) -> HostConnection:
    known = known_hosts.look_up(route.known_hosts, route.name, route.known_port, route.revoked)
    link = HostConnection(target, route, known, login)
    if route.jump:
        link.jump = await _JumpConnection.acquire(jump_target(target, route.jump))
    sock = await dials.claim(target) if dials else None
    if route.proxy_command:
        link.proxy, sock = await _ProxyProcess.start(route.proxy_command)
    begun = time.monotonic()
    agent = _KeyAgent(route.agent, login)
    try:
        keys = await _keys_to_offer(route, agent, login, given=bool(target.keys))
        link.ssh = await asyncssh.connect(
            **_route_options(route),
            **_packet_options(route),
            **_login_options(route),
            client_factory=lambda: link,
            tunnel=link.jump.link.ssh if link.jump else None,
            sock=sock,
            known_hosts=((), (), known.revoked),  # Pass only revoked keys. HostConnection verifies all other host keys.
            server_host_key_algs=_algorithms(route, "hostkeyalgorithms", HOST_KEYS)
            or known.algorithms(certificates=certificates),
            client_keys=keys or None,
            agent_path=None,  # Pass no ssh-agent, because the key list already includes its keys.
            x509_trusted_certs=None,
            gss_kex=False,  # Disable GSS key exchange, which would replace the verification of the host key.
            password_auth=False,  # Disable password logins, because no user can be asked for a password.
            kbdint_auth=False,
            # Disable agent forwarding, which the user's configuration enables only for interactive logins.
            agent_forwarding=False,
            x11_forwarding=False,
            keepalive_interval=KEEPALIVE_INTERVAL,
            keepalive_count_max=KEEPALIVE_COUNT,
            connect_timeout=seconds,
            login_timeout=LOGIN_TIMEOUT,
        )
    except BaseException as error:
        _log.info("%s: no login after %.3f s: %s: %s", route, time.monotonic() - begun, type(error).__name__, error)
        if sock is not None and not link.has_connected:
            sock.close()
        link.connection_lost(None)
        if link.proxy is not None:
            await link.proxy.wait_ended()
            login.proxy_output = link.proxy.output
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            if link.showed_certificate and certificates and "revoked" not in str(error):
                # Like OpenSSH, retry without certificates if the host's certificate is not valid.
                return await _attempt(target, route, login, seconds, certificates=False)
            await _check_shown_key(target, route, link, error)
            return await _attempt(target, route, login, seconds)
        if isinstance(error, Exception) and (unusable := key_error(target, error)):
            raise unusable from error
        raise
    finally:
        agent.close()
    _log.info("%s: connected and logged in, %.3f s", route, time.monotonic() - begun)
    return link


def _route_options(route: Route) -> dict[str, Any]:
    """Return asyncssh's options for the route to a host."""
    return {
        "host": route.host,
        "port": route.port,
        "config": None,  # asyncssh must not read the configuration, because ``route`` already contains its options.
        "family": FAMILIES.get(route.option("addressfamily"), socket.AF_UNSPEC),
        "local_addr": (route.option("bindaddress"), 0) if route.option("bindaddress") else (),
        "kex_algs": _algorithms(route, "kexalgorithms", get_kex_algs()),
    }


def _packet_options(route: Route) -> dict[str, Any]:
    """Return asyncssh's options for ciphers, signatures, compression and keep-alive."""
    return {
        "encryption_algs": _algorithms(route, "ciphers", get_encryption_algs()) or CIPHERS,
        "mac_algs": _algorithms(route, "macs", get_mac_algs()),
        "signature_algs": _algorithms(route, "casignaturealgorithms", get_public_key_algs()),
        "compression_algs": "zlib@openssh.com,zlib,none" if route.option("compression") in TRUE_VALUES else (),
        "tcp_keepalive": route.option("tcpkeepalive") != "no",
    }


class _ProxyProcess:
    """Process of a ``ProxyCommand``, connected by a socket. As in OpenSSH, the user's shell starts the command.

    asyncssh's own implementation treats a command's stderr as data of the host.

    Attributes:
        output: End of the command's error output, read when the command is terminated.
    """

    def __init__(self, process: asyncio.subprocess.Process, errors: int) -> None:
        self.process = process
        self.output = ""
        # Do not read the error output to its end, because a daemon that the command started may keep it open.
        self._errors = errors
        self._printed = b""
        self._loop = asyncio.get_running_loop()
        # Read the error output continuously, because a full pipe would block the command.
        self._loop.add_reader(errors, self._read_errors)

    @classmethod
    async def start(cls, command: str) -> tuple[_ProxyProcess, socket.socket]:
        ours, theirs = socket.socketpair()
        read_end, errors = os.pipe()
        os.set_blocking(read_end, False)
        with theirs, open(errors, "wb") as written:
            shell = os.environ.get("SHELL") or "/bin/sh"
            try:
                process = await asyncio.create_subprocess_exec(
                    *(shell, "-c", f"exec {command}"),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=written.fileno(),
                    start_new_session=True,
                )
            except BaseException:
                os.close(read_end)
                ours.close()
                raise
        return cls(process, read_end), ours

    def _read_errors(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._errors, MAX_PROXY_OUTPUT)
            self._printed = (self._printed + data)[-MAX_PROXY_OUTPUT:]
            if not data:
                self._loop.remove_reader(self._errors)

    def terminate(self, how: signal.Signals = signal.SIGHUP) -> None:
        if self._errors >= 0:
            self._read_errors()
            self.output = sanitize_line(" ".join(self._printed.decode(errors="replace").split()))[-MAX_REASON:]
            self._loop.remove_reader(self._errors)
            os.close(self._errors)
            self._errors = -1
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)

    async def wait_ended(self) -> None:
        self.terminate()
        try:
            async with asyncio.timeout(1):
                await self.process.wait()
        except TimeoutError:
            self.terminate(signal.SIGKILL)


def _login_options(route: Route) -> dict[str, Any]:
    """Return asyncssh's options for the login, except keys."""
    size, seconds = (*route.option("rekeylimit").split(), "0", "0")[:2]
    by_host = route.option("hostbasedauthentication") in TRUE_VALUES
    return {
        "username": route.user,
        "host_key_alias": route.name if route.has_alias else (),
        "public_key_auth": route.option("pubkeyauthentication") not in ("no", "false"),
        "host_based_auth": by_host,
        "client_host_keysign": by_host and route.option("enablesshkeysign") in TRUE_VALUES,
        "gss_auth": route.option("gssapiauthentication") in TRUE_VALUES,
        "gss_delegate_creds": route.option("gssapidelegatecredentials") in TRUE_VALUES,
        "preferred_auth": route.option("preferredauthentications") or (),
        "pkcs11_provider": route.option("pkcs11provider") or None,
        "rekey_bytes": () if size == "0" else size,
        "rekey_seconds": () if seconds == "0" else seconds,
        "env": route.options.get("setenv"),
        "send_env": [each for line in route.options.get("sendenv", ()) for each in line.split()],
    }


def _algorithms(route: Route, option: str, possible: Sequence[bytes]) -> Sequence[str] | str:
    """Return the algorithms that an option of the SSH configuration names and asyncssh supports; () without the option.

    Raises:
        UsageError: If asyncssh supports none of the named algorithms.
    """
    named = route.option(option)
    if not named or named[0] in "+-^":
        # Values with such a prefix modify the defaults, and asyncssh parses them itself.
        return named or ()
    supported = {each.decode("ascii") for each in possible}
    if not (found := [each for each in named.split(",") if each in supported]):
        raise UsageError(f"Host {route.host}: none of the {option} of ~/.ssh/config is supported ({named:.200}).")
    return found


class _KeyAgent(asyncssh.SSHAgentClient):
    """Client of the user's ssh-agent, which signs with the user's keys.

    Args:
        path: Path of the ssh-agent's socket; "" for none.
        login: Record that receives the problems of the agent.
    """

    # socket path -> time at which its ssh-agent did not answer, by the monotonic clock
    _silent: ClassVar[dict[str, float]] = {}

    def __init__(self, path: str, login: LoginRecord) -> None:
        super().__init__(path)
        self._path = path
        self._login = login
        self._names: dict[bytes, str | None] = {}

    async def get_keys(self, identities: Sequence[bytes] | None = None) -> Sequence[asyncssh.SSHKeyPair]:
        """Return the keys of the ssh-agent. If it does not answer, return [] and do not ask it again for a while."""
        if not self._path:
            return ()
        is_silent = time.monotonic() - self._silent.get(self._path, -math.inf) < AGENT_PAUSE
        try:
            async with asyncio.timeout(0 if is_silent else AGENT_TIMEOUT):
                keys = await super().get_keys(identities)
        except TimeoutError:
            if not is_silent:
                self._silent[self._path] = time.monotonic()
            self._login.silent_agent = f"the ssh-agent at {self._path} does not answer, so its keys are not offered"
            return ()
        except ValueError as error:
            self._login.problems.append(f"the ssh-agent at {self._path} cannot be used ({short_reason(error)})")
            return ()
        self._names = {pair.key_public_data: pair.get_comment() for pair in keys}
        return keys

    async def sign(self, key_blob: bytes, data: bytes, flags: int = 0) -> bytes:
        name = sanitize_line(self._names.get(key_blob) or "a key")[:MAX_REASON]
        self._login.unsigned = f"the ssh-agent at {self._path} does not sign with {name}"
        signature = await super().sign(key_blob, data, flags)
        self._login.unsigned = ""
        return signature


async def _keys_to_offer(
    route: Route, agent: _KeyAgent, login: LoginRecord, *, given: bool
) -> list[asyncssh.SSHKeyPair]:
    """Return the keys to offer to a host: those that OpenSSH would offer, in OpenSSH's order.

    The order is: certificates, the ssh-agent's keys that the configuration names, its other keys, key files. Key files
    that the user chose precede the ssh-agent's other keys, because a host may accept only a few attempts.

    Args:
        given: Whether the user chose the files, which must then be valid.

    Raises:
        OSError: If a chosen file cannot be read.
        asyncssh.KeyImportError: If a chosen file is not a key.
    """
    held = await agent.get_keys()
    named, files, certificates = await asyncio.to_thread(_load_keys, route, login, given)
    signed = [_with_certificate(*each) for each in _match_certificates(certificates, [*held, *files])]
    agent_keys = {pair.public_data for pair in held}
    others = route.option("identitiesonly") not in TRUE_VALUES
    rest = [
        [pair for pair in held if pair.public_data not in named and others],
        [pair for pair in files if pair.public_data not in agent_keys],
    ]
    offered = [
        *{pair.public_data: pair for pair in reversed(signed)}.values(),
        *(pair for pair in held if pair.public_data in named),
        *(pair for pairs in (reversed(rest) if given else rest) for pair in pairs),
    ]
    accepted = {name.encode() for name in route.option("pubkeyacceptedalgorithms").split(",")}
    return [pair for pair in offered if accepted == {b""} or accepted & {*pair.host_key_algorithms}]


def _load_keys(
    route: Route, login: LoginRecord, given: bool
) -> tuple[set[bytes], list[asyncssh.SSHKeyPair], list[asyncssh.SSHCertificate]]:
    """Return the public keys in the configured key files, the key pairs of these files, and their certificates."""
    named: set[bytes] = set()
    files: list[asyncssh.SSHKeyPair] = []
    for path in route.identities:
        public = next((key for file in (f"{path}.pub", path) if (key := _read_public_key(file))), None)
        pairs: Sequence[asyncssh.SSHKeyPair] = ()
        try:
            # Skip keys with a passphrase, which only the ssh-agent can use.
            pairs = asyncssh.load_keypairs([(path, public)], ignore_encrypted=True)  # type: ignore[list-item]
        except (OSError, ValueError):
            if given and public is None:
                raise
        named |= {public.public_data} if public else {pair.public_data for pair in pairs}
        files += pairs
        if not route.certificates:
            beside = _read_certificates(f"{path}-cert.pub", route, login)
            named |= {each.public_data for each in beside}
            files += [_with_certificate(*each) for each in _match_certificates(beside, pairs)]
    found = [_read_certificates(file, route, login, named=True) for file in route.certificates]
    return named, files, [each for certificates in found for each in certificates]


def _read_public_key(file: str) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.read_public_key(file)
    except (OSError, ValueError):
        return None


def _read_certificates(
    file: str, route: Route, login: LoginRecord, *, named: bool = False
) -> Sequence[asyncssh.SSHCertificate]:
    """Return the certificates in a file. Record why the host may reject them.

    Args:
        named: Whether the configuration names the file, which must then exist.
    """
    try:
        found = asyncssh.load_certificates(file)
    except (OSError, ValueError) as error:
        if named:
            login.problems.append(f"the certificate {file} cannot be used ({error_message(error)})")
        return ()
    for each in found:
        try:
            each.validate(USER_CERTIFICATE, route.user)  # type: ignore[attr-defined]
        except ValueError as error:
            login.problems.append(f"the certificate {file} is not valid ({error})")
    return found


def _match_certificates(
    certificates: Sequence[asyncssh.SSHCertificate], pairs: Sequence[asyncssh.SSHKeyPair]
) -> Iterator[tuple[asyncssh.SSHKeyPair, asyncssh.SSHCertificate]]:
    for certificate in certificates:
        for pair in pairs:
            if pair.public_data == certificate.key.public_data:
                yield pair, certificate


def _with_certificate(pair: asyncssh.SSHKeyPair, certificate: asyncssh.SSHCertificate) -> asyncssh.SSHKeyPair:
    pair = copy(pair)
    pair.set_certificate(certificate)
    return pair


async def _check_shown_key(target: Target, route: Route, link: HostConnection, error: Exception) -> None:
    """Decide about a host key that asyncssh rejected, by known_hosts files, the settings, or the user.

    Return if the key was accepted and saved. Otherwise raise the error for the host key.
    """
    if link.shown is None:
        raise known_hosts.refused_key_error(target.host, str(error)) from error
    shown = _server_key(target, route, link.shown)
    verdict = link.known.verdict(link.shown)
    if verdict == "revoked":
        raise known_hosts.refused_key_error(target.host, "it is revoked") from error
    if verdict == "changed":
        raise known_hosts.changed_key_error(shown, link.known) from error
    if target.host_keys == "known":
        raise known_hosts.unknown_key_error(shown) from error
    if target.host_keys == "ask" and not await host_key_prompt.confirm(shown):
        raise known_hosts.unknown_key_error(shown) from error
    known_hosts.accept_key(shown)


def _server_key(target: Target, route: Route, key: asyncssh.SSHKey) -> known_hosts.ServerKey:
    return known_hosts.ServerKey(target.label, route.name, route.known_port, key, route.known_hosts[0])


async def fetch_host_key(target: Target) -> known_hosts.ServerKey:
    """Return the current key of a host, so that the user can verify it. ``known_hosts.accept_key`` saves the key.

    Raises:
        HostKeyError: If the key of a jump host is not known.
        Unreachable: If the host cannot be reached.
        PoolError: If the host presents no key.
    """
    route: Route | None = None
    jump: _JumpConnection | None = None
    proxy: _ProxyProcess | None = None
    sock: socket.socket | None = None
    try:
        route = await resolve(target)
        jump = await _JumpConnection.acquire(jump_target(target, route.jump)) if route.jump else None
        if route.proxy_command:
            proxy, sock = await _ProxyProcess.start(route.proxy_command)
        async with asyncio.timeout(CONNECT_TIMEOUT):
            key = await asyncssh.get_server_host_key(
                tunnel=jump.link.ssh if jump else None,
                sock=sock,
                server_host_key_algs=_algorithms(route, "hostkeyalgorithms", HOST_KEYS)
                or known_hosts.KnownKeys().algorithms(),
                options=asyncssh.SSHClientConnectionOptions(config=None, **_packet_options(route)),
                **_route_options(route),
            )
    except SkywardError:
        raise
    except Exception as error:  # asyncssh raises many types of exceptions; see LOGIN_FAILURES
        raise connect_error(target, route, error, LoginRecord()) from error
    finally:
        if jump is not None:
            jump.release()
        if proxy is not None and sock is not None:
            sock.close()
            await proxy.wait_ended()
    if key is None:
        raise PoolError(f"Host {target.host} ({route}) presented no host key.")
    return _server_key(target, route, key)


_JumpKey = tuple[asyncio.AbstractEventLoop, Target, host_key_prompt.HostKeyPrompt | None]


@asynccontextmanager
async def shared_connection(target: Target) -> AsyncIterator[HostConnection]:
    """Open a connection that can also serve as a jump host for other connections. Close it after its last user.

    Raises:
        SkywardError: As in :func:`connect` with a patience of 0, which makes one attempt.
    """
    jump = await _JumpConnection.acquire(target)
    try:
        yield jump.link
    finally:
        jump.release()


class _JumpConnection:
    """Connection to a jump host, which all connections of a session share. Closed after its last user.

    Sessions do not share connections, because the user of each session decides whether to trust the jump host's key.
    """

    _open: dict[_JumpKey, _JumpConnection] = {}  # noqa: RUF012  one registry per process

    def __init__(self, key: _JumpKey) -> None:
        self.key = key
        self.users = 0
        self.task = asyncio.ensure_future(connect(key[1], patience=0))

    @property
    def link(self) -> HostConnection:
        return self.task.result()

    @classmethod
    async def acquire(cls, target: Target) -> _JumpConnection:
        key = (asyncio.get_running_loop(), target, host_key_prompt.current_prompt())
        jump = cls._open.get(key)
        if jump is None or (jump.task.done() and (jump.task.exception() or jump.link.lost.is_set())):
            jump = cls._open[key] = cls(key)
        jump.users += 1
        try:
            await asyncio.shield(jump.task)
        except BaseException:
            jump.release()
            raise
        return jump

    def release(self) -> None:
        self.users -= 1
        if self.users == 0:
            if self._open.get(self.key) is self:
                del self._open[self.key]
            if not self.task.done():
                self.task.cancel()
            elif not self.task.cancelled() and not self.task.exception():
                self.link.ssh.close()
