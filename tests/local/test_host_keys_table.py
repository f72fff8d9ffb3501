"""Host key verdicts compared with those of OpenSSH's client, for many known_hosts files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from skyward_core.model.errors import HostKeyError, PoolError
from skyward_core.transport.ssh.connection import connect
from skyward_core.transport.ssh.host_address_and_python import Target

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="needs OpenSSH's client and server")
PLAIN, SIGNED, TWO = "plain", "signed", "two"  # servers: one key, the same with a certificate, two keys


@dataclass(frozen=True)
class Case:
    """``lines`` of known_hosts: {host}, {ec}, {rsa}, {other}, {ca} and {other_ca} stand for keys, {name} for gpu1."""

    what: str
    verdict: str
    lines: str = ""
    config: str = ""
    revoked: str | None = None
    server: str = PLAIN
    name: str = "gpu1"


ALIAS = "HostKeyAlias box"
ODD = "Port 2222"
CASES = [
    Case("no line", "unknown"),
    Case("the key", "known", "gpu1 {host}"),
    Case("another key", "changed", "gpu1 {other}"),
    Case("another and the key", "known", "gpu1 {other}\ngpu1 {host}"),
    Case("a key of another type", "changed", "gpu1 {rsa}"),
    Case("several types, one of them its own", "known", "gpu1 {rsa}\ngpu1 {host}"),
    Case("a second key of its own is known", "known", "gpu1 {ec}", server=TWO),
    Case("a second key of its own has changed", "changed", "gpu1 {other_ec}", server=TWO),
    Case("of two known types the first decides", "changed", "gpu1 {ec}\ngpu1 {other}", server=TWO),
    Case("a list of names", "known", "a,gpu1,b {host}"),
    Case("another host", "unknown", "gpu2 {host}"),
    Case("a name in capitals", "known", "GPU1 {host}"),
    Case("asked for in capitals", "known", "gpu1 {host}", name="GPU1"),
    Case("a wildcard", "known", "gpu* {host}"),
    Case("a wildcard of one character", "known", "gpu? {host}"),
    Case("a wildcard of one character too many", "unknown", "gpu1? {host}"),
    Case("a wildcard and an exception", "unknown", "gpu*,!gpu1 {host}"),
    Case("an exception first", "unknown", "!gpu1,* {host}"),
    Case("a wildcard with another key", "changed", "* {other}"),
    Case("brackets are no set of characters", "unknown", "gpu[0-9] {host}"),
    Case("a hashed name", "known", "{hashed:gpu1} {host}"),
    Case("a hashed name with another key", "changed", "{hashed:gpu1} {other}"),
    Case("a hashed name of another host", "unknown", "{hashed:gpu2} {host}"),
    Case("broken lines, comments", "known", "# gpu1 {other}\ngpu1\n@odd gpu1 {other}\n  gpu1   {host} comment"),
    Case("a line without a key", "unknown", "gpu1 ssh-ed25519 AAAA"),
    Case("port: the plain name has the key", "known", "gpu1 {host}", ODD),
    Case("port: the plain name has another", "unknown", "gpu1 {other}", ODD),
    Case("port: its own line", "known", "[gpu1]:2222 {host}", ODD),
    Case("port: its own line has another, the plain name the key", "changed", "[gpu1]:2222 {other}\ngpu1 {host}", ODD),
    Case("port: of another port", "unknown", "[gpu1]:2200 {host}", ODD),
    Case("port: a hashed one", "known", "{hashed:[gpu1]:2222} {host}", ODD),
    Case("port: a wildcard", "known", "[*]:2222 {host}", ODD),
    Case("port: a wildcard with another", "changed", "* {other}\ngpu1 {host}", ODD),
    Case("alias", "known", "box {host}", ALIAS),
    Case("alias: the host's own name says nothing", "unknown", "gpu1 {host}", ALIAS),
    Case("alias with another key", "changed", "box {other}\ngpu1 {host}", ALIAS),
    Case("alias and port: the plain alias", "known", "box {host}", f"{ALIAS}\n{ODD}"),
    Case("alias and port: changed", "changed", "box {other}", f"{ALIAS}\n{ODD}"),
    Case("alias and port: a line with the port says nothing", "unknown", "[box]:2222 {host}", f"{ALIAS}\n{ODD}"),
    Case("alias in capitals", "known", "box {host}", "HostKeyAlias BOX"),
    Case("revoked here", "revoked", "gpu1 {host}\n@revoked gpu1 {host}"),
    Case("revoked everywhere", "revoked", "gpu1 {host}\n@revoked * {host}"),
    Case("another one is revoked", "known", "gpu1 {host}\n@revoked * {other}"),
    Case("revoked on another host", "known", "gpu1 {host}\n@revoked gpu2 {host}"),
    Case("a list revokes it", "revoked", "gpu1 {host}", revoked="{host}"),
    Case("a list revokes another", "known", "gpu1 {host}", revoked="# old\n{other}"),
    Case("a list that is not there", "revoked", "gpu1 {host}", "RevokedHostKeys /nowhere/revoked"),
    Case("no list", "known", "gpu1 {host}", "RevokedHostKeys none"),
    Case("a binary list revokes it", "revoked", "gpu1 {host}", revoked="krl {host}"),
    Case("a binary list revokes another", "known", "gpu1 {host}", revoked="krl {other}"),
    Case("authority", "known", "@cert-authority gpu* {ca}", server=SIGNED),
    Case("authority of other hosts", "unknown", "@cert-authority *.lab {ca}", server=SIGNED),
    Case("another authority", "unknown", "@cert-authority gpu1 {other_ca}", server=SIGNED),
    Case("another authority, and the key itself", "known", "@cert-authority * {other_ca}\ngpu1 {host}", server=SIGNED),
    Case("the key under a certificate has changed", "changed", "gpu1 {other}", server=SIGNED),
    Case("authority, but no certificate is shown", "unknown", "@cert-authority * {ca}"),
    Case("authority revoked", "revoked", "@cert-authority * {ca}\n@revoked * {ca}", server=SIGNED),
    Case("its key is revoked", "revoked", "@cert-authority * {ca}\n@revoked * {host}", server=SIGNED),
    Case("certificate of another name", "unknown", "@cert-authority * {ca}", server=SIGNED, name="gpu2"),
    Case("certificate, known by the plain name's authority", "known", "@cert-authority gpu1 {ca}", ODD, server=SIGNED),
    Case("certificate for the alias", "known", "@cert-authority box {ca}", "HostKeyAlias box", server=SIGNED),
    Case("an authority is no key of a host", "unknown", "@cert-authority gpu1 {host}"),
]  # fmt: skip


class World:
    """Keys, the server's files, and for each case a configuration that both clients read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = {
            name: self._key(name, kind)
            for name, kind in {
                "host": "ed25519", "ec": "ecdsa", "other": "ed25519", "other_ec": "ecdsa", "rsa": "rsa",
                "ca": "ed25519", "other_ca": "ed25519",
            }.items()
        }  # fmt: skip
        self._run("ssh-keygen", "-q", "-s", "ca", "-I", "id", "-h", "-n", "gpu1,box", "host.pub")
        common = "UsePAM no\nStrictModes no\nPidFile none\nAuthorizedKeysFile none\nLogLevel QUIET\n"
        for server, text in {
            PLAIN: f"HostKey {folder}/host\n",
            SIGNED: f"HostKey {folder}/host\nHostCertificate {folder}/host-cert.pub\n",
            TWO: f"HostKey {folder}/host\nHostKey {folder}/ec\n",
        }.items():
            (folder / server).write_text(common + text)

    def _run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def _key(self, name: str, kind: str) -> str:
        self._run(
            "ssh-keygen",
            "-q",
            "-t",
            kind,
            *(["-b", "2048"] if kind == "rsa" else []),
            "-N",
            "",
            "-f",
            name,
            "-C",
            "",
        )
        return " ".join((self.folder / f"{name}.pub").read_text().split()[:2])

    def home(self, case: Case) -> Path:
        """A home folder with the case's files."""
        home = self.folder / f"home-{CASES.index(case)}"
        ssh = home / ".ssh"
        ssh.mkdir(parents=True)
        lines = case.lines
        while "{hashed:" in lines:
            plain = lines.partition("{hashed:")[2].partition("}")[0]
            lines = lines.replace(f"{{hashed:{plain}}}", self._hashed(home, plain))
        (ssh / "known_hosts").write_text(lines.format(**self.keys) + "\n" if lines else "")
        revoked = ""
        if case.revoked is not None:
            revoked = f"RevokedHostKeys {home}/revoked\n"
            kind, _, key = case.revoked.format(**self.keys).partition(" ")
            if kind == "krl":
                (home / "bad.pub").write_text(key + "\n")
                self._run("ssh-keygen", "-q", "-k", "-f", f"{home}/revoked", f"{home}/bad.pub")
            else:
                (home / "revoked").write_text(case.revoked.format(**self.keys) + "\n")
        (ssh / "config").write_text(
            f"{case.config}\n{revoked}UserKnownHostsFile {ssh}/known_hosts\nGlobalKnownHostsFile /dev/null\n"
            "KexAlgorithms curve25519-sha256\n"  # the newest take longer
            f"ProxyCommand {SSHD} -E {home}/log -i -f {self.folder}/{case.server}\n"
        )
        return home

    def _hashed(self, home: Path, name: str) -> str:
        file = home / "to-hash"
        file.write_text(f"{name} {self.keys['host']}\n")
        self._run("ssh-keygen", "-q", "-H", "-f", str(file))
        return file.read_text().split()[0]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    return World(tmp_path_factory.mktemp("keys"))


def by_openssh(case: Case, home: Path) -> str:
    options = ["BatchMode=yes", "StrictHostKeyChecking=yes", "PreferredAuthentications=none", "LogLevel=INFO"]
    done = subprocess.run(
        ["ssh", "-F", home / ".ssh/config", *(f"-o{option}" for option in options), case.name, "true"],
        capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    said = done.stderr
    if "Permission denied" in said:
        return "known"
    if "HOST IDENTIFICATION HAS CHANGED" in said:
        return "changed"
    return "revoked" if "revoked" in said.lower() else "unknown"


@pytest.fixture(scope="module")
def verdicts(world: World) -> Iterator[dict[str, tuple[str, Path]]]:
    homes = [world.home(case) for case in CASES]
    with ThreadPoolExecutor(8) as pool:
        yield {
            case.what: (verdict, home)
            for case, home, verdict in zip(CASES, homes, pool.map(by_openssh, CASES, homes), strict=True)
        }


async def by_us(case: Case, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SKYWARD_HOME", str(home / "sky"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    try:
        await connect(Target(case.name), patience=0)
    except HostKeyError as error:
        for words, verdict in {"has CHANGED": "changed", "is not known": "unknown"}.items():
            if words in str(error):
                return verdict
        return "revoked"
    except PoolError as error:
        assert "rejects all keys" in str(error), error
        return "known"
    raise AssertionError("logged in without a key")


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
async def test_host_key_verdict_equals_that_of_openssh(
    case: Case, verdicts: dict[str, tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    openssh, home = verdicts[case.what]
    assert openssh == case.verdict, "the table is wrong"
    assert await by_us(case, home, monkeypatch) == openssh
