"""Which network interface, and how many processors, a rank's collectives should use."""

from __future__ import annotations

import os
import struct
import sys

# What lies above it takes a rank a millisecond.
from _socket import AF_INET, SOCK_DGRAM, if_nameindex, inet_ntoa, socket

# what lies above it takes a rank a millisecond
from .info import InstanceInfo

_SIOCGIFADDR = 0x8915  # from linux/sockios.h: an interface's IPv4 address


def interface_of(address: str) -> str | None:
    """Name of this machine's interface that has the IPv4 address; None where it cannot be told.

    Frameworks that are not given one look their host's own name up, which takes seconds where the name
    server has no answer, and finds 127.0.0.1 on hosts whose name points there.
    """
    if address.startswith("127."):
        names = [name for _, name in if_nameindex()]
        return next((name for name in ("lo", "lo0") if name in names), None)
    if sys.platform != "linux":
        return None
    import fcntl

    probe = socket(AF_INET, SOCK_DGRAM)
    try:
        for _, name in if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no IPv4 address
                continue
            if inet_ntoa(answer[20:24]) == address:
                return name
    finally:
        probe.close()
    return None


def claim_port(info: InstanceInfo) -> int:
    """A port on the head node that no other plugin of this worker was given.

    Ranks enter the same plugins in the same order, so they agree without talking: the first plugin has the
    head's port itself, which was free when the gang started, the next one the port behind it.
    """
    port = _next_port.get(info.head_port, info.head_port)
    _next_port[info.head_port] = port + 1
    return port


_next_port: dict[int, int] = {}


def threads_per_rank(info: InstanceInfo) -> int:
    """Processors of this machine for each rank on it, at least 1.

    Nodes with the same address share one machine (a local pool).
    """
    nodes_here = sum(peer.address == info.address for peer in info.peers) or 1
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, count // (nodes_here * info.ranks_per_node))


def share_machine(ranks: int, devices: str) -> None:
    """Have this rank, one of a block of its node's, keep to its share, unless the person has decided.

    Args:
        ranks: how many share the machine.
        devices: the block's GPUs, as ``CUDA_VISIBLE_DEVICES`` has them; "" where ranks have theirs already.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, count // ranks)))
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices


def limit_threads(info: InstanceInfo) -> None:
    """Share the processors between the ranks of a machine, unless the person has decided.

    Left alone, every rank would start a thread for each processor. Read when a numeric library is imported.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_per_rank(info)))
