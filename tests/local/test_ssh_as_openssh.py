"""Generated SSH configurations, resolved by the library and by OpenSSH, compared by a recording server."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from skyward_core.model.errors import PoolError, SkywardError, UsageError
from skyward_core.transport.ssh.connection import connect
from skyward_core.transport.ssh.host_address_and_python import Target

pytestmark = pytest.mark.skipif(
    any(shutil.which(each) is None for each in ("ssh", "ssh-agent", "bash")), reason="needs OpenSSH's client and bash"
)
NAMES = ["alpha", "beta", "gamma", "gate"]
KEYS = ["one", "two", "three", "alpha.pem", "ann.pem", "with space"]
ENDLESS = 20  # jump hosts
RELAY = """\
exec 2>/dev/null  # nobody waits for who holds it
printf '%s\\n' "$*" >> {folder}/ways
exec 3<>/dev/tcp/127.0.0.1/{port}
cat <&3 &
exec cat >&3
"""


@dataclass
class Recorder:
    """Server behind every host name. Records the client's user, the offered keys and the host."""

    logins: list[list[str]] = field(default_factory=list)
    tunnels: list[tuple[str, int]] = field(default_factory=list)
    port: int = 0


class Session(asyncssh.SSHServer):
    def __init__(self, recorder: Recorder, accepted: asyncssh.SSHKey) -> None:
        self.recorder, self.accepted, self.offered = recorder, accepted, list[str]()

    def begin_auth(self, username: str) -> bool:
        if not self.offered:
            self.offered.append(username)
            self.recorder.logins.append(self.offered)
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        self._note(key)
        return key == self.accepted

    def validate_ca_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        self._note(key)
        return False

    def _note(self, key: asyncssh.SSHKey) -> None:
        if self.offered[-1] != (shown := key.get_fingerprint()):  # first without a signature
            self.offered.append(shown)

    def public_key_auth_supported(self) -> bool:
        return True

    def connection_requested(self, dest_host: str, dest_port: int, *_: Any) -> Any:
        self.recorder.tunnels.append((dest_host, dest_port))

        async def behind(reader: Any, writer: Any) -> None:
            inner, outer = await asyncio.open_connection("127.0.0.1", self.recorder.port)

            async def copy(source: Any, sink: Any) -> None:
                while data := await source.read(1 << 16):
                    sink.write(data)
                sink.close()

            await asyncio.gather(copy(reader, outer), copy(inner, writer), return_exceptions=True)

        return behind


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Key files, and an ssh-agent that has two of them and one further key."""
    folder = tmp_path_factory.mktemp("keys")
    for name in [*KEYS, "last", "host", "agent's own", "authority"]:
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(folder / name)
        (folder / name).chmod(0o600)
        asyncssh.read_private_key(folder / name).write_public_key(folder / f"{name}.pub")
    authority = asyncssh.read_private_key(folder / "authority")
    one = asyncssh.read_public_key(folder / "one.pub")
    authority.generate_user_certificate(one, "me").write_certificate(folder / "signed")
    two = asyncssh.read_public_key(folder / "two.pub")
    authority.generate_user_certificate(two, "me").write_certificate(folder / "two-cert.pub")
    started = subprocess.run(["ssh-agent", "-s", "-a", folder / "agent"], check=True, capture_output=True, text=True)
    agent = int(started.stdout.partition("SSH_AGENT_PID=")[2].partition(";")[0])
    held = [folder / "agent's own", folder / "three", folder / "one"]
    env = {**os.environ, "SSH_AUTH_SOCK": str(folder / "agent")}
    try:
        subprocess.run(["ssh-add", "-q", *held], env=env, check=True, capture_output=True)
        yield folder
    finally:
        os.kill(agent, signal.SIGTERM)


@pytest.fixture
async def recorder(keys: Path) -> AsyncIterator[Recorder]:
    recorder = Recorder()
    accepted = asyncssh.read_public_key(keys / "last.pub")
    server = await asyncssh.create_server(
        lambda: Session(recorder, accepted), "127.0.0.1", 0,
        server_host_keys=[str(keys / "host")], process_factory=lambda process: process.exit(0),
        kex_algs=["curve25519-sha256"],
    )  # fmt: skip
    recorder.port = server.get_port()
    yield recorder
    server.close()
    await server.wait_closed()


class Writer:
    """Writer of one generated configuration."""

    def __init__(self, seed: int, folder: Path, keys: Path, port: int, given: Sequence[str] = ()) -> None:
        self.random, self.folder, self.keys, self.port = random.Random(seed), folder, keys, port
        self.files = 0
        relay = folder / "relay"
        relay.write_text(RELAY.format(folder=folder, port=port))
        ending = self.random.choice(["\n", "\n", "\r\n"])
        way = f"ProxyCommand bash {relay} %n %h %p %r %%"
        # Without its own way, a jump host often leads to itself.
        head = self.random.choice([[], ["Host gate gamma", way, "Match all"], ["Host gate gamma", way, "Host *"]])
        tail = [
            "Host *", way, f"IdentityFile {keys}/last", "KexAlgorithms curve25519-sha256",
            f"UserKnownHostsFile {keys}/known", "GlobalKnownHostsFile /dev/null", "BatchMode yes", "LogLevel ERROR",
        ]  # fmt: skip
        blocks = (line for _ in range(self.random.randint(2, 5)) for line in self.block(2))
        lines = [*(given or [*head, *self.lines(2), *blocks]), *tail]
        self.file = folder / ".ssh/config"
        self.file.parent.mkdir(mode=0o700)
        self.file.write_bytes("".join(f"{line}{ending}" for line in lines).encode())

    def one(self, *choices: str) -> str:
        return self.random.choice(choices)

    def block(self, depth: int) -> list[str]:
        return [self.one(self.host(), self.match()), *self.lines(depth, self.random.randint(1, 4))]

    def host(self) -> str:
        patterns = ["*", *NAMES, "!gate", "!alpha", "?lpha", "*a", "g*", "ALPHA"]
        return self.spelled("Host", " ".join(self.random.sample(patterns, self.random.randint(1, 3))))

    def match(self) -> str:
        criteria = ["host", "originalhost", "user", "exec", "final", "localuser"]
        words: list[str] = []
        for name in self.random.sample(criteria, self.random.randint(1, 2)):
            pattern = {
                "host": self.one("alpha", "*.lab", "alpha,beta", "*,!gate"),
                "originalhost": self.one("alpha", "b*", "*,!gate"),
                "user": self.one("ann", "bob,ann", "*"),
                "exec": self.one('"test %h = alpha"', '"test %n = beta"', "true", "false", '"test %p = 22"'),
                "final": "",
                "localuser": self.one("root", "nobody"),
            }[name]
            words.append(f"{self.one('', '', '!')}{name} {pattern}".strip())
        return f"Match {' '.join(words)}" if self.random.random() < 0.9 else "Match all"

    def lines(self, depth: int, count: int = 1) -> list[str]:
        return [line for _ in range(count) for line in self.option(depth)]

    def option(self, depth: int) -> list[str]:
        kind = self.random.choice(
            ["HostName", "Port", "User", "IdentityFile", "IdentityFile", "ProxyJump", "Include", "other"]
        )
        if kind == "Include":
            return [self.include(depth)] if depth else []
        files = [f"{self.keys}/{each}" for each in (*KEYS, "missing", "%n.pem", "%r.pem", "two")]
        jumps = ["gate", "ann@gate", "gate:2022", "beta,gate", "gamma", "bob@beta:2222,ann@gate", "alpha"]
        value = {
            "HostName": self.one("alpha", "beta.lab", "%h.lab", "%h", "10.1.2.3", "BETA"),
            "Port": self.one("22", "2200", "2201"),
            "User": self.one("ann", "bob", '"carol"'),
            "IdentityFile": self.one(*files),
            "ProxyJump": self.one(*jumps),
        }.get(kind)
        if value is None:
            if self.random.random() < 0.2:
                return [f"CertificateFile {self.keys}/signed", f"IdentityFile {self.keys}/one"]
            return [self.one(
                "IdentitiesOnly yes", "IdentitiesOnly no", "IdentityAgent none", f"IdentityAgent {self.keys}/agent",
                "HostKeyAlias known", "# a comment", "", "Compression yes",
                "PubkeyAcceptedAlgorithms ecdsa-sha2-nistp256,ssh-ed25519", "HostKeyAlgorithms ssh-ed25519",
            )]  # fmt: skip
        return [self.spelled(kind, f'"{value}"' if " " in value and '"' not in value else value)]

    def spelled(self, name: str, value: str) -> str:
        return (
            self.one("", "  ", "\t")
            + self.one(name, name, name.lower(), name.upper())
            + self.one(" ", " ", "=", " = ", "\t")
            + value
            + self.one("", "", " ")
        )

    def include(self, depth: int) -> str:
        self.files += 1
        folder = self.folder / f"included{self.files}"
        folder.mkdir()
        for each in ("a", "b")[: self.random.randint(0, 2)]:
            lines = [*self.lines(depth - 1, 2), *(self.block(depth - 1) if self.random.random() < 0.5 else [])]
            (folder / f"{each}.conf").write_text("".join(f"{line}\n" for line in lines))
        return f"Include {folder}/{self.one('*.conf', 'a.conf', f'a.conf {folder}/b.conf')}"


async def openssh_settings(file: Path, name: str) -> dict[str, str] | None:
    """Return the output of `ssh -G`; None if it rejects the host."""
    jump, _, last = name.rpartition(",")
    user, _, host = last.rpartition("@")
    host, _, port = host.partition(":")
    data = {"-J": jump, "-l": user, "-p": port}
    words = ["ssh", "-G", "-F", str(file), *(word for each in data.items() if each[1] for word in each), host]
    done = await asyncio.to_thread(subprocess.run, words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return (
        dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line) if done.returncode == 0 else None
    )


async def is_refused(file: Path, name: str) -> bool:
    """Check whether OpenSSH rejects a host or one of its jump hosts, or its jump hosts form an endless cycle."""
    for _ in range(ENDLESS):
        text = await openssh_settings(file, name)
        if text is None or "proxyjump" not in text:
            return text is None
        name = text["proxyjump"]
    return True


def take_recorded(folder: Path, recorder: Recorder) -> tuple[list[str], list[list[str]], list[tuple[str, int]]]:
    """Return the entries that were recorded since the last call."""
    ways = folder / "ways"
    found = ways.read_text().splitlines() if ways.exists() else []
    ways.unlink(missing_ok=True)
    logins, tunnels = [*recorder.logins], [*recorder.tunnels]
    recorder.logins.clear()
    recorder.tunnels.clear()
    return found, logins, tunnels


async def connect_with_openssh(file: Path, name: str) -> None:
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        "ssh", "-F", str(file), name, "true", stdin=nothing, stdout=nothing, stderr=nothing
    )
    await process.wait()


async def connect_with_skyward(name: str) -> SkywardError | None:
    try:
        link = await connect(Target("").with_host(name), patience=0)
    except (PoolError, UsageError) as error:
        return error
    await link.close()
    return None


CASES = [pytest.param(seed, marks=pytest.mark.proof("20 s of a processor", after=6)) for seed in range(100)]


@pytest.mark.parametrize("seed", CASES)
async def test_host_name_resolves_as_by_openssh(seed: int, keys: Path, recorder: Recorder, tmp_path: Path) -> None:
    await compare(Writer(seed, tmp_path, keys, recorder.port).file, recorder, NAMES[:2])


KEY_LINES = [
    "IdentityFile {keys}/two\nIdentityFile {keys}/three",
    "IdentitiesOnly yes\nIdentityFile {keys}/three\nIdentityFile {keys}/two",
    "IdentityAgent none\nIdentityFile {keys}/one",
    "IdentityAgent SSH_AUTH_SOCK\nCertificateFile {keys}/signed\nIdentityFile {keys}/one",
    "PubkeyAcceptedAlgorithms -ssh-ed25519-cert-v01@openssh.com\nIdentityFile {keys}/two",
    "Match user ann\n  IdentityFile {keys}/two\n  Port 2200",
]


@pytest.mark.parametrize("lines", KEY_LINES)
async def test_keys_offered_equal_those_of_openssh(lines: str, keys: Path, recorder: Recorder, tmp_path: Path) -> None:
    given = lines.format(keys=keys).split("\n")
    await compare(Writer(0, tmp_path, keys, recorder.port, given).file, recorder, ["alpha", "ann@alpha"])


@pytest.fixture(autouse=True)
def homes(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(keys / "agent"))
    (keys / "known").write_text(f"* {(keys / 'host.pub').read_text()}")


async def compare(file: Path, recorder: Recorder, names: Sequence[str]) -> None:
    folder = file.parents[1]
    for name in names:
        if await is_refused(file, name):
            assert isinstance(await connect_with_skyward(name), UsageError), file.read_text()
            assert take_recorded(folder, recorder) == ([], [], [])
            continue
        await connect_with_openssh(file, name)
        theirs = take_recorded(folder, recorder)
        why = await connect_with_skyward(name)
        assert take_recorded(folder, recorder) == theirs, f"{name}: {why}\n{file.read_text()}"
