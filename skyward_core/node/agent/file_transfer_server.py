"""File transfer between nodes, and between nodes and their client, over TLS with certificates of the pool on both
sides.

Nodes fetch blobs from each other; the client uploads blobs and downloads results. The server listens on the node's
private address once a client has sent certificates. All peers may fetch ``blobs/<name>`` and files that ranks
wrote in their working folder. Only the client may also fetch results from the spool.

The agent (``agent.client_requests``) starts the server as a separate process on the first request,
because ssl would double the agent's memory and large blobs would delay the agent.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.protocol.blocking_tls_connection import (
    CLIENT,
    TIMEOUT,
    CompleteFile,
    PeerUnreachable,
    RefusedByPeer,
    TlsConnection,
    TlsConnectionError,
    make_ssl_context,
)
from skyward_core.protocol.frame_codec import Decoder, Header, encode_frame
from skyward_core.util.content_hash import HASH_PATTERN, ContentHash

if TYPE_CHECKING:
    from typing import Literal, TypedDict

    from skyward_core.protocol.frame_types import (
        ClientPeers,
        CredentialKeys,
        FileBlob,
        FileComes,
        FileOutput,
        FilePut,
        FileResult,
    )

    class HelperPeers(ClientPeers):
        """A client's request to start the server, to which the agent has added the folders and its address."""

        blobs: str
        spool: str
        address: str
        work: str

    HelperPull = TypedDict(
        "HelperPull",
        {"t": Literal["pull"], "id": int, "hash": str, "size": int, "from": tuple[str, int], "output": dict[str, str]},
    )


IDLE_TIMEOUT = 60.0  # seconds that a connection may be idle; clients close idle connections earlier
# number of connections that have not authenticated themselves; a further one replaces the oldest
MAX_UNAUTHENTICATED = 32
ACCEPT_RETRY_DELAY = 0.1  # seconds until the server accepts again after it ran out of descriptors or threads
BLOB_START_TIMEOUT = 2.0  # seconds that a peer's request for a blob waits for the upload of this blob to begin

_RESULT = re.compile(r"[\w.-]+\.(result|item)")


class FileTransferServer:
    """TLS server that uses the certificates of one client. It runs from the client's request until the client
    disconnects.

    Attributes:
        port: Port on which the node listens.

    Raises:
        OSError: If the address does not belong to this machine.
        ssl.SSLError: If the certificates are invalid (a subclass of ``OSError``).
    """

    def __init__(self, blobs: Path, spool: Path, address: str, credentials: CredentialKeys, work: str = "") -> None:
        self._blobs = blobs
        self._work = work  # working folder of the ranks, from which clients fetch output files
        self._spool = spool
        self._server = make_ssl_context(ssl.PROTOCOL_TLS_SERVER, credentials)
        self._client = make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, credentials)
        self._incoming: dict[str, IncomingBlob] = {}
        self._changed = threading.Condition()
        self._unauthenticated: dict[socket.socket, None] = {}  # unauthenticated connections, oldest first
        self._closed = False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=64)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections."""
        self._closed = True
        with suppress(OSError):  # The socket is already closed, or the system cannot shut down listening sockets.
            self._listener.shutdown(socket.SHUT_RDWR)  # wake the listener thread, which blocks in accept()
        self._listener.close()

    # -- serving -----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._closed:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                # The listener is closed, the process has no free descriptor, or the peer disconnected before it was
                # accepted.
                time.sleep(0 if self._closed else ACCEPT_RETRY_DELAY)
                continue
            self._close_oldest()
            self._unauthenticated[plain] = None
            try:
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()
            except RuntimeError:  # The process has reached its limit of threads.
                self._unauthenticated.pop(plain, None)
                plain.close()
                time.sleep(ACCEPT_RETRY_DELAY)

    def _close_oldest(self) -> None:
        """Close the oldest unauthenticated connections until the limit is met, because each occupies a thread."""
        while len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            for oldest in list(self._unauthenticated)[:1]:
                self._unauthenticated.pop(oldest, None)
                with suppress(OSError):  # The peer has already disconnected.
                    oldest.shutdown(socket.SHUT_RDWR)  # The thread that serves the connection closes the socket.

    def _serve(self, plain: socket.socket) -> None:
        try:
            connection = TlsConnection(plain, self._server, server=True)
        except OSError:
            plain.close()
            # The peer is not a member of the pool, or has disconnected. Members report connection errors themselves.
            return
        finally:
            self._unauthenticated.pop(plain, None)
        try:
            with connection:
                try:
                    while True:
                        request = connection.receive_frame()
                        with _session_priority(is_output=request["t"] == "output"):
                            self._handle_request(connection, request)
                        connection.wait_readable(IDLE_TIMEOUT)
                except TlsConnectionError:
                    raise
                except OSError as error:
                    connection.send_frame({"t": "answer", "error": error.strerror or str(error)})
                except (KeyError, TypeError, ValueError):
                    connection.send_frame({"t": "answer", "error": "invalid request"})
        except OSError:
            return  # The peer has disconnected. The client reports the error.

    def _handle_request(self, connection: TlsConnection, request: FileBlob | FilePut | FileResult | FileOutput) -> None:
        kind, name = request["t"], str(request.get("name"))
        if kind == "blob" and HASH_PATTERN.fullmatch(name):
            self._send_blob(connection, name)
        elif kind in ("put", "result") and connection.peer != CLIENT:
            raise RefusedByPeer(f"{connection.peer} is not the client")
        elif request["t"] == "put" and HASH_PATTERN.fullmatch(name):
            self._receive_blob(connection, name, int(request["size"]))
        elif request["t"] == "result" and _RESULT.fullmatch(name):
            with open(self._spool / name, "rb") as file:
                _send_file(connection, file.fileno(), int(request["at"]), CompleteFile(file.fileno()))
        elif request["t"] == "output":
            given = str(request["path"]), str(request["version"]), int(request["at"]), bool(request.get("hashes", True))
            # Copy in a thread of low priority. A thread cannot raise its priority again, and this thread may send a
            # result next.
            with ThreadPoolExecutor(1, initializer=_lower_priority) as thread:
                thread.submit(self._send_output, connection, *given).result()
        else:
            raise RefusedByPeer(f"unknown request {kind} {name!r:.80}")

    def _send_blob(self, connection: TlsConnection, name: str) -> None:
        deadline = time.monotonic() + BLOB_START_TIMEOUT
        with self._changed:
            while name not in self._incoming and not (self._blobs / name).exists():
                if time.monotonic() > deadline:
                    raise RefusedByPeer("no such blob")
                # Wait at most 0.02 s, because an upload through SSH does not notify this condition.
                self._changed.wait(0.02)
            arrival = self._incoming.get(name)
            try:
                file = os.open(arrival.partial if arrival else self._blobs / name, os.O_RDONLY)
            except FileNotFoundError:
                raise RefusedByPeer("no such blob") from None
        try:
            _send_file(connection, file, 0, arrival or CompleteFile(file))
        finally:
            os.close(file)

    def _send_output(self, connection: TlsConnection, path: str, version: str, at: int, hashes: bool) -> None:
        from skyward_core.node.agent.output_checkpoint_and_source_files import OutputFile

        with closing(OutputFile(self._work, path, version)) as file:
            with _sending_content(connection, file.size):
                for piece in file.read_chunks(at, hashes=hashes):
                    connection.write(piece)
            file.check_unchanged()
            connection.send_frame({"t": "whole", "sha256": file.sha256 if hashes else ""})

    def _receive_blob(self, connection: TlsConnection, name: str, size: int) -> None:
        with self._incoming_blob(name, size) as arrival:
            connection.send_frame({"t": "go"})
            arrival.receive_from(connection, name)
        connection.send_frame({"t": "there"})

    # -- fetching ----------------------------------------------------------------------------------------

    def fetch(self, name: str, size: int, address: tuple[str, int], output: Mapping[str, str] | None = None) -> None:
        """Fetch a complete blob or output file from a peer and verify it. Store nothing on failure.

        Args:
            name: Content hash of the blob; any name of this form for an output file.
            size: Size in bytes.
            address: Host and port of the peer.
            output: Path and version of the peer's output file, which the peer verifies. None to fetch a blob.

        Raises:
            PeerUnreachable: If the peer cannot be reached.
            OSError: If the peer is not a member of the pool or has no complete blob. The message names the peer.
        """
        if not HASH_PATTERN.fullmatch(name):
            raise OSError(f"{name!r} is not a blob name")
        try:
            comes: FileComes
            with (
                _session_priority(is_output=output is not None),
                self._incoming_blob(name, size) as arrival,
                TlsConnection.connect(address, self._client) as connection,
            ):
                asked = {"t": "blob", "name": name}, {"t": "output", "at": 0, "hashes": False, **(output or {})}
                comes = connection.request(asked[output is not None])
                actual = comes["size"]
                if actual != size:
                    raise OSError(f"blob has {actual} bytes instead of {size}")
                arrival.receive_from(connection, name if output is None else None)
                if output is not None:
                    connection.receive_frame()  # the peer's answer that the file has not changed
        except OSError as error:
            raise type(error)(f"fetch from peer {address[0]} failed: {error}") from error

    @contextmanager
    def _incoming_blob(self, name: str, size: int) -> Iterator[IncomingBlob]:
        """Receive a blob. Other peers can fetch it during the transfer. Move it to its final path on success."""
        arrival = IncomingBlob(self._blobs / f".{name}.{threading.get_ident()}", size)
        try:
            with self._changed:
                self._incoming[name] = arrival
                self._changed.notify_all()
            yield arrival
            arrival.partial.replace(self._blobs / name)
        finally:
            with self._changed:
                if self._incoming.get(name) is arrival:
                    del self._incoming[name]
                self._changed.notify_all()
            arrival.close()


class IncomingBlob:
    """A blob that is being received. Readers use the interface of ``blocking_tls_connection.GrowingFile``.

    Each chunk is hashed on arrival, while it is in the processor's cache. Hashing in a separate
    thread would be faster only if the network were faster than two cores. Otherwise it would take a sixth longer.
    """

    def __init__(self, partial: Path, size: int) -> None:
        self.partial = partial
        self.size = size
        self._file = open(partial, "wb", buffering=0)  # noqa: SIM115  closed in close()
        self._file.truncate(size)  # Set the final size at once, because readers map the whole file while it arrives.
        self._received = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def receive_from(self, connection: TlsConnection, name: str | None) -> None:
        """Receive all bytes of the blob from a connection, and write them to the partial file.

        Args:
            name: Content hash of the blob; None if the sender verifies the content.

        Raises:
            OSError: If the content has another hash.
        """
        content = ContentHash()
        for piece in connection.read_chunks(self.size):
            if name is not None:
                content.update(piece)
            rest = piece
            while rest:
                rest = rest[self._file.write(rest) :]
            with self._changed:
                self._received += len(piece)
                self._changed.notify_all()
        if name is not None and content.hexdigest() != name:
            raise OSError("content does not match its hash")

    def wait(self, beyond: int) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._received > beyond or self._is_closed, TIMEOUT)
            if self._received <= beyond:
                raise TlsConnectionError("timed out waiting for more data")
            return self._received

    def close(self) -> None:
        """Wake all readers and delete the partial file."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._file.close()
        self.partial.unlink(missing_ok=True)


def _send_file(connection: TlsConnection, file: int, at: int, source: IncomingBlob | CompleteFile) -> None:
    with _sending_content(connection, source.size):
        connection.send_file(file, at, source)


@contextmanager
def _sending_content(connection: TlsConnection, size: int) -> Iterator[None]:
    """Answer a request for a file. The block sends the content."""
    connection.send_frame({"t": "comes", "size": size})
    try:
        yield
    except TlsConnectionError:
        raise
    except OSError as error:
        # The reply's header is already sent. Closing the connection is the only way to report the error.
        raise TlsConnectionError(str(error)) from error


# Niceness of threads that copy output files, relative to the agent's niceness. If ranks use all processors, a copy gets
# 10 % of one of them, which suffices for 1 GB in 12 s. With 15, a copy took ten times as long on a busy machine.
NICENESS = 10
_AUTOGROUP = Path("/proc/self/autogroup")
PRIORITY_TRIES = 4  # tries to change the priority; another user who uses up the kernel's limit must not stop transfers
_active, _active_lock = {True: 0, False: 0}, threading.Lock()  # transfers in progress, by whether ranks wrote the file


@contextmanager
def _session_priority(*, is_output: bool) -> Iterator[None]:
    """Lower the priority of this process's session while the session only copies files that ranks wrote.

    Most Linux kernels compare the niceness of a thread only within its session, and each rank has its own session.
    """
    _count(1, is_output)
    try:
        yield
    finally:
        _count(-1, is_output)


def _count(change: int, is_output: bool) -> None:
    with _active_lock:
        _active[is_output] += change
        if not any(_active.values()) or os.getsid(0) != os.getpid():
            return  # an idle process keeps its priority, because the kernel limits changes
        niceness = "0" if _active[False] else str(NICENESS)
        with suppress(OSError):  # some kernels have no such file
            for _ in range(PRIORITY_TRIES):
                if _AUTOGROUP.read_text().split()[-1] == niceness:
                    break
                try:
                    _AUTOGROUP.write_text(niceness)
                except BlockingIOError:  # the kernel accepts ten changes per second from all users together
                    time.sleep(0.1)


def _lower_priority() -> None:
    """Lower this thread's priority, so that copying a checkpoint does not slow down training on a few processors."""
    if sys.platform == "linux":  # On other systems, niceness would apply to the whole process.
        os.nice(NICENESS)


def main(descriptor: int) -> None:
    """Run the file server process: serve the agent's requests over an inherited socket until the agent closes it."""
    agent = socket.socket(fileno=descriptor)
    lock = threading.Lock()
    peers: FileTransferServer | None = None

    def answer(header: HelperPeers | HelperPull, fields: Header) -> None:
        with lock:
            agent.sendall(encode_frame({"t": "known", "id": header["id"]} | fields))

    def pull(peers: FileTransferServer, header: HelperPull) -> None:
        if "output" in header:
            _lower_priority()
        host, port = header["from"]
        try:
            peers.fetch(header["hash"], header["size"], (host, int(port)), header.get("output"))
        except OSError as error:
            answer(header, {"error": str(error), "unreachable": isinstance(error, PeerUnreachable)})
        else:
            answer(header, {})

    decoder = Decoder()
    header: HelperPeers | HelperPull
    with suppress(ConnectionError):  # The agent may close the socket before it has read all answers.
        while data := agent.recv(1 << 16):
            for header, _ in decoder.feed(data):
                if header["t"] == "peers":
                    try:
                        paths = Path(header["blobs"]), Path(header["spool"]), header["address"]
                        peers = FileTransferServer(*paths, header, header["work"])
                    except OSError as error:
                        answer(header, {"error": str(error)})
                    else:
                        answer(header, {"port": peers.port})
                elif peers is not None:
                    threading.Thread(target=pull, args=(peers, header), daemon=True).start()
    os._exit(0)
