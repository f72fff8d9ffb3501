"""TLS on an event loop, for frames between a client and an agent; :mod:`.tls_stream` is for threads and files.

asyncio's own takes several times the steps for each small frame, and an agent's asyncio is without it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Protocol, cast

from .keepalive import watch
from .tls_stream import LineError, holder

BUFFER = 1 << 20  # bytes unsent above which the taker is told to pause
RAW = 1 << 16  # bytes taken from the socket at once
PIECE = 1 << 16  # bytes sealed at once: what OpenSSL has needed for them it keeps
RECORD = 1 << 14


class Taker(Protocol):
    """Who speaks over it."""

    def received(self, data: memoryview) -> None:
        """Take what came; it is valid during the call only."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class Sealed(asyncio.BufferedProtocol):
    """One connection between two that show each other certificates of a pool.

    Nothing is read after those until :meth:`give` says who takes it.

    Args:
        context: see :func:`skyward_core.wire.tls_stream.context`.
        other: whose certificate the other side has to show.

    Attributes:
        ready: done when each knows the other; a :class:`.tls_stream.LineError` if they do not come to that.
    """

    def __init__(self, context: ssl.SSLContext, other: str, *, server: bool) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._other = other
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        self._raw = memoryview(bytearray(RAW))
        self._record = memoryview(bytearray(RECORD))
        self._taker: Taker | None = None
        self._lost = False
        self._failure: Exception | None = None
        self._transport: asyncio.Transport

    def give(self, taker: Taker) -> None:
        """Let ``taker`` have what comes, and hear of the end, also where that was before."""
        self._taker = taker
        if self._lost:
            asyncio.get_running_loop().call_soon(taker.connection_lost, self._failure)
        self._read()
        self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._transport.is_closing():
            self._tls.write(rest[:PIECE])
            self._transport.write(self._out.read())
            rest = rest[PIECE:]

    def close(self) -> None:
        """End it when all is sent."""
        self._transport.close()

    def abort(self) -> None:
        """End it now."""
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Bytes unsent."""
        return self._transport.get_write_buffer_size()

    # -- what the loop tells -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFER)
        watch(cast(socket.socket, transport.get_extra_info("socket")))
        self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._raw

    def buffer_updated(self, nbytes: int) -> None:
        self._in.write(self._raw[:nbytes])
        if self.ready.done():
            self._read()
        else:
            self._shake_hands()

    def pause_writing(self) -> None:
        if self._taker is not None:
            self._taker.pause_writing()

    def resume_writing(self) -> None:
        if self._taker is not None:
            self._taker.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._failure = self._failure or exc
        if not self.ready.done():
            self.ready.set_exception(LineError(str(exc or "it hung up")))
        if self._taker is not None:
            self._taker.connection_lost(self._failure)

    # -- TLS ---------------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            self.ready.set_exception(LineError(error.reason or str(error)))
            self._transport.close()
            return
        finally:
            self._transport.write(self._out.read())
        shown = holder(self._tls)
        if shown == self._other:
            self._transport.pause_reading()
            self.ready.set_result(None)
        else:
            self.ready.set_exception(LineError(f"{shown or 'somebody'} answers in place of {self._other}"))
            self._transport.close()

    def _read(self) -> None:
        taker, record = self._taker, self._record
        if taker is None:
            return
        try:
            while (self._in.pending or self._tls.pending()) and not self._transport.is_closing():
                taker.received(record[: int(self._tls.read(RECORD, record))])
        except ssl.SSLWantReadError:
            return  # the rest of a record is on its way
        except ssl.SSLError as error:
            self._failure = LineError(error.reason or str(error))
            self._transport.abort()
