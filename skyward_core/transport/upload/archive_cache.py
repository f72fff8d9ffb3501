"""Bundles that were packed before, kept as Python keeps bytecode: beside the code, where we may write there.

To pack one takes forty milliseconds, while the same process loads all that a start over SSH needs.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

from ...node.boot.host import others_write

DIGEST = 32  # bytes of SHA-256: what a power cut left half written is nothing


def load(name: str, variant: str) -> bytes:
    """An archive, or b"" if it was not kept, is of another content, or may be of a stranger's making.

    Args:
        name: what it stands for, content and all.
        variant: the word for its kind; one of each is kept.
    """
    try:
        with open(_path(variant), "rb") as file:
            kept = file.read() if _is_believed(os.fstat(file.fileno())) else b""
    except (OSError, NotImplementedError):
        return b""
    archive = kept[DIGEST:]
    return archive if kept[:DIGEST] == _digest(name, archive) else b""


def store(name: str, variant: str, archive: bytes) -> None:
    """Keep an archive for the next start; whole or not at all. Where that is not to be, nothing happens."""
    if sys.dont_write_bytecode:
        return
    from ...store.whole_file import write_whole  # late: most starts find one here

    with suppress(OSError, NotImplementedError):
        write_whole(Path(_path(variant)), _digest(name, archive) + archive, mode=0o644)


def _is_believed(found: os.stat_result) -> bool:
    """Whether nobody could have written a file who could not have written the code; nodes will run it."""
    return not others_write(found) and found.st_uid in (0, os.getuid(), os.stat(__file__).st_uid)


def _path(variant: str) -> str:
    return cache_from_source(__file__).removesuffix(".pyc") + f".{variant}"


def _digest(name: str, archive: bytes) -> bytes:
    return hashlib.sha256(name.encode() + archive).digest()
