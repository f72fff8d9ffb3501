"""Xid errors: what the NVIDIA driver writes into the kernel's log when a GPU fails, where this account may read it.

Of the text nothing is taken but the number and the place of the GPU.
"""

from __future__ import annotations

import os

PATH = "/dev/kmsg"
AT_ONCE = 1000  # records in one look; a log that floods is read on in the next
RECORD = 8192  # bytes; the kernel's own limit
_BEFORE, _BEHIND = "NVRM: Xid (PCI:", "): "


class XidLog:
    """What is written from now on."""

    def __init__(self, path: str = PATH) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._file = -1
            return
        try:
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:  # what cannot be sought in has no past
            return

    def read(self) -> dict[str, int]:
        """The last error of each GPU that had one since the last look, by its place on the bus; see :func:`place`."""
        found: dict[str, int] = {}
        for _ in range(AT_ONCE if self._file >= 0 else 0):
            try:
                record = os.read(self._file, RECORD)
            except BrokenPipeError:
                continue  # records were overwritten before we came to read them
            except BlockingIOError:
                break
            except OSError:
                os.close(self._file)
                self._file = -1
                break
            if not record:
                break
            for line in record.decode("ascii", "replace").splitlines():
                if error := xid_of(line):
                    found[error[0]] = error[1]
        return found


def xid_of(line: str) -> tuple[str, int] | None:
    """Which GPU, and which error, a line of the kernel's log tells of; None where it tells of something else."""
    _, said, rest = line.partition(_BEFORE)
    bus, said_too, rest = rest.partition(_BEHIND)
    number = rest.partition(",")[0].strip()
    if (
        not (said and said_too)
        or len(bus) > 20
        or not (number.isascii() and number.isdigit() and len(number) < 5)
    ):
        return None
    return place(bus), int(number)


def place(bus: str) -> str:
    """A place on the PCI bus, however it is written: ``00000000:3B:00.0`` is ``0000:3b:00``."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest.partition('.')[0]}"
