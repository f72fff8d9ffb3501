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

from skyward_core.protocol.frame_codec import Decoder, Header, frame
from skyward_core.protocol.tls_stream import (
    CLIENT,
    TIMEOUT,
    CannotReach,
    LineError,
    RefusedByPeer,
    TlsLine,
    Whole,
    context,
)
from skyward_core.util.content_hash import NAME, Hash

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import FileAsked, FileComes, HelperPeers, HelperPull, PapersKeys

IDLE = 60.0  # seconds that a client may leave a line without a request; it ends it itself before that
STRANGERS = 32  # connections that have not shown a certificate yet; the next one takes the oldest one's place
PAUSE = 0.1  # seconds before the next connection is taken where there are no descriptors, or no threads, left
AWAITED = 2.0  # seconds for a blob to begin to come where a peer is told to fetch it in the same moment

_RESULT = re.compile(r"[\w.-]+\.(result|item)")


class Peers:
    """One client's certificates in use, from its request until it leaves.

    Attributes:
        port: where the node listens.

    Raises:
        OSError: the address is not this machine's.
        ssl.SSLError: the certificates do not fit (an ``OSError``, too).
    """

    def __init__(self, blobs: Path, spool: Path, address: str, papers: PapersKeys, work: str = "") -> None:
        self._blobs = blobs
        self._work = work  # the ranks' working folder
        self._spool = spool
        self._server = context(ssl.PROTOCOL_TLS_SERVER, papers)
        self._client = context(ssl.PROTOCOL_TLS_CLIENT, papers)
        self._arriving: dict[str, Arrival] = {}
        self._news = threading.Condition()
        self._strangers: dict[socket.socket, None] = {}  # in the order in which they came
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
                time.sleep(0 if self._closed else PAUSE)
                continue
            self._make_room()
            self._strangers[plain] = None
            try:
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()
            except RuntimeError:  # no more threads now
                self._strangers.pop(plain, None)
                plain.close()
                time.sleep(PAUSE)

    def _make_room(self) -> None:
        """Strangers cost a thread each: of more than we take at once, the one that has had most time goes."""
        while len(self._strangers) >= STRANGERS:
            for oldest in list(self._strangers)[:1]:
                self._strangers.pop(oldest, None)
                with suppress(OSError):  # it has just gone
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it

    def _serve(self, plain: socket.socket) -> None:
        try:
            line = TlsLine(plain, self._server, server=True)
        except OSError:
            plain.close()
            return  # a stranger, or one that went away: it knows best, and its client hears of it
        finally:
            self._strangers.pop(plain, None)
        try:
            with line:
                try:
                    while True:
                        self._answer(line, line.hear())
                        line.await_more(IDLE)
                except LineError:
                    raise
                except OSError as error:
                    line.say({"t": "answer", "error": error.strerror or str(error)})
                except (KeyError, TypeError, ValueError):
                    line.say({"t": "answer", "error": "no such request"})
        except OSError:
            return  # it went away: it knows best, and its client hears of it

    def _answer(self, line: TlsLine, request: FileAsked) -> None:
        kind, name = request["t"], str(request.get("name"))
        if kind == "blob" and NAME.fullmatch(name):
            self._give_blob(line, name)
        elif kind in ("put", "result", "output") and line.peer != CLIENT:
            raise RefusedByPeer(f"{line.peer} is not the client")
        elif request["t"] == "put" and NAME.fullmatch(name):
            self._take(line, name, int(request["size"]))
        elif request["t"] == "result" and _RESULT.fullmatch(name):
            with open(self._spool / name, "rb") as file:
                _give(line, file.fileno(), int(request["at"]), Whole(file.fileno()))
        elif request["t"] == "output":
            self._give_output(line, str(request["path"]), str(request["version"]), int(request["at"]))
        else:
            raise RefusedByPeer(f"{kind} {name!r:.80} is nothing to ask for")

    def _give_blob(self, line: TlsLine, name: str) -> None:
        deadline = time.monotonic() + AWAITED
        with self._news:
            while name not in self._arriving and not (self._blobs / name).exists():
                if time.monotonic() > deadline:
                    raise RefusedByPeer("it has not got it")
                self._news.wait(0.02)  # nobody tells of what comes through SSH
            arrival = self._arriving.get(name)
            try:
                file = os.open(arrival.partial if arrival else self._blobs / name, os.O_RDONLY)
            except FileNotFoundError:
                raise RefusedByPeer("it has not got it") from None
        try:
            _give(line, file, 0, arrival or Whole(file))
        finally:
            os.close(file)

    def _give_output(self, line: TlsLine, path: str, version: str, at: int) -> None:
        from skyward_core.node.agent.output_files import OutputFile

        with closing(OutputFile(self._work, path, version)) as file:
            line.say({"t": "comes", "size": file.size})
            try:
                for piece in file.pieces(at):
                    line.write(piece)
            except LineError:
                raise
            except OSError as error:
                raise LineError(str(error)) from error
            file.check()
            line.say({"t": "whole", "sha256": file.sha256})

    def _take(self, line: TlsLine, name: str, size: int) -> None:
        with self._arrival(name, size) as arrival:
            line.say({"t": "go"})
            arrival.fill(line)
        line.say({"t": "there"})

    # -- fetching ----------------------------------------------------------------------------------------

    def pull(self, name: str, size: int, place: tuple[str, int]) -> None:
        """Fetch a blob from a peer: whole and with the content its name stands for, or not at all.

        Raises:
            CannotReach: there is no way to the peer.
            OSError: it is none of the pool, or has not got it whole; says which.
        """
        if not NAME.fullmatch(name):
            raise OSError(f"{name!r} is no blob's name")
        try:
            comes: FileComes
            with self._arrival(name, size) as arrival, TlsLine.to(place, self._client) as line:
                comes = line.ask({"t": "blob", "name": name})
                there = comes["size"]
                if there != size:
                    raise OSError(f"it has {there} bytes of {size}")
                arrival.fill(line)
        except OSError as error:
            raise type(error)(f"from the peer at {place[0]}: {error}") from error

    @contextmanager
    def _arrival(self, name: str, size: int) -> Iterator[Arrival]:
        """A blob on its way here, for peers to fetch meanwhile; in its place at the end, if all went well."""
        arrival = Arrival(self._blobs / f".{name}.{threading.get_ident()}", size)
        try:
            with self._news:
                self._arriving[name] = arrival
                self._news.notify_all()
            yield arrival
            if arrival.name() != name:
                raise OSError("what it sent is something else")
            arrival.partial.replace(self._blobs / name)
        finally:
            with self._news:
                if self._arriving.get(name) is arrival:
                    del self._arriving[name]
                self._news.notify_all()
            arrival.close()


class Arrival:
    """A blob on its way here, as whoever hands it on sees it (see :class:`skyward_core.protocol.tls_stream.Growing`).

    It is hashed as it comes, while it is in the processor's cache: a thread of its own for that is quicker only where
    the network outruns two cores, and elsewhere takes a sixth more time.
    """

    def __init__(self, partial: Path, size: int) -> None:
        self.partial = partial
        self.size = size
        self._file = open(partial, "wb", buffering=0)  # noqa: SIM115  closed in close()
        self._file.truncate(size)  # who hands it on maps it as a whole
        self._hash = Hash()
        self._there = 0
        self._broken = False
        self._news = threading.Condition()

    def fill(self, line: TlsLine) -> None:
        """Take it all from a line."""
        for piece in line.pieces(self.size):
            self._hash.update(piece)
            rest = piece
            while rest:
                rest = rest[self._file.write(rest) :]
            with self._news:
                self._there += len(piece)
                self._news.notify_all()

    def wait(self, beyond: int) -> int:
        with self._news:
            self._news.wait_for(lambda: self._there > beyond or self._broken, TIMEOUT)
            if self._there <= beyond:
                raise LineError("it does not come")
            return self._there

    def name(self) -> str:
        """What it should be called, now that it is here."""
        return self._hash.name()

    def close(self) -> None:
        """It is in its place now, or will not be."""
        with self._news:
            self._broken = True
            self._news.notify_all()
        self._file.close()
        self.partial.unlink(missing_ok=True)


def _give(line: TlsLine, file: int, at: int, there: Arrival | Whole) -> None:
    line.say({"t": "comes", "size": there.size})
    try:
        line.send(file, at, there)
    except LineError:
        raise
    except OSError as error:  # its size is told: all that is left is to hang up
        raise LineError(str(error)) from error


def main(descriptor: int) -> None:
    """Do what the agent asks for over a socket that it left open, until it closes that."""
    agent = socket.socket(fileno=descriptor)
    lock = threading.Lock()
    peers: Peers | None = None

    def answer(header: HelperPeers | HelperPull, what: Header) -> None:
        with lock:
            agent.sendall(frame({"t": "known", "id": header["id"]} | what))

    def pull(peers: Peers, header: HelperPull) -> None:
        try:
            peers.pull(header["hash"], header["size"], (header["from"][0], int(header["from"][1])))
        except OSError as error:
            answer(header, {"error": str(error), "unreachable": isinstance(error, CannotReach)})
        else:
            answer(header, {})

    decoder = Decoder()
    header: HelperPeers | HelperPull
    while data := agent.recv(1 << 16):
        for header, _ in decoder.feed(data):
            if header["t"] == "peers":
                try:
                    places = Path(header["blobs"]), Path(header["spool"]), header["address"]
                    peers = Peers(*places, header, header["work"])
                except OSError as error:
                    answer(header, {"error": str(error)})
                else:
                    answer(header, {"port": peers.port})
            elif peers is not None:
                threading.Thread(target=pull, args=(peers, header), daemon=True).start()
    os._exit(0)
