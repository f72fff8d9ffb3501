"""Processes of ranks: their pids, their addresses, and waits for their end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import skyward_core as sky


@sky.function
def pids() -> int:
    """Return the pid of every rank."""
    return os.getpid()


@sky.function
def listening() -> list[str]:
    """Return the addresses where a rank's process accepts connections, or datagrams from any sender."""
    import ipaddress

    own, found = set(), []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of the look itself
            own.add(str(entry.readlink()))
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            _, local, remote, state, *_, inode = line.split()[:10]
            takes = state == "0A" if "tcp" in table else not int(remote.partition(":")[0], 16)
            if takes and f"socket:[{inode}]" in own:
                words = bytes.fromhex(local.partition(":")[0])  # each of four bytes in this machine's order
                address = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                whole = ipaddress.ip_address(address)
                found.append(str(getattr(whole, "ipv4_mapped", None) or whole))
    return found


def gone(pids: Iterable[int], seconds: float = 30) -> bool:
    """Wait until none of the processes is left."""
    left = set(pids)
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if Path(f"/proc/{pid}").exists()}
        time.sleep(0.01)
    return not left
