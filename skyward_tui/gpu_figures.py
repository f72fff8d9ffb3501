"""What cells and curves of GPUs can show, and how much of it is all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from skyward_core.model.figures import GPU
from skyward_core.views.machines import MachineBook

from .machine_cells import quantity


class Shown(NamedTuple):
    """One figure.

    Attributes:
        name: as a person reads it.
        figure: as it is measured.
        whole: the figure that it is a part of, or how much of it is all; None for the greatest that any GPU has had.
        asks: whether it is there only where a GPU has told it.
    """

    name: str
    figure: str
    whole: str | float | None
    asks: bool = True


SHOWN = (
    Shown("use %", "util", 100.0, asks=False),
    Shown("memory %", "mem_used", "mem_total", asks=False),
    Shown("power %", "power", "power_limit", asks=False),
    Shown("tensor cores %", "tensor_active", 100.0, asks=False),
    Shown("°C", "temp", 100.0, asks=False),
    Shown("multiprocessors %", "sm_active", 100.0),
    Shown("memory read or written %", "mem_busy", 100.0),
    Shown("clock", "sm_clock", None),
    Shown("memory clock", "mem_clock", None),
    Shown("PCIe in", "pcie_in", None),
    Shown("PCIe out", "pcie_out", None),
    Shown("NVLink in", "nvlink_in", None),
    Shown("NVLink out", "nvlink_out", None),
    Shown("processes", "processes", None),
    Shown("ECC errors", "ecc", None),
    Shown("corrected ECC errors", "ecc_corrected", None),
    Shown("slowed (0 or 100)", "throttle", 1.0),  # bits, each a reason
)


def offered(book: MachineBook) -> list[int]:
    """Places in ``SHOWN`` of what a pool's GPUs can show."""
    told = {name for machine in book.nodes.values() for track in machine.gpus for name in track.names}
    return [place for place, each in enumerate(SHOWN) if not each.asks or each.figure in told]


class Scale:
    """The greatest value that any GPU of a pool has had of a figure, so that all curves have one scale. All that is
    kept of it is looked through once; from then on the newest values are."""

    def __init__(self, book: MachineBook, shown: Shown) -> None:
        self.shown = shown
        self.most = 0.0
        if shown.whole is None:
            tracks = (track for machine in book.nodes.values() for track in machine.gpus)
            self.most = max((track.greatest(shown.figure) for track in tracks), default=0.0)

    def look(self, book: MachineBook) -> None:
        """Heed what has come."""
        if self.shown.whole is None:
            tracks = (track for machine in book.nodes.values() for track in machine.gpus)
            self.most = max(self.most, 0.0, *(track.latest.get(self.shown.figure, 0.0) for track in tracks))

    @property
    def words(self) -> str:
        """What is shown, with what is all of it."""
        name, figure, whole, _ = self.shown
        if whole is not None:
            return name
        return f"{name}, % of {quantity(self.most, GPU[figure].unit)}" if self.most else f"{name}, 0 so far"

    @property
    def whole(self) -> str | float:
        """The figure that it is a part of, or how much of it is all."""
        return (self.most or 1.0) if self.shown.whole is None else self.shown.whole

    def part(self, figures: Mapping[str, float]) -> float | None:
        """How much of all a GPU is at; None where that is not known."""
        value, whole = figures.get(self.shown.figure), self.whole
        full = figures.get(whole) if isinstance(whole, str) else whole
        if value is None or not full:
            return None
        return min(1.0, value / full) if self.shown.asks else value / full
