"""Logins that OpenSSH's server rejects: the error names the cause, and no attempt is made that must fail, too."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest

from skyward_core.model.errors import CredentialsRefused, PoolError, Unreachable
from skyward_core.transport.ssh import connection
from skyward_core.transport.ssh.connection import LOGIN_FAILURES, LoginRecord, classify, connect, connect_error
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import PreopenedSockets, Route
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport
from tests.support.one_host import Reports, config, provider, running, target
from tests.support.sshd import Host

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_openssh = pytest.mark.skipif(
    SSHD is None or any(shutil.which(each) is None for each in ("ssh", "ssh-keygen")),
    reason="needs OpenSSH's client and server",
)


class Server:
    """Host named box behind OpenSSH's server, which is started for each connection and accepts one key."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / ".ssh"
        self.folder.mkdir(mode=0o700)
        self.key = self.make_key("right")
        host = self.make_key("host")
        (self.folder / "known_hosts").write_text(f"* {Path(f'{host}.pub').read_text()}")
        self.configure()

    def make_key(self, name: str) -> Path:
        path = self.folder / name
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(path)
        key.write_public_key(f"{path}.pub")
        path.chmod(0o600)
        return path

    def configure(self, server: str = "", client: str = "") -> None:
        """Write the configurations of server and client."""
        (self.folder / "sshd_config").write_text(
            f"{server}\nUsePAM no\nStrictModes no\nPidFile none\nPermitRootLogin yes\nHostKey {self.folder}/host\n"
            f"AuthorizedKeysFile {self.key}.pub\nLogLevel QUIET\n"
        )
        proxy = self.folder / "proxy"
        proxy.write_text(f"echo login >> {self.home}/logins\nexec {SSHD} -i -f {self.folder}/sshd_config\n")
        # The newest key exchange takes longer.
        (self.folder / "config").write_text(
            f"{client}\nHost box gate\n  KexAlgorithms curve25519-sha256\n  ProxyCommand sh {proxy}\n"
        )

    @property
    def logins(self) -> int:
        return len((self.home / "logins").read_text().split())


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    return Server(tmp_path)


async def refusal(target: Target, kind: type[PoolError] = CredentialsRefused) -> str:
    with pytest.raises(kind) as refused:
        await connect(target, patience=5)
    return str(refused.value)


@needs_openssh
async def test_key_login_that_also_needs_a_password_is_named(server: Server) -> None:
    server.configure("AuthenticationMethods publickey,password")
    message = await refusal(Target("box", keys=(str(server.key),)))
    assert "accepts a key of user" in message and "then requires password" in message
    assert "ssh-copy-id" not in message and server.logins == 1


@needs_openssh
async def test_host_without_key_login_is_named(server: Server) -> None:
    server.configure("PubkeyAuthentication no")
    message = await refusal(Target("box", keys=(str(server.key),)))
    assert "accepts no keys for user" in message and "only password" in message
    assert server.logins == 1


@needs_openssh
async def test_too_many_rejected_keys_are_not_retried(server: Server) -> None:
    server.configure("MaxAuthTries 2")
    wrong = [str(server.make_key(f"wrong{number}")) for number in range(3)]
    message = await refusal(Target("box", keys=(*wrong, str(server.key))))
    assert "rejected keys (MaxAuthTries)" in message and "IdentitiesOnly yes" in message
    assert server.logins == 1


@needs_openssh
async def test_rejected_login_of_an_early_connection_is_not_repeated(server: Server) -> None:
    target = Target("box", keys=(str(server.make_key("wrong")),))

    async def begin(link: connection.HostConnection) -> None:
        pytest.fail("there is no login")

    await connection.open_early([target], PreopenedSockets([]), begin)
    assert "rejects all keys" in await refusal(target)
    assert server.logins == 1


@needs_openssh
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("CertificateFile {folder}/missing-cert.pub", "missing-cert.pub cannot be used"),
        ("IdentityFile {folder}/signed", "signed-cert.pub is not valid (Certificate expired)"),
    ],
)
async def test_certificate_that_the_host_cannot_accept_is_named(server: Server, line: str, message: str) -> None:
    authority, signed = server.make_key("authority"), server.make_key("signed")
    old = ("-V", "20200101:20200102")
    command = ("ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", "root", *old, f"{signed}.pub")
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    server.configure(f"TrustedUserCAKeys {authority}.pub", line.format(folder=server.folder))
    assert message in await refusal(Target("box"))
    assert server.logins == 1


@needs_openssh
@pytest.mark.parametrize(
    "way", ["ProxyJump gate", "ProxyCommand ssh -F {folder}/config -o BatchMode=yes -W %h:%p gate"]
)
async def test_jump_host_that_forbids_forwarding_is_named_at_once(server: Server, way: str) -> None:
    way = way.format(folder=server.folder)
    key = f"IdentityFile {server.key}\nUserKnownHostsFile {server.folder}/known_hosts"
    server.configure("AllowTcpForwarding no", f"{key}\nHost behind\n  {way}")
    message = await refusal(Target("behind"), Unreachable)
    assert "the jump host forbids forwarding" in message and "AllowTcpForwarding" in message
    assert server.logins == 1


@asynccontextmanager
async def agent(path: Path, answer: Callable[[int], bytes | None]) -> AsyncIterator[None]:
    """Simulated ssh-agent that answers each request with the same bytes, or never."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while size := await reader.read(4):
            request = await reader.readexactly(int.from_bytes(size, "big"))
            if (found := answer(request[0])) is not None:
                writer.write(with_length(found))
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield


LIST_KEYS, IDENTITIES, FAILURE = 11, b"\x0c", b"\x05"  # of the protocol of ssh-agent


def with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@needs_openssh
async def test_silent_ssh_agent_is_skipped_and_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "AGENT_TIMEOUT", 0.2)
    monkeypatch.setenv("SSH_AUTH_SOCK", path := str(server.home / "agent"))
    async with agent(Path(path), lambda kind: None):
        link = await connect(Target("box", keys=(str(server.key),)))
        assert link.login.silent_agent == f"the ssh-agent at {path} does not answer, so its keys are not offered"
        await link.close()
        message = await refusal(Target("box", keys=(str(server.make_key("wrong")),)))
    assert f"The ssh-agent at {path} does not answer" in message


@pytest.mark.proof("1 s of a processor")
async def test_silent_agent_is_reported_by_start_and_doctor(
    host: Host, known_hosts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "AGENT_TIMEOUT", 0.2)
    monkeypatch.setenv("SSH_AUTH_SOCK", path := str(tmp_path / "agent"))
    message = f"the ssh-agent at {path} does not answer, so its keys are not offered"
    reports, transport = Reports(), SSHTransport(target(host, known_hosts_file), "p.0")
    async with agent(Path(path), lambda kind: None), running(transport):
        await transport.prepare(config(), reports)
        checks = await provider(host, known_hosts_file).check()
    assert reports.of("connected").endswith(f"; {message}")
    assert [check.state for check in checks if check.detail == message] == ["warn"]


@needs_openssh
@pytest.mark.parametrize("answer", [FAILURE, None], ids=["refuses", "never answers"])
async def test_ssh_agent_that_does_not_sign_is_named(
    server: Server, answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 2.0)
    monkeypatch.setattr(connection, "SHORT_TIMEOUT", 2.0)
    monkeypatch.setenv("SSH_AUTH_SOCK", path := str(server.home / "agent"))
    public = asyncssh.read_public_key(f"{server.key}.pub").public_data
    keys = IDENTITIES + (1).to_bytes(4, "big") + with_length(public) + with_length(b"my key")
    server.key.unlink()
    async with agent(Path(path), lambda kind: keys if kind == LIST_KEYS else answer):
        message = await refusal(Target("box"))
    assert f"accepts a key, but the ssh-agent at {path} does not sign with my key" in message
    assert server.logins == 1


@needs_openssh
async def test_configured_keys_are_offered_before_those_of_the_ssh_agent(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.configure("MaxAuthTries 1")
    monkeypatch.setenv("SSH_AUTH_SOCK", path := str(server.home / "agent"))
    others = [asyncssh.read_public_key(f"{server.make_key(f'other{number}')}.pub") for number in range(2)]
    keys = IDENTITIES + (2).to_bytes(4, "big")
    keys += b"".join(with_length(each.public_data) + with_length(b"") for each in others)
    async with agent(Path(path), lambda kind: keys if kind == LIST_KEYS else FAILURE):
        link = await connect(Target("box", keys=(str(server.key),)), patience=0)
    await link.close()


def record(**facts: object) -> LoginRecord:
    login = LoginRecord()
    for name, value in facts.items():
        setattr(login, name, value)
    return login


DENIED = asyncssh.PermissionDenied("Permission denied")
FAILURES: dict[str, tuple[Exception, LoginRecord, bool]] = {
    "impossible name": (UnicodeEncodeError("idna", "ü", 0, 1, "odd"), record(), False),
    "busy name service": (socket.gaierror(socket.EAI_AGAIN, "try again"), record(), True),
    "unknown name": (socket.gaierror(socket.EAI_NONAME, "not known"), record(), False),
    "unsigned by agent": (TimeoutError(), record(unsigned="the ssh-agent does not sign"), False),
    "second factor": (DENIED, record(accepted=True, methods=("password",)), False),
    "too many keys": (asyncssh.ProtocolError("Too many authentication failures"), record(failures=6), False),
    "no key logins": (DENIED, record(methods=("password",)), False),
    "rejected keys": (DENIED, record(methods=("publickey",)), False),
    "forbidden forwarding": (asyncssh.ChannelOpenError(1, "prohibited"), record(), False),
    "unreachable from jump host": (asyncssh.ChannelOpenError(2, "Connection refused"), record(), True),
    "refused address": (asyncssh.DisconnectError(1, "not allowed"), record(), False),
    "no common algorithms": (asyncssh.KeyExchangeFailed("no cipher"), record(), False),
    "no SSH server": (asyncssh.ProtocolError("Too many banner lines"), record(), False),
    "refused connection": (ConnectionRefusedError(111, "refused"), record(), True),
    "no answer": (TimeoutError(), record(), True),
    "closed connection": (asyncssh.ConnectionLost("Connection lost"), record(failures=1), True),
    "local file": (PermissionError(13, "denied", "~/.ssh/id"), record(), False),
    "broken connection": (ConnectionResetError(104, "reset"), record(), True),
    "other error": (ValueError("odd"), record(), False),
}


@pytest.mark.parametrize("name", [each.name for each in LOGIN_FAILURES])
def test_each_kind_of_failed_login_states_whether_to_retry(name: str) -> None:
    error, login, retry = FAILURES[name]
    found = classify(error, login)
    assert (found.name, found.retry) == (name, retry)


def test_closed_connection_after_many_rejected_keys_is_a_rejected_login() -> None:
    found = classify(asyncssh.ConnectionLost("Connection lost"), record(failures=5))
    assert (found.name, found.error) == ("too many keys", CredentialsRefused)


def test_control_characters_of_a_host_are_not_in_errors() -> None:
    hostile = "\x1b[2J\x1b]0;title\x07word"
    route = Route("box", 22, "me", "box", False, None, (), (), (), (), "", None)
    errors = [
        connect_error(Target("box"), route, DENIED, record(methods=(hostile,))),
        connection.channel_error("box", asyncssh.ChannelOpenError(1, hostile), lost=False),
        connection.channel_error("box", asyncssh.ProtocolError(hostile), lost=False),
    ]
    for error in errors:
        assert "word" in str(error) and "\x1b" not in str(error) and "\x07" not in str(error)


@needs_openssh
async def test_proxy_command_with_long_error_output_is_not_stopped(server: Server) -> None:
    proxy = server.folder / "proxy"
    noise = "dd if=/dev/zero bs=65536 count=16 >&2 2>/dev/null || exit 1\n"
    proxy.write_text(noise + proxy.read_text())
    link = await connect(Target("box", keys=(str(server.key),)), patience=0)
    await link.close()
    assert link.proxy is not None and len(link.proxy.output) <= connection.MAX_REASON


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
async def test_proxy_command_that_cannot_start_leaves_no_open_files(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/missing")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(Unreachable):
            await connect(Target("box"), patience=0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("name", "makes_attempts"), [("no common algorithms", 1), ("closed connection", 2)])
async def test_only_transient_ssh_errors_are_retried(
    name: str, makes_attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    async def fails(*_: object, **more: object) -> None:
        attempts.append(1)
        raise FAILURES[name][0]

    monkeypatch.setattr(asyncssh, "connect", fails)
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr("random.uniform", lambda low, high: 0.001 if len(attempts) < 2 else 1000.0)
    with pytest.raises(PoolError):
        await connect(Target("box", config=False), patience=30)
    assert len(attempts) == makes_attempts
