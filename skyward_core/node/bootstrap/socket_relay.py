"""Relay between a command channel and the agent's Unix socket, for SSH servers that do not forward sockets.

First prints a line with the token, because start-up files of the login may print text before the data. Then relays
bytes in both directions until either side closes.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading


def main(path: str, token: str) -> None:
    agent = socket.socket(socket.AF_UNIX)
    try:
        agent.connect(path)
        check_peer_user(agent)
    except OSError as error:
        os.write(1, f"\n{token} {error.strerror}\n".encode())
        return
    os.write(1, f"\n{token}\n".encode())
    threading.Thread(target=relay_stdin, args=(agent,), daemon=True).start()
    try:
        while data := agent.recv(1 << 18):
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        return  # The client or the agent has disconnected.


def check_peer_user(agent: socket.socket) -> None:
    """Check that the peer runs as the same user, if the kernel reports the user.

    Raises:
        PermissionError: If the peer runs as another user.
    """
    if hasattr(socket, "SO_PEERCRED"):
        _, uid, _ = struct.unpack("3i", agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid():
            raise PermissionError(errno.EACCES, f"the socket belongs to user {uid}")


def relay_stdin(agent: socket.socket) -> None:
    """Forward standard input to the agent. Exit the process when standard input ends."""
    try:
        while data := os.read(0, 1 << 18):
            agent.sendall(data)
    except OSError:
        pass
    finally:
        os._exit(0)
