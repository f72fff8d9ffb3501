"""The files of a node's samples: each is named by the place of its first byte among all that was ever written, so that
whoever reads needs to remember one number. Standard library only."""

from __future__ import annotations

import os

_PREFIX = "m"


def sample_file(start: int) -> str:
    """What the file is called that begins with this byte."""
    return f"{_PREFIX}{start:015d}"


def sample_files(folder: str) -> list[tuple[int, str]]:
    """The files there, oldest first: place of the first byte, and name."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  where it is read from little is imported
    except FileNotFoundError:
        return []
    return sorted((int(name[1:]), name) for name in names if name.startswith(_PREFIX) and name[1:].isdigit())
