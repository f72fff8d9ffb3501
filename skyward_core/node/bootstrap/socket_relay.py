"""Join a command channel to the agent's Unix socket, for hosts whose SSH server forwards no sockets.

It prints a line with the word (whatever came before is a start-up file's noise), then passes bytes both ways until
either side ends.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading


def main(path: str, word: str) -> None:
    agent = socket.socket(socket.AF_UNIX)
    try:
        agent.connect(path)
        check_peer_user(agent)
    except OSError as error:
        os.write(1, f"\n{word} {error.strerror}\n".encode())
        return
    os.write(1, f"\n{word}\n".encode())
    threading.Thread(target=relay_stdin, args=(agent,), daemon=True).start()
    try:
        while data := agent.recv(1 << 18):
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        return  # one side is gone, which is the end of this


def check_peer_user(agent: socket.socket) -> None:
    """Speak to a process of our own user only, where the kernel tells whose it is.

    Raises:
        PermissionError: it is another user's.
    """
    if hasattr(socket, "SO_PEERCRED"):
        _, uid, _ = struct.unpack("3i", agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid():
            raise PermissionError(errno.EACCES, f"user {uid} listens there")


def relay_stdin(agent: socket.socket) -> None:
    """Pass on what the client sends; its end is the end of the whole."""
    try:
        while data := os.read(0, 1 << 18):
            agent.sendall(data)
    except OSError:
        pass
    finally:
        os._exit(0)
