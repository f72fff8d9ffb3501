"""What machines of a pool are measured at, as any screen reads it: the latest figures, and a history in arrays."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, NamedTuple

from ..wire.safe_text import field as safe
from .metrics import LATEST, MOST
from .spread import Trace

POINTS = 1024  # of one machine's history; beyond that every other point goes
NAMES = 48  # of one machine or GPU
GPUS = 64  # of one machine, slices among them
NAME = 40  # characters of a figure's name
FRESH = 10.0  # seconds after which a figure is not of now


class Track:
    """Figures of one machine, or one GPU, over time: a column for each name, as long as the times.

    A history that is full is thinned to every other point, and from then on takes half as many: it always spans the
    whole time, evenly.

    Attributes:
        latest: the newest figures, those only that were among them.
        latest_at: when they were taken, as a Unix time of this machine; 0.0 before the first.
        seen: how often something was taken.
    """

    __slots__ = ("_at", "_columns", "_stride", "latest", "latest_at", "seen")

    def __init__(self) -> None:
        self.latest: Mapping[str, float] = {}
        self.latest_at = 0.0
        self._at = array("d")
        self._columns: dict[str, array[float]] = {}
        self.seen = 0
        self._stride = 1

    def add(self, at: float, figures: Mapping[str, float]) -> None:
        """Take what was measured at once."""
        self.latest, self.latest_at = figures, at
        self.seen += 1
        if (self.seen - 1) % self._stride:
            return
        if len(self._at) >= POINTS:
            self._at = self._at[::2]
            self._columns = {name: column[::2] for name, column in self._columns.items()}
            self._stride *= 2
        columns = self._columns
        if not figures.keys() <= columns.keys():
            for name in figures:
                if name not in columns and len(columns) < NAMES:
                    columns[name] = array("d", [nan]) * len(self._at)
        for name, column in columns.items():
            column.append(figures.get(name, nan))
        self._at.append(at)  # last: who reads meanwhile goes by the times

    @property
    def names(self) -> list[str]:
        """Of the figures that it ever had."""
        return list(self._columns)

    def trace(self, name: str) -> Trace:
        """One figure's history; without what it was not measured at."""
        at, column = self._at, self._columns.get(name)
        if column is None:
            return Trace(array("d"), array("d"))
        pairs = [(time, value) for time, value in zip(at, column, strict=False) if value == value]
        return Trace(array("d", [time for time, _ in pairs]), array("d", [value for _, value in pairs]))


class Device(NamedTuple):
    """A GPU, or a slice of one."""

    id: str
    model: str


@dataclass(slots=True)
class MachineView:
    """One node's machine.

    Attributes:
        why: nothing, or nothing of its GPUs, comes; in words.
    """

    host: Track
    gpus: list[Track]
    devices: list[Device]
    why: str = ""

    def is_fresh(self, now: float) -> bool:
        """Whether its figures are of now."""
        return now - self.host.latest_at < FRESH


class MachineBook:
    """Those of a pool, by node. One thread writes, others may read.

    Attributes:
        version: raised by all that is taken, so that a screen paints only what is new.
    """

    def __init__(self) -> None:
        self.version = 0
        self.nodes: dict[int, MachineView] = {}

    def machine(self, node: int) -> MachineView:
        """A node's; made when it is first spoken of."""
        found = self.nodes.get(node)
        if found is None:
            found = MachineView(Track(), [], [])
            self.nodes = dict(
                sorted([*self.nodes.items(), (node, found)])
            )  # replaced: others iterate over it
        return found

    def explain(self, node: int, why: str) -> None:
        """Why nothing comes of a node, or "": something does."""
        self.machine(node).why = safe(why)
        self.version += 1

    def feed(self, node: int, data: bytes, ahead: float = 0.0) -> None:
        """Take lines of samples, oldest first; a line that is none is passed over.

        Args:
            ahead: seconds by which our clock is ahead of the node's.
        """
        machine = self.machine(node)
        for line in data.split(b"\n"):
            try:
                told = json.loads(line) if line else None
            except (ValueError, RecursionError):
                continue
            if isinstance(told, dict):
                self._take(machine, told, ahead)
        self.version += 1

    def _take(self, machine: MachineView, told: dict[str, Any], ahead: float) -> None:
        at = told.get("at")
        if not (isinstance(at, int | float) and 0 <= at < LATEST):
            return
        at += ahead
        devices, gpus, why = told.get("devices"), told.get("gpus"), told.get("why")
        if isinstance(devices, list):
            machine.devices = [_device(each) for each in devices[:GPUS]]
        machine.host.add(at, _figures(told.get("node")))
        machine.why = safe(why) if isinstance(why, str) else ""
        for number, each in enumerate(gpus[:GPUS] if isinstance(gpus, list) else ()):
            if number == len(machine.gpus):
                machine.gpus.append(Track())
            machine.gpus[number].add(at, _figures(each))

    # -- over all ----------------------------------------------------------------------------------------

    def tracks(self) -> Iterator[tuple[int, int | None, Track]]:
        """Node, GPU or None, and figures, of everything that was measured."""
        for node, machine in self.nodes.items():
            yield node, None, machine.host
            for gpu, track in enumerate(list(machine.gpus)):
                yield node, gpu, track

    def latest(self, name: str) -> dict[tuple[int, int | None], float]:
        """The newest value of a figure, by node and GPU, of all that have it."""
        return {(node, gpu): track.latest[name] for node, gpu, track in self.tracks() if name in track.latest}


def _figures(told: Any) -> dict[str, float]:
    if not isinstance(told, dict):
        return {}
    found = {}
    for name, value in told.items():
        if type(value) is float:
            if isfinite(value):
                found[name if name.isidentifier() and len(name) <= NAME else safe(name)[:NAME]] = value
        elif type(value) is int and -MOST < value < MOST:
            found[name if name.isidentifier() and len(name) <= NAME else safe(name)[:NAME]] = float(value)
        if len(found) >= NAMES:
            break
    return found


def _device(told: Any) -> Device:
    known = told if isinstance(told, dict) else {}
    return Device(*(safe(str(known.get(name, "")))[:80] for name in ("id", "model")))
