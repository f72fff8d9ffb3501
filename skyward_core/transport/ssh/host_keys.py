"""Host keys: always verified, against the person's ``known_hosts`` files and one of our own.

The rules are OpenSSH's: an entry is looked up by the host's name, as ``[name]:port`` where the port is not 22, or by
its ``HostKeyAlias`` alone; addresses are not looked up beside names (``CheckHostIP no``, its default).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ...model.errors import HostKeyError
from ...model.hint import Hint
from ...model.value import Value, value
from .asyncssh_import import asyncssh, get_certificate_algs, get_public_key_algs
from .known_hosts import KnownHost, Marker, entries
from .route import own_file as own_file
from .target import SSH_PORT

PLAIN = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
SIGNED = tuple(f"{each.removesuffix('@openssh.com')}-cert-v01@openssh.com" for each in PLAIN)


@value
class ServerKey(Value):
    """The key that a host showed.

    Attributes:
        host: what the person calls the host.
        name: the name it goes by in known_hosts files.
        port: where it listens, as far as those files go by it: the standard one with a ``HostKeyAlias``.
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


@value
class Known(Value):
    """What the files say of one host.

    Attributes:
        trusted: keys that the host may show.
        elsewhere: keys of the same name on the standard port; where nothing is said of this port they count as known
            too, as for OpenSSH, but another key here is not called changed because of them.
        authorities: keys that may have signed its certificate.
        revoked: keys that nobody may show.
        places: file and line of each of ``trusted``.
        lists: files of revoked keys that the configuration names.
    """

    trusted: tuple[asyncssh.SSHKey, ...] = ()
    elsewhere: tuple[asyncssh.SSHKey, ...] = ()
    authorities: tuple[asyncssh.SSHKey, ...] = ()
    revoked: tuple[asyncssh.SSHKey, ...] = ()
    places: tuple[tuple[Path, int], ...] = ()
    lists: tuple[Path, ...] = ()

    def is_revoked(self, key: asyncssh.SSHKey) -> bool:
        """Whether nobody may show a key, or have signed with it.

        Raises:
            HostKeyError: a list of revoked keys cannot be used.
        """
        if key in self.revoked or not self.lists:
            return key in self.revoked
        from .revoked_keys import revokes  # late: few have such a list

        return any(revokes(file, key) for file in self.lists)

    def verdict(self, key: asyncssh.SSHKey) -> Literal["known", "unknown", "changed", "revoked"]:
        """What to think of a key that the host showed.

        Raises:
            HostKeyError: a list of revoked keys cannot be used.
        """
        if self.is_revoked(key):
            return "revoked"
        if key in self.trusted or key in self.elsewhere:
            return "known"
        return "changed" if self.trusted else "unknown"

    def algorithms(self, *, certificates: bool = True) -> list[str]:
        """How a host may sign, the wanted first, in OpenSSH's order: by certificates, keys of known types, any others.

        All are offered, so that a host that has other keys only can show one, and be told from one that is silent.
        A certificate is asked for only where somebody could have signed it, and there is no list of revoked keys, which
        may name certificates by their numbers: plain keys can be judged by it.
        """
        known = {
            each.decode("ascii") for key in (*self.trusted, *self.elsewhere) for each in key.sig_algorithms
        }
        signed = SIGNED if certificates and self.authorities and not self.lists else ()
        possible = {each.decode("ascii") for each in (*get_public_key_algs(), *get_certificate_algs())}
        wanted = [*signed, *(each for each in PLAIN if each in known), *PLAIN]
        return [each for each in dict.fromkeys(wanted) if each in possible]


def look_up(files: Sequence[Path], name: str, port: int, lists: Sequence[Path] = ()) -> Known:
    """What known_hosts files say of a host; files that do not exist say nothing.

    Args:
        port: where it listens; the standard one for a ``HostKeyAlias``, which goes by no port.
        lists: files of revoked keys that the configuration names.

    Raises:
        HostKeyError: a file exists and cannot be read.
    """
    name = name.lower()
    here, places = _said(files, name if port == SSH_PORT else f"[{name}]:{port}")
    plain, _ = _said(files, name) if port != SSH_PORT else ({}, ())
    if here.get(""):
        plain.pop("", None)
    return Known(
        trusted=tuple(here.get("", ())),
        elsewhere=tuple(plain.get("", ())),
        authorities=(*here.get("@cert-authority", ()), *plain.get("@cert-authority", ())),
        revoked=(*here.get("@revoked", ()), *plain.get("@revoked", ())),
        places=places,
        lists=tuple(lists),
    )


def _said(
    files: Sequence[Path], name: str
) -> tuple[dict[Marker, list[asyncssh.SSHKey]], tuple[tuple[Path, int], ...]]:
    """The keys of lines about a name, by marker; and where those without one stand."""
    keys: dict[Marker, list[asyncssh.SSHKey]] = {}
    places = []
    for file in files:
        for entry in _entries_of(file):
            if entry.is_about(name) and (key := entry.key()) is not None:
                keys.setdefault(entry.marker, []).append(key)
                if not entry.marker:
                    places.append((entry.file, entry.line))
    return keys, tuple(places)


def _entries_of(file: Path) -> Sequence[KnownHost]:
    try:
        return entries(file)
    except OSError as error:
        raise HostKeyError(
            f"The known_hosts file {file} cannot be read ({error.strerror}), so no host can be verified; "
            "make it readable, or name another one with known_hosts=."
        ) from error


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
    return HostKeyError(
        f"The key of host {shown.host} ({shown.name} port {shown.port}) is not known, so nothing was sent to it. It "
        f"shows the {shown.kind} key {shown.fingerprint}. Compare that with what `ssh-keygen -lf "
        f"/etc/ssh/ssh_host_{shown.kind.lower()}_key.pub` prints on the host; if it is the same, it may be "
        "trusted",
        hint=_trust(shown),
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
        "or somebody stands between you and it. If you know why it changed, remove the old key first: "
        f"ssh-keygen -f {file} -R '{shown.pattern}'",
        hint=_trust(shown),
    )


def _trust(shown: ServerKey) -> Hint:
    return Hint("trust-host-key", shown.host, "" if shown.file == own_file() else str(shown.file))


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
