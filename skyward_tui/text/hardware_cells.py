"""Machines, GPUs and offers as table cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from skyward_core.model import accelerators
from skyward_core.model.accelerators.accelerator import Accelerator
from skyward_core.model.errors import UsageError
from skyward_core.model.metric_series import (
    GPU_METRIC_DEFINITIONS,
    MIN_DIFFERENCE,
    NODE_METRIC_DEFINITIONS,
    Unit,
    describe_throttling,
)
from skyward_core.model.offers import MachineRequirements, Offer, matching_offers
from skyward_core.util.byte_sizes import format_size
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.machine_metrics import MachineMetrics, MachineView
from skyward_core.views.outliers import find_outliers
from skyward_tui.text.number_and_time_format import count, fit_width, money, precise_duration

if TYPE_CHECKING:
    from skyward_core.client.ssh_hosts import GpuUse, HostGpuUsage
    from skyward_core.views.machine_metrics import FailureMetrics


def free_text(seen: HostGpuUsage) -> str:
    """How many are free."""
    return f"{sum(gpu.is_free for gpu in seen.gpus)} of {len(seen.gpus)} free"


def usage_by_user(gpus: Iterable[GpuUse]) -> list[str]:
    """A line for each who has some of them, with how many and how much memory there; those that are free first."""
    found: Counter[str] = Counter()
    held: Counter[str] = Counter()
    free = 0
    for gpu in gpus:
        users = {sanitize_line(each.user): each.memory or 0 for each in gpu.processes if each.computes}
        free += gpu.is_free
        for who, used in ({gpu.holder: gpu.used or 0} if gpu.holder else users or {"": gpu.used or 0}).items():
            if not gpu.is_free:
                found[sanitize_line(who)] += 1
                held[sanitize_line(who)] += used
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


HARDWARE_COLUMNS = ("node", "gpu", "busy", "memory", "power", "temp", "net in", "net out", "disk", "")
OUTLIER_METRICS = (
    "util",
    "sm_active",
    "tensor_active",
    "temp",
    "power",
    "cpu",
)  # figures of which outliers are named
_OUTLIER_DISTANCES = {
    name: MIN_DIFFERENCE[figure.unit]
    for name, figure in {**NODE_METRIC_DEFINITIONS, **GPU_METRIC_DEFINITIONS}.items()
    if name in OUTLIER_METRICS
}
FULL = 0.95  # of a memory
Place = tuple[int, int | None]


def quantity(value: float, unit: Unit) -> str:
    """``98 %``, ``1.2 GB``, ``650 W``."""
    if unit in ("B", "B/s"):
        return format_size(value) + unit[1:]
    return f"{value:,.0f} {unit}".rstrip()


def share(part: float | None, whole: float | None) -> str:
    """``71 %``, or nothing where one of them is not known."""
    return "" if part is None or not whole else f"{100 * part / whole:.0f} %"


def outlier_metrics(book: MachineMetrics) -> dict[Place, list[str]]:
    """Which GPUs, or nodes, are far from all others of the pool, and in which figures."""
    found: dict[Place, list[str]] = {}
    for name in OUTLIER_METRICS:
        for place in find_outliers(book.latest(name), _OUTLIER_DISTANCES[name]):
            found.setdefault(place, []).append(name)
    return found


def problem_text(figures: Mapping[str, float], odd: Collection[str] = ()) -> str:
    """What is not as it should be, in words, the worst first; or ""."""
    used, total = figures.get("mem_used"), figures.get("mem_total")
    found = [
        "lost by the driver" if figures.get("lost") else "",
        f"Xid {figures['xid']:.0f}" if "xid" in figures else "",
        count(int(figures["ecc"]), "ECC error") if figures.get("ecc") else "",
        f"slowed: {describe_throttling(bits)}" if (bits := figures.get("throttle")) else "",
        "memory nearly full" if used is not None and total and used > FULL * total else "",
        f"unlike the others: {', '.join(odd)}" if odd else "",
    ]
    return "; ".join(filter(None, found))


def metrics_line(last: FailureMetrics) -> str:
    """What a machine was at before a rank on it failed."""
    said = ", ".join(last.describe()) or "nothing unusual"
    return f"its machine n{last.node}, {precise_duration(max(0.0, last.failed_at - last.at))} before: {said}"


def rows(book: MachineMetrics, now: float) -> list[tuple[str, ...]]:
    """Return a row for each node and each of its GPUs; see :data:`HARDWARE_COLUMNS`. Unknown values are empty."""
    odd = outlier_metrics(book)
    found: list[tuple[str, ...]] = []
    for node, machine in book.nodes.items():
        found.append(_node_row(node, machine, odd.get((node, None), ()), now))
        for gpu, track in enumerate(machine.gpus if machine.is_fresh(now) else ()):
            figures = track.latest
            found.append(_gpu_row(gpu, figures, problem_text(figures, odd.get((node, gpu), ()))))
    return found


def _node_row(node: int, machine: MachineView, odd: Collection[str], now: float) -> tuple[str, ...]:
    if not machine.is_fresh(now):
        return (f"n{node}", *[""] * (len(HARDWARE_COLUMNS) - 2), machine.why or "no figures of now")
    figures = machine.host.latest
    show = _formatter(figures)
    disk = sum(figures.get(name, 0.0) for name in ("disk_read", "disk_write"))
    remark = "; ".join(filter(None, (machine.why, problem_text({}, odd))))
    return (
        f"n{node}", "", show("cpu", "%"), share(figures.get("memory_used"), figures.get("memory_total")), "", "",
        show("net_in", "B/s"), show("net_out", "B/s"), quantity(disk, "B/s") if "disk_read" in figures else "", remark,
    )  # fmt: skip


def _gpu_row(gpu: int, figures: Mapping[str, float], remark: str) -> tuple[str, ...]:
    show = _formatter(figures)
    return (
        "", str(gpu), show("util", "%"), share(figures.get("mem_used"), figures.get("mem_total")),
        show("power", "W"), show("temp", "°C"), "", "", "", remark,
    )  # fmt: skip


def _formatter(figures: Mapping[str, float]) -> Callable[[str, Unit], str]:
    return lambda name, unit: quantity(figures[name], unit) if name in figures else ""


class GpuMetric(NamedTuple):
    """One figure.

    Attributes:
        name: as a person reads it.
        metric: as it is measured.
        whole: the figure that it is a part of, or how much of it is all; None for the greatest that any GPU has had.
        is_optional: whether it is there only where a GPU has told it.
    """

    name: str
    metric: str
    whole: str | float | None
    is_optional: bool = True


GPU_METRICS = (
    GpuMetric("use %", "util", 100.0, is_optional=False),
    GpuMetric("memory %", "mem_used", "mem_total", is_optional=False),
    GpuMetric("power %", "power", "power_limit", is_optional=False),
    GpuMetric("tensor cores %", "tensor_active", 100.0, is_optional=False),
    GpuMetric("°C", "temp", 100.0, is_optional=False),
    GpuMetric("multiprocessors %", "sm_active", 100.0),
    GpuMetric("memory read or written %", "mem_busy", 100.0),
    GpuMetric("clock", "sm_clock", None),
    GpuMetric("memory clock", "mem_clock", None),
    GpuMetric("PCIe in", "pcie_in", None),
    GpuMetric("PCIe out", "pcie_out", None),
    GpuMetric("NVLink in", "nvlink_in", None),
    GpuMetric("NVLink out", "nvlink_out", None),
    GpuMetric("processes", "processes", None),
    GpuMetric("ECC errors", "ecc", None),
    GpuMetric("corrected ECC errors", "ecc_corrected", None),
    GpuMetric("slowed (0 or 100)", "throttle", 1.0),  # bits, each a reason
)


def available_metrics(book: MachineMetrics) -> list[int]:
    """Places in ``SHOWN`` of what a pool's GPUs can show."""
    told = {name for machine in book.nodes.values() for track in machine.gpus for name in track.names}
    return [place for place, each in enumerate(GPU_METRICS) if not each.is_optional or each.metric in told]


class MetricScale:
    """The greatest value that any GPU of a pool has had of a figure, so that all curves have one scale. All that is
    kept of it is looked through once; from then on the newest values are."""

    def __init__(self, book: MachineMetrics, shown: GpuMetric) -> None:
        self.metric = shown
        self.most = 0.0
        if shown.whole is None:
            tracks = (track for machine in book.nodes.values() for track in machine.gpus)
            self.most = max((track.maximum(shown.metric) for track in tracks), default=0.0)

    def update(self, book: MachineMetrics) -> None:
        """Heed what has come."""
        if self.metric.whole is None:
            tracks = (track for machine in book.nodes.values() for track in machine.gpus)
            self.most = max(self.most, 0.0, *(track.latest.get(self.metric.metric, 0.0) for track in tracks))

    @property
    def label(self) -> str:
        """What is shown, with what is all of it."""
        name, figure, whole, _ = self.metric
        if whole is not None:
            return name
        return (
            f"{name}, % of {quantity(self.most, GPU_METRIC_DEFINITIONS[figure].unit)}"
            if self.most
            else f"{name}, 0 so far"
        )

    @property
    def whole(self) -> str | float:
        """The figure that it is a part of, or how much of it is all."""
        return (self.most or 1.0) if self.metric.whole is None else self.metric.whole

    def part(self, figures: Mapping[str, float]) -> float | None:
        """How much of all a GPU is at; None where that is not known."""
        value, whole = figures.get(self.metric.metric), self.whole
        full = figures.get(whole) if isinstance(whole, str) else whole
        if value is None or not full:
            return None
        return min(1.0, value / full) if self.metric.is_optional else value / full


ANY = MachineRequirements(any_accelerator=True, allocation="cheapest")
USUAL_COUNT, USUAL_MEMORY = 8, 80.0  # of what most large trainings run on
_SLACK = 2.0  # GB by which a memory's size may differ from what it is called


class OfferRow(NamedTuple):
    """One of them.

    Attributes:
        accelerator: what a launch asks for, to get it: ``A100-80GB:8``.
        label: the row, for people.
        search_text: by which it is found, in small letters.
        is_usual: whether it is eight of 80 GB.
    """

    accelerator: str
    label: str
    search_text: str
    is_usual: bool

    def matches(self, typed: str) -> bool:
        """Whether each word of a text is in it."""
        return all(word in self.search_text for word in typed.casefold().split())


def offer_rows(offers: Sequence[Offer]) -> list[OfferRow]:
    """The cheapest first, by the cheaper of both markets."""
    places: dict[tuple[str, str, str, str], dict[str, Offer]] = {}
    for each in matching_offers(offers, ANY):
        places.setdefault((each.provider, each.instance_type, each.region, each.zone), {})[each.market] = each
    return [_row(markets) for markets in places.values()]


def _row(markets: dict[str, Offer]) -> OfferRow:
    best = next(iter(markets.values()))
    memory = f"{best.memory_each_gb:.0f}"
    on_demand, spot = (_price(markets.get(market)) for market in ("on-demand", "spot"))
    where, name, kind = (
        sanitize_line(best.zone or best.region),
        sanitize_line(best.accelerator),
        sanitize_line(best.instance_type),
    )
    amount = f"{best.count:>3} × {memory:>3} GB"
    prices = f"{fit_width(on_demand, -9)} {fit_width(spot, -9)}"
    told = f"{fit_width(name, 12)} {amount}  {prices}  {fit_width(where, 12)} {kind}"
    words = f"{name} {best.count}x{memory}gb {best.count}x {memory}gb {memory} gb {where} {kind} {best.provider}"
    usual = best.count == USUAL_COUNT and abs(best.memory_each_gb - USUAL_MEMORY) <= _SLACK
    return OfferRow(_accelerator_request(best), told, words.casefold(), usual)


OFFERS_HEAD = f"{'':26}  {'ON DEMAND':>9} {'SPOT':>9}  {'ZONE':12} TYPE"


def _accelerator_request(offer: Offer) -> str:
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
