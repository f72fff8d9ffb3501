"""The process that measures a node's machine once a second, until its standard input ends: with the agent, however that
ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from typing import Any

from .gpus import Gpus
from .host import Host
from .record import Samples

PR_SET_PDEATHSIG = 1


def main(folder: str, spool: str, period: str) -> None:
    """Measure, and write it down.

    Args:
        folder: where the samples go.
        spool: on the disk whose free space is told.
        period: seconds between samples.
    """
    _end_with_agent()
    every = float(period)
    os.nice(5)  # what trains goes first
    record, host, gpus = Samples(folder), Host(spool), Gpus(every)
    told: list[dict[str, str]] | None = None
    due = time.monotonic()
    while True:
        sample: dict[str, Any] = {"at": round(time.time(), 3), "node": host.read(time.monotonic())}
        figures, why = gpus.read()
        if record.is_new or told is not gpus.devices:
            told = gpus.devices
            sample["devices"] = told
        if figures:
            sample["gpus"] = figures
        if why:
            sample["why"] = why
        try:
            record.put(sample)
        except OSError:
            told = None  # a full disk; what it knew last is there, and there may be room later
        due = max(due + every, time.monotonic())
        if _ended(due - time.monotonic()):
            # A thread that waits for a driver would keep an orderly end from coming.
            os._exit(0)


def _end_with_agent() -> None:
    """Have the kernel end this process when its agent ends: one that is stopped does not see its standard input end."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _ended(wait: float) -> bool:
    """Whether standard input has ended; waits so long at most."""
    readable, _, _ = select.select([0], [], [], max(0.0, wait))
    return bool(readable) and not os.read(0, 1024)
