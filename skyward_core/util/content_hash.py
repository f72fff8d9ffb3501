"""Content hashes, which name large arguments and files on all machines."""

from __future__ import annotations

import hashlib
import re
from typing import Any

HASH_PATTERN = re.compile(r"[0-9a-f]{32}")
BLOB_PREFIX = "blob-"  # prefix of a temporary file's name on the client, until the file's content is complete
NAME_LENGTH = 32  # number of characters of a content hash: the first ones of the SHA-256 in hexadecimal


class ContentHash:
    """SHA-256, truncated to 128 bits. On CPUs with SHA instructions, OpenSSL's SHA-256 is twice as fast as BLAKE2."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def update(self, data: Any) -> None:
        self._sha.update(data)

    def hexdigest(self) -> str:
        return self._sha.hexdigest()[:NAME_LENGTH]


def hash_bytes(data: Any) -> str:
    """Return the content hash of data in memory."""
    return hashlib.sha256(data).hexdigest()[:NAME_LENGTH]
