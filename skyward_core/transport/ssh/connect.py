"""SSH connections: whom to reach and how, host keys verified, back-off."""

from __future__ import annotations

import asyncio
import getpass
import random
import shlex
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ...model.errors import PoolError, UsageError
from ...store.loggers import logger
from . import failures, host_keys, questions
from .asyncssh_import import asyncssh
from .dial import CONNECT_TIMEOUT, Dials
from .keepalive import watch
from .route import Route
from .target import Target

_log = logger("ssh")

SHORT_TIMEOUT = (
    5.0  # of a connection where there is little patience: a cable may be back before TCP tries again
)
LOGIN_TIMEOUT = 60.0
# SSH's own keepalive, which has to queue behind data, watches the part behind a jump host, where nothing can
# :func:`~.keepalive.watch` the connection.
KEEPALIVE_INTERVAL = 4.0
KEEPALIVE_COUNT = 2
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
# OpenSSH spends about half of chacha20-poly1305's time on AES-GCM where the CPU has AES instructions.
AEAD = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com")
CIPHERS = (*AEAD, "aes128-ctr", "aes192-ctr", "aes256-ctr")
MSG_IGNORE = 2  # RFC 4253, 11.2

Waiting = Callable[[str, float], None]  # waiting(why, time of the next try)
Begin = Callable[["HostConnection"], Awaitable[None]]


class Begun(Protocol):
    """What was begun on a host ahead of who needs it."""

    def close(self) -> None: ...


async def resolve(target: Target) -> Route:
    """Read the configuration for a target.

    Raises:
        UsageError: the configuration does not parse, or the user has no name.
    """
    try:
        options = await asyncssh.SSHClientConnectionOptions.construct(
            host=target.host, client_keys=None, known_hosts=b"", **_asked(target)
        )
    except (asyncssh.ConfigParseError, ValueError) as error:
        raise failures.config_unusable(target, error) from error
    if target.known_hosts is not None:
        files = [target.known_hosts]
    else:
        users = options.config.get("UserKnownHostsFile", ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"])
        files = [str(host_keys.own_file()), *users]
        system = ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"]
        files += options.config.get("GlobalKnownHostsFile", system)
    revoked = options.config.get("RevokedHostKeys")
    jump = (target.via.login if target.via else target.jump) or options.tunnel
    return Route(
        host=options.host,
        port=options.port,
        user=options.username,
        name=options.host_key_alias or options.host,
        has_alias=bool(options.host_key_alias),
        jump=jump if jump not in (target.host, options.host) else None,
        known_hosts=tuple(Path(file).expanduser() for file in files),
        revoked=(Path(revoked).expanduser(),) if revoked else (),
        ciphers=() if options.config.get("Ciphers") else CIPHERS,
        host_key_algorithms=bool(options.config.get("HostKeyAlgorithms")),
        identities=target.keys or tuple(options.config.get("IdentityFile", ())),
        proxy_command=shlex.join(options.proxy_command) if options.proxy_command else None,
    )


def _asked(target: Target) -> dict[str, Any]:
    """A target's wishes, in asyncssh's words."""
    asked: dict[str, Any] = {"config": () if target.config else None}
    if target.user is not None:
        asked["username"] = target.user
    elif not target.config:
        asked["username"] = getpass.getuser()
    if target.port is not None:
        asked["port"] = target.port
    return asked


class HostConnection(asyncssh.SSHClient):
    """One SSH connection to a host whose key was verified.

    Attributes:
        ssh: the connection.
        route: what was reached.
        made: whether there has been a connection, which then is whose socket it is to close.
        lost: set once the connection is gone.
        shown, signed: the key that it showed, or whether it was a certificate.
        begun: a command channel that was opened ahead, for the first who needs one.
    """

    ssh: asyncssh.SSHClientConnection

    def __init__(self, target: Target, route: Route, known: host_keys.Known) -> None:
        self.target = target
        self.route = route
        self.known = known
        self.shown: asyncssh.SSHKey | None = None
        self.signed = False
        self.made = False
        self.lost = asyncio.Event()
        self.begun: Begun | None = None
        self.jump: _Jump | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.made = True
        _send_no_fillers(conn)
        sock = conn.get_extra_info("socket")
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return  # behind a jump host, or a proxy command
        watch(sock)

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """asyncssh's question about the key that the host shows."""
        self.shown = key
        return self.known.verdict(key) == "known"

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """asyncssh's question about who signed the certificate that the host shows."""
        self.signed = True
        return key in self.known.authorities and not self.known.lists

    def connection_lost(self, exc: Exception | None) -> None:
        if self.made:
            _log.info("%s: disconnected%s", self.route, f": {exc}" if exc else "")
        self.lost.set()
        if self.jump is not None:
            self.jump.release()
            self.jump = None

    async def is_lost(self) -> bool:
        """Whether that is why no channel could be opened: asyncssh refuses those a turn of the loop before it tells
        that a connection is closed."""
        await asyncio.sleep(0)
        return self.lost.is_set()

    async def close(self) -> None:
        """Close the connection; what runs on the host goes on."""
        self.ssh.close()
        try:
            async with asyncio.timeout(2):
                await self.ssh.wait_closed()
        except TimeoutError:
            self.ssh.abort()


def _send_no_fillers(conn: asyncssh.SSHClientConnection) -> None:
    """Leave out the empty message that asyncssh sends ahead of every packet.

    It guards CBC ciphers (RFC 4251, 9.3.1); with the authenticated ones, which need no guard, it only doubles the
    packets, and each is a system call here and a wake-up there.
    """
    send = conn.send_packet

    def send_packet(pkttype: int, *args: bytes, handler: Any = None) -> None:
        if pkttype != MSG_IGNORE or conn.get_extra_info("send_cipher") not in AEAD:
            send(pkttype, *args, handler=handler)

    conn.send_packet = send_packet  # type: ignore[method-assign]


async def connect(
    target: Target, *, patience: float = 30.0, waiting: Waiting | None = None
) -> HostConnection:
    """Connect to a host, trying again with back-off and jitter while the trouble may pass.

    Args:
        patience: seconds after which the last trouble is raised; 0 for one attempt.
        waiting: told of each trouble and of when the next attempt comes.

    Raises:
        HostKeyError: the host's key is unknown, changed or revoked; nothing was sent.
        UsageError: the configuration or a key file cannot be used.
        CredentialsRefused: it lets nobody in with the keys that were offered.
        Unreachable: there is no connection, with the reason and what to do.
    """
    early = _early.pop((asyncio.get_running_loop(), target), None)
    if early is not None and (link := await early) is not None:
        return link
    route = await resolve(target)
    deadline = time.monotonic() + patience
    pause = FIRST_PAUSE
    while True:
        try:
            return await _attempt(target, route, min(max(patience, SHORT_TIMEOUT), CONNECT_TIMEOUT))
        except (OSError, asyncssh.Error) as error:
            wait = random.uniform(pause / 2, pause)
            if not failures.may_pass(error) or time.monotonic() + wait > deadline:
                raise failures.not_reached(target, route, error) from error
            if waiting is not None:
                waiting(failures.reason(error), time.time() + wait)
            await asyncio.sleep(wait)
            pause = min(pause * 2, LONGEST_PAUSE)


_early: dict[tuple[asyncio.AbstractEventLoop, Target], asyncio.Task[HostConnection | None]] = {}


async def open_early(targets: Sequence[Target], dials: Dials, begin: Begin) -> None:
    """Log in to hosts and begin what is done there first; the next :func:`connect` to each takes that connection."""
    loop = asyncio.get_running_loop()
    for target in targets:
        if (loop, target) not in _early:
            _early[loop, target] = loop.create_task(_try_early(target, dials, begin))


async def _try_early(target: Target, dials: Dials, begin: Begin) -> HostConnection | None:
    link: HostConnection | None = None
    try:
        link = await _attempt(target, await resolve(target), CONNECT_TIMEOUT, dials)
        await begin(link)
    except (OSError, asyncssh.Error, PoolError, UsageError):
        pass  # whoever needs it tries again, and tells
    except BaseException:
        if link is not None:
            link.ssh.abort()
        raise
    return None if link is None or link.lost.is_set() else link


async def close_early(targets: Sequence[Target]) -> None:
    """Close those of them that nobody has taken."""
    loop = asyncio.get_running_loop()
    for target in targets:
        task = _early.pop((loop, target), None)
        if task is not None:
            task.cancel()
            if not isinstance(
                link := (await asyncio.gather(task, return_exceptions=True))[0], HostConnection
            ):
                continue
            await link.close()


async def _attempt(
    target: Target, route: Route, seconds: float, dials: Dials | None = None, *, certificates: bool = True
) -> HostConnection:
    known = host_keys.look_up(route.known_hosts, route.name, route.known_port, route.revoked)
    link = HostConnection(target, route, known)
    if route.jump:
        link.jump = await _Jump.borrow(_jump_target(target, route.jump))
    dialled = await dials.take(target) if dials else None
    begun = time.monotonic()
    try:
        link.ssh = await asyncssh.connect(
            target.host,
            client_factory=lambda: link,
            tunnel=link.jump.link.ssh if link.jump else None,
            sock=dialled,
            known_hosts=((), (), known.revoked),  # of all others the link is asked
            # Those of the configuration, else:
            server_host_key_algs=()
            if route.host_key_algorithms
            else known.algorithms(certificates=certificates),
            client_keys=_keys(target, route),
            ignore_encrypted=True,  # those are the ssh-agent's to use
            encryption_algs=route.ciphers,
            x509_trusted_certs=None,
            gss_kex=False,  # it would take the place of the host key
            password_auth=False,  # nobody is there to be asked
            kbdint_auth=False,
            agent_forwarding=False,  # whatever the configuration says for a person's own logins
            x11_forwarding=False,
            keepalive_interval=KEEPALIVE_INTERVAL,
            keepalive_count_max=KEEPALIVE_COUNT,
            connect_timeout=seconds,
            login_timeout=LOGIN_TIMEOUT,
            **_asked(target),
        )
    except BaseException as error:
        took = time.monotonic() - begun
        _log.info("%s: no login after %.3f s: %s: %s", route, took, type(error).__name__, error)
        if dialled is not None and not link.made:
            dialled.close()
        link.connection_lost(None)
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            if link.signed and certificates and "revoked" not in str(error):
                # As OpenSSH does: a certificate that does not hold is a host's plain key.
                return await _attempt(target, route, seconds, certificates=False)
            await _judge(target, route, link, error)
            return await _attempt(target, route, seconds)
        if isinstance(error, Exception) and (unusable := failures.key_unusable(target, error)):
            raise unusable from error
        raise
    _log.info("%s: connected and logged in, %.3f s", route, time.monotonic() - begun)
    return link


def _keys(target: Target, route: Route) -> list[str] | tuple[()]:
    """The key files to offer: those given, which must be there, or those of the configuration that are."""
    if target.keys:
        return [str(Path(key).expanduser()) for key in target.keys]
    files = [Path(file).expanduser() for file in route.identities]
    return [str(file) for file in files if file.exists()] or ()


async def _judge(target: Target, route: Route, link: HostConnection, error: Exception) -> None:
    """Returns only if the key that a host showed has been accepted and written down."""
    if link.shown is None:
        raise host_keys.refused(target.host, str(error)) from error
    shown = _server_key(target, route, link.shown)
    verdict = link.known.verdict(link.shown)
    if verdict == "revoked":
        raise host_keys.refused(target.host, "it is revoked") from error
    if verdict == "changed":
        raise host_keys.changed(shown, link.known) from error
    if target.host_keys == "known":
        raise host_keys.unknown(shown) from error
    if target.host_keys == "ask" and not await questions.accepted(shown):
        raise host_keys.unknown(shown) from error
    host_keys.accept(shown)


def _server_key(target: Target, route: Route, key: asyncssh.SSHKey) -> host_keys.ServerKey:
    return host_keys.ServerKey(target.label, route.name, route.known_port, key, route.known_hosts[0])


async def fetch_host_key(target: Target) -> host_keys.ServerKey:
    """The key that a host shows now, for a person to look at; give it to :func:`.host_keys.accept`.

    Raises:
        HostKeyError: the key of a jump host is not known.
        Unreachable: the host cannot be reached.
        PoolError: it showed no key.
    """
    route = await resolve(target)
    jump = await _Jump.borrow(_jump_target(target, route.jump)) if route.jump else None
    asked = _asked(target)
    asked.pop("username", None)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            key = await asyncssh.get_server_host_key(
                target.host,
                tunnel=jump.link.ssh if jump else None,
                server_host_key_algs=() if route.host_key_algorithms else host_keys.Known().algorithms(),
                **asked,
            )
    except (OSError, asyncssh.Error) as error:
        raise failures.not_reached(target, route, error) from error
    finally:
        if jump is not None:
            jump.release()
    if key is None:
        raise PoolError(f"Host {target.host} ({route}) showed no host key.")
    return _server_key(target, route, key)


def _jump_target(target: Target, jump: str) -> Target:
    if target.via is not None:
        return target.via
    before, _, last = jump.rpartition(",")
    return replace(target, user=None, port=None, jump=before or None).named(last)


_Way = tuple[asyncio.AbstractEventLoop, Target, questions.Questions | None]


@asynccontextmanager
async def shared(target: Target) -> AsyncIterator[HostConnection]:
    """A connection to a host that those to hosts behind it go through, too; closed after the last of all these.

    Raises:
        as :func:`connect`, which tries once.
    """
    jump = await _Jump.borrow(target)
    try:
        yield jump.link
    finally:
        jump.release()


class _Jump:
    """A connection to a jump host, shared by all of a session that go through it and closed after the last.

    Another session may have to be asked about its key, too: that a person at one refuses it is no answer for the other.
    """

    _open: dict[_Way, _Jump] = {}  # noqa: RUF012  one for the process

    def __init__(self, key: _Way) -> None:
        self.key = key
        self.users = 0
        self.task = asyncio.ensure_future(connect(key[1], patience=0))

    @property
    def link(self) -> HostConnection:
        return self.task.result()

    @classmethod
    async def borrow(cls, target: Target) -> _Jump:
        key = (asyncio.get_running_loop(), target, questions.whose())
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
