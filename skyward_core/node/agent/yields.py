"""The values of one generator call that its reader has not taken yet.

They lie in a file of the spool, as the frames that bring them to the client: a reader that was cut off gets them again,
from this agent or from the next one, and a generator that nobody reads fills the disk and not the agent's memory.
"""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from ...wire.frames import WINDOW, WireError, decode, lengths

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentItem

ROOM = 4 << 20  # bytes of values that were taken, before those that were not are written anew
FEW = 1 << 20  # bytes that are read at once for that
HEAD = 8


class Yields:
    """See the module. A value's number is its place among all that the generator yields.

    Attributes:
        first: number of the first value that is still to be taken.
        sent: number of the first one that its reader was not sent.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or make it; what an agent before this one put there is found again."""
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            self._file = -1  # as where there is no room for a value
        self.first = 0
        self.sent = 0
        self._base = 0  # where the first of them begins
        self._ends = array("Q")  # where each of them ends, from ``_gone`` on
        self._gone = 0
        self._files: dict[int, str] = {}  # number of a large value -> its file in the spool
        if self._file >= 0:
            self._find()

    @property
    def next(self) -> int:
        """The number of the value that is still to be made."""
        return self.first + len(self._ends) - self._gone

    def add(self, number: int, file: str | None, data: bytes) -> bool:
        """Take a value in; says whether it is new: a worker sends again what an agent that died may not have got."""
        if number < self.next:
            return False
        if number > self.next:  # those before have been taken, from the agent before this one
            self.taken(self.next)
            self.first = number
            self.sent = max(self.sent, number)
        at = self._end
        try:
            end = at + len(data) if os.pwrite(self._file, data, at) == len(data) else at
        except OSError:
            end = at  # no room: if it is needed again, its reader will be told that it is lost
        self._ends.append(end)
        if file is not None:
            self._files[number] = file
        return True

    def read(self, number: int) -> bytes:
        """A value's frame; empty where the disk had no room for it."""
        place = self._gone + number - self.first
        at = self._ends[place - 1] if place > self._gone else self._base
        size = self._ends[place] - at
        return os.pread(self._file, size, at) if size else b""

    def due(self) -> list[bytes]:
        """Frames of what the reader was not sent and may be sent now, as far as its window goes."""
        self.sent = max(self.sent, self.first)
        until = min(self.next, self.first + WINDOW)
        frames = [self.read(number) for number in range(self.sent, until)]
        self.sent = max(self.sent, until)
        return frames

    def taken(self, until: int) -> None:
        """The reader has all values below a number, and needs them no more."""
        until = min(until, self.next)
        while self.first < until:
            if (name := self._files.pop(self.first, None)) is not None:
                self._path.with_name(name).unlink(missing_ok=True)
            self._base = self._ends[self._gone]
            self._gone += 1
            self.first += 1
        if self._gone > 1024 and self._gone > len(self._ends) // 2:
            del self._ends[: self._gone]
            self._gone = 0
        if self._base > ROOM and self._end - self._base <= FEW:
            self._shorten()

    def remove(self) -> None:
        """Nobody needs any of it any more."""
        self.taken(self.next)
        if self._file >= 0:
            os.close(self._file)
        self._path.unlink(missing_ok=True)

    @property
    def _end(self) -> int:
        return self._ends[-1] if len(self._ends) > self._gone else self._base

    def _shorten(self) -> None:
        """Write what is still needed to a file that takes the place of this one; whichever is there is whole."""
        rest = os.pread(self._file, self._end - self._base, self._base)
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(rest)
            file = os.open(new, os.O_RDWR)
        except OSError:
            return
        new.replace(self._path)
        os.close(self._file)
        self._file = file
        self._ends = array("Q", (end - self._base for end in self._ends[self._gone :]))
        self._base = self._gone = 0

    def _find(self) -> None:
        size, at = os.fstat(self._file).st_size, 0
        header: AgentItem
        while at + HEAD <= size:
            head, body = lengths(os.pread(self._file, HEAD, at))
            end = at + HEAD + head + body
            try:
                if end > size:
                    raise WireError("it was cut short")
                header = decode(os.pread(self._file, head, at + HEAD))
            except WireError:
                break
            if not self._ends:
                self.first = header["seq"]
            while self.next < header["seq"]:
                self._ends.append(at)  # there was no room for it
            self._ends.append(end)
            if (name := header.get("file")) is not None:
                self._files[header["seq"]] = Path(name).name
            at = end
        os.ftruncate(self._file, at)
