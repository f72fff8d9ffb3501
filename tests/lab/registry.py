"""Registry of the labs on this machine: locked numbers, and removal of labs of dead owners."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .tools import NOT_OURS, LabError, call, ip_batch, started_at, wait_until

ROOT = Path("/run/skyward-lab")
FIRST_TWO = "10.214"  # the labs' networks are 10.214.0.0/24 to 10.214.255.0/24


@dataclass(frozen=True, slots=True)
class Process:
    """Unique identity of a process: its pid and its start time."""

    pid: int
    started: int | None

    @classmethod
    def of(cls, pid: int) -> Process:
        return cls(pid, started_at(pid))

    @property
    def is_alive(self) -> bool:
        return self.started is not None and started_at(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class Claim:
    """Registered lab: its number, its owner, and whether ``python -m tests.lab down`` may end it."""

    number: int
    owner: Process
    by_hand: bool

    @property
    def folder(self) -> Path:
        return ROOT / str(self.number)


def claim(by_hand: bool) -> Claim:
    """Reserve a number that no other lab and no route of this machine uses. Remove stale labs first."""
    with _lock():
        _remove_stale()
        routes = [
            ipaddress.ip_network(route["dst"])
            for route in json.loads(call(["ip", "-json", "-4", "route", "show", "table", "all"]))
            if route["dst"] != "default"
        ]
        for number in range(256):
            network = ipaddress.ip_network(f"{FIRST_TWO}.{number}.0/24")
            mine = Claim(number, Process.of(os.getpid()), by_hand)
            if not mine.folder.exists() and not any(network.overlaps(route) for route in routes):
                mine.folder.mkdir()
                (mine.folder / "claim.json").write_text(json.dumps(asdict(mine)))
                return mine
    raise LabError(f"all networks {FIRST_TWO}.0.0/24 to {FIRST_TWO}.255.0/24 are taken")


def claims() -> list[Claim]:
    """Return all labs of this machine whose owner is alive."""
    if not ROOT.exists():
        return []
    with _lock():
        _remove_stale()
        return [found for _, found in _folders() if found is not None]


def release(lab: Claim) -> None:
    """Remove a lab with its processes, interfaces, mounts and files."""
    with _lock():
        _remove(lab.number)


def _folders() -> list[tuple[int, Claim | None]]:
    found: list[tuple[int, Claim | None]] = []
    for folder in ROOT.glob("[0-9]*"):
        path = folder / "claim.json"
        if path.exists():
            raw = json.loads(path.read_text())
            lab = Claim(raw["number"], Process(**raw["owner"]), raw["by_hand"])
            found.append((lab.number, lab))
        else:
            found.append((int(folder.name), None))  # its owner died while it made or removed this
    return sorted(found, key=lambda pair: pair[0])


def _remove_stale() -> None:
    for number, found in _folders():
        if found is None or not found.owner.is_alive:
            _remove(number)


def _remove(number: int) -> None:
    folder, name = ROOT / str(number), f"sky{number}"
    machines = _machines(folder)
    for machine in machines:
        os.kill(machine.pid, signal.SIGKILL)  # takes the host's PID 1 along, and that one all others
    wait_until(lambda: not any(machine.is_alive for machine in machines), f"the end of the hosts of {name}")
    links = [link["ifname"] for link in json.loads(call(["ip", "-json", "link", "show"]))]
    mine = [link for link in links if link == name or link.startswith((f"{name}p", f"{name}c"))]
    if mine:
        ip_batch([f"link del {link}" for link in mine], force=True)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
        call(["umount", "-n", "-l", mount])
    shutil.rmtree(folder)


def _machines(folder: Path) -> list[Process]:
    """Return the processes that hold a lab's hosts. They are found by the folder in their environment, because a list
    could be outdated after a crash.
    """
    found = []
    mark = f"\0ROOT={folder}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(*NOT_OURS):
            if mark in b"\0" + (process / "environ").read_bytes():
                found.append(Process.of(int(process.name)))
    return [process for process in found if process.started is not None]


@contextmanager
def _lock() -> Iterator[None]:
    ROOT.mkdir(mode=0o755, exist_ok=True)
    with (ROOT / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
