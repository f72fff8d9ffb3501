"""The worker's blocking connection to the agent, which is restored after the agent's death."""

from __future__ import annotations

import os
import select
import threading
from _socket import AF_UNIX, MSG_DONTWAIT, SOCK_STREAM, socket
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic, sleep  # imported by name, because user code may replace the functions of `time`
from typing import Any

from skyward_core.protocol import frame_codec

RETRY_DELAY = 0.05  # seconds between the worker's attempts to connect to a new agent


class AgentChannel:
    """Channel that sends and receives frames over a Unix socket. Any thread may send, but only one may receive.

    When the agent dies, a thread connects to the next agent on the same socket and sends all unacknowledged frames
    again. Agents acknowledge frames by number ("seen").

    Args:
        path: Path of the agent's socket.
        hello: Returns header and body of the first frame of a connection.
        patience: Seconds without an agent after which ``receive`` gives up.
    """

    def __init__(self, path: str, hello: Callable[[], tuple[frame_codec.Header, bytes]], patience: float) -> None:
        self._path = path
        self._hello = hello
        self._patience = patience
        self._decoder = frame_codec.Decoder(_check_frame_size)
        self._frames: deque[tuple[frame_codec.AnyHeader, bytes]] = deque()
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._reading = threading.Lock()
        self._reconnected_event = threading.Condition(self._lock)
        self._unacknowledged: deque[bytes] = deque()
        # number of this connection's frames that the agent acknowledged; the first one is the hello frame
        self._seen = 1
        self._given_up = False
        # Whether user code has forked this process. If so, only the parent process may use the connection.
        self.is_forked = False
        self._socket = self._connect()
        os.register_at_fork(after_in_child=self._on_fork)
        threading.Thread(target=self._watch, name="agent-watch", daemon=True).start()

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        data = frame_codec.encode_frame(header, body)
        with self._lock:
            self._unacknowledged.append(data)
            current, is_ours = self._socket, self._is_socket_ours()
            try:
                if is_ours:
                    self._socket.sendall(data)
            except OSError:
                return  # No agent is running. The frame is sent to the next agent.
        if not is_ours and not self.is_forked:
            self._reconnect(current)

    def receive(self) -> tuple[frame_codec.AnyHeader, bytes]:
        """Wait for the next frame and return it.

        Raises:
            EOFError: If there has been no agent for too long.
        """
        while not self._frames:
            current = self._socket
            with self._reading:
                if self._read(current):
                    continue
            if not self._is_socket_ours() and not self.is_forked:
                self._reconnect(current)
            with self._lock:
                while self._socket is current and not self._given_up:
                    self._reconnected_event.wait()
                if self._given_up:
                    raise EOFError("no agent is running")
        return self._frames.popleft()

    def _read(self, current: socket, flags: int = 0) -> bool:
        """Read data that a connection has received. Return False if there was none, as at the end of the connection."""
        try:
            data = current.recv(1 << 16, flags)
        except OSError:
            data = b""
        for header, body in self._decoder.feed(data) if data else ():
            self._drop_seen(current, header)
            self._frames.append((header, body))
        return bool(data)

    def _drop_seen(self, connection: socket, header: frame_codec.Header) -> None:
        with self._lock:
            if self._socket is connection:
                # Ignore acknowledgments on an old connection: the worker has already sent all its frames to a new
                # agent.
                for _ in range(header.get("seen", 0) - self._seen):
                    self._unacknowledged.popleft()
                    self._seen += 1

    def _on_fork(self) -> None:
        self.is_forked = True
        self._socket.close()

    def _connect(self) -> socket:
        connection = socket(AF_UNIX, SOCK_STREAM)
        try:
            connection.connect(self._path)
            connection.sendall(frame_codec.encode_frame(*self._hello()))
        except OSError:
            connection.close()
            raise
        return connection

    def _is_socket_ours(self) -> bool:
        """Check whether the socket's descriptor still belongs to this channel.

        User code may have closed the socket, for example with ``os.closerange``.
        """
        try:
            return bool(self._socket.getpeername() == self._path)
        except OSError:
            return False

    def _watch(self) -> None:
        while True:
            poll, polled = select.poll(), self._socket
            poll.register(polled, getattr(select, "POLLRDHUP", select.POLLHUP))
            poll.poll()
            deadline = monotonic() + self._patience
            while not self._reconnect(polled):
                if monotonic() > deadline:
                    with self._lock:
                        self._given_up = True
                        self._reconnected_event.notify_all()
                    return
                sleep(RETRY_DELAY)

    def _reconnect(self, lost: socket) -> bool:
        """Replace a lost connection. Return whether the worker is connected to an agent."""
        with self._renewing:  # Only one thread reconnects, although several may detect the lost connection.
            if self._socket is not lost:
                return True
            if is_ours := self._is_socket_ours():
                # Read all frames of the dead agent, because the next agent does not send them again.
                with self._reading:
                    while self._read(lost, MSG_DONTWAIT):
                        pass
            try:
                fresh = self._connect()
            except OSError:
                return False
            return self._adopt_connection(fresh, is_ours)

    def _adopt_connection(self, fresh: socket, is_ours: bool) -> bool:
        with self._lock:
            try:
                for data in self._unacknowledged:
                    fresh.sendall(data)
            except OSError:
                fresh.close()
                return False
            old, self._socket = self._socket, fresh
            self._decoder = frame_codec.Decoder(_check_frame_size)
            self._seen = 1
            if is_ours:
                old.close()
            else:
                old.detach()
            self._reconnected_event.notify_all()
        return True


def _check_frame_size(header: Mapping[str, Any], head: int, body: int) -> None:
    """Check only the size of a frame, because the agent validates frames before it forwards them."""
    if body > frame_codec.MAX_PLUGINS_BYTES:
        raise frame_codec.WireError(f"a frame {header['t']!r:.40} of {body:,} bytes exceeds the size limit")
