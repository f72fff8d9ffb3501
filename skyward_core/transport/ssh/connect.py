"""SSH connections: whom to reach and how, host keys verified, back-off."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from typing import Any, Protocol

from ...model.errors import PoolError, SkywardError, UsageError
from ...store.loggers import logger
from . import failures, host_keys, questions
from .asyncssh_import import (
    asyncssh,
    get_certificate_algs,
    get_encryption_algs,
    get_kex_algs,
    get_mac_algs,
    get_public_key_algs,
)
from .dial import CONNECT_TIMEOUT, Dials
from .keepalive import watch
from .route import Route, jump_target, resolve
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

FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
YES = ("yes", "true")
HOST_KEYS = (*get_public_key_algs(), *get_certificate_algs())

Waiting = Callable[[str, float], None]  # waiting(why, time of the next try)
Begin = Callable[["HostConnection"], Awaitable[None]]


class Begun(Protocol):
    """What was begun on a host ahead of who needs it."""

    def close(self) -> None: ...


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
        self.proxy: _Proxy | None = None

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
        if self.proxy is not None:
            self.proxy.end()

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
                if self.proxy is not None:
                    await self.proxy.ended()
        except Exception:  # noqa: BLE001  a time-out, or whatever the connection ended with
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
    route: Route | None = None
    deadline = time.monotonic() + patience
    pause = FIRST_PAUSE
    while True:
        try:
            route = route or await resolve(target)
            return await _attempt(target, route, min(max(patience, SHORT_TIMEOUT), CONNECT_TIMEOUT))
        except SkywardError:
            raise
        except Exception as error:  # see failures.not_reached
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
    except Exception:  # noqa: BLE001  the call that needs it tries again, and reports the failure
        pass
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
        link.jump = await _Jump.borrow(jump_target(target, route.jump))
    dialled = await dials.take(target) if dials else None
    if route.proxy_command:
        link.proxy, dialled = await _Proxy.start(route.proxy_command)
    begun = time.monotonic()
    agent = asyncssh.SSHAgentClient(route.agent)
    try:
        keys = await _keys_to_offer(route, agent, given=bool(target.keys))
        link.ssh = await asyncssh.connect(
            **_way(route),
            **_packets(route),
            **_login(route),
            client_factory=lambda: link,
            tunnel=link.jump.link.ssh if link.jump else None,
            sock=dialled,
            known_hosts=((), (), known.revoked),  # of all others the link is asked
            server_host_key_algs=_algorithms(route, "hostkeyalgorithms", HOST_KEYS)
            or known.algorithms(certificates=certificates),
            client_keys=keys or None,
            agent_path=None,  # the keys of an agent are among them
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
        )
    except BaseException as error:
        took = time.monotonic() - begun
        _log.info("%s: no login after %.3f s: %s: %s", route, took, type(error).__name__, error)
        if dialled is not None and not link.made:
            dialled.close()
        link.connection_lost(None)
        if link.proxy is not None:
            await link.proxy.ended()
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            if link.signed and certificates and "revoked" not in str(error):
                # As OpenSSH does: a certificate that does not hold is a host's plain key.
                return await _attempt(target, route, seconds, certificates=False)
            await _judge(target, route, link, error)
            return await _attempt(target, route, seconds)
        if isinstance(error, Exception) and (unusable := failures.key_unusable(target, error)):
            raise unusable from error
        raise
    finally:
        agent.close()
    _log.info("%s: connected and logged in, %.3f s", route, time.monotonic() - begun)
    return link


def _way(route: Route) -> dict[str, Any]:
    """The way to a host, in asyncssh's words."""
    return {
        "host": route.host,
        "port": route.port,
        "config": None,  # has been read
        "family": FAMILIES.get(route.option("addressfamily"), socket.AF_UNSPEC),
        "local_addr": (route.option("bindaddress"), 0) if route.option("bindaddress") else (),
        "kex_algs": _algorithms(route, "kexalgorithms", get_kex_algs()),
    }


def _packets(route: Route) -> dict[str, Any]:
    """How packets are sent, in asyncssh's words."""
    return {
        "encryption_algs": _algorithms(route, "ciphers", get_encryption_algs()) or CIPHERS,
        "mac_algs": _algorithms(route, "macs", get_mac_algs()),
        "signature_algs": _algorithms(route, "casignaturealgorithms", get_public_key_algs()),
        "compression_algs": "zlib@openssh.com,zlib,none" if route.option("compression") in YES else (),
        "tcp_keepalive": route.option("tcpkeepalive") != "no",
    }


class _Proxy:
    """A ``ProxyCommand``, run by the user's shell as OpenSSH does, with a socket for its input and output.

    asyncssh would take what a command writes to stderr for the host's words.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, command: str) -> tuple[_Proxy, socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            shell = os.environ.get("SHELL") or "/bin/sh"
            process = await asyncio.create_subprocess_exec(
                *(shell, "-c", f"exec {command}"),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        return cls(process), ours

    def end(self, how: signal.Signals = signal.SIGHUP) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)

    async def ended(self) -> None:
        self.end()
        try:
            async with asyncio.timeout(1):
                await self.process.wait()
        except TimeoutError:
            self.end(signal.SIGKILL)


def _login(route: Route) -> dict[str, Any]:
    """How to log in, apart from keys, in asyncssh's words."""
    size, seconds = (*route.option("rekeylimit").split(), "0", "0")[:2]
    by_host = route.option("hostbasedauthentication") in YES
    return {
        "username": route.user,
        "host_key_alias": route.name if route.has_alias else (),
        "public_key_auth": route.option("pubkeyauthentication") not in ("no", "false"),
        "host_based_auth": by_host,
        "client_host_keysign": by_host and route.option("enablesshkeysign") in YES,
        "gss_auth": route.option("gssapiauthentication") in YES,
        "gss_delegate_creds": route.option("gssapidelegatecredentials") in YES,
        "preferred_auth": route.option("preferredauthentications") or (),
        "pkcs11_provider": route.option("pkcs11provider") or None,
        "rekey_bytes": () if size == "0" else size,
        "rekey_seconds": () if seconds == "0" else seconds,
        "env": route.options.get("setenv"),
        "send_env": [each for line in route.options.get("sendenv", ()) for each in line.split()],
    }


def _algorithms(route: Route, option: str, possible: Sequence[bytes]) -> Sequence[str] | str:
    """Those that the configuration names, as far as asyncssh has them; none if it names none.

    Raises:
        UsageError: If asyncssh has none of them.
    """
    named = route.option(option)
    if not named or named[0] in "+-^":  # which only asyncssh's own reading leaves
        return named or ()
    has = {each.decode("ascii") for each in possible}
    if not (found := [each for each in named.split(",") if each in has]):
        raise UsageError(
            f"Host {route.host}: none of the {option} of ~/.ssh/config is supported ({named:.200})."
        )
    return found


async def _keys_to_offer(
    route: Route, agent: asyncssh.SSHAgentClient, *, given: bool
) -> list[asyncssh.SSHKeyPair]:
    """Return what OpenSSH offers, in its order: certificates, the agent's keys (named ones first), other files.

    Args:
        given: Whether the caller has named the files, which must be usable then.

    Raises:
        OSError: If a given file cannot be read.
        asyncssh.KeyImportError: If a given file is no key.
    """
    held: list[asyncssh.SSHKeyPair] = []
    if route.agent:
        with suppress(ValueError):  # no agent answers there
            held = [*await agent.get_keys()]
    named, files, certificates = await asyncio.to_thread(_load, route, given)
    signed = [_signed(*each) for each in _matching(certificates, [*held, *files])]
    there = {pair.public_data for pair in held}
    others = route.option("identitiesonly") not in YES
    offered = [
        *{pair.public_data: pair for pair in reversed(signed)}.values(),
        *(pair for pair in held if pair.public_data in named),
        *(pair for pair in held if pair.public_data not in named and others),
        *(pair for pair in files if pair.public_data not in there),
    ]
    accepted = {name.encode() for name in route.option("pubkeyacceptedalgorithms").split(",")}
    return [pair for pair in offered if accepted == {b""} or accepted & {*pair.host_key_algorithms}]


def _load(
    route: Route, given: bool
) -> tuple[set[bytes], list[asyncssh.SSHKeyPair], list[asyncssh.SSHCertificate]]:
    """Return the public keys that identity files name, the keys in these files, and the certificates."""
    named: set[bytes] = set()
    files: list[asyncssh.SSHKeyPair] = []
    for path in route.identities:
        public = next((key for file in (f"{path}.pub", path) if (key := _public(file))), None)
        pairs: Sequence[asyncssh.SSHKeyPair] = ()
        try:
            # Those with a passphrase are the ssh-agent's to use.
            pairs = asyncssh.load_keypairs([(path, public)], ignore_encrypted=True)  # type: ignore[list-item]
        except (OSError, ValueError):
            if given and public is None:
                raise
        named |= {public.public_data} if public else {pair.public_data for pair in pairs}
        files += pairs
        if not route.certificates:
            beside = _certificates(f"{path}-cert.pub")
            named |= {each.public_data for each in beside}
            files += [
                _signed(pair, each)
                for pair in pairs
                for each in beside
                if pair.public_data == each.key.public_data
            ]
    return named, files, [each for file in route.certificates for each in _certificates(file)]


def _public(file: str) -> asyncssh.SSHKey | None:
    try:
        return asyncssh.read_public_key(file)
    except (OSError, ValueError):
        return None


def _certificates(file: str) -> Sequence[asyncssh.SSHCertificate]:
    try:
        return asyncssh.load_certificates(file)
    except (OSError, ValueError):
        return ()


def _matching(
    certificates: Sequence[asyncssh.SSHCertificate], pairs: Sequence[asyncssh.SSHKeyPair]
) -> Iterator[tuple[asyncssh.SSHKeyPair, asyncssh.SSHCertificate]]:
    for certificate in certificates:
        for pair in pairs:
            if pair.public_data == certificate.key.public_data:
                yield pair, certificate


def _signed(pair: asyncssh.SSHKeyPair, certificate: asyncssh.SSHCertificate) -> asyncssh.SSHKeyPair:
    pair = copy(pair)
    pair.set_certificate(certificate)
    return pair


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
    route: Route | None = None
    jump: _Jump | None = None
    proxy: _Proxy | None = None
    sock: socket.socket | None = None
    try:
        route = await resolve(target)
        jump = await _Jump.borrow(jump_target(target, route.jump)) if route.jump else None
        if route.proxy_command:
            proxy, sock = await _Proxy.start(route.proxy_command)
        async with asyncio.timeout(CONNECT_TIMEOUT):
            key = await asyncssh.get_server_host_key(
                tunnel=jump.link.ssh if jump else None,
                sock=sock,
                server_host_key_algs=_algorithms(route, "hostkeyalgorithms", HOST_KEYS)
                or host_keys.Known().algorithms(),
                options=asyncssh.SSHClientConnectionOptions(config=None, **_packets(route)),
                **_way(route),
            )
    except SkywardError:
        raise
    except Exception as error:  # see failures.not_reached
        raise failures.not_reached(target, route, error) from error
    finally:
        if jump is not None:
            jump.release()
        if proxy is not None and sock is not None:
            sock.close()
            await proxy.ended()
    if key is None:
        raise PoolError(f"Host {target.host} ({route}) showed no host key.")
    return _server_key(target, route, key)


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
