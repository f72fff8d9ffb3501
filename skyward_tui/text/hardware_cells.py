"""Machines, GPUs and offers as table cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from skyward_core.model import accelerators
from skyward_core.model.accelerators.catalog import Accelerator
from skyward_core.model.errors import UsageError
from skyward_core.model.metric_series import APART, GPU, NODE, Unit, throttle_words
from skyward_core.model.offers import Offer, Wish, in_order
from skyward_core.util.byte_sizes import size_in_words
from skyward_core.util.terminal_safe_text import field
from skyward_core.views.machine_metrics import MachineBook, MachineView
from skyward_core.views.outliers import outliers
from skyward_tui.text.number_format import count, fit, money, took

if TYPE_CHECKING:
    from skyward_core.client.ssh_hosts import GpuUse, HostLook
    from skyward_core.views.machine_metrics import LastFigures


def free_of(seen: HostLook) -> str:
    """How many are free."""
    return f"{sum(gpu.is_free for gpu in seen.gpus)} of {len(seen.gpus)} free"


def by_whom(gpus: Iterable[GpuUse]) -> list[str]:
    """A line for each who has some of them, with how many and how much memory there; those that are free first."""
    found: Counter[str] = Counter()
    held: Counter[str] = Counter()
    free = 0
    for gpu in gpus:
        users = {field(each.user): each.memory or 0 for each in gpu.processes if each.computes}
        free += gpu.is_free
        for who, used in ({gpu.holder: gpu.used or 0} if gpu.holder else users or {"": gpu.used or 0}).items():
            if not gpu.is_free:
                found[field(who)] += 1
                held[field(who)] += used
    lines = [f"○ free: {count(free, 'GPU')}"] if free else []
    for who, many in found.most_common():
        by = who or "somebody who cannot be seen from here"
        lines.append(f"● {by}: {count(many, 'GPU')}" + (f", {held[who] / 1e9:.1f} GB" if held[who] else ""))
    return lines


def memory(gpu: GpuUse) -> str:
    """What of a GPU's memory is in use; "" where nobody knows."""
    if gpu.used is None or gpu.total is None:
        return ""
    return f"{gpu.used / 1e9:5.1f} of {gpu.total / 1e9:.1f} GB"


def utilization(gpu: GpuUse) -> str:
    """How busy it is; "" where nobody knows."""
    return "" if gpu.util is None else f"{gpu.util:3d} %"


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


ANY = Wish(any_accelerator=True, allocation="cheapest")
USUAL_COUNT, USUAL_MEMORY = 8, 80.0  # of what most large trainings run on
_SLACK = 2.0  # GB by which a memory's size may differ from what it is called


class OfferRow(NamedTuple):
    """One of them.

    Attributes:
        wanted: what a launch asks for, to get it: ``A100-80GB:8``.
        told: the row, for people.
        words: by which it is found, in small letters.
        is_usual: whether it is eight of 80 GB.
    """

    wanted: str
    told: str
    words: str
    is_usual: bool

    def has(self, typed: str) -> bool:
        """Whether each word of a text is in it."""
        return all(word in self.words for word in typed.casefold().split())


def offer_rows(offers: Sequence[Offer]) -> list[OfferRow]:
    """The cheapest first, by the cheaper of both markets."""
    places: dict[tuple[str, str, str, str], dict[str, Offer]] = {}
    for each in in_order(offers, ANY):
        places.setdefault((each.provider, each.instance_type, each.region, each.zone), {})[each.market] = each
    return [_row(markets) for markets in places.values()]


def _row(markets: dict[str, Offer]) -> OfferRow:
    best = next(iter(markets.values()))
    memory = f"{best.memory_each_gb:.0f}"
    on_demand, spot = (_price(markets.get(market)) for market in ("on-demand", "spot"))
    where, name, kind = field(best.zone or best.region), field(best.accelerator), field(best.instance_type)
    amount = f"{best.count:>3} × {memory:>3} GB"
    told = f"{fit(name, 12)} {amount}  {fit(on_demand, -9)} {fit(spot, -9)}  {fit(where, 12)} {kind}"
    words = f"{name} {best.count}x{memory}gb {best.count}x {memory}gb {memory} gb {where} {kind} {best.provider}"
    usual = best.count == USUAL_COUNT and abs(best.memory_each_gb - USUAL_MEMORY) <= _SLACK
    return OfferRow(_wanted(best), told, words.casefold(), usual)


OFFERS_HEAD = f"{'':26}  {'ON DEMAND':>9} {'SPOT':>9}  {'ZONE':12} TYPE"


def _wanted(offer: Offer) -> str:
    """As a launch names it: with its memory where there are several of that name."""
    try:
        several = len(accelerators.find(offer.accelerator).variants) > 1
        memory = round(offer.memory_each_gb) if several else None
        return str(Accelerator(offer.accelerator, offer.count, memory))
    except UsageError:  # one that the catalogue does not have, or not of that size
        return f"{offer.accelerator}:{offer.count}"


def _price(offer: Offer | None) -> str:
    if offer is None:
        return "–"
    price = offer.billed_hourly
    return "$?/h" if price is None else f"{money(price)}/h"
