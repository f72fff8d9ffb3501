"""Journal of calls on the node's disk, which lets a new agent take over from a crashed one."""

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
        """Journal entry of a call that a worker has received."""

        t: Literal["given"]
        slot: int
        rank: int
        log: LogSizes
        call: ClientCall

    JournalFrame = JournalGiven | AgentOutcome | ClientAck


LEAST_JOURNAL_BYTES = 4 << 20  # size of the journal in bytes below which it is never compacted


class Journal:
    """The journal of one agent: an append-only file of frames.

    Args:
        path: The file; created if missing.
        needed: Returns the current frames of all unacknowledged calls.
    """

    def __init__(self, path: Path, needed: Callable[[], Iterable[bytes]]) -> None:
        self._path = path
        self._needed = needed
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
        self._compact_at = LEAST_JOURNAL_BYTES

    def write(self, data: bytes) -> None:
        """Append a frame. Ignore a full disk, because the writers of log and result files report a full disk."""
        try:
            written = os.write(self._file, data)
        except OSError:
            return
        if written < len(data):
            # Remove the partial frame, because readers stop at it and would miss all later frames.
            os.ftruncate(self._file, self._size)
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
        """Atomically replace the journal by one with only the frames of unacknowledged calls."""
        new = self._path.with_suffix(".new")
        file = -1
        try:
            file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            for data in self._needed():
                if os.write(file, data) < len(data):
                    raise OSError("incomplete write")
            new.replace(self._path)
        except OSError:
            # The disk is full. Continue with the old file, which is still complete.
            if file >= 0:
                os.close(file)
            with suppress(OSError):
                new.unlink()
            return
        os.close(self._file)
        self._file, self._size = file, os.fstat(file).st_size

    def read(self) -> list[tuple[JournalFrame, bytes]]:
        """Return all complete frames of the journal, including those that earlier agents wrote."""
        return read_journal(self._path)


def read_journal(path: Path) -> list[tuple[JournalFrame, bytes]]:
    """Return the complete frames of a journal; none if the file does not exist."""
    frames: list[tuple[JournalFrame, bytes]] = []
    with suppress(FileNotFoundError, WireError):
        # The last frame is incomplete if the agent died while it wrote the frame.
        frames.extend(Decoder().feed(path.read_bytes()))
    return frames
