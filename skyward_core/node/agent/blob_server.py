"""Files between nodes, and between them and their client, over TLS in which both sides show a certificate of the pool.

Nodes get blobs from each other; the client puts blobs and gets results. The listener exists only after a client has
brought certificates, on the node's private address, and gives out nothing but ``blobs/<name>`` and, to the client,
results of the spool and what ranks wrote in their working folder. It lives in a process of its own, which the agent
(``agent.client_requests``) starts when a client first asks: ssl doubles an agent's memory, and a large blob would
delay it.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.protocol.frame_codec import Decoder, Header, encode_frame
from skyward_core.protocol.tls_stream import (
    CLIENT,
    TIMEOUT,
    CompleteFile,
    PeerUnreachable,
    RefusedByPeer,
    TlsConnection,
    TlsConnectionError,
    make_ssl_context,
)
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
        """A client's request, with the folders and the address of the agent that passes it on."""

        blobs: str
        spool: str
        address: str
        work: str

    HelperPull = TypedDict(
        "HelperPull", {"t": Literal["pull"], "id": int, "hash": str, "size": int, "from": tuple[str, int]}
    )


IDLE_TIMEOUT = 60.0  # seconds that a client may leave a line without a request; it ends it itself before that
MAX_UNAUTHENTICATED = 32  # connections that have not shown a certificate yet; the next one takes the oldest one's place
ACCEPT_RETRY_DELAY = (
    0.1  # seconds before the next connection is taken where there are no descriptors, or no threads, left
)
BLOB_START_TIMEOUT = 2.0  # seconds for a blob to begin to come where a peer is told to fetch it in the same moment

_RESULT = re.compile(r"[\w.-]+\.(result|item)")


class BlobServer:
    """One client's certificates in use, from its request until it leaves.

    Attributes:
        port: where the node listens.

    Raises:
        OSError: the address is not this machine's.
        ssl.SSLError: the certificates do not fit (an ``OSError``, too).
    """

    def __init__(self, blobs: Path, spool: Path, address: str, papers: CredentialKeys, work: str = "") -> None:
        self._blobs = blobs
        self._work = work  # the ranks' working folder
        self._spool = spool
        self._server = make_ssl_context(ssl.PROTOCOL_TLS_SERVER, papers)
        self._client = make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, papers)
        self._incoming: dict[str, IncomingBlob] = {}
        self._changed = threading.Condition()
        self._unauthenticated: dict[socket.socket, None] = {}  # in the order in which they came
        self._closed = False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=64)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._closed = True
        with suppress(OSError):  # closed already; or this system knows no such call for listeners
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in accept
        self._listener.close()

    # -- serving -----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._closed:
            try:
                plain, _ = self._listener.accept()
            except OSError:  # closed; or no descriptors are left now, or it was gone before it was taken
                time.sleep(0 if self._closed else ACCEPT_RETRY_DELAY)
                continue
            self._close_oldest()
            self._unauthenticated[plain] = None
            try:
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()
            except RuntimeError:  # no more threads now
                self._unauthenticated.pop(plain, None)
                plain.close()
                time.sleep(ACCEPT_RETRY_DELAY)

    def _close_oldest(self) -> None:
        """Strangers cost a thread each: of more than we take at once, the one that has had most time goes."""
        while len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            for oldest in list(self._unauthenticated)[:1]:
                self._unauthenticated.pop(oldest, None)
                with suppress(OSError):  # it has just gone
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it

    def _serve(self, plain: socket.socket) -> None:
        try:
            line = TlsConnection(plain, self._server, server=True)
        except OSError:
            plain.close()
            return  # a stranger, or one that went away: it knows best, and its client hears of it
        finally:
            self._unauthenticated.pop(plain, None)
        try:
            with line:
                try:
                    while True:
                        self._handle_request(line, line.receive_frame())
                        line.wait_readable(IDLE_TIMEOUT)
                except TlsConnectionError:
                    raise
                except OSError as error:
                    line.send_frame({"t": "answer", "error": error.strerror or str(error)})
                except (KeyError, TypeError, ValueError):
                    line.send_frame({"t": "answer", "error": "no such request"})
        except OSError:
            return  # it went away: it knows best, and its client hears of it

    def _handle_request(self, line: TlsConnection, request: FileBlob | FilePut | FileResult | FileOutput) -> None:
        kind, name = request["t"], str(request.get("name"))
        if kind == "blob" and HASH_PATTERN.fullmatch(name):
            self._send_blob(line, name)
        elif kind in ("put", "result", "output") and line.peer != CLIENT:
            raise RefusedByPeer(f"{line.peer} is not the client")
        elif request["t"] == "put" and HASH_PATTERN.fullmatch(name):
            self._receive_blob(line, name, int(request["size"]))
        elif request["t"] == "result" and _RESULT.fullmatch(name):
            with open(self._spool / name, "rb") as file:
                _send_file(line, file.fileno(), int(request["at"]), CompleteFile(file.fileno()))
        elif request["t"] == "output":
            self._send_output(line, str(request["path"]), str(request["version"]), int(request["at"]))
        else:
            raise RefusedByPeer(f"{kind} {name!r:.80} is nothing to ask for")

    def _send_blob(self, line: TlsConnection, name: str) -> None:
        deadline = time.monotonic() + BLOB_START_TIMEOUT
        with self._changed:
            while name not in self._incoming and not (self._blobs / name).exists():
                if time.monotonic() > deadline:
                    raise RefusedByPeer("it has not got it")
                self._changed.wait(0.02)  # nobody tells of what comes through SSH
            arrival = self._incoming.get(name)
            try:
                file = os.open(arrival.partial if arrival else self._blobs / name, os.O_RDONLY)
            except FileNotFoundError:
                raise RefusedByPeer("it has not got it") from None
        try:
            _send_file(line, file, 0, arrival or CompleteFile(file))
        finally:
            os.close(file)

    def _send_output(self, line: TlsConnection, path: str, version: str, at: int) -> None:
        from skyward_core.node.agent.written_files import OutputFile

        with closing(OutputFile(self._work, path, version)) as file:
            line.send_frame({"t": "comes", "size": file.size})
            try:
                for piece in file.read_chunks(at):
                    line.write(piece)
            except TlsConnectionError:
                raise
            except OSError as error:
                raise TlsConnectionError(str(error)) from error
            file.check_unchanged()
            line.send_frame({"t": "whole", "sha256": file.sha256})

    def _receive_blob(self, line: TlsConnection, name: str, size: int) -> None:
        with self._incoming_blob(name, size) as arrival:
            line.send_frame({"t": "go"})
            arrival.receive_from(line)
        line.send_frame({"t": "there"})

    # -- fetching ----------------------------------------------------------------------------------------

    def fetch(self, name: str, size: int, place: tuple[str, int]) -> None:
        """Fetch a blob from a peer: whole and with the content its name stands for, or not at all.

        Raises:
            CannotReach: there is no way to the peer.
            OSError: it is none of the pool, or has not got it whole; says which.
        """
        if not HASH_PATTERN.fullmatch(name):
            raise OSError(f"{name!r} is no blob's name")
        try:
            comes: FileComes
            with (
                self._incoming_blob(name, size) as arrival,
                TlsConnection.connect(place, self._client) as line,
            ):
                comes = line.request({"t": "blob", "name": name})
                there = comes["size"]
                if there != size:
                    raise OSError(f"it has {there} bytes of {size}")
                arrival.receive_from(line)
        except OSError as error:
            raise type(error)(f"from the peer at {place[0]}: {error}") from error

    @contextmanager
    def _incoming_blob(self, name: str, size: int) -> Iterator[IncomingBlob]:
        """A blob on its way here, for peers to fetch meanwhile; in its place at the end, if all went well."""
        arrival = IncomingBlob(self._blobs / f".{name}.{threading.get_ident()}", size)
        try:
            with self._changed:
                self._incoming[name] = arrival
                self._changed.notify_all()
            yield arrival
            if arrival.content_name() != name:
                raise OSError("what it sent is something else")
            arrival.partial.replace(self._blobs / name)
        finally:
            with self._changed:
                if self._incoming.get(name) is arrival:
                    del self._incoming[name]
                self._changed.notify_all()
            arrival.close()


class IncomingBlob:
    """A blob on its way here, as its readers see it (see ``tls_stream.GrowingFile``).

    It is hashed as it comes, while it is in the processor's cache: a thread of its own for that is quicker only where
    the network outruns two cores, and elsewhere takes a sixth more time.
    """

    def __init__(self, partial: Path, size: int) -> None:
        self.partial = partial
        self.size = size
        self._file = open(partial, "wb", buffering=0)  # noqa: SIM115  closed in close()
        self._file.truncate(size)  # who hands it on maps it as a whole
        self._hash = ContentHash()
        self._received = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def receive_from(self, line: TlsConnection) -> None:
        """Take it all from a line."""
        for piece in line.read_chunks(self.size):
            self._hash.update(piece)
            rest = piece
            while rest:
                rest = rest[self._file.write(rest) :]
            with self._changed:
                self._received += len(piece)
                self._changed.notify_all()

    def wait(self, beyond: int) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._received > beyond or self._is_closed, TIMEOUT)
            if self._received <= beyond:
                raise TlsConnectionError("it does not come")
            return self._received

    def content_name(self) -> str:
        """What it should be called, now that it is here."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """It is in its place now, or will not be."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._file.close()
        self.partial.unlink(missing_ok=True)


def _send_file(line: TlsConnection, file: int, at: int, there: IncomingBlob | CompleteFile) -> None:
    line.send_frame({"t": "comes", "size": there.size})
    try:
        line.send_file(file, at, there)
    except TlsConnectionError:
        raise
    except OSError as error:  # its size is told: all that is left is to hang up
        raise TlsConnectionError(str(error)) from error


def main(descriptor: int) -> None:
    """Do what the agent asks for over a socket that it left open, until it closes that."""
    agent = socket.socket(fileno=descriptor)
    lock = threading.Lock()
    peers: BlobServer | None = None

    def answer(header: HelperPeers | HelperPull, what: Header) -> None:
        with lock:
            agent.sendall(encode_frame({"t": "known", "id": header["id"]} | what))

    def pull(peers: BlobServer, header: HelperPull) -> None:
        try:
            peers.fetch(header["hash"], header["size"], (header["from"][0], int(header["from"][1])))
        except OSError as error:
            answer(header, {"error": str(error), "unreachable": isinstance(error, PeerUnreachable)})
        else:
            answer(header, {})

    decoder = Decoder()
    header: HelperPeers | HelperPull
    while data := agent.recv(1 << 16):
        for header, _ in decoder.feed(data):
            if header["t"] == "peers":
                try:
                    places = Path(header["blobs"]), Path(header["spool"]), header["address"]
                    peers = BlobServer(*places, header, header["work"])
                except OSError as error:
                    answer(header, {"error": str(error)})
                else:
                    answer(header, {"port": peers.port})
            elif peers is not None:
                threading.Thread(target=pull, args=(peers, header), daemon=True).start()
    os._exit(0)
