"""What an agent was given and what came of it, on the node's disk, for the agent that comes after it.

A file of frames, appended to: "given" when a call is handed to a worker, "outcome" when it has ended. It is emptied
whenever no result waits for its client any more. Not flushed to the medium: it is for the death of the agent, not
of the machine, whose spool would be gone with it.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..wire import Decoder, Header, WireError


class Journal:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._empty = os.fstat(self._file).st_size == 0

    def write(self, data: bytes) -> None:
        """Append a frame; a full disk is nobody's failure here, the spool will say it."""
        self._empty = False
        try:
            os.write(self._file, data)
        except OSError:
            return

    def clear(self) -> None:
        if not self._empty:
            os.ftruncate(self._file, 0)
            self._empty = True

    def read(self) -> list[tuple[Header, bytes]]:
        """Everything written by whoever was here before; what was cut short is left out."""
        frames: list[tuple[Header, bytes]] = []
        try:
            for found in Decoder().feed(os.pread(self._file, os.fstat(self._file).st_size, 0)):
                frames.append(found)
        except WireError:
            return frames
        return frames
