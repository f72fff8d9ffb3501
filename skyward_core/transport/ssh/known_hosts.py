"""Lines of known_hosts files, and which of them are about a host; the rules are those of sshd(8) and OpenSSH's code."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ...model.value import Value, value
from ...store.user_files import read_text
from .asyncssh_import import asyncssh

Marker = Literal["", "@cert-authority", "@revoked"]
MARKERS: dict[str, Marker] = {"@cert-authority": "@cert-authority", "@revoked": "@revoked"}


@value
class KnownHost(Value):
    """A line that may be about a host: ``names`` are its patterns, ``text`` is its key."""

    file: Path
    line: int
    marker: Marker
    names: str
    text: str

    def key(self) -> asyncssh.SSHKey | None:
        """The key; None where there is none that makes sense, which trusts nobody."""
        try:
            return asyncssh.import_public_key(self.text)
        except ValueError:
            return None

    def is_about(self, name: str) -> bool:
        """Whether the line speaks of a host of this name, in lower case, as ``[name]:port`` off the standard port."""
        if self.names.startswith("|"):
            return _is_hash_of(self.names, name)
        found = False
        for pattern in self.names.lower().split(","):
            if _fits(pattern.removeprefix("!"), name):
                if pattern.startswith("!"):
                    return False
                found = True
        return found


def entries(file: Path) -> tuple[KnownHost, ...]:
    """The lines of a file; none where there is no file.

    Raises:
        OSError: it cannot be read.
    """
    try:
        found = file.stat()
    except FileNotFoundError:
        return ()
    return _read(file, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=32)
def _read(file: Path, mtime: int, size: int) -> tuple[KnownHost, ...]:
    """``mtime`` and ``size`` are the cache's key."""
    return tuple(_parsed(file))


def _parsed(file: Path) -> Iterator[KnownHost]:
    lines = read_text(file, errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
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
        wanted, salted = base64.b64decode(digest), base64.b64decode(salt)
    except (ValueError, binascii.Error):
        return False
    return kind == "1" and hmac.compare_digest(hmac.digest(salted, name.encode(), hashlib.sha1), wanted)


def _fits(pattern: str, name: str) -> bool:
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    plain = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(plain, name, re.DOTALL) is not None
