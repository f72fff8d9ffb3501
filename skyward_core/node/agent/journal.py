"""What an agent was given and what came of it, on the node's disk, for the agent that comes after it.

A file of frames, appended to: "given" when a call is handed to a worker, "outcome" when it has ended, "ack" when its
client has what came of it. It is emptied whenever no result waits for its client any more; beside a call that runs for
days, what was acknowledged meanwhile is left out whenever the file has doubled. Not flushed to the medium: it is for
the death of the agent, not of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...wire.frames import Decoder, WireError

if TYPE_CHECKING:
    from ...wire.node_frame_types import Written

ROOM = 4 << 20  # bytes that it may always have


class Journal:
    """See the module.

    Args:
        needed: gives the frames of all calls that are not acknowledged, as they would be written now.
    """

    def __init__(self, path: Path, needed: Callable[[], Iterable[bytes]]) -> None:
        self._path = path
        self._needed = needed
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
        self._most = ROOM

    def write(self, data: bytes) -> None:
        """Append a frame; a full disk is nobody's failure here, the spool will say it."""
        try:
            written = os.write(self._file, data)
        except OSError:
            return
        if written < len(data):
            os.ftruncate(self._file, self._size)  # half a frame would hide all that follow
            return
        self._size += written
        if self._size > self._most:
            self.shorten()
            self._most = max(ROOM, 2 * self._size)

    def clear(self) -> None:
        if self._size:
            os.ftruncate(self._file, 0)
            self._size = 0
            self._most = ROOM

    def shorten(self) -> None:
        """Write what is needed to a file that takes the place of this one; whichever is there is whole."""
        new = self._path.with_suffix(".new")
        file = -1
        try:
            file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            for data in self._needed():
                if os.write(file, data) < len(data):
                    raise OSError("it was cut short")
            new.replace(self._path)
        except OSError:
            # No room for it: the old one goes on, and is still whole.
            if file >= 0:
                os.close(file)
            with suppress(OSError):
                new.unlink()
            return
        os.close(self._file)
        self._file, self._size = file, os.fstat(file).st_size

    def read(self) -> list[tuple[Written, bytes]]:
        """Everything written by whoever was here before; what was cut short is left out."""
        return _frames(self._file)


def read(path: Path) -> list[tuple[Written, bytes]]:
    """What a journal holds that no agent writes any more; nothing where there is none."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        return _frames(file)
    finally:
        os.close(file)


def _frames(file: int) -> list[tuple[Written, bytes]]:
    frames: list[tuple[Written, bytes]] = []
    try:
        for found in Decoder().feed(os.pread(file, os.fstat(file).st_size, 0)):
            frames.append(found)
    except WireError:
        return frames
    return frames
