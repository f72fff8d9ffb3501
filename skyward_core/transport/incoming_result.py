"""Where a large result lands on the client: in a file; its long runs of bytes in memory, where that is asked for.

A pickle is frames of small things, and between them, as it is, what is too long for a frame: bytes, or what an array
holds. Such a run can go straight to where it is to stay: that costs no file's pages, and no second copy. In the file
a NEXT_BUFFER stands for it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from ..wire.tls_stream import PIECE

LONG = 1 << 20  # bytes from which a run of them is worth a place of its own

_KEPT = (pickle.BINBYTES, pickle.BINBYTES8, pickle.BYTEARRAY8)
_LENGTHS = dict.fromkeys((pickle.BINBYTES, pickle.BINUNICODE), 4) | dict.fromkeys(
    (pickle.FRAME, pickle.BINBYTES8, pickle.BYTEARRAY8, pickle.BINUNICODE8), 8
)
# What else stands outside of frames, as the pickler makes none of less than four bytes; and its argument's length.
_SHORT = dict.fromkeys(
    (
        pickle.MEMOIZE, pickle.STOP, pickle.MARK, pickle.POP, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
        pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS,
        pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_SET,
        pickle.ADDITEMS, pickle.FROZENSET, pickle.REDUCE, pickle.BUILD, pickle.NEWOBJ, pickle.STACK_GLOBAL,
    ),
    0,
) | {pickle.PROTO: 1, pickle.BINGET: 1, pickle.BININT1: 1, pickle.BININT2: 2}  # fmt: skip


def _ours(path: str, flags: int) -> int:
    """Values may be secret: what is made is for nobody else to read."""
    return os.open(path, flags, 0o600)


class Landing:
    """A pickle on its way here: its bytes go, in order, where :meth:`room` says.

    Args:
        path: of the file; what is there already is its beginning, and gone on with.
        size: of it all, in bytes.
        in_place: whether its long runs of bytes are to be in memory from the beginning. For who will load it in any
            case, as soon as it is here; nothing that an earlier client left is gone on with then.

    Attributes:
        at: how many bytes have come.
    """

    def __init__(self, path: Path, size: int, *, in_place: bool = False) -> None:
        self.size = size
        self._long: list[BytesIO | bytearray] = []
        self._file: Any = None
        if in_place:
            self.path = path.with_suffix(".frames")
            self.path.unlink(missing_ok=True)
            self.at = 0
        else:
            self.path = path
            self.at = path.stat().st_size if path.exists() else 0
        self._rooms = filter(len, self._parts() if in_place else self._copied(b"", max(0, size - self.at)))
        self._room = next(self._rooms, memoryview(b""))

    def room(self) -> memoryview:
        """Where the next bytes belong: some of them, and at least one while any are missing."""
        return self._room[: min(PIECE, self.size - self.at)]

    def filled(self, count: int) -> None:
        """So many bytes are in that room.

        Raises:
            OSError: the file cannot be written.
        """
        self.at += count
        self._room = self._room[count:]
        if not self._room:
            self._room = next(self._rooms, self._room)

    def write(self, data: bytes | memoryview) -> None:
        """Take bytes that are elsewhere.

        Raises:
            OSError: the file cannot be written.
        """
        rest = memoryview(data)
        while rest:
            room = self.room()[: len(rest)]
            if not room:
                raise OSError(f"more came than the {self.size:,} bytes that it was said to have")
            room[:] = rest[: len(room)]
            self.filled(len(room))
            rest = rest[len(room) :]

    def close(self) -> None:
        """No more comes, or not by this way."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def load(self) -> Any:
        """Unpickle it, once, when it is here, and remove the file; user code may run in here."""
        long, self._long = self._long, []
        with open(self.path, "rb") as source:
            kept = (run.getvalue() if isinstance(run, BytesIO) else run for run in long)
            loaded = pickle.load(source, buffers=kept)
        self.path.unlink(missing_ok=True)
        return loaded

    def _parts(self) -> Iterator[memoryview]:
        """Rooms for a pickle, part by part."""
        head = memoryview(bytearray(9))
        while self.at < self.size:
            yield head[:1]
            code = bytes(head[:1])
            if (
                code not in _LENGTHS and code not in _SHORT
            ):  # none of our pickler's: the file takes the rest as it is
                yield from self._copied(code, self.size - self.at)
                return
            end = 1 + (_LENGTHS.get(code) or _SHORT[code])
            yield head[1:end]
            length = int.from_bytes(head[1:end], "little") if code in _LENGTHS else 0
            kept = code in _KEPT and LONG <= length <= self.size - self.at
            if kept and (place := self._place(code, length)):
                self._put(pickle.NEXT_BUFFER)
                yield place
            else:
                yield from self._copied(bytes(head[:end]), length)

    def _place(self, code: bytes, length: int) -> memoryview | None:
        """Where a run stays; none where memory is short, as it may not be when it is loaded."""
        made: BytesIO | bytearray
        try:
            # What a BytesIO holds is bytes already: it gives them out without a copy.
            made = bytearray(length) if code == pickle.BYTEARRAY8 else BytesIO(bytes(length))
        except MemoryError:
            return None
        self._long.append(made)
        return memoryview(made) if isinstance(made, bytearray) else made.getbuffer()

    def _copied(self, head: bytes, length: int) -> Iterator[memoryview]:
        """Rooms for what goes to the file, behind what is here already."""
        rest = len(head) + length
        buffer = memoryview(bytearray(min(PIECE, rest)))
        buffer[: len(head)] = head
        begin = len(head)
        while rest:
            piece = buffer[: min(PIECE, rest)]
            yield piece[begin:]
            self._put(piece)
            rest -= len(piece)
            begin = 0

    def _put(self, data: bytes | memoryview) -> None:
        if self._file is None:
            self._file = open(self.path, "ab", buffering=0, opener=_ours)  # noqa: SIM115  closed in close()
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
