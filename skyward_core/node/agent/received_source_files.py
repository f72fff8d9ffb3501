"""Source files received from clients for ranks, and removal of stale bytecode."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from importlib.util import cache_from_source
from pathlib import Path

from skyward_core.protocol.node_paths import NodePaths

MAX_SOURCE_BYTES = 1 << 20  # bytes


def save_source(paths: NodePaths, content: str, name: str, data: bytes) -> None:
    """Write one, unless it is there.

    Args:
        content: the name of the content, and of the folder.
        name: the file's.
        data: the text, compressed.

    Raises:
        OSError: it cannot be written.
        ValueError: it cannot be read.
    """
    path = paths.source(content, name)
    if os.path.exists(path):  # noqa: PTH110  an agent has no need of pathlib here
        return
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, MAX_SOURCE_BYTES)
    except zlib.error as error:
        raise ValueError(f"the source {name} that a client has sent is damaged: {error}") from error
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
    partial = f"{path}.part"
    with open(partial, "wb") as file:
        file.write(text)
    os.replace(partial, path)  # noqa: PTH105


def remove_compiled(folder: str, modules: Mapping[str, str]) -> None:
    """Remove what was compiled before a source came to be as it is; by this machine's clock, as the source's own time
    may be another's.

    Args:
        folder: where names begin that are no whole paths.
        modules: the sources, and each one's hash when it was loaded; of one without, nobody knows what was compiled.
    """
    for name, loaded in modules.items():
        source = Path(folder, name)
        compiled = Path(cache_from_source(source))
        try:
            if not loaded or compiled.stat().st_mtime_ns <= source.stat().st_ctime_ns:
                compiled.unlink()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            continue  # somebody else's folder, where ranks cannot have compiled anything
