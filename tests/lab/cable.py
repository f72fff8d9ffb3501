"""Network cable between a machine and the lab's switch. It can be disconnected, slowed down and lengthened."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .tools import call

# Of linux/if_packet.h: read and write frames with their offload header, because their checksums are not computed yet.
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_ALL_FRAMES = 3  # ETH_P_ALL


class Cable:
    """Pair of virtual Ethernet interfaces: ``end`` on the machine, ``port`` on the switch.

    Args:
        end: Name of the machine's interface.
        port: Name of the switch's interface.
    """

    def __init__(self, end: str, port: str) -> None:
        self.end = end
        self.port = port
        self.mbit: float | None = None

    def pull(self) -> None:
        """Disconnect the cable. Both ends lose their carrier. Addresses and routes remain, and packets are lost."""
        call(["ip", "link", "set", self.port, "down"])

    def put_back(self) -> None:
        call(["ip", "link", "set", self.port, "up"])

    def limit(self, mbit: float | None, machine: int | None) -> None:
        """Limit each direction to ``mbit`` megabits a second; None lifts the limit.

        Args:
            machine: Process in the machine's network namespace; None for this process's namespace.
        """
        inside = [] if machine is None else ["nsenter", f"--net=/proc/{machine}/ns/net"]
        for words, device in (([], self.port), (inside, self.end)):
            if mbit is None:
                if self.mbit is not None:
                    call([*words, "tc", "qdisc", "del", "dev", device, "root"])
            else:
                # The bucket has to hold what the kernel sends between two of its ticks (4 ms at most).
                burst = max(32_000, int(mbit * 1e6 / 8 * 0.004))
                shape = f"qdisc replace dev {device} root tbf rate {mbit:g}mbit burst {burst}b latency 50ms"
                call([*words, "tc", *shape.split()])
        self.mbit = mbit

    @contextmanager
    def lengthen(self, delay: float, bridge: str) -> Iterator[None]:
        """Delay each frame by ``delay`` seconds in each direction, for kernels without netem."""
        near, far = f"{self.port}d", f"{self.port}e"
        call(["ip", "link", "add", near, "type", "veth", "peer", "name", far])
        call(["ip", "link", "set", self.port, "nomaster"])
        for words in ([near], [far, "master", bridge]):
            call(["ip", "link", "set", *words, "up"])
        ends = [_raw_socket(self.port), _raw_socket(near)]
        stopped = threading.Event()
        relay = threading.Thread(target=_relay, args=(ends, delay, stopped))
        relay.start()
        try:
            yield
        finally:
            stopped.set()
            relay.join()
            for end in ends:
                end.close()
            call(["ip", "link", "del", near])
            call(["ip", "link", "set", self.port, "master", bridge])


def _raw_socket(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for option in (_PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING):
        end.setsockopt(_SOL_PACKET, option, 1)
    end.bind((interface, _ALL_FRAMES))
    end.setblocking(False)
    return end


def _relay(ends: list[socket.socket], delay: float, stopped: threading.Event) -> None:
    """Pass each frame of one end to the other end, in order and later."""
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    with selectors.DefaultSelector() as selector:
        for end, other in (ends, reversed(ends)):
            selector.register(end, selectors.EVENT_READ, other)
        while not stopped.is_set():
            pause = waiting[0][0] - time.monotonic() if waiting else 0.1
            for key, _ in selector.select(min(0.1, max(0.0, pause))):
                if isinstance(key.fileobj, socket.socket):
                    waiting.append((time.monotonic() + delay, key.data, key.fileobj.recv(1 << 17)))
            while waiting and waiting[0][0] <= time.monotonic():
                _, other, frame = waiting.popleft()
                with suppress(OSError):  # the cable is disconnected
                    other.send(frame)
