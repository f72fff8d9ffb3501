"""TLS connections for file transfers between members of a pool, with blocking I/O for threads.

Each side must present a certificate of the pool. Requests and answers are frames of ``protocol.frame_codec``. File
content follows as raw bytes. Uses only the standard library.
"""

from __future__ import annotations

import mmap
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from skyward_core.protocol.frame_codec import AnyHeader, Header, WireError, decode_header, decode_lengths, encode_frame

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import CredentialKeys

TIMEOUT = 5.0  # seconds without a sent or received byte after which the peer counts as unreachable
HANDSHAKE_TIMEOUT = 10.0  # seconds for the whole TLS handshake
CLIENT = "client"  # name in the client's certificate; only its holder may upload blobs and download results
RECORD_BYTES = 1 << 14
# bytes that are processed per step: large enough for few system calls, small enough for the processor's cache
CHUNK_BYTES = 1 << 19

_LIMIT = 1 << 16  # maximum bytes of a request frame

T = TypeVar("T")


class TlsConnectionError(OSError):
    """Error: the peer is unreachable, has disconnected, or has no certificate of the pool."""


class PeerUnreachable(TlsConnectionError):
    """Error: the peer's address cannot be reached."""


class RefusedByPeer(OSError):
    """Error: the peer rejected the request. The message comes from the peer."""


class GrowingFile(Protocol):
    """Interface of a file that can be sent while it is still growing."""

    @property
    def size(self) -> int:
        """Size of the complete file in bytes."""

    def wait(self, beyond: int) -> int:
        """Wait until more than ``beyond`` bytes are available, and return their number.

        Raises:
            OSError: If no more bytes will arrive.
        """


class CompleteFile:
    """A file that is complete, with the interface of a growing file."""

    def __init__(self, file: int) -> None:
        self.size = os.fstat(file).st_size

    def wait(self, beyond: int) -> int:
        return self.size


class TlsConnection:
    """TLS connection with blocking methods that sends many records in one system call.

    An ``SSLSocket`` needs one or two system calls per record of 16 KB, which take as long as the encryption. This class
    collects records in memory and sends many of them at once.

    Args:
        plain: The connected socket, which this object closes.
        context: See :func:`make_ssl_context`.
        server: Whether this side accepted the connection.

    Attributes:
        peer: Name in the peer's certificate.
        connected_at: Time at which the connection was established, by the monotonic clock.

    Raises:
        TlsConnectionError: If the handshake failed.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server: bool = False) -> None:
        self.connected_at = time.monotonic()
        plain.settimeout(TIMEOUT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._plain = plain
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        # The first buffer is small, because the peer may be a stranger.
        self._raw = memoryview(bytearray(RECORD_BYTES))
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
    def connect(cls, address: tuple[str, int], context: ssl.SSLContext, timeout: float = TIMEOUT) -> TlsConnection:
        """Connect to a peer.

        Raises:
            PeerUnreachable: If the address cannot be reached.
            TlsConnectionError: If the peer is not a member of the pool.
        """
        try:
            plain = socket.create_connection(address, timeout=timeout)
        except OSError as error:
            raise PeerUnreachable(str(error)) from error
        return cls(plain, context)

    def __enter__(self) -> TlsConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Other threads that use it get an error."""
        with suppress(OSError):  # The peer has already closed the connection.
            self._plain.shutdown(socket.SHUT_RDWR)
        self._plain.close()

    # -- frames ------------------------------------------------------------------------------------------

    def send_frame(self, header: Header) -> None:
        self.write(encode_frame(header))

    def receive_frame(self) -> AnyHeader:
        """Receive the peer's next frame.

        Raises:
            RefusedByPeer: If the frame reports an error.
            TlsConnectionError: If no frame or an invalid frame was received.
        """
        head, body = decode_lengths(self._read_exactly(8))
        if head > _LIMIT or body:
            raise TlsConnectionError("invalid frame")
        try:
            header = decode_header(self._read_exactly(head))
        except WireError as error:
            raise TlsConnectionError(str(error)) from error
        if "error" in header:
            raise RefusedByPeer(str(header["error"]))
        return header

    def wait_readable(self, seconds: float) -> None:
        """Wait until the peer's next request begins to arrive.

        Raises:
            TlsConnectionError: If no request arrives in time.
        """
        if self._in.pending:
            return  # The request has already arrived together with earlier data.
        self._plain.settimeout(seconds)
        try:
            self._receive()
        finally:
            self._plain.settimeout(TIMEOUT)

    def request(self, header: Header) -> AnyHeader:
        """Send a request to the peer, and return the header of its answer."""
        self.send_frame(header)
        return self.receive_frame()

    # -- bytes -------------------------------------------------------------------------------------------

    def read_chunks(self, count: int) -> Iterator[memoryview]:
        """Yield the peer's next ``count`` bytes in chunks. Each chunk is valid until the next chunk is requested."""
        buffer = memoryview(bytearray(min(CHUNK_BYTES, count)))
        while count:
            chunk = buffer[: min(CHUNK_BYTES, count)]
            self.read_into(chunk)
            count -= len(chunk)
            yield chunk

    def read_into(self, buffer: memoryview) -> None:
        """Fill a buffer with the next bytes from the peer."""
        read = self._tls.read
        while buffer:
            # Read one TLS record per iteration. The slower _run_tls_step is needed only if no complete record is
            # available.
            try:
                count = read(len(buffer), buffer)
            except ssl.SSLError:
                count = self._run_tls_step(partial(read, len(buffer), buffer))
            if not count:
                raise TlsConnectionError("the peer closed the connection")
            buffer = buffer[int(count) :]

    def send_file(self, file: int, at: int, source: GrowingFile) -> None:
        """Send an open file from an offset to its end. If the file is still growing, wait for its data.

        The file already has its final length, and the data may still arrive. The file is mapped to avoid a copy, which
        is safe because no process truncates these files.
        """
        if at >= source.size:
            return
        with mmap.mmap(file, source.size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as whole:
            while at < source.size:
                ready = source.wait(at)
                while at < ready:
                    with whole[at : min(at + CHUNK_BYTES, ready)] as chunk:
                        self.write(chunk)
                        at += len(chunk)

    def write(self, data: bytes | memoryview) -> None:
        self._run_tls_step(partial(self._tls.write, data))
        self._flush()

    def _read_exactly(self, count: int) -> bytes:
        data = bytearray(count)
        self.read_into(memoryview(data))
        return bytes(data)

    def _run_tls_step(self, step: Callable[[], T]) -> T:
        """Perform a TLS operation, and read from the socket as often as the operation needs."""
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            except ssl.SSLError as error:
                with suppress(TlsConnectionError):
                    # Send the TLS alert that informs the peer of the error, if possible.
                    self._flush()
                raise TlsConnectionError(error.reason or str(error)) from error

    def _receive(self) -> None:
        if self._deadline is not None:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                raise TlsConnectionError("TLS handshake timed out")
            self._plain.settimeout(min(TIMEOUT, remaining))
        try:
            count = self._plain.recv_into(self._raw)
        except OSError as error:
            raise TlsConnectionError(str(error)) from error
        if not count:
            raise TlsConnectionError("the peer closed the connection")
        self._in.write(self._raw[:count])

    def _flush(self) -> None:
        if self._out.pending:
            data = memoryview(self._out.read())
            try:
                while data:  # Send in parts, because sendall() would apply one timeout to all data.
                    data = data[self._plain.send(data) :]
            except OSError as error:
                raise TlsConnectionError(str(error)) from error


def certificate_name(tls: ssl.SSLObject) -> str:
    """Return the name in the peer's certificate; "" if there is none."""
    certificate: Any = tls.getpeercert() or {}
    return next((v for part in certificate.get("subject", ()) for k, v in part if k == "commonName"), "")


def make_ssl_context(protocol: int, credentials: CredentialKeys) -> ssl.SSLContext:
    """Return an SSL context for a member of a pool, which has a certificate of the pool.

    Raises:
        ssl.SSLError: If the certificates are invalid (a subclass of ``OSError``).
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Do not check host names: any member of the pool may answer, and the pool's authority signs only members.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials["authority"])
    pem = (credentials["certificate"] + credentials["key"]).encode()
    if hasattr(os, "memfd_create"):  # Use a file in memory, so that the private key is not written to disk.
        memory = os.memfd_create("papers", os.MFD_CLOEXEC)
        try:
            os.write(memory, pem)
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
    else:
        import tempfile

        with tempfile.NamedTemporaryFile() as file:
            # The temporary file has mode 0600, so other users cannot read the key.
            file.write(pem)
            file.flush()
            context.load_cert_chain(file.name)
    return context
