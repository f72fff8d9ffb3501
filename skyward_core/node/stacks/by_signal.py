"""Stacks that a rank writes down itself, asked by a signal: Python's faulthandler does it, registered by the worker."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from ...wire.node_paths import STACK_SIGNAL
from .texts import Thread, of_faulthandler

MOST = 1 << 20  # bytes of one answer
LOOK = 0.02  # seconds between two looks at the file
STILL = 0.1  # seconds without another byte after which the answer is taken to be whole
REPLACED = "its process is another program by now, or answers no signal"


class Unanswered(Exception):
    """Why there is none, in words."""


def refusal(pid: int, path: str) -> str:
    """Why a process must not be sent the signal, or "": without its handler it would end, and where user code has
    closed the file, what it has opened since might be written to."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "its process cannot be looked at"
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")] or ["0"]
    if not int(caught, 16) >> (STACK_SIGNAL - 1) & 1:
        return REPLACED
    if not _has_open(pid, path):
        return "its code has taken the signal, or closed the file of the answer"
    return ""


def _has_open(pid: int, path: str) -> bool:
    with suppress(OSError):
        wanted = os.lstat(path)
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                if os.path.samestat(wanted, each.stat()):
                    return True
    return False


def stacks(pid: int, path: str, patience: float) -> list[Thread]:
    """Ask, and wait for the answer. Blocks.

    Raises:
        Unanswered: the process must not be asked, or does not answer.
    """
    if why := refusal(pid, path):
        raise Unanswered(why)
    try:
        with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "rb+", buffering=0) as file:
            file.truncate(0)
            os.kill(pid, STACK_SIGNAL)
            said = _read(file.fileno(), time.monotonic() + patience)
            file.truncate(0)
    except OSError as error:
        raise Unanswered(f"its answer cannot be read: {error.strerror}") from error
    threads = of_faulthandler(said.decode(errors="replace"))
    if not threads:
        raise Unanswered(f"it has not answered within {patience:g} s")
    return threads


def _read(file: int, until: float) -> bytes:
    size, since = 0, time.monotonic()
    while (now := time.monotonic()) < until and not (size and now - since >= STILL):
        time.sleep(LOOK)
        if (grown := os.fstat(file).st_size) != size:
            size, since = grown, time.monotonic()
    with suppress(BlockingIOError):
        return os.pread(file, min(size, MOST), 0)
    return b""
