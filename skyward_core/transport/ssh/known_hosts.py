"""Verification of host keys against known_hosts and revocation files, by OpenSSH's rules.

An entry is found by the host's name, as ``[name]:port`` for ports other than 22. If the SSH configuration sets a
``HostKeyAlias``, an entry is found only by that alias.
If the user gives a name, the host's address is not looked up (``CheckHostIP no``, OpenSSH's default).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from skyward_core.model.errors import Hint, HostKeyError
from skyward_core.transport.ssh.asyncssh_patches import asyncssh, get_certificate_algs, get_public_key_algs
from skyward_core.transport.ssh.host_address_and_python import SSH_PORT
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import own_known_hosts_file as own_known_hosts_file
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import read_bytes, read_text

Marker = Literal["", "@cert-authority", "@revoked"]
MARKERS: dict[str, Marker] = {"@cert-authority": "@cert-authority", "@revoked": "@revoked"}


@value
class KnownHost(Value):
    """Line of a known_hosts file: ``names`` are its host patterns, ``text`` is its key."""

    file: Path
    line: int
    marker: Marker
    names: str
    text: str

    def key(self) -> asyncssh.SSHKey | None:
        """Return the public key of the line; None if it is invalid, so that the line trusts no host."""
        try:
            return asyncssh.import_public_key(self.text)
        except ValueError:
            return None

    def is_about(self, name: str) -> bool:
        """Check whether the line applies to a host name (in lower case; ``[name]:port`` for ports except 22)."""
        if self.names.startswith("|"):
            return _is_hash_of(self.names, name)
        found = False
        for pattern in self.names.lower().split(","):
            if _matches(pattern.removeprefix("!"), name):
                if pattern.startswith("!"):
                    return False
                found = True
        return found


def read_entries(file: Path) -> tuple[KnownHost, ...]:
    """Return the lines of a known_hosts file; empty if there is no file.

    Raises:
        OSError: If the file cannot be read.
    """
    try:
        found = file.stat()
    except FileNotFoundError:
        return ()
    return _read(file, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=32)
def _read(file: Path, mtime: int, size: int) -> tuple[KnownHost, ...]:
    """Read a known_hosts file. ``mtime`` and ``size`` are only keys of the cache: they identify the file's version."""
    return tuple(_parse(file))


def _parse(file: Path) -> Iterator[KnownHost]:
    for number, line in enumerate(read_text(file, errors="replace").split("\n"), 1):
        marker: Marker = ""
        rest = line.strip()
        if rest.startswith("@"):
            word, _, rest = rest.partition(" ")
            if word not in MARKERS:
                continue
            marker = MARKERS[word]
        names, _, text = " ".join(rest.split()).partition(" ")
        if text and not names.startswith("#"):
            yield KnownHost(file, number, marker, names, text)


def _is_hash_of(hashed: str, name: str) -> bool:
    try:
        _, kind, salt, digest = hashed.split("|")
        expected, salted = base64.b64decode(digest), base64.b64decode(salt)
    except (ValueError, binascii.Error):
        return False
    return kind == "1" and hmac.compare_digest(hmac.digest(salted, name.encode(), hashlib.sha1), expected)


def _matches(pattern: str, name: str) -> bool:
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name, re.DOTALL) is not None


PLAIN_ALGORITHMS = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
CERTIFICATE_ALGORITHMS = tuple(f"{each.removesuffix('@openssh.com')}-cert-v01@openssh.com" for each in PLAIN_ALGORITHMS)


@value
class ServerKey(Value):
    """Host key that a host presented.

    Attributes:
        host: Host as written by the user.
        name: Name of the host in known_hosts files.
        port: Port of the host in known_hosts files; 22 with a ``HostKeyAlias``.
        key: The public key.
        file: File to which :func:`accept_key` adds the key.
    """

    host: str
    name: str
    port: int
    key: asyncssh.SSHKey
    file: Path

    @property
    def pattern(self) -> str:
        """Name of the host in the syntax of known_hosts files."""
        return self.name if self.port == SSH_PORT else f"[{self.name}]:{self.port}"

    @property
    def key_type(self) -> str:
        """Type of the key: ED25519, ECDSA, RSA."""
        return key_type(self.key)

    @property
    def fingerprint(self) -> str:
        """SHA256 fingerprint of the key, as printed by ``ssh-keygen -l``."""
        return self.key.get_fingerprint()


@value
class KnownKeys(Value):
    """Entries of known_hosts files for one host.

    Attributes:
        trusted: Keys that the host may present.
        elsewhere: Keys of the same name on port 22. As in OpenSSH, these keys are trusted if no key is known for the
            host's own port. If the host then presents a different key, the key counts as unknown, not as changed.
        authorities: Keys that may sign the host's certificate.
        revoked: Keys that no host may present.
        places: File and line of each key in ``trusted``.
        lists: Files of revoked keys in the configuration.
    """

    trusted: tuple[asyncssh.SSHKey, ...] = ()
    elsewhere: tuple[asyncssh.SSHKey, ...] = ()
    authorities: tuple[asyncssh.SSHKey, ...] = ()
    revoked: tuple[asyncssh.SSHKey, ...] = ()
    places: tuple[tuple[Path, int], ...] = ()
    lists: tuple[Path, ...] = ()

    def is_revoked(self, key: asyncssh.SSHKey) -> bool:
        """Check whether a key is revoked, either as a host key or as a signer of certificates.

        Raises:
            HostKeyError: If a list of revoked keys cannot be read.
        """
        return key in self.revoked or any(is_revoked_by(file, key) for file in self.lists)

    def verdict(self, key: asyncssh.SSHKey) -> Literal["known", "unknown", "changed", "revoked"]:
        """Decide whether a key that the host presented is trusted, unknown, changed or revoked.

        Raises:
            HostKeyError: If a list of revoked keys cannot be read.
        """
        if self.is_revoked(key):
            return "revoked"
        if key in self.trusted or key in self.elsewhere:
            return "known"
        return "changed" if self.trusted else "unknown"

    def algorithms(self, *, certificates: bool = True) -> list[str]:
        """Return the signature algorithms to request from the host, in OpenSSH's order.

        The order is: certificates, keys of known types, all others.

        All algorithms are offered, so that a host with keys of other types presents a key and can be distinguished from
        a host that does not answer. Certificates are only requested if there are authorities and no lists of revoked
        keys, because a list may revoke certificates by serial number.
        """
        known = {each.decode("ascii") for key in (*self.trusted, *self.elsewhere) for each in key.sig_algorithms}
        signed = CERTIFICATE_ALGORITHMS if certificates and self.authorities and not self.lists else ()
        possible = {each.decode("ascii") for each in (*get_public_key_algs(), *get_certificate_algs())}
        preferred = [*signed, *(each for each in PLAIN_ALGORITHMS if each in known), *PLAIN_ALGORITHMS]
        return [each for each in dict.fromkeys(preferred) if each in possible]


def look_up(files: Sequence[Path], name: str, port: int, lists: Sequence[Path] = ()) -> KnownKeys:
    """Return the entries for a host in known_hosts files. Ignore missing files.

    Args:
        port: Port of the host; 22 for a ``HostKeyAlias``.
        lists: Files of revoked keys in the configuration.

    Raises:
        HostKeyError: If a file exists but cannot be read.
    """
    name = name.lower()
    here, places = _matching_keys(files, name if port == SSH_PORT else f"[{name}]:{port}")
    plain, _ = _matching_keys(files, name) if port != SSH_PORT else ({}, ())
    if here.get(""):
        plain.pop("", None)
    return KnownKeys(
        trusted=tuple(here.get("", ())),
        elsewhere=tuple(plain.get("", ())),
        authorities=(*here.get("@cert-authority", ()), *plain.get("@cert-authority", ())),
        revoked=(*here.get("@revoked", ()), *plain.get("@revoked", ())),
        places=places,
        lists=tuple(lists),
    )


def _matching_keys(
    files: Sequence[Path], name: str
) -> tuple[dict[Marker, list[asyncssh.SSHKey]], tuple[tuple[Path, int], ...]]:
    """Return a host name's keys by the marker of their line, and file and line of each key without a marker."""
    keys: dict[Marker, list[asyncssh.SSHKey]] = {}
    places = []
    for file in files:
        try:
            entries = read_entries(file)
        except OSError as error:
            raise HostKeyError(
                f"The known_hosts file {file} cannot be read ({error.strerror}), so hosts cannot be verified. "
                "Make the file readable, or choose another one with known_hosts=."
            ) from error
        for entry in entries:
            if entry.is_about(name) and (key := entry.key()) is not None:
                keys.setdefault(entry.marker, []).append(key)
                if not entry.marker:
                    places.append((entry.file, entry.line))
    return keys, tuple(places)


def accept_key(key: ServerKey) -> Path:
    """Add a host key to its known_hosts file unless the key is known. Return the file.

    Raises:
        HostKeyError: If the file cannot be written.
    """
    if key.key in look_up([key.file], key.name, key.port).trusted:
        return key.file  # The key is already saved: two connections may have asked about the same host.
    line = f"{key.pattern} {key.key.export_public_key().decode().strip()}\n"
    try:
        _append(key.file, line.encode())
    except OSError as error:
        raise HostKeyError(
            f"The key of host {key.host} was accepted but cannot be saved to {key.file} ({error.strerror}), "
            "so nothing was sent to the host. Make the file writable, or choose another one with known_hosts=."
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


def unknown_key_error(shown: ServerKey) -> HostKeyError:
    """Return the error for an unknown host key."""
    return HostKeyError(
        f"The key of host {_host_text(shown)} is not known, so nothing was sent to it. It "
        f"presents the {shown.key_type} key {shown.fingerprint}. Compare it with the output of `ssh-keygen -lf "
        f"/etc/ssh/ssh_host_{shown.key_type.lower()}_key.pub` on the host. If they are equal, trust the key",
        hint=_trust_hint(shown),
    )


def changed_key_error(shown: ServerKey, known: KnownKeys) -> HostKeyError:
    """Return the error for a host key that differs from the key in known_hosts files."""
    old = ", ".join(
        f"{key_type(key)} {key.get_fingerprint()} ({file} line {line})"
        for key, (file, line) in zip(known.trusted, known.places, strict=True)
    )
    file, _ = known.places[0]
    return HostKeyError(
        f"The key of host {_host_text(shown)} has CHANGED, so nothing was sent to it. Known: {old}. "
        f"Presented now: {shown.key_type} {shown.fingerprint}. Either the host was reinstalled, "
        "or the connection is intercepted. If you know the reason, remove the old key first: "
        f"ssh-keygen -f {file} -R '{shown.pattern}'",
        hint=_trust_hint(shown),
    )


def _host_text(shown: ServerKey) -> str:
    """Return the host as the user wrote it, followed by its address and port if the text lacks them."""
    address = f"[{shown.name}]" if ":" in shown.name else shown.name
    named = shown.host.rpartition("@")[2]
    known = named == f"{address}:{shown.port}" or (shown.port == 22 and named in (address, shown.name))
    return shown.host if known else f"{shown.host} ({shown.name} port {shown.port})"


def _trust_hint(shown: ServerKey) -> Hint:
    return Hint("trust-host-key", shown.host, "" if shown.file == own_known_hosts_file() else str(shown.file))


def refused_key_error(host: str, reason: str) -> HostKeyError:
    """Return the error for a host that presents a revoked key or an invalid certificate."""
    return HostKeyError(
        f"The key of host {host} cannot be trusted ({reason}), so nothing was sent to it. "
        "The key is revoked, or its certificate is not valid: ask the host's administrator."
    )


def key_type(key: asyncssh.SSHKey) -> str:
    """Return the type of a key: ED25519, ECDSA, RSA."""
    name = key.get_algorithm().split("@")[0].removeprefix("sk-")
    return {"ssh-ed25519": "ED25519", "ssh-rsa": "RSA", "ssh-dss": "DSA"}.get(name, name.split("-")[0].upper())


KRL = b"SSHKRL\n\0"


def is_revoked_by(file: Path, key: asyncssh.SSHKey) -> bool:
    """Check whether a file of revoked keys contains a key.

    Raises:
        HostKeyError: If the file is unreadable or invalid. OpenSSH rejects all hosts in this case.
    """
    try:
        data = read_bytes(file)
    except OSError as error:
        raise _revoked_list_error(file, error.strerror or str(error)) from error
    return _is_in_krl(file, key) if data.startswith(KRL) else key in _parse_keys(data)


def _parse_keys(data: bytes) -> list[asyncssh.SSHKey]:
    found = []
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                found.append(asyncssh.import_public_key(text))
            except ValueError:
                continue  # Skip invalid lines, as OpenSSH does.
    return found


def _is_in_krl(file: Path, key: asyncssh.SSHKey) -> bool:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise _revoked_list_error(file, "reading it requires ssh-keygen, which is not on PATH")
    with tempfile.NamedTemporaryFile(suffix=".pub") as shown:
        shown.write(key.export_public_key())
        shown.flush()
        done = subprocess.run(
            [program, "-Q", "-f", str(file), shown.name],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    if done.returncode and "REVOKED" not in done.stdout:
        raise _revoked_list_error(file, (done.stderr or done.stdout).strip())
    return done.returncode != 0


def _revoked_list_error(file: Path, reason: str) -> HostKeyError:
    return HostKeyError(
        f"The list of revoked host keys {file} (RevokedHostKeys in ~/.ssh/config) cannot be used ({reason}), so no "
        "host is trusted. Fix the file, or remove the line."
    )
