"""Program that samples a machine's metrics: the sampling loop, metrics from /proc, and files of samples."""

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

from skyward_core.node.nvidia_and_amd_gpu_metrics import GpuMetrics
from skyward_core.protocol.node_paths import sample_file, sample_files

# ruff: noqa: PTH110, PTH118, PTH208


RESCAN_EVERY = 60  # number of readings between two scans for network cards and disks
MAX_READ_BYTES = 1 << 20  # maximum bytes read from one file of /proc or /sys
SECTOR = 512  # bytes per sector; /proc/diskstats counts sectors of this size for all disks


class HostMetrics:
    """Metrics of one machine, computed from consecutive readings.

    Args:
        folder: Folder on the disk whose free space is reported.
        root: Folder that contains ``proc`` and ``sys``.
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
        """Return the current metrics. The first call returns no rates, which need two readings.

        Args:
            now: Time by a monotonic clock.
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
        # Ignore counters that went backwards, for example because a card was replaced.
        grown = {
            name: count - before[name] for name, count in counters.items() if name in before and count >= before[name]
        }
        busy, all_of_it = grown.pop("busy", 0.0), grown.pop("ticks", 0.0)
        rates = {name: round(count / passed, 1) for name, count in grown.items()}
        return rates | ({"cpu": round(min(100.0, 100 * busy / all_of_it), 2)} if all_of_it else {})

    # -- metrics -----------------------------------------------------------------------------------------

    def _cpu(self) -> dict[str, float]:
        user, nice, system, idle, iowait, *rest = map(int, self._read_text("stat").split("\n", 1)[0].split()[1:])
        # ``rest`` begins with interrupts, soft interrupts and stolen time. Guest time follows, but is already part of
        # "user".
        ticks = user + nice + system + idle + iowait + sum(rest[:3])
        return {"busy": ticks - idle - iowait, "ticks": ticks}

    def _memory(self) -> dict[str, float]:
        fields = dict(line.split(":", 1) for line in self._read_text("meminfo").splitlines() if ":" in line)
        total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        return {"memory_used": total - free, "memory_total": total}

    def _pressure(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for what in ("cpu", "memory", "io"):
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

    # -- devices -----------------------------------------------------------------------------------------

    def _list_cards(self) -> set[str]:
        """Return the network cards to count: only physical cards, because bridged traffic would be counted twice.

        Without physical cards (in a container), return all cards except the loopback.
        """
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
    """Return the metrics that a function reads; {} if the system lacks the file or uses another format."""
    try:
        return part()
    except (OSError, ValueError, KeyError, IndexError):
        return {}


def _parse_pressure(text: str) -> float:
    """Return the percentage of the last ten seconds in which a task waited, from ``some avg10=1.50 avg60=...``."""
    some = text.split("\n", 1)[0].split()
    if some[0] != "some" or not some[1].startswith("avg10="):
        raise ValueError("unknown format of the pressure file")
    return float(some[1][6:])


# This process imports little because it runs beside training.
# ruff: noqa: PTH103, PTH108, PTH118


MAX_FILE_BYTES = 2 << 20  # bytes of a file of samples after which a new file is started; the previous file is retained
MAX_SAMPLE_BYTES = 1 << 18  # maximum bytes of one sample, which is one line of JSON


class SampleFiles:
    """Files of samples of one node, written by one process. Readers find the files by name.

    Args:
        folder: Folder for these files only.
        size: Bytes per file.
    """

    def __init__(self, folder: str, size: int = MAX_FILE_BYTES) -> None:
        self._folder, self._size = folder, size
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = sample_files(folder)
        start, name = found[-1] if found else (0, "")
        self._file = -1
        self._length = 0
        if name:  # Begin a new line, because an earlier process may have died in the middle of a line.
            self._open(start)
            self._length = os.fstat(self._file).st_size
            if self._length and os.pread(self._file, 1, self._length - 1) != b"\n":
                self._write(b"\n")
        self._start = start

    @property
    def is_new_file(self) -> bool:
        """Whether the next sample is the first of its file, so that it must not depend on earlier samples."""
        return self._file < 0 or self._length >= self._size

    def append(self, sample: dict[str, Any]) -> None:
        """Write a sample.

        Raises:
            OSError: If the sample cannot be written.
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
        # On a full disk only a part of the line is written. Readers skip invalid lines.
        self._length += os.write(self._file, data)


PR_SET_PDEATHSIG = 1


def main(folder: str, spool: str, period: str) -> None:
    """Sample the machine's metrics until standard input ends.

    Args:
        folder: Folder of the sample files.
        spool: Folder on the disk whose free space is reported.
        period: Seconds between samples.
    """
    _set_parent_death_signal()
    every = float(period)
    os.nice(5)  # Lower the priority of this process, so that training precedes it.
    record, host, gpus = SampleFiles(folder), HostMetrics(spool), GpuMetrics(every)
    written_devices: list[dict[str, str]] | None = None
    boot = _read_boot_id()
    due = time.monotonic()
    while True:
        sample: dict[str, Any] = {"at": round(time.time(), 3), "node": host.read(time.monotonic())}
        figures, reason = gpus.read()
        if record.is_new_file or written_devices is not gpus.devices:
            written_devices = gpus.devices
            sample["devices"], sample["boot"] = written_devices, boot
        if figures:
            sample["gpus"] = figures
        if reason:
            sample["why"] = reason
        try:
            record.append(sample)
        except OSError:
            written_devices = None  # The disk is full. Write the list of devices again once there is space.
        due = max(due + every, time.monotonic())
        if _has_stdin_ended(due - time.monotonic()):
            # Exit without cleanup, because a normal exit could wait for a thread that hangs in the GPU driver.
            os._exit(0)


def _read_boot_id() -> str:
    """Return an id that all nodes on this machine share; "" if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as source:
            return source.read().strip()
    except OSError:
        return ""


def _set_parent_death_signal() -> None:
    """Let the kernel kill this process when the agent dies.

    The end of standard input is not sufficient, because a suspended process cannot read it.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _has_stdin_ended(wait: float) -> bool:
    """Wait up to ``wait`` seconds, and return whether standard input has ended."""
    readable, _, _ = select.select([0], [], [], max(0.0, wait))
    return bool(readable) and not os.read(0, 1024)
