"""Take a file of the client from a command channel into the agent's folder; a broken attempt is gone on with.

It prints a line with the word and how many bytes are here already, takes the rest, and prints the word once more when
the file is in its place. An attempt whose connection broke may still be writing when the next begins: both write the
same bytes to the same places.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path


def main(*arguments: str) -> None:
    """Take a file, or say in one line why not; see :func:`take`."""
    try:
        receive_file(*arguments)
    except OSError as error:
        sys.exit(f"{error.strerror}: {arguments[0]}")


def receive_file(folder: str, name: str, size: str, attempts: str, word: str) -> None:
    """Take one file.

    Args:
        folder: where it goes; made if it is not there.
        name: what it is called once it is whole.
        size: how many bytes it has.
        attempts: common to all attempts that bring this file, and to no others.
        word: what the lines for the client begin with.

    Raises:
        OSError: it cannot be written; nothing of it is left.
    """
    os.umask(0o077)
    Path(folder).mkdir(parents=True, exist_ok=True)
    partial, target = Path(folder, f".{name}.{attempts}"), Path(folder, name)
    file = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600)
    at = os.lseek(file, 0, os.SEEK_END)
    os.write(1, f"\n{word} {at}\n".encode())
    heartbeat = time.monotonic() + 1
    try:
        while data := os.read(0, 1 << 20):
            if time.monotonic() > heartbeat:  # the client takes a host for stalled that sends nothing
                os.write(1, b"\n")
                heartbeat = time.monotonic() + 1
            while data:
                data = data[os.write(file, data) :]
    except OSError:
        partial.unlink()  # the disk is full
        raise
    if os.fstat(file).st_size != int(size):
        return  # the connection broke; what is here is for the next attempt
    with suppress(FileNotFoundError):  # the other attempt was quicker
        partial.rename(target)
    if target.exists():
        os.write(1, f"\n{word}\n".encode())
