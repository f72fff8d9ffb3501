"""Streaming of a client-side iterator argument to ranks: on demand, with bounded read-ahead, from a separate thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from skyward_core.model.errors import NotPicklableError, PoolError
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES, AnyHeader, Header

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentWant

# Limits for streamed arguments. A value is stored until all ranks have received it, so these limits also bound how far
# one rank may be ahead of another rank.
MAX_KEPT_VALUES = 1024  # maximum number of values that are stored for slower ranks
MAX_KEPT_BYTES = 64 << 20  # maximum bytes of values that are stored for slower ranks
MAX_SENT_AHEAD = 8 << 20  # bytes of values that are sent to a rank before it reads them, in addition to one value

Frames = list[tuple[int, AnyHeader, bytes]]  # frames to send: each with the index of its call, its header and its body


class ReaderPosition:
    """Position of one call in a streamed argument.

    Attributes:
        next: First value that the rank has not received.
        until: First value that the rank has not requested.
        sent: First value that was not sent.
    """

    def __init__(self) -> None:
        self.next = self.until = self.sent = 0
        self.is_end_sent = False


class StreamEnd(NamedTuple):
    """End of a streamed argument: the word "end", or the word "error" with the pickled exception."""

    word: str
    data: bytes = b""


class ArgumentStream:
    """Streaming of one iterator argument to the calls that read it.

    The values are read in a separate thread, from the first request on.

    Args:
        run, number: Id of the run, and number of the argument among the run's streamed arguments.
        name: Name of the parameter.
        values: Source of the values. A generator is closed at the end.
        pickled: Pickles a value.
        indices: Calls that read the argument.
        send: Sends frames to the nodes of the calls. Called in the reading thread.
    """

    def __init__(
        self, run: str, number: int, name: str, values: Iterable[object], pickled: Callable[[object], bytes],
        indices: Iterable[int], send: Callable[[Frames], object],
    ) -> None:  # fmt: skip
        self._header: AnyHeader = {"t": "fed", "run": run, "arg": number}
        self._name, self._values, self._pickled, self._send = name, values, pickled, send
        self._readers = {index: ReaderPosition() for index in indices}
        self._buffer: deque[bytes] = deque()
        # _buffer_bytes: bytes of the buffered values; _first: number of the first buffered value.
        self._buffer_bytes = self._first = 0
        self._end: StreamEnd | None = None
        self._closed = False
        self._reading = False  # whether user code is computing the next value now, which may take long
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    # -- on the pool's loop --------------------------------------------------------------------------------

    def on_want(self, header: AgentWant) -> None:
        """Send the values that a rank requests. Start the reading thread at the first request."""
        with self._changed:
            reader = self._readers.get(header["i"])
            if reader is None:
                return
            if header["next"] < self._first:
                # Report that the requested value was dropped. The request comes from a new attempt at the call, or it
                # is outdated and the rank ignores the answer.
                self._send([self._gone_frame(header)])
                return
            reader.next, reader.until = header["next"], header["until"]
            if header.get("again"):  # send values again that may be lost, or that an earlier attempt received
                reader.sent, reader.is_end_sent = reader.next, False
            reader.sent = max(reader.sent, reader.next)
            if self._reading:  # send available values at once, because the next value may take long
                self._send_due(self._due_values())
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"feeds {self._name}", daemon=True)
                self._thread.start()

    def on_call_end(self, index: int) -> None:
        """Remove an ended call from the readers."""
        with self._changed:
            self._readers.pop(index, None)
            self._changed.notify()

    def _gone_frame(self, header: AgentWant) -> tuple[int, AnyHeader, bytes]:
        from skyward_core.node.worker.returned_exceptions import describe_error

        number = header["next"]
        message = f"value {number} of argument {self._name!r} was consumed by an earlier attempt at the call"
        about = self._header | {"i": header["i"], "seq": number, "part": 0, "ends": "error"}
        return header["i"], about, describe_error(PoolError(message))[1]

    def close(self) -> None:
        """Stop reading, because the run has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    # -- in the thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        values: Iterator[object] | None = None
        try:
            while True:
                with self._changed:
                    self._drop_consumed()
                    while not (self._closed or (due := self._due_values()) or self._can_read()):
                        self._changed.wait()
                        self._drop_consumed()
                    if self._closed:
                        return
                    self._reading = not due
                if due:
                    self._send_due(due)
                else:
                    values = self._read_value(values)
        finally:
            if isinstance(self._values, Generator):
                self._values.close()

    def _send_due(self, due: list[tuple[int, int]]) -> None:
        self._send([frame for index, number in due for frame in self._frames(index, number)])

    def _read_value(self, values: Iterator[object] | None) -> Iterator[object] | None:
        """Read one value by running user code."""
        end: StreamEnd | None = None
        data = b""
        number = self._first + len(self._buffer)
        try:
            values = iter(self._values) if values is None else values
            value = next(values)
            try:
                data = self._pickled(value)
            except BaseException as error:
                # Also KeyboardInterrupt, which can only come from the value's code here, because ctrl-c goes to the
                # main thread.
                message = f"Cannot pickle value {number} of argument {self._name!r}: {error}"
                raise NotPicklableError(message) from error
        except StopIteration:
            end = StreamEnd("end")
        except BaseException as error:  # noqa: BLE001  any error of the iterator is sent to the rank
            from skyward_core.node.worker.returned_exceptions import describe_error

            # Replace SystemExit and similar exceptions, because they would end the rank's process.
            if not isinstance(error, Exception):
                error = RuntimeError(f"argument {self._name!r} ended with {type(error).__name__} at value {number}")
            end = StreamEnd("error", describe_error(error)[1])
        with self._changed:
            self._reading = False
            if end is not None:
                self._end = end
            else:
                self._buffer.append(data)
                self._buffer_bytes += len(data)
        return values

    def _drop_consumed(self) -> None:
        """Drop the values that all readers have received."""
        slowest = min((reader.next for reader in self._readers.values()), default=self._first)
        while self._first < slowest and self._buffer:
            self._buffer_bytes -= len(self._buffer.popleft())
            self._first += 1

    def _can_read(self) -> bool:
        available = self._first + len(self._buffer)
        is_requested = any(reader.until > available for reader in self._readers.values())
        room = len(self._buffer) < MAX_KEPT_VALUES and self._buffer_bytes < MAX_KEPT_BYTES
        return self._end is None and is_requested and room

    def _due_values(self) -> list[tuple[int, int]]:
        """Return the values, as pairs of call and number, that can be sent now. The end counts as a value."""
        available = self._first + len(self._buffer)
        due: list[tuple[int, int]] = []
        for index, reader in self._readers.items():
            ahead = sum(len(self._buffer[n - self._first]) for n in range(reader.next, reader.sent))
            while reader.sent < min(reader.until, available) and ahead < MAX_SENT_AHEAD:
                due.append((index, reader.sent))
                ahead += len(self._buffer[reader.sent - self._first])
                reader.sent += 1
            if self._end is not None and reader.sent == available and not reader.is_end_sent:
                due.append((index, available))
                reader.is_end_sent = True
        return due

    def _frames(self, index: int, number: int) -> Frames:
        """Return the frames of a value, or of the end, split at the maximum frame size."""
        at = number - self._first
        about = self._header | {"i": index, "seq": number}
        if at < len(self._buffer):
            data = self._buffer[at]
        elif self._end is not None:
            data, about = self._end.data, about | {"ends": self._end.word}
        else:
            return []
        pieces = [data[start : start + MAX_INLINE_BYTES] for start in range(0, len(data), MAX_INLINE_BYTES)] or [b""]
        frames: Frames = []
        for part, piece in enumerate(pieces):
            more: Header = {"more": True} if part + 1 < len(pieces) else {}
            frames.append((index, about | {"part": part} | more, piece))
        return frames
