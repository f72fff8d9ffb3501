"""What ``/proc`` and ``/sys`` say of a machine: processor, memory, pressure, network, disks, room. What a system
does not tell is left out: 0 is a figure, too."""

# ruff: noqa: PTH110, PTH118, PTH208

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

LOOK_AGAIN = 60  # readings after which network cards and disks are listed anew
MOST = 1 << 20  # bytes that are read of a file
SECTOR = 512  # bytes, as /proc/diskstats counts whatever the disk has
PRESSURES = ("cpu", "memory", "io")


class Host:
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
        if self._readings % LOOK_AGAIN == 0:
            self._cards, self._disks = self._list_cards(), self._list_disks()
        self._readings += 1
        figures: dict[str, float] = {}
        counters: dict[str, float] = {}
        for part in (self._processor, self._network, self._disk):
            counters |= _or_nothing(part)
        for part in (self._memory, self._pressure, self._room):
            figures |= _or_nothing(part)
        figures |= self._rates(counters, now)
        return figures

    def _rates(self, counters: dict[str, float], now: float) -> dict[str, float]:
        before, passed = self._before, now - self._read_at
        self._before, self._read_at = counters, now
        if passed <= 0:
            return {}
        # A counter that went back was begun anew: a card was taken out, say.
        grown = {
            name: count - before[name]
            for name, count in counters.items()
            if name in before and count >= before[name]
        }
        busy, all_of_it = grown.pop("busy", 0.0), grown.pop("ticks", 0.0)
        rates = {name: round(count / passed, 1) for name, count in grown.items()}
        return rates | ({"cpu": round(min(100.0, 100 * busy / all_of_it), 2)} if all_of_it else {})

    # -- its parts ---------------------------------------------------------------------------------------

    def _processor(self) -> dict[str, float]:
        user, nice, system, idle, iowait, *rest = map(int, self._text("stat").split("\n", 1)[0].split()[1:])
        more = sum(rest[:3])  # interrupts, soft ones, and what a hypervisor took; guests are in "user"
        ticks = user + nice + system + idle + iowait + more
        return {"busy": ticks - idle - iowait, "ticks": ticks}

    def _memory(self) -> dict[str, float]:
        told = dict(line.split(":", 1) for line in self._text("meminfo").splitlines() if ":" in line)
        total, free = (int(told[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        return {"memory_used": total - free, "memory_total": total}

    def _pressure(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for what in PRESSURES:
            with suppress(OSError, ValueError, IndexError):
                found[f"{what}_pressure"] = _average(self._text(f"pressure/{what}"))
        return found

    def _network(self) -> dict[str, float]:
        received = sent = 0
        seen = False
        for line in self._text("net/dev").splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() in self._cards:
                fields = numbers.split()
                received, sent, seen = received + int(fields[0]), sent + int(fields[8]), True
        return {"net_in": received, "net_out": sent} if seen else {}

    def _disk(self) -> dict[str, float]:
        read = written = 0
        seen = False
        for line in self._text("diskstats").splitlines():
            fields = line.split()
            if fields[2] in self._disks:
                read, written, seen = read + int(fields[5]), written + int(fields[9]), True
        return {"disk_read": read * SECTOR, "disk_write": written * SECTOR} if seen else {}

    def _room(self) -> dict[str, float]:
        found = os.statvfs(self._folder)
        return {"spool_free": found.f_bavail * found.f_frsize}

    # -- which there are ---------------------------------------------------------------------------------

    def _list_cards(self) -> set[str]:
        """Network cards: real ones, so that what goes by a bridge is not counted twice; where there are none (in a
        container), all but the loopback."""
        try:
            lines = self._text("net/dev").splitlines()[2:]
        except OSError:
            return set()
        names = {line.partition(":")[0].strip() for line in lines} - {"lo"}
        return self._real(names, "class/net") or names

    def _list_disks(self) -> set[str]:
        try:
            names = set(os.listdir(os.path.join(self._sys, "block")))
        except OSError:
            return set()
        return self._real(names, "block") or {
            name for name in names if not name.startswith(("loop", "ram", "zram", "dm-", "md"))
        }

    def _real(self, names: Iterable[str], where: str) -> set[str]:
        return {name for name in names if os.path.exists(os.path.join(self._sys, where, name, "device"))}

    def _text(self, name: str) -> str:
        with open(os.path.join(self._proc, name), "rb") as file:
            return file.read(MOST).decode("ascii", "replace")


def _or_nothing(part: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What a part tells; nothing where this system has no such file, or writes other things into it."""
    try:
        return part()
    except (OSError, ValueError, KeyError, IndexError):
        return {}


def _average(text: str) -> float:
    """Of ``some avg10=1.50 avg60=...``: how much of the last ten seconds, in percent, somebody waited."""
    some = text.split("\n", 1)[0].split()
    if some[0] != "some" or not some[1].startswith("avg10="):
        raise ValueError("it tells of no pressure")
    return float(some[1][6:])
