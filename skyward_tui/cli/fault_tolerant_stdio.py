"""Standard output and standard error whose writes never raise.

A lost terminal or pipe must not interrupt a command between the end of a run and the teardown of its pool.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
from contextlib import suppress
from typing import Any

_REPLACING = "skyward-replaced"  # name of the error handler that this module registers in ``codecs``
_STALLED = 1.0  # seconds; after a signal, a reader of the output that has accepted nothing for this long counts as gone


class StandardStream(io.TextIOWrapper):
    """Standard output or standard error of a command. Writing never raises.

    Characters that the encoding lacks are replaced by similar ASCII characters. After the first failure of the
    descriptor, all further output is dropped.

    Args:
        name: "stdout" or "stderr". This object replaces the stream of that name in ``sys`` until :meth:`restore`.
    """

    def __init__(self, name: str) -> None:
        self._name, self._before = name, getattr(sys, name)
        how: dict[str, Any] = {"encoding": "utf-8"}
        if self._before is None:
            # The parent process closed this stream. Open /dev/null on its descriptor, so that no other file gets the
            # number.
            self._sink = _Sink(self, os.open(os.devnull, os.O_WRONLY))
            self._sink.failure = OSError(errno.EBADF, os.strerror(errno.EBADF))
        else:
            self._sink = _Sink(self, self._before.fileno())
            for each in ("encoding", "line_buffering", "write_through"):
                how[each] = getattr(self._before, each)
        self._is_required = self._before is not None and name == "stdout"
        self._is_reported = False
        codecs.register_error(_REPLACING, _replace_unencodable)
        super().__init__(io.BufferedWriter(self._sink), errors=_REPLACING, **how)
        setattr(sys, name, self)

    @property
    def has_failed(self) -> bool:
        """Whether a write failed, or the stream was closed from the start."""
        return self._sink.failure is not None

    @property
    def has_lost_reader(self) -> bool:
        """Whether the terminal is gone, or the program that read this pipe has ended."""
        failure = self._sink.failure
        gone = failure is not None and failure.errno == errno.EIO and self._sink.is_terminal
        return gone or isinstance(failure, ConnectionError)

    @property
    def has_lost_output(self) -> bool:
        """Whether required output could not be written, although its reader still exists (for example because the disk
        is full).
        """
        return self.has_failed and not self.has_lost_reader and self._is_required

    def require(self) -> None:
        """Mark the output as required, so that it counts as lost if the stream was closed from the start."""
        self._is_required = True

    def report(self) -> None:
        """Report a failure of this stream to standard error, once."""
        if self.has_lost_output and not self._is_reported and (failure := self._sink.failure):
            self._is_reported = True
            sys.stderr.write(f"error: standard output cannot be written: {failure.strerror}\n")
            sys.stderr.flush()

    def discard(self) -> bool:
        """Drop all further output if its reader has stopped reading; called by signal handlers.

        Returns:
            Whether a write is in progress. The signal handler must then abort the write with an ``OSError``.
        """
        return self._sink.discard()

    def restore(self) -> None:
        """Flush, report a failure, and restore the previous stream of ``sys``."""
        self.flush()
        self.report()
        setattr(sys, self._name, self._before)


class _Sink(io.RawIOBase):
    """Raw stream of a descriptor, which stays open when this object is closed."""

    def __init__(self, output: StandardStream, number: int) -> None:
        self._output, self._number = output, number
        self.is_terminal = os.isatty(number)
        self.failure: OSError | None = None
        self._is_writing = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any) -> int:
        while self.failure is None:
            try:
                self._is_writing = True
                return os.write(self._number, data)
            # another process that shares the pipe has made it non-blocking, so wait until the pipe accepts data
            except BlockingIOError:
                with suppress(TimeoutError):
                    select.select([], [self._number], [])
            except OSError as error:
                self.failure = self.failure or error
            finally:
                self._is_writing = False
            self._output.report()
        return len(data)

    def discard(self) -> bool:
        if self.failure is None and not select.select([], [self._number], [], _STALLED)[1]:
            self.failure = TimeoutError(errno.ETIMEDOUT, "the program that reads this output no longer reads it")
            return self._is_writing
        return False


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks. Registered as error handler in ``codecs``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    from skyward_tui.text.text_width_tables_and_ascii import plain_ascii

    return plain_ascii(error.object[error.start : error.end]), error.end
