"""The sampling loop; machine figures from /proc."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from skyward_core.node.machine_metrics.gpu_metrics import GpuMetrics
from skyward_core.protocol.node_paths import sample_file, sample_files

# ruff: noqa: PTH110, PTH118, PTH208


RESCAN_EVERY = 60  # readings after which network cards and disks are listed anew
MAX_READ_BYTES = 1 << 20  # bytes that are read of a file
SECTOR = 512  # bytes, as /proc/diskstats counts whatever the disk has
PRESSURE_FILES = ("cpu", "memory", "io")


class HostMetrics:
    """One machine's figures, by reading them again and again.

    Args:
        folder: on the disk whose free space is told.
        root: where ``proc`` and ``sys`` are.
    """

    def __init__(self, folder: str, root: str = "/") -> None:
        self._folder = folder
        self._proc, self._sys = os.path.join(root, "proc"), os.path.join(root, "sys")
        self._readings = 0
        self._cards: set[str] = set()
        self._disks: set[str] = set()
        self._before: dict[str, float] = {}
        self._read_at = 0.0

    def read(self, now: float) -> dict[str, float]:
        """The figures now; rates, which are since the last reading, come with the second one.

        Args:
            now: by a clock that only goes forward.
        """
        if self._readings % RESCAN_EVERY == 0:
            self._cards, self._disks = self._list_cards(), self._list_disks()
        self._readings += 1
        figures: dict[str, float] = {}
        counters: dict[str, float] = {}
        for part in (self._cpu, self._network, self._disk):
            counters |= _read_optional(part)
        for part in (self._memory, self._pressure, self._disk_usage):
            figures |= _read_optional(part)
        figures |= self._rates(counters, now)
        return figures

    def _rates(self, counters: dict[str, float], now: float) -> dict[str, float]:
        before, passed = self._before, now - self._read_at
        self._before, self._read_at = counters, now
        if passed <= 0:
            return {}
        # A counter that went back was begun anew: a card was taken out, say.
        grown = {
            name: count - before[name] for name, count in counters.items() if name in before and count >= before[name]
        }
        busy, all_of_it = grown.pop("busy", 0.0), grown.pop("ticks", 0.0)
        rates = {name: round(count / passed, 1) for name, count in grown.items()}
        return rates | ({"cpu": round(min(100.0, 100 * busy / all_of_it), 2)} if all_of_it else {})

    # -- its parts ---------------------------------------------------------------------------------------

    def _cpu(self) -> dict[str, float]:
        user, nice, system, idle, iowait, *rest = map(int, self._read_text("stat").split("\n", 1)[0].split()[1:])
        more = sum(rest[:3])  # interrupts, soft ones, and what a hypervisor took; guests are in "user"
        ticks = user + nice + system + idle + iowait + more
        return {"busy": ticks - idle - iowait, "ticks": ticks}

    def _memory(self) -> dict[str, float]:
        told = dict(line.split(":", 1) for line in self._read_text("meminfo").splitlines() if ":" in line)
        total, free = (int(told[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        return {"memory_used": total - free, "memory_total": total}

    def _pressure(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for what in PRESSURE_FILES:
            with suppress(OSError, ValueError, IndexError):
                found[f"{what}_pressure"] = _parse_pressure(self._read_text(f"pressure/{what}"))
        return found

    def _network(self) -> dict[str, float]:
        received = sent = 0
        seen = False
        for line in self._read_text("net/dev").splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() in self._cards:
                fields = numbers.split()
                received, sent, seen = received + int(fields[0]), sent + int(fields[8]), True
        return {"net_in": received, "net_out": sent} if seen else {}

    def _disk(self) -> dict[str, float]:
        read = written = 0
        seen = False
        for line in self._read_text("diskstats").splitlines():
            fields = line.split()
            if fields[2] in self._disks:
                read, written, seen = read + int(fields[5]), written + int(fields[9]), True
        return {"disk_read": read * SECTOR, "disk_write": written * SECTOR} if seen else {}

    def _disk_usage(self) -> dict[str, float]:
        found = os.statvfs(self._folder)
        return {"spool_free": found.f_bavail * found.f_frsize}

    # -- which there are ---------------------------------------------------------------------------------

    def _list_cards(self) -> set[str]:
        """Network cards: real ones, so that what goes by a bridge is not counted twice; where there are none (in a
        container), all but the loopback."""
        try:
            lines = self._read_text("net/dev").splitlines()[2:]
        except OSError:
            return set()
        names = {line.partition(":")[0].strip() for line in lines} - {"lo"}
        return self._real_devices(names, "class/net") or names

    def _list_disks(self) -> set[str]:
        try:
            names = set(os.listdir(os.path.join(self._sys, "block")))
        except OSError:
            return set()
        return self._real_devices(names, "block") or {
            name for name in names if not name.startswith(("loop", "ram", "zram", "dm-", "md"))
        }

    def _real_devices(self, names: Iterable[str], where: str) -> set[str]:
        return {name for name in names if os.path.exists(os.path.join(self._sys, where, name, "device"))}

    def _read_text(self, name: str) -> str:
        with open(os.path.join(self._proc, name), "rb") as file:
            return file.read(MAX_READ_BYTES).decode("ascii", "replace")


def _read_optional(part: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What a part tells; nothing where this system has no such file, or writes other things into it."""
    try:
        return part()
    except (OSError, ValueError, KeyError, IndexError):
        return {}


def _parse_pressure(text: str) -> float:
    """Of ``some avg10=1.50 avg60=...``: how much of the last ten seconds, in percent, somebody waited."""
    some = text.split("\n", 1)[0].split()
    if some[0] != "some" or not some[1].startswith("avg10="):
        raise ValueError("it tells of no pressure")
    return float(some[1][6:])


# The process that uses it imports little: it runs beside what trains.
# ruff: noqa: PTH103, PTH108, PTH118


MAX_FILE_BYTES = 2 << 20  # bytes after which another file is begun; the one before it stays
MAX_SAMPLE_BYTES = 1 << 18  # bytes of a line


class SampleFiles:
    """One node's. One process writes; whoever reads follows by their names.

    Args:
        folder: that has nothing else in it.
        size: bytes of a file.
    """

    def __init__(self, folder: str, size: int = MAX_FILE_BYTES) -> None:
        self._folder, self._size = folder, size
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = sample_files(folder)
        start, name = found[-1] if found else (0, "")
        self._file = -1
        self._length = 0
        if name:  # written by a process before this one, which may have died in the middle of a line
            self._open(start)
            self._length = os.fstat(self._file).st_size
            if self._length and os.pread(self._file, 1, self._length - 1) != b"\n":
                self._write(b"\n")
        self._start = start

    @property
    def is_new_file(self) -> bool:
        """Whether what is put next begins a file: it can rely on nothing that was put before."""
        return self._file < 0 or self._length >= self._size

    def append(self, sample: dict[str, Any]) -> None:
        """Write a sample down.

        Raises:
            OSError: the disk does not take it.
        """
        line = json.dumps(sample, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_SAMPLE_BYTES:
            return
        if self.is_new_file:
            self._begin_file()
        self._write(line)

    def _begin_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._start += self._length
        self._length = 0
        self._open(self._start)
        for _, name in sample_files(self._folder)[:-2]:
            os.unlink(os.path.join(self._folder, name))

    def _open(self, start: int) -> None:
        path = os.path.join(self._folder, sample_file(start))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def _write(self, data: bytes) -> None:
        # A disk that is full takes a part: the reader passes over a line that is none.
        self._length += os.write(self._file, data)


PR_SET_PDEATHSIG = 1


def main(folder: str, spool: str, period: str) -> None:
    """Measure, and write it down.

    Args:
        folder: where the samples go.
        spool: on the disk whose free space is told.
        period: seconds between samples.
    """
    _set_parent_death_signal()
    every = float(period)
    os.nice(5)  # what trains goes first
    record, host, gpus = SampleFiles(folder), HostMetrics(spool), GpuMetrics(every)
    told: list[dict[str, str]] | None = None
    due = time.monotonic()
    while True:
        sample: dict[str, Any] = {"at": round(time.time(), 3), "node": host.read(time.monotonic())}
        figures, reason = gpus.read()
        if record.is_new_file or told is not gpus.devices:
            told = gpus.devices
            sample["devices"] = told
        if figures:
            sample["gpus"] = figures
        if reason:
            sample["why"] = reason
        try:
            record.append(sample)
        except OSError:
            told = None  # a full disk; what it knew last is there, and there may be room later
        due = max(due + every, time.monotonic())
        if _has_stdin_ended(due - time.monotonic()):
            # A thread that waits for a driver would keep an orderly end from coming.
            os._exit(0)


def _set_parent_death_signal() -> None:
    """Have the kernel end this process when its agent ends: one that is stopped does not see its standard input end."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _has_stdin_ended(wait: float) -> bool:
    """Whether standard input has ended; waits so long at most."""
    readable, _, _ = select.select([0], [], [], max(0.0, wait))
    return bool(readable) and not os.read(0, 1024)
