"""Scripts' texts that clients send, as files: for ranks that have none of their own, or another version."""

from __future__ import annotations

import os
import zlib

from ...wire.node_paths import NodePaths

LARGEST = 1 << 20  # bytes


def keep(paths: NodePaths, content: str, name: str, data: bytes) -> None:
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
        text = reader.decompress(data, LARGEST)
    except zlib.error as error:
        raise ValueError(f"the source {name} that a client has sent is damaged: {error}") from error
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
    partial = f"{path}.part"
    with open(partial, "wb") as file:
        file.write(text)
    os.replace(partial, path)  # noqa: PTH105
