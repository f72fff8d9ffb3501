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
    """Save a source file unless it exists.

    Args:
        paths: Paths of the node.
        content: Content hash; also the name of the file's folder.
        name: File name.
        data: The zlib-compressed text.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If the data is damaged.
    """
    path = paths.source(content, name)
    if os.path.exists(path):  # noqa: PTH110  # the agent does not otherwise import pathlib here
        return
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, MAX_SOURCE_BYTES)
    except zlib.error as error:
        raise ValueError(f"received source {name} is damaged: {error}") from error
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
    partial = f"{path}.part"
    with open(partial, "wb") as file:
        file.write(text)
    os.replace(partial, path)  # noqa: PTH105


def remove_compiled(folder: str, modules: Mapping[str, str]) -> None:
    """Remove bytecode that was compiled before its source file changed.

    Compares the inode change times, which this machine's clock sets. Modification times may come from the client.

    Args:
        folder: Folder of relative names.
        modules: Source file -> its hash when it was loaded; "" if unknown, in which case the bytecode is always
            removed.
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
            continue  # a folder of another user: ranks cannot have written bytecode there
