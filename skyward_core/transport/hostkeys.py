"""Host keys: always verified, against the person's ``known_hosts`` files and one of our own.

The rules are OpenSSH's: an entry is looked up by the host's name (or ``HostKeyAlias``), as ``[name]:port``
where the port is not 22; addresses are not looked up beside names (``CheckHostIP no``, its default).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from .. import config
from ..errors import HostKeyError
from .lib import asyncssh
from .target import SSH_PORT


def own_file() -> Path:
    """The known_hosts file in which accepted keys are kept."""
    return config.home() / "known_hosts"


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The key that a host showed.

    Attributes:
        host: what the person calls the host.
        name: the name it goes by in known_hosts files.
        port: where it listens.
        key: the public key.
        file: where :func:`accept` writes it.
    """

    host: str
    name: str
    port: int
    key: asyncssh.SSHKey
    file: Path

    @property
    def pattern(self) -> str:
        """The host's name as known_hosts files write it."""
        return self.name if self.port == SSH_PORT else f"[{self.name}]:{self.port}"

    @property
    def kind(self) -> str:
        """The key's type in words people know: ED25519, ECDSA, RSA."""
        return kind(self.key)

    @property
    def fingerprint(self) -> str:
        """The key's SHA256 fingerprint, as ``ssh-keygen -l`` prints it."""
        return self.key.get_fingerprint()


# How a person is asked about an unknown key under the policy "ask": set by the front end. The answer True
# accepts the key, which is then written down.
ask_hook: Callable[[ServerKey], Awaitable[bool]] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a known_hosts file."""

    file: Path
    line: int
    hosts: asyncssh.SSHKnownHosts


@dataclass(frozen=True, slots=True)
class Known:
    """What the files say of one host.

    Attributes:
        trusted: keys that the host may show.
        elsewhere: keys of the same name on the standard port; they count as known too, as for OpenSSH, but
            another key on this port is not called changed because of them.
        authorities: keys that may have signed its certificate.
        revoked: keys that nobody may show.
        places: file and line of each of ``trusted``.
    """

    trusted: tuple[asyncssh.SSHKey, ...]
    elsewhere: tuple[asyncssh.SSHKey, ...]
    authorities: tuple[asyncssh.SSHKey, ...]
    revoked: tuple[asyncssh.SSHKey, ...]
    places: tuple[tuple[Path, int], ...]

    def verdict(self, key: asyncssh.SSHKey) -> Literal["known", "unknown", "changed"]:
        """What to think of a key that the host showed; revoked ones do not come this far."""
        if key in self.trusted or key in self.elsewhere:
            return "known"
        return "changed" if self.trusted else "unknown"


def look_up(files: Sequence[Path], name: str, port: int) -> Known:
    """What known_hosts files say of a host; files that do not exist say nothing.

    Raises:
        HostKeyError: a file exists and cannot be read.
    """
    trusted: list[asyncssh.SSHKey] = []
    elsewhere: list[asyncssh.SSHKey] = []
    authorities: list[asyncssh.SSHKey] = []
    revoked: list[asyncssh.SSHKey] = []
    places: list[tuple[Path, int]] = []
    exact, plain = ("", name) if port == SSH_PORT else (f"[{name}]:{port}", name)
    for file in files:
        for entry in _entries_of(file):
            keys, cas, bad, *_ = entry.hosts.match(exact or plain, "", None)
            trusted += keys
            places += [(entry.file, entry.line)] * len(keys)
            if exact:
                also, more_cas, more_bad, *_ = entry.hosts.match(plain, "", None)
                elsewhere += also
                cas, bad = [*cas, *more_cas], [*bad, *more_bad]
            authorities += cas
            revoked += bad
    return Known(tuple(trusted), tuple(elsewhere), tuple(authorities), tuple(revoked), tuple(places))


def _entries_of(file: Path) -> tuple[Entry, ...]:
    try:
        found = file.stat()
        return _parse(file, found.st_mtime_ns, found.st_size)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise HostKeyError(
            f"The known_hosts file {file} cannot be read ({error.strerror}), so no host can be verified; "
            "make it readable, or name another one with known_hosts=."
        ) from error


@lru_cache(maxsize=32)
def _parse(file: Path, mtime: int, size: int) -> tuple[Entry, ...]:
    """The lines of a file that can be read; ``mtime`` and ``size`` are the cache's key."""
    entries = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            entries.append(Entry(file, number, asyncssh.import_known_hosts(text)))
        except ValueError:
            continue  # as OpenSSH does: a line that makes no sense trusts nobody
    return tuple(entries)


def accept(key: ServerKey) -> Path:
    """Write a host's key down as known, unless it is; returns the file.

    Raises:
        HostKeyError: the file cannot be written.
    """
    if key.key in look_up([key.file], key.name, key.port).trusted:
        return key.file  # two connections may have asked about one host
    line = f"{key.pattern} {key.key.export_public_key().decode().strip()}\n"
    try:
        _append(key.file, line.encode())
    except OSError as error:
        raise HostKeyError(
            f"The key of host {key.host} was accepted, and cannot be written to {key.file} ({error.strerror}), "
            "so nothing was sent to the host; make the file writable, or name another one with known_hosts=."
        ) from error
    return key.file


def _append(file: Path, line: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def unknown(shown: ServerKey) -> HostKeyError:
    """The error for a host that no file knows."""
    where = f"{shown.name} port {shown.port}"
    also = "" if shown.file == own_file() else f" --known-hosts {shown.file}"
    return HostKeyError(
        f"The key of host {shown.host} ({where}) is not known, so nothing was sent to it. It shows the "
        f"{shown.kind} key {shown.fingerprint}. Compare that with what `ssh-keygen -lf "
        f"/etc/ssh/ssh_host_{shown.kind.lower()}_key.pub` prints on the host; if it is the same, accept it "
        f"with: skyward-tui trust {shown.host}{also}"
    )


def changed(shown: ServerKey, known: Known) -> HostKeyError:
    """The error for a host that shows another key than the one written down."""
    old = ", ".join(
        f"{kind(key)} {key.get_fingerprint()} ({file} line {line})"
        for key, (file, line) in zip(known.trusted, known.places, strict=True)
    )
    file, _ = known.places[0]
    return HostKeyError(
        f"The key of host {shown.host} ({shown.name} port {shown.port}) has CHANGED, so nothing was sent to "
        f"it. Known: {old}. Shown now: {shown.kind} {shown.fingerprint}. Either the host was installed anew, "
        "or somebody stands between you and it. If you know why it changed, remove the old key with: "
        f"ssh-keygen -f {file} -R '{shown.pattern}'  and accept the new one with: "
        f"skyward-tui trust {shown.host}"
    )


def refused(host: str, reason: str) -> HostKeyError:
    """The error for a host whose key is revoked, or whose certificate does not hold."""
    return HostKeyError(
        f"The key of host {host} cannot be trusted ({reason}), so nothing was sent to it. "
        "A known_hosts file revokes it, or its certificate does not hold: ask whoever runs the host."
    )


def kind(key: asyncssh.SSHKey) -> str:
    """A key's type in words people know: ED25519, ECDSA, RSA."""
    name = key.get_algorithm().split("@")[0].removeprefix("sk-")
    return {"ssh-ed25519": "ED25519", "ssh-rsa": "RSA", "ssh-dss": "DSA"}.get(
        name, name.split("-")[0].upper()
    )
