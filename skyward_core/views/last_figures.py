"""What a machine was measured at last before a rank on it failed: a memory that was full, a GPU that was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..model.figures import throttle_words
from .machines import MachineView, Track, filled, slowed

STALE = 60.0  # seconds before a failure, beyond which figures tell nothing of it
LATER = 10.0  # seconds after it in which what the driver writes into the kernel's log is of it
NEARLY = 0.9  # of a memory, that is worth a word
HOT = 85.0  # °C
# What people look up, of https://docs.nvidia.com/deploy/xid-errors.
XIDS = {
    13: "graphics engine exception", 31: "memory page fault", 43: "stopped by its program's error",
    45: "cleaned up after another error", 48: "ECC error of two bits", 61: "internal halt", 62: "internal halt",
    63: "a row of memory is to be remapped", 64: "a row of memory could not be remapped", 74: "NVLink error",
    79: "the GPU has fallen off the bus", 92: "many ECC errors", 94: "contained ECC error", 95: "uncontained ECC error",
    119: "no answer of its firmware", 120: "error of its firmware",
}  # fmt: skip


def xid_words(number: float) -> str:
    """``Xid 79 (the GPU has fallen off the bus)``."""
    meaning = XIDS.get(int(number))
    return f"Xid {number:.0f}" + (f" ({meaning})" if meaning else "")


class LastFigures:
    """Those of one node.

    Args:
        machine: of which more may become known: the kernel's log tells of a GPU after its rank has failed.
        failed_at: Unix time in seconds.

    Attributes:
        node: its index.
        at: when they were taken, as a Unix time of this machine.
        host, gpus: by name, as :mod:`skyward_core.model.figures` explains them.
    """

    def __init__(self, node: int, machine: MachineView, failed_at: float) -> None:
        self.node = node
        self.at = machine.host.latest_at
        self.failed_at = failed_at
        self.host: Mapping[str, float] = machine.host.latest
        self._gpus = [track.latest for track in machine.gpus]
        self._machine = machine

    @property
    def gpus(self) -> Sequence[Mapping[str, float]]:
        found = []
        for figures, track in zip(self._gpus, self._machine.gpus, strict=False):
            found.append(
                {name: value for name, value in figures.items() if name != "xid"} | self._signs(track)
            )
        return found

    def _signs(self, track: Track) -> dict[str, float]:
        """What was told of a GPU until shortly after the failure."""
        signs = {"xid": track.xid} if track.xid and track.xid_at <= self.failed_at + LATER else {}
        if track.latest_at <= self.failed_at + LATER and track.latest.get("lost"):
            signs["lost"] = 1.0
        return signs

    def words(self) -> list[str]:
        """What is worth a word, the worst first; at least how much of the memory was in use."""
        bad = [said for number, figures in enumerate(self.gpus) for said in _of_gpu(number, figures)]
        part = filled(self.host)
        memory = [f"memory {100 * part:.0f} % full"] if part else []
        pressure = self.host.get("memory_pressure", 0.0)
        more = [f"waited for memory in {pressure:.0f} % of the time"] if pressure >= 10 else []
        fullest = max(self.gpus, key=filled, default={})
        of_gpus = [f"GPU memory {100 * filled(fullest):.0f} % at most"] if filled(fullest) and not bad else []
        return [*memory, *more, *bad, *of_gpus] if part > NEARLY else [*bad, *memory, *more, *of_gpus]

    def to_json(self) -> dict[str, Any]:
        told = {"node": self.node, "at": self.at, "before": self.failed_at - self.at, "words": self.words()}
        return told | {"host": dict(self.host), "gpus": [dict(figures) for figures in self.gpus]}


def last_figures(node: int, machine: MachineView | None, failed_at: float) -> LastFigures | None:
    """A machine's latest figures, as those before a failure just now; None where there are none of about then."""
    if machine is None or not machine.host.latest or abs(failed_at - machine.host.latest_at) > STALE:
        return None
    return LastFigures(node, machine, failed_at)


def _of_gpu(number: int, figures: Mapping[str, float]) -> list[str]:
    said = []
    if xid := figures.get("xid"):
        said.append(xid_words(xid))
    if figures.get("lost"):
        said.append("lost by the driver")
    if filled(figures) > NEARLY:
        said.append(f"memory {100 * filled(figures):.0f} % full")
    if bits := slowed(figures):
        said.append(f"slowed: {throttle_words(bits)}")
    if figures.get("ecc"):
        said.append(f"{figures['ecc']:.0f} ECC errors")
    if figures.get("temp", 0.0) >= HOT:
        said.append(f"{figures['temp']:.0f} °C")
    return [f"GPU {number} {', '.join(said)}"] if said else []
