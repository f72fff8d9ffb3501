"""Feeds ranks the values of an argument that is an iterator here: each on demand, none twice, few at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ...model.errors import NotPicklableError, PoolError
from ...wire.frames import INLINE, Header, Heard

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentWant

KEPT = 1024  # values that one rank may be ahead of another
KEPT_BYTES = 64 << 20  # the same in bytes
ON_THE_WAY = 8 << 20  # bytes that are sent to a rank ahead of what it has asked for, beside one value

Frames = list[tuple[int, Heard, bytes]]  # each for a call


class Reader:
    """How far a rank is.

    Attributes:
        next: the first value that it has not got.
        until: the first that it does not want yet.
        sent: the first that was not sent to it.
    """

    def __init__(self) -> None:
        self.next = self.until = self.sent = 0
        self.told_end = False


class End(NamedTuple):
    """What comes behind the last value: "end", or "error" and the exception, pickled."""

    word: str
    data: bytes = b""


class Feeding:
    """One argument of one call, which may be many ranks'. Once a rank asks, its values are read in a thread of its own.

    Args:
        run, number: the run, and the argument's number among those that are fed.
        name: the parameter's.
        values: where they come from; closed at the end where it is a generator.
        pickled: pickles a value.
        indices: of the calls that read it.
        send: hands frames on to the nodes that have the calls; called by the thread.
    """

    def __init__(
        self, run: str, number: int, name: str, values: Iterable[object], pickled: Callable[[object], bytes],
        indices: Iterable[int], send: Callable[[Frames], None],
    ) -> None:  # fmt: skip
        self._about: Heard = {"t": "fed", "run": run, "arg": number}
        self._name, self._values, self._pickled, self._send = name, values, pickled, send
        self._readers = {index: Reader() for index in indices}
        self._kept: deque[bytes] = deque()
        self._kept_bytes = self._first = 0  # number of the first that is kept
        self._end: End | None = None
        self._closed = False
        self._reading = False  # user code, which may take its time
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    # -- on the pool's loop ------------------------------------------------------------------------------

    def want(self, header: AgentWant) -> None:
        """A rank asks for values."""
        with self._changed:
            reader = self._readers.get(header["i"])
            if reader is None:
                return
            if header["next"] < self._first:
                # Sent by what has got further meanwhile, which takes no notice; or else by another attempt at the call.
                self._send([self._gone(header)])
                return
            reader.next, reader.until = header["next"], header["until"]
            if header.get("again"):  # what was on its way may have been lost
                reader.sent, reader.told_end = reader.next, False
            reader.sent = max(reader.sent, reader.next)
            if self._reading:  # what others have been given need not wait for what comes next
                self._send_due(self._due())
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"feeds {self._name}", daemon=True)
                self._thread.start()

    def ended(self, index: int) -> None:
        """A call has ended: it reads no more."""
        with self._changed:
            self._readers.pop(index, None)
            self._changed.notify()

    def _gone(self, header: AgentWant) -> tuple[int, Heard, bytes]:
        from ...node.worker.attempts import describe_error

        number = header["next"]
        said = f"value {number} of argument {self._name!r} was given to an earlier attempt at the call, and is no more"
        about = self._about | {"i": header["i"], "seq": number, "part": 0, "ends": "error"}
        return header["i"], about, describe_error(PoolError(said))[1]

    def close(self) -> None:
        """The run has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    # -- the thread's ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        values: Iterator[object] | None = None
        try:
            while True:
                with self._changed:
                    self._forget()
                    while not (self._closed or (due := self._due()) or self._may_read()):
                        self._changed.wait()
                        self._forget()
                    if self._closed:
                        return
                    self._reading = not due
                if due:
                    self._send_due(due)
                else:
                    values = self._read(values)
        finally:
            if isinstance(self._values, Generator):
                self._values.close()

    def _send_due(self, due: list[tuple[int, int]]) -> None:
        self._send([frame for index, number in due for frame in self._frames(index, number)])

    def _read(self, values: Iterator[object] | None) -> Iterator[object] | None:
        """Read one value. User code runs in here."""
        end: End | None = None
        data = b""
        number = self._first + len(self._kept)
        try:
            values = iter(self._values) if values is None else values
            value = next(values)
            try:
                data = self._pickled(value)
            except BaseException as error:  # in this thread no ctrl-c comes, so that it is the value's own
                said = f"value {number} of argument {self._name!r} cannot travel to the nodes: {error}"
                raise NotPicklableError(said) from error
        except StopIteration:
            end = End("end")
        except BaseException as error:  # noqa: BLE001  whatever the script's iterator raises is the rank's to hear
            from ...node.worker.attempts import describe_error

            if not isinstance(error, Exception):  # an exit of ours is none of the rank's
                error = RuntimeError(
                    f"argument {self._name!r} ended with {type(error).__name__} at value {number}"
                )
            end = End("error", describe_error(error)[1])
        with self._changed:
            self._reading = False
            if end is not None:
                self._end = end
            else:
                self._kept.append(data)
                self._kept_bytes += len(data)
        return values

    def _forget(self) -> None:
        """What all readers have got is needed no more."""
        slowest = min((reader.next for reader in self._readers.values()), default=self._first)
        while self._first < slowest and self._kept:
            self._kept_bytes -= len(self._kept.popleft())
            self._first += 1

    def _may_read(self) -> bool:
        there = self._first + len(self._kept)
        wanted = any(reader.until > there for reader in self._readers.values())
        room = len(self._kept) < KEPT and self._kept_bytes < KEPT_BYTES
        return self._end is None and wanted and room

    def _due(self) -> list[tuple[int, int]]:
        """Calls that can be sent a value, or the end, and its number."""
        there = self._first + len(self._kept)
        due: list[tuple[int, int]] = []
        for index, reader in self._readers.items():
            ahead = sum(len(self._kept[n - self._first]) for n in range(reader.next, reader.sent))
            while reader.sent < min(reader.until, there) and ahead < ON_THE_WAY:
                due.append((index, reader.sent))
                ahead += len(self._kept[reader.sent - self._first])
                reader.sent += 1
            if self._end is not None and reader.sent == there and not reader.told_end:
                due.append((index, there))
                reader.told_end = True
        return due

    def _frames(self, index: int, number: int) -> Frames:
        """A value, or the end, for a call: in pieces that a frame has room for."""
        at = number - self._first
        about = self._about | {"i": index, "seq": number}
        if at < len(self._kept):
            data = self._kept[at]
        elif self._end is not None:
            data, about = self._end.data, about | {"ends": self._end.word}
        else:
            return []
        pieces = [data[start : start + INLINE] for start in range(0, len(data), INLINE)] or [b""]
        frames: Frames = []
        for part, piece in enumerate(pieces):
            more: Header = {"more": True} if part + 1 < len(pieces) else {}
            frames.append((index, about | {"part": part} | more, piece))
        return frames
