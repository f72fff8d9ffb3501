"""TCP connections whose loss has to be known soon."""

from __future__ import annotations

import socket

# The kernel watches the connection: what it sends must be acknowledged within this time, idle or not, however
# much is queued. The loss of a host is to be known within five seconds, with a look from another host; a link
# that is called dead too soon costs a reconnect and nothing else.
SILENCE = 2.5  # seconds
_LIMITS = {
    "TCP_KEEPIDLE": 1,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": int(SILENCE * 1000),
}


def watch(sock: socket.socket) -> None:
    """Have a connection end when the other side has not answered for :data:`SILENCE`."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _LIMITS.items():
        if hasattr(socket, name):  # Linux has all of them, other systems some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
