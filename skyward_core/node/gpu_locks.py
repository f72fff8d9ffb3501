"""Who of all users of a machine has taken a GPU for a pool: a lock of the kernel's, which ends with its holders.

It is a name in the kernel's abstract space of Unix sockets. One process can have a name, whoever it is; there is no
file that somebody could plant, replace, leave behind, or have in a private /tmp; and of who has it the kernel itself
tells the user. A stranger can take a name, too: then the GPU counts as taken, by them. Who shares GPUs and no network
namespace (containers, mostly) shares no names either: there only the driver's list of processes tells.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import struct
from contextlib import suppress

PREFIX = "skyward-gpu-"
ANSWER = 0.3  # seconds in which a holder says which pool it is of
LONGEST = 100  # bytes of that
_CREDENTIALS = struct.Struct("3i")  # pid, user, group

_mine: dict[str, socket.socket] = {}  # device -> its name, held for this process's whole life


def hold(device: str) -> bool:
    """Take a device, unless somebody has; taken ones of our own stay so."""
    if device in _mine:
        return True
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0{PREFIX}{device}")
        lock.listen(64)
        lock.setblocking(False)
    except OSError:
        lock.close()
        return False
    _mine[device] = lock
    return True


def release(device: str) -> None:
    """Give one back."""
    if (lock := _mine.pop(device, None)) is not None:
        lock.close()


def descriptors(device: str) -> list[int]:
    """What a process inherits that is to hold a device for as long as it lives, too."""
    return [_mine[device].fileno()] if device in _mine else []


def answer(loop: asyncio.AbstractEventLoop, pool: str) -> None:
    """From now on tell our own user who asks which pool has the devices; others are told the user, by the kernel."""
    for lock in _mine.values():
        lock.listen(64)  # the kernel names who said this last: the agent, not who started it
        loop.add_reader(lock.fileno(), _tell, lock, pool.encode()[:LONGEST])


def _tell(lock: socket.socket, pool: bytes) -> None:
    with suppress(OSError), lock.accept()[0] as asks:
        asks.setblocking(False)
        if _peer(asks)[1] == os.getuid():
            asks.send(pool)


def taken() -> set[str]:
    """Devices that somebody else on this machine has taken."""
    marker = f"@{PREFIX}"
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
    except OSError:  # no Linux
        return set()
    return {line.partition(marker)[2] for line in lines if marker in line} - _mine.keys()


def holder(device: str) -> str:
    """Who has taken one, in words; the name of a pool in them is what its holder says."""
    if (asked := _ask(device)) is None:
        return "somebody who does not say who"
    pid, user, said = asked
    return f"pool {said} of {user_name(user)}" if said else f"a pool of {user_name(user)} (process {pid})"


def is_lost(device: str) -> bool:
    """Whether of our own user's processes those have one whose agent is no more."""
    asked = _ask(device)
    return asked is not None and asked[1] == os.getuid() and not asked[2]


def _ask(device: str) -> tuple[int, int, str] | None:
    """The process that took one, its user, and of our own user's the pool; None where nobody says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asks:
        asks.settimeout(ANSWER)
        try:
            asks.connect(f"\0{PREFIX}{device}")
            pid, user, _ = _peer(asks)
        except OSError:  # it does not listen, or answers nobody
            return None
        said = b""
        if user == os.getuid():
            with suppress(OSError):
                said = asks.recv(LONGEST)
    return pid, user, said.decode(errors="replace")


def user_name(number: int) -> str:
    """A user's name, or the number of one who has none here."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _peer(asks: socket.socket) -> tuple[int, int, int]:
    told = asks.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(told)
    return pid, user, group
