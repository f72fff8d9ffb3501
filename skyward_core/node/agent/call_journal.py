"""The journal of calls on the node's disk, read by the agent that takes over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.protocol.frame_codec import Decoder, WireError

if TYPE_CHECKING:
    from typing import Literal, TypedDict

    from skyward_core.protocol.frame_types import AgentOutcome, ClientAck, ClientCall, LogSizes

    class JournalGiven(TypedDict):
        """A call that a worker has been given."""

        t: Literal["given"]
        slot: int
        rank: int
        log: LogSizes
        call: ClientCall

    JournalFrame = JournalGiven | AgentOutcome | ClientAck


LEAST_JOURNAL_BYTES = 4 << 20  # bytes that it may always have


class Journal:
    """The journal of one agent: an append-only file of frames.

    Args:
        needed: gives the frames of all calls that are not acknowledged, as they would be written now.
    """

    def __init__(self, path: Path, needed: Callable[[], Iterable[bytes]]) -> None:
        self._path = path
        self._needed = needed
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
        self._compact_at = LEAST_JOURNAL_BYTES

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
        if self._size > self._compact_at:
            self.compact()
            self._compact_at = max(LEAST_JOURNAL_BYTES, 2 * self._size)

    def clear(self) -> None:
        if self._size:
            os.ftruncate(self._file, 0)
            self._size = 0
            self._compact_at = LEAST_JOURNAL_BYTES

    def compact(self) -> None:
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

    def read(self) -> list[tuple[JournalFrame, bytes]]:
        """Everything written by whoever was here before; what was cut short is left out."""
        return _read_frames(self._file)


def read_journal(path: Path) -> list[tuple[JournalFrame, bytes]]:
    """What a journal holds that no agent writes any more; nothing where there is none."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        return _read_frames(file)
    finally:
        os.close(file)


def _read_frames(file: int) -> list[tuple[JournalFrame, bytes]]:
    frames: list[tuple[JournalFrame, bytes]] = []
    try:
        for found in Decoder().feed(os.pread(file, os.fstat(file).st_size, 0)):
            frames.append(found)
    except WireError:
        return frames
    return frames
