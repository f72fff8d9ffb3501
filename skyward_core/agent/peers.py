"""Blobs from node to node: served and fetched over TLS in which both sides show a certificate of the pool.

A request is a blob's name and a newline; the answer its size in eight bytes (all ones where it is not there) and
its content. The listener exists only after a client has brought certificates, on the node's private address, and
gives out nothing but ``blobs/<name>``. It lives in a process of its own, which the agent (:mod:`.exchange`) starts
when a client first asks: ssl takes an agent's memory again, and a large blob would make it wait.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path

from ..wire import Decoder, Header, frame

TIMEOUT = 5.0  # seconds without a byte after which a peer counts as out of reach
CHUNK = 1 << 20
MISSING = (1 << 64) - 1
NAME = re.compile(rb"[0-9a-f]{32}")

_SIZE = struct.Struct("!Q")


class Peers:
    """One client's certificates in use, from its request until it leaves.

    Attributes:
        port: where the node listens for its peers.

    Raises:
        OSError: the address is not this machine's.
        ssl.SSLError: the certificates do not fit (an ``OSError``, too).
    """

    def __init__(self, blobs: Path, address: str, papers: dict[str, str]) -> None:
        self._blobs = blobs
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, papers)
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, papers)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=64)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):  # closed already; or this system knows no such call for listeners
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in accept
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(TIMEOUT)
        try:
            with self._server.wrap_socket(plain, server_side=True) as peer:
                name = _exactly(peer, 33)[:32]
                try:
                    blob = open(self._blobs / name.decode(), "rb") if NAME.fullmatch(name) else None  # noqa: SIM115
                except FileNotFoundError:
                    blob = None
                if blob is None:
                    peer.sendall(_SIZE.pack(MISSING))
                    return
                with blob:
                    peer.sendall(_SIZE.pack(os.fstat(blob.fileno()).st_size))
                    while data := blob.read(CHUNK):
                        peer.sendall(data)
        except OSError:
            return  # a stranger, or a peer that went away: it knows best, and its client hears of it
        finally:
            plain.close()

    def pull(self, name: str, size: int, place: tuple[str, int]) -> None:
        """Fetch a blob from a peer: whole and with the content its name stands for, or not at all.

        Raises:
            OSError: the peer is out of reach, is none of the pool, or has not got it; says which.
        """
        if not NAME.fullmatch(name.encode()):
            raise OSError(f"{name!r} is no blob's name")
        host, port = place
        partial = self._blobs / f".{name}.{threading.get_ident()}"
        try:
            with (
                socket.create_connection((host, port), timeout=TIMEOUT) as plain,
                self._client.wrap_socket(plain) as peer,
                open(partial, "wb") as target,
            ):
                peer.sendall(name.encode() + b"\n")
                (there,) = _SIZE.unpack(_exactly(peer, _SIZE.size))
                if there != size:
                    raise OSError(
                        "it has not got it" if there == MISSING else f"it has {there} bytes of {size}"
                    )
                digest = hashlib.blake2b(digest_size=16)
                # A read gives one TLS record, 16 KB, at most: they are gathered, for hashing and writing many small
                # pieces takes longer.
                buffer = memoryview(bytearray(CHUNK))
                while there:
                    piece = buffer[: min(CHUNK, there)]
                    _fill(peer, piece)
                    there -= len(piece)
                    digest.update(piece)
                    target.write(piece)
            if digest.hexdigest() != name:
                raise OSError("what it sent is something else")
            partial.replace(self._blobs / name)
        except OSError as error:
            raise OSError(f"from the peer at {host}: {error}") from error
        finally:
            partial.unlink(missing_ok=True)


def main(descriptor: int) -> None:
    """Do what the agent asks for over a socket that it left open, until it closes that."""
    agent = socket.socket(fileno=descriptor)
    lock = threading.Lock()
    peers: Peers | None = None

    def answer(header: Header, what: Header) -> None:
        with lock:
            agent.sendall(frame({"t": "known", "id": header["id"]} | what))

    def pull(peers: Peers, header: Header) -> None:
        try:
            peers.pull(header["hash"], header["size"], (header["from"][0], int(header["from"][1])))
        except OSError as error:
            answer(header, {"error": str(error)})
        else:
            answer(header, {})

    decoder = Decoder()
    while data := agent.recv(1 << 16):
        for header, _ in decoder.feed(data):
            if header["t"] == "peers":
                try:
                    peers = Peers(Path(header["blobs"]), header["address"], header)
                except OSError as error:
                    answer(header, {"error": str(error)})
                else:
                    answer(header, {"port": peers.port})
            elif peers is not None:
                threading.Thread(target=pull, args=(peers, header), daemon=True).start()
    os._exit(0)


def _exactly(peer: ssl.SSLSocket, size: int) -> bytes:
    data = bytearray(size)
    _fill(peer, memoryview(data))
    return bytes(data)


def _fill(peer: ssl.SSLSocket, piece: memoryview) -> None:
    while piece:
        count = peer.recv_into(piece)
        if not count:
            raise OSError("it hung up")
        piece = piece[count:]


def _context(protocol: int, papers: dict[str, str]) -> ssl.SSLContext:
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
