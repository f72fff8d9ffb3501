"""The network between two hosts of a pool: one listens for a few seconds, the other one sends."""

from __future__ import annotations

import hmac
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

LISTENS = 15.0  # seconds for which the neighbour may come, and send
CONNECT, SENDS = 2.0, 1.0  # seconds
# By so much a network is known that takes it in less time: its start is long over by then.
ENOUGH = 256 << 20  # bytes
STRANGERS = 64  # lines at most that are open and have not said the word


def listen(address: str, word: str) -> int:
    """Take what the neighbour sends, which is thrown away, for a few seconds; gives the port.

    Raises:
        OSError: nobody can listen at that address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family)
    threading.Thread(target=_serve, args=(server, word.encode()), daemon=True).start()
    return int(server.getsockname()[1])


def _serve(server: socket.socket, word: bytes) -> None:
    until = time.monotonic() + LISTENS
    with server:
        line = _neighbour(server, word, until)
    if line is not None:
        with line:
            try:
                line.sendall(_taken(line, until).to_bytes(8, "big"))
            except OSError:
                return  # who sends tells of it


def _neighbour(server: socket.socket, word: bytes, until: float) -> socket.socket | None:
    """The line that begins with the word, however many others are there and say nothing, or say it slowly."""
    said: dict[socket.socket, bytes] = {}
    server.setblocking(False)
    with selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)

        def drop(line: socket.socket) -> None:
            del said[line]
            ready.unregister(line)
            line.close()

        while (left := until - time.monotonic()) > 0:
            for line in [key.fileobj for key, _ in ready.select(left)]:
                if line is server:
                    if (come := _next(server)) is not None:
                        said[come] = b""
                        ready.register(come, selectors.EVENT_READ)
                        if len(said) > STRANGERS:
                            drop(next(iter(said)))
                elif isinstance(line, socket.socket) and line in said:
                    more = _at_hand(line, len(word) - len(said[line]))
                    said[line] += more
                    if hmac.compare_digest(said[line], word):
                        del said[line]
                        _close(said)
                        return line
                    if not more or len(said[line]) == len(word):
                        drop(line)
    _close(said)
    return None


def _next(server: socket.socket) -> socket.socket | None:
    try:
        line, _ = server.accept()
    except OSError:  # gone again, or there is no room for another file
        return None
    line.setblocking(False)
    return line


def _at_hand(line: socket.socket, most: int) -> bytes:
    """What has come over a line; nothing where that is at its end."""
    try:
        return line.recv(most)
    except OSError:
        return b""


def _close(lines: Iterable[socket.socket]) -> None:
    for line in lines:
        line.close()


def _taken(line: socket.socket, until: float) -> int:
    """How many bytes come before the other side says that it is done."""
    buffer, total = bytearray(1 << 20), 0
    while (left := until - time.monotonic()) > 0:
        line.settimeout(left)
        if not (size := line.recv_into(buffer)):
            return total
        total += size
    raise TimeoutError


def send(wanted: dict[str, Any]) -> dict[str, Any]:
    """Send to a neighbour for a second, or what is enough: MB/s that it took, or why there is no figure.

    Args:
        wanted: its ``address`` and ``port``, and the ``word`` that it knows us by.
    """
    try:
        with socket.create_connection((wanted["address"], wanted["port"]), CONNECT) as line:
            line.sendall(wanted["word"].encode())
            piece, left, begun = bytes(1 << 20), ENOUGH, time.perf_counter()
            while left > 0 and time.perf_counter() - begun < SENDS:
                line.sendall(piece)
                left -= len(piece)
            line.shutdown(socket.SHUT_WR)
            taken = int.from_bytes(_exactly(line, 8), "big")
            seconds = time.perf_counter() - begun
    except OSError as error:
        return {"rate": 0.0, "why": str(error)}
    return {"rate": taken / 1e6 / seconds, "why": "" if taken else "it took nothing"}


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := line.recv(size - len(found))):
        found += piece
    return found
