"""What becomes of ranks: which processes they are, and whether any is left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import skyward_core as sky


@sky.function
def pids() -> int:
    """Of every rank."""
    return os.getpid()


def gone(pids: Iterable[int], seconds: float = 30) -> bool:
    """Wait until none of these processes is left."""
    left = set(pids)
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if Path(f"/proc/{pid}").exists()}
        time.sleep(0.01)
    return not left
