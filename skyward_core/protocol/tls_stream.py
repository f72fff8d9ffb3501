"""Lines between those who hold certificates of a pool: TLS in which both sides show theirs. Blocking, for threads.

A request and its answer are frames of ``protocol.frame_codec``; the content of a file follows as it is. The module uses
the standard library only.
"""

from __future__ import annotations

import mmap
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from skyward_core.protocol.frame_codec import AnyHeader, Header, WireError, decode_header, encode_frame

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import CredentialKeys

TIMEOUT = 5.0  # seconds without a byte after which the other side counts as out of reach
HANDSHAKE_TIMEOUT = 10.0  # seconds in which two have come to trust each other, whatever comes meanwhile
CLIENT = "client"  # whose certificate this is may put blobs, and read results
RECORD_BYTES = 1 << 14
CHUNK_BYTES = 1 << 19  # bytes at a time: few system calls, and still in the processor's cache for the next step

_LENGTHS = struct.Struct("!II")
_LIMIT = 1 << 16  # bytes of a request

T = TypeVar("T")


class TlsConnectionError(OSError):
    """The other side is out of reach, went away, or shows no certificate of the pool."""


class PeerUnreachable(TlsConnectionError):
    """There is no way to the other side."""


class RefusedByPeer(OSError):
    """The other side's answer is no; in its words."""


class GrowingFile(Protocol):
    """A file that may still be growing."""

    @property
    def size(self) -> int:
        """Its length at the end."""

    def wait(self, beyond: int) -> int:
        """How many bytes are there, once it is more than ``beyond``.

        Raises:
            OSError: they will not come.
        """


class CompleteFile:
    """A file that grows no more."""

    def __init__(self, file: int) -> None:
        self.size = os.fstat(file).st_size

    def wait(self, beyond: int) -> int:
        return self.size


class TlsConnection:
    """One connection.

    An ``SSLSocket`` makes a system call or two for each record of 16 KB, which cost as much as the cipher; here
    records gather in memory and go to the socket many at a time.

    Args:
        plain: connected; the line closes it.
        context: see :func:`context`.

    Attributes:
        peer: whose certificate the other side shows.
        connected_at: time of the connection, by the monotonic clock.

    Raises:
        LineError: the two have not come to trust each other.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server: bool = False) -> None:
        self.connected_at = time.monotonic()
        plain.settimeout(TIMEOUT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._plain = plain
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._raw = memoryview(bytearray(RECORD_BYTES))  # of a stranger no more is taken at once
        self._deadline: float | None = self.connected_at + HANDSHAKE_TIMEOUT
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        try:
            self._run_tls_step(self._tls.do_handshake)
            self._flush()
        except TlsConnectionError:
            self.close()
            raise
        self._raw = memoryview(bytearray(CHUNK_BYTES))
        self._deadline = None
        plain.settimeout(TIMEOUT)
        self.peer = certificate_name(self._tls)

    @classmethod
    def connect(cls, place: tuple[str, int], context: ssl.SSLContext, timeout: float = TIMEOUT) -> TlsConnection:
        """Connect.

        Raises:
            CannotReach: there is no way there.
            LineError: it is somebody else.
        """
        try:
            plain = socket.create_connection(place, timeout=timeout)
        except OSError as error:
            raise PeerUnreachable(str(error)) from error
        return cls(plain, context)

    def __enter__(self) -> TlsConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; whoever waits in it, in another thread, gets an error."""
        with suppress(OSError):  # the other side was quicker
            self._plain.shutdown(socket.SHUT_RDWR)
        self._plain.close()

    # -- frames ------------------------------------------------------------------------------------------

    def send_frame(self, header: Header) -> None:
        self.write(encode_frame(header))

    def receive_frame(self) -> AnyHeader:
        """The next frame.

        Raises:
            RefusedByPeer: it tells of an error.
            LineError: none came, or none of ours.
        """
        head, body = _LENGTHS.unpack(self._read_exactly(_LENGTHS.size))
        if head > _LIMIT or body:
            raise TlsConnectionError("what it says is none of our frames")
        try:
            header = decode_header(self._read_exactly(head))
        except WireError as error:
            raise TlsConnectionError(str(error)) from error
        if "error" in header:
            raise RefusedByPeer(str(header["error"]))
        return header

    def wait_readable(self, seconds: float) -> None:
        """Wait for the other side to say more, which has had an answer to all that it asked.

        Raises:
            LineError: it did not, in that time.
        """
        if self._in.pending:
            return  # it came along with what was read last
        self._plain.settimeout(seconds)
        try:
            self._receive()
        finally:
            self._plain.settimeout(TIMEOUT)

    def request(self, header: Header) -> AnyHeader:
        """Say something and hear the answer."""
        self.send_frame(header)
        return self.receive_frame()

    # -- bytes -------------------------------------------------------------------------------------------

    def read_chunks(self, count: int) -> Iterator[memoryview]:
        """The next ``count`` bytes, as they come; a piece is valid until the next."""
        buffer = memoryview(bytearray(min(CHUNK_BYTES, count)))
        while count:
            piece = buffer[: min(CHUNK_BYTES, count)]
            self.read_into(piece)
            count -= len(piece)
            yield piece

    def read_into(self, piece: memoryview) -> None:
        """Put the next bytes where there is room for them."""
        read = self._tls.read
        while piece:  # once per record, so without the detour of _do
            try:
                count = read(len(piece), piece)
            except ssl.SSLError:
                count = self._run_tls_step(partial(read, len(piece), piece))
            if not count:
                raise TlsConnectionError("it hung up")
            piece = piece[int(count) :]

    def send_file(self, file: int, at: int, there: GrowingFile) -> None:
        """Send an open file from an offset to its end, as it grows; it has its full length already.

        It is sent from the page cache: reading it would be one more copy. Nobody shortens these files.
        """
        if at >= there.size:
            return
        with (
            mmap.mmap(file, there.size, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as whole,
        ):
            while at < there.size:
                ready = there.wait(at)
                while at < ready:
                    with whole[at : min(at + CHUNK_BYTES, ready)] as piece:
                        self.write(piece)
                        at += len(piece)

    def write(self, data: bytes | memoryview) -> None:
        self._run_tls_step(partial(self._tls.write, data))
        self._flush()

    def _read_exactly(self, count: int) -> bytes:
        data = bytearray(count)
        self.read_into(memoryview(data))
        return bytes(data)

    def _run_tls_step(self, step: Callable[[], T]) -> T:
        """Take a step of TLS, with as much from the socket as that needs."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            except ssl.SSLError as error:
                with suppress(TlsConnectionError):  # it may have gone: this only tells it why we do
                    self._flush()
                raise TlsConnectionError(error.reason or str(error)) from error

    def _receive(self) -> None:
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TlsConnectionError("it does not say who it is")
            self._plain.settimeout(min(TIMEOUT, left))
        try:
            count = self._plain.recv_into(self._raw)
        except OSError as error:
            raise TlsConnectionError(str(error)) from error
        if not count:
            raise TlsConnectionError("it hung up")
        self._in.write(self._raw[:count])

    def _flush(self) -> None:
        if self._out.pending:
            data = memoryview(self._out.read())
            try:
                while data:  # sendall would have one time-out for all of it, however slow the way is
                    data = data[self._plain.send(data) :]
            except OSError as error:
                raise TlsConnectionError(str(error)) from error


def certificate_name(tls: ssl.SSLObject) -> str:
    """Whose certificate the other side has shown; "" if none."""
    shown: Any = tls.getpeercert() or {}
    return next((v for part in shown.get("subject", ()) for k, v in part if k == "commonName"), "")


def make_ssl_context(protocol: int, papers: CredentialKeys) -> ssl.SSLContext:
    """What :class:`TlsConnection` needs to speak as the holder of a certificate.

    Raises:
        ssl.SSLError: the certificates do not fit (an ``OSError``, too).
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # being of the pool counts, and its authority signs for no one else
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=papers["authority"])
    pem = (papers["certificate"] + papers["key"]).encode()
    if hasattr(os, "memfd_create"):  # the key is on no disk
        memory = os.memfd_create("papers", os.MFD_CLOEXEC)
        try:
            os.write(memory, pem)
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
    else:
        import tempfile

        with tempfile.NamedTemporaryFile() as file:  # 0600
            file.write(pem)
            file.flush()
            context.load_cert_chain(file.name)
    return context
