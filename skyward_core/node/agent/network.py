"""The network interface by which a node is reached."""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterator
from contextlib import suppress

from ...wire.frames import Header

ADDRESS_OF = 0x8915  # SIOCGIFADDR


def network(address: str) -> Header:
    """The interface that has an address, and how fast that is, as a rank's place has it."""
    with suppress(OSError):
        name = next((name for name, one in _addresses() if one == address), "")
        return {"interface": name, "gbps": _gbps(name)}
    return {"interface": "", "gbps": None}


def _addresses() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none of this kind
                told = fcntl.ioctl(asked, ADDRESS_OF, name.encode()[:15].ljust(40, b"\0"))
                yield name, socket.inet_ntoa(told[20:24])
    with open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            number, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))


def _gbps(name: str) -> float | None:
    """What its driver says; loopback, Wi-Fi and what is down say nothing."""
    try:
        with open(f"/sys/class/net/{name}/speed", encoding="ascii") as file:
            megabits = int(file.read())
    except (OSError, ValueError):
        return None
    return megabits / 1000 if megabits > 0 else None
