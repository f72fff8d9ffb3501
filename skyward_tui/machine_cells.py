"""Figures of machines as a person reads them: numbers with their units, rows, and what is amiss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from skyward_core.model.figures import APART, GPU, NODE, Unit, throttle_words
from skyward_core.model.sizes import size_in_words
from skyward_core.views.machines import MachineBook, MachineView
from skyward_core.views.spread import outliers

from .words import count, took

if TYPE_CHECKING:
    from skyward_core.views.last_figures import LastFigures

HEAD = ("node", "gpu", "busy", "memory", "power", "temp", "net in", "net out", "disk", "")
ODD = ("util", "sm_active", "tensor_active", "temp", "power", "cpu")  # figures of which outliers are named
_APART = {name: APART[figure.unit] for name, figure in {**NODE, **GPU}.items() if name in ODD}
FULL = 0.95  # of a memory
Place = tuple[int, int | None]


def quantity(value: float, unit: Unit) -> str:
    """``98 %``, ``1.2 GB``, ``650 W``."""
    if unit in ("B", "B/s"):
        return size_in_words(value) + unit[1:]
    return f"{value:,.0f} {unit}".rstrip()


def share(part: float | None, whole: float | None) -> str:
    """``71 %``, or nothing where one of them is not known."""
    return "" if part is None or not whole else f"{100 * part / whole:.0f} %"


def odd_ones(book: MachineBook) -> dict[Place, list[str]]:
    """Which GPUs, or nodes, are far from all others of the pool, and in which figures."""
    found: dict[Place, list[str]] = {}
    for name in ODD:
        for place in outliers(book.latest(name), _APART[name]):
            found.setdefault(place, []).append(name)
    return found


def amiss(figures: Mapping[str, float], odd: Collection[str] = ()) -> str:
    """What is not as it should be, in words, the worst first; or ""."""
    used, total = figures.get("mem_used"), figures.get("mem_total")
    found = [
        "lost by the driver" if figures.get("lost") else "",
        f"Xid {figures['xid']:.0f}" if "xid" in figures else "",
        count(int(figures["ecc"]), "ECC error") if figures.get("ecc") else "",
        f"slowed: {throttle_words(bits)}" if (bits := figures.get("throttle")) else "",
        "memory nearly full" if used is not None and total and used > FULL * total else "",
        f"unlike the others: {', '.join(odd)}" if odd else "",
    ]
    return "; ".join(filter(None, found))


def figures_line(last: LastFigures) -> str:
    """What a machine was at before a rank on it failed."""
    said = ", ".join(last.words()) or "nothing unusual"
    return f"its machine n{last.node}, {took(max(0.0, last.failed_at - last.at))} before: {said}"


def rows(book: MachineBook, now: float) -> list[tuple[str, ...]]:
    """A row for each node and each of its GPUs, as :data:`HEAD` names the columns. What is not known is left empty."""
    odd = odd_ones(book)
    found: list[tuple[str, ...]] = []
    for node, machine in book.nodes.items():
        found.append(_of_node(node, machine, odd.get((node, None), ()), now))
        for gpu, track in enumerate(machine.gpus if machine.is_fresh(now) else ()):
            figures = track.latest
            found.append(_of_gpu(gpu, figures, amiss(figures, odd.get((node, gpu), ()))))
    return found


def _of_node(node: int, machine: MachineView, odd: Collection[str], now: float) -> tuple[str, ...]:
    if not machine.is_fresh(now):
        return (f"n{node}", *[""] * (len(HEAD) - 2), machine.why or "no figures of now")
    figures = machine.host.latest
    show = _shown(figures)
    disk = sum(figures.get(name, 0.0) for name in ("disk_read", "disk_write"))
    remark = "; ".join(filter(None, (machine.why, amiss({}, odd))))
    return (
        f"n{node}", "", show("cpu", "%"), share(figures.get("memory_used"), figures.get("memory_total")), "", "",
        show("net_in", "B/s"), show("net_out", "B/s"), quantity(disk, "B/s") if "disk_read" in figures else "", remark,
    )  # fmt: skip


def _of_gpu(gpu: int, figures: Mapping[str, float], remark: str) -> tuple[str, ...]:
    show = _shown(figures)
    return (
        "", str(gpu), show("util", "%"), share(figures.get("mem_used"), figures.get("mem_total")),
        show("power", "W"), show("temp", "°C"), "", "", "", remark,
    )  # fmt: skip


def _shown(figures: Mapping[str, float]) -> Callable[[str, Unit], str]:
    return lambda name, unit: quantity(figures[name], unit) if name in figures else ""
