"""Receiver of a client's file on a command channel, which resumes interrupted uploads.

Prints a line with the token and the number of bytes already received, reads the remaining bytes, and prints the token
again once the file is complete. The process of an earlier attempt may still be writing after its connection broke. This
is harmless, because both processes write the same bytes to the same offsets.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path


def main(*arguments: str) -> None:
    """Receive a file; on failure, exit with an error message. See :func:`receive_file`."""
    try:
        receive_file(*arguments)
    except OSError as error:
        sys.exit(f"{error.strerror}: {arguments[0]}")


def receive_file(folder: str, name: str, size: str, attempts: str, token: str) -> None:
    """Receive a file from the client, or continue an interrupted upload of it.

    Args:
        folder: Target folder; created if missing.
        name: File name once complete.
        size: Size in bytes.
        attempts: Identifier that all attempts to upload this file share.
        token: First word of the lines for the client.

    Raises:
        OSError: If the file cannot be written. The partial file is deleted.
    """
    os.umask(0o077)
    Path(folder).mkdir(parents=True, exist_ok=True)
    partial, target = Path(folder, f".{name}.{attempts}"), Path(folder, name)
    file = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600)
    at = os.lseek(file, 0, os.SEEK_END)
    os.write(1, f"\n{token} {at}\n".encode())
    heartbeat = time.monotonic() + 1
    try:
        while data := os.read(0, 1 << 20):
            if time.monotonic() > heartbeat:
                # Send a heartbeat, because the client gives up on a host that sends nothing.
                os.write(1, b"\n")
                heartbeat = time.monotonic() + 1
            while data:
                data = data[os.write(file, data) :]
    except OSError:
        partial.unlink()  # Delete the partial file, because the disk is full.
        raise
    if os.fstat(file).st_size != int(size):
        return  # The connection broke. The next attempt continues the partial file.
    with suppress(FileNotFoundError):  # A concurrent upload of the same file finished first.
        partial.rename(target)
    if target.exists():
        os.write(1, f"\n{token}\n".encode())
