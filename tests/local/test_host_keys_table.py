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
    """Lines of a known_hosts file: {host}, {ec}, {rsa}, {other}, {ca} and {other_ca} are keys, {name} is gpu1."""

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
    Case("empty file", "unknown"),
    Case("matching key", "known", "gpu1 {host}"),
    Case("different key", "changed", "gpu1 {other}"),
    Case("different and matching key", "known", "gpu1 {other}\ngpu1 {host}"),
    Case("key of another type", "changed", "gpu1 {rsa}"),
    Case("keys of several types with the matching one", "known", "gpu1 {rsa}\ngpu1 {host}"),
    Case("known second host key", "known", "gpu1 {ec}", server=TWO),
    Case("changed second host key", "changed", "gpu1 {other_ec}", server=TWO),
    Case("first of two known types decides", "changed", "gpu1 {ec}\ngpu1 {other}", server=TWO),
    Case("list of names", "known", "a,gpu1,b {host}"),
    Case("other host", "unknown", "gpu2 {host}"),
    Case("name in capitals", "known", "GPU1 {host}"),
    Case("requested name in capitals", "known", "gpu1 {host}", name="GPU1"),
    Case("wildcard", "known", "gpu* {host}"),
    Case("one-character wildcard", "known", "gpu? {host}"),
    Case("one-character wildcard too long", "unknown", "gpu1? {host}"),
    Case("wildcard and negation", "unknown", "gpu*,!gpu1 {host}"),
    Case("negation before wildcard", "unknown", "!gpu1,* {host}"),
    Case("wildcard with a different key", "changed", "* {other}"),
    Case("brackets match literally", "unknown", "gpu[0-9] {host}"),
    Case("hashed name", "known", "{hashed:gpu1} {host}"),
    Case("hashed name with a different key", "changed", "{hashed:gpu1} {other}"),
    Case("hashed name of another host", "unknown", "{hashed:gpu2} {host}"),
    Case("invalid lines and comments", "known", "# gpu1 {other}\ngpu1\n@odd gpu1 {other}\n  gpu1   {host} comment"),
    Case("line with an invalid key", "unknown", "gpu1 ssh-ed25519 AAAA"),
    Case("port: name without port has the key", "known", "gpu1 {host}", ODD),
    Case("port: name without port has a different key", "unknown", "gpu1 {other}", ODD),
    Case("port: name with port", "known", "[gpu1]:2222 {host}", ODD),
    Case("port: name with port decides", "changed", "[gpu1]:2222 {other}\ngpu1 {host}", ODD),
    Case("port: name with another port", "unknown", "[gpu1]:2200 {host}", ODD),
    Case("port: hashed name", "known", "{hashed:[gpu1]:2222} {host}", ODD),
    Case("port: wildcard", "known", "[*]:2222 {host}", ODD),
    Case("port: wildcard with a different key", "changed", "* {other}\ngpu1 {host}", ODD),
    Case("alias", "known", "box {host}", ALIAS),
    Case("alias: host name is ignored", "unknown", "gpu1 {host}", ALIAS),
    Case("alias with a different key", "changed", "box {other}\ngpu1 {host}", ALIAS),
    Case("alias and port: alias without port", "known", "box {host}", f"{ALIAS}\n{ODD}"),
    Case("alias and port: different key", "changed", "box {other}", f"{ALIAS}\n{ODD}"),
    Case("alias and port: alias with port is ignored", "unknown", "[box]:2222 {host}", f"{ALIAS}\n{ODD}"),
    Case("alias in capitals", "known", "box {host}", "HostKeyAlias BOX"),
    Case("revoked for the host", "revoked", "gpu1 {host}\n@revoked gpu1 {host}"),
    Case("revoked for all hosts", "revoked", "gpu1 {host}\n@revoked * {host}"),
    Case("other key revoked", "known", "gpu1 {host}\n@revoked * {other}"),
    Case("revoked for another host", "known", "gpu1 {host}\n@revoked gpu2 {host}"),
    Case("revocation list with the key", "revoked", "gpu1 {host}", revoked="{host}"),
    Case("revocation list with another key", "known", "gpu1 {host}", revoked="# old\n{other}"),
    Case("missing revocation list", "revoked", "gpu1 {host}", "RevokedHostKeys /nowhere/revoked"),
    Case("revocation list none", "known", "gpu1 {host}", "RevokedHostKeys none"),
    Case("binary revocation list with the key", "revoked", "gpu1 {host}", revoked="krl {host}"),
    Case("binary revocation list with another key", "known", "gpu1 {host}", revoked="krl {other}"),
    Case("certificate authority", "known", "@cert-authority gpu* {ca}", server=SIGNED),
    Case("certificate authority of other hosts", "unknown", "@cert-authority *.lab {ca}", server=SIGNED),
    Case("other certificate authority", "unknown", "@cert-authority gpu1 {other_ca}", server=SIGNED),
    Case("other authority and matching key", "known", "@cert-authority * {other_ca}\ngpu1 {host}", server=SIGNED),
    Case("different key without certificate authority", "changed", "gpu1 {other}", server=SIGNED),
    Case("certificate authority without certificate", "unknown", "@cert-authority * {ca}"),
    Case("revoked certificate authority", "revoked", "@cert-authority * {ca}\n@revoked * {ca}", server=SIGNED),
    Case("certified key revoked", "revoked", "@cert-authority * {ca}\n@revoked * {host}", server=SIGNED),
    Case("certificate for another name", "unknown", "@cert-authority * {ca}", server=SIGNED, name="gpu2"),
    Case("certificate authority of the name without port", "known", "@cert-authority gpu1 {ca}", ODD, server=SIGNED),
    Case("certificate for the alias", "known", "@cert-authority box {ca}", "HostKeyAlias box", server=SIGNED),
    Case("certificate authority key as host key", "unknown", "@cert-authority gpu1 {host}"),
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
            "ssh-keygen", "-q", "-t", kind, *(["-b", "2048"] if kind == "rsa" else []), "-N", "", "-f", name, "-C", ""
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


def openssh_verdict(case: Case, home: Path) -> str:
    options = ["BatchMode=yes", "StrictHostKeyChecking=yes", "PreferredAuthentications=none", "LogLevel=INFO"]
    done = subprocess.run(
        ["ssh", "-F", home / ".ssh/config", *(f"-o{option}" for option in options), case.name, "true"],
        capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    output = done.stderr
    if "Permission denied" in output:
        return "known"
    if "HOST IDENTIFICATION HAS CHANGED" in output:
        return "changed"
    return "revoked" if "revoked" in output.lower() else "unknown"


@pytest.fixture(scope="module")
def verdicts(world: World) -> Iterator[dict[str, tuple[str, Path]]]:
    homes = [world.home(case) for case in CASES]
    with ThreadPoolExecutor(8) as pool:
        yield {
            case.what: (verdict, home)
            for case, home, verdict in zip(CASES, homes, pool.map(openssh_verdict, CASES, homes), strict=True)
        }


async def skyward_verdict(case: Case, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
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
    assert await skyward_verdict(case, home, monkeypatch) == openssh
