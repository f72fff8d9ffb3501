"""Table cells of machines, GPUs and offers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from skyward_core.model import accelerators
from skyward_core.model.accelerators.accelerator import Accelerator
from skyward_core.model.errors import UsageError
from skyward_core.model.metric_definitions_series_and_export import (
    GPU_METRIC_DEFINITIONS,
    MIN_DIFFERENCE,
    NODE_METRIC_DEFINITIONS,
    Unit,
    describe_throttling,
)
from skyward_core.model.offers_and_rental_plans import MachineRequirements, Offer, matching_offers
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.machine_metrics import FailureMetrics, MachineMetrics, MachineView
from skyward_core.views.outliers_and_bands import find_outliers
from skyward_core.views.stack_groups_and_profiles import format_ranges
from skyward_tui.text.number_time_and_run_state_format import count, duration, money
from skyward_tui.text.text_width_tables_and_ascii import fit_width

if TYPE_CHECKING:
    from skyward_core.client.ssh_host_groups_and_access import GpuUse, HostGpuUsage


def free_text(seen: HostGpuUsage) -> str:
    """Return a text with the number of free GPUs of a host."""
    return f"{sum(gpu.is_free for gpu in seen.gpus)} of {len(seen.gpus)} free"


def usage_by_user(gpus: Iterable[GpuUse]) -> list[str]:
    """Return a line for each user of GPUs, with number and memory of the GPUs. The first line counts the free GPUs."""
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
        used_memory = f", {held[who] / 1e9:.1f} GB" if held[who] else ""
        lines.append(f"● {who or 'unknown process'}: {count(many, 'GPU')}{used_memory}")
    return lines


def memory(gpu: GpuUse) -> str:
    """Return the used and the total memory of a GPU; "" if unknown."""
    return "" if gpu.used is None or gpu.total is None else f"{gpu.used / 1e9:5.1f} of {gpu.total / 1e9:.1f} GB"


def utilization(gpu: GpuUse) -> str:
    """Return the utilization of a GPU; "" if unknown."""
    return "" if gpu.util is None else f"{gpu.util:3d} %"


HARDWARE_COLUMNS = ("node", "gpu", "busy", "memory", "power", "temp", "net in", "net out", "disk", "")
OUTLIER_METRICS = ("util", "sm_active", "tensor_active", "temp", "power", "cpu")
_OUTLIER_DISTANCES = {
    name: MIN_DIFFERENCE[figure.unit]
    for name, figure in {**NODE_METRIC_DEFINITIONS, **GPU_METRIC_DEFINITIONS}.items()
    if name in OUTLIER_METRICS
}
FULL = 0.95  # used share of a GPU's memory above which the memory is shown as a warning
Place = tuple[int, int | None]


def quantity(value: float, unit: Unit) -> str:
    """Format a value with its unit: ``98 %``, ``1.2 GB``, ``650 W``."""
    return format_size(value) + unit[1:] if unit in ("B", "B/s") else f"{value:,.0f} {unit}".rstrip()


def share(part: float | None, whole: float | None) -> str:
    """Format a share, such as ``71 %``; "" if a value is unknown."""
    return "" if part is None or not whole else f"{100 * part / whole:.0f} %"


def outlier_metrics(book: MachineMetrics) -> dict[Place, list[str]]:
    """Return the GPUs and machines that differ strongly from the rest of the pool, with the names of the metrics that
    differ. If several nodes share a machine, only the first of them counts, because all measure the same machine.
    """
    alone = set({machine.boot or node: node for node, machine in reversed(book.nodes.items())}.values())
    found: dict[Place, list[str]] = {}
    for name in OUTLIER_METRICS:
        latest = book.latest(name).items()
        values = {(node, gpu): value for (node, gpu), value in latest if gpu is not None or node in alone}
        for place in find_outliers(values, _OUTLIER_DISTANCES[name]):
            found.setdefault(place, []).append(name)
    return found


def usage_summary(book: MachineMetrics) -> str:
    """Return the current use of all machines together, such as ``cpu 86 %  memory 7 % of 24 GiB  net 4.1 MB/s``. Nodes
    on the same machine count once."""
    machines = {machine.boot or str(node): machine for node, machine in book.nodes.items()}.values()
    hosts = [machine.host.latest for machine in machines if machine.host.seen]
    gpus = [track.latest for machine in machines for track in machine.gpus if track.seen]
    parts: list[str] = []
    for latest, label, use, used, total in (
        (gpus, "gpu", "util", "mem_used", "mem_total"), (hosts, "cpu", "cpu", "memory_used", "memory_total")
    ):  # fmt: skip
        values = [each[use] for each in latest if use in each]
        if values:
            parts.append(f"{label} {sum(values) / len(values):.0f} %")
        held, whole = (sum(each.get(name, 0.0) for each in latest) for name in (used, total))
        if whole:
            parts.append(f"memory {share(held, whole)} of {whole / 2**30:,.0f} GiB")
    if hosts:
        traffic = sum(each.get("net_in", 0.0) + each.get("net_out", 0.0) for each in hosts)
        parts.append(f"net {quantity(traffic, 'B/s')}")
    return "  ".join(parts)


def problem_text(figures: Mapping[str, float], odd: Collection[str] = ()) -> str:
    """Return a text about the problems of a GPU or node, the worst first; "" if there are none."""
    used, total = figures.get("mem_used"), figures.get("mem_total")
    found = [
        "lost by the driver" if figures.get("lost") else "",
        f"Xid {figures['xid']:.0f}" if "xid" in figures else "",
        count(int(figures["ecc"]), "ECC error") if figures.get("ecc") else "",
        f"throttling: {describe_throttling(bits)}" if (bits := figures.get("throttle")) else "",
        "memory nearly full" if used is not None and total and used > FULL * total else "",
        f"outlier: {', '.join(odd)}" if odd else "",
    ]
    return "; ".join(filter(None, found))


def metrics_line(last: FailureMetrics) -> str:
    """Describe the metrics of a machine just before a rank on it failed."""
    metrics = ", ".join(last.describe()) or "nothing unusual"
    return f"n{last.node}, {duration(max(0.0, last.failed_at - last.at), precise=True)} earlier: {metrics}"


def rows(book: MachineMetrics, now: float) -> list[tuple[str, ...]]:
    """Return a row for each machine and each of its GPUs, with the columns :data:`HARDWARE_COLUMNS`. Unknown values
    are "".
    """
    odd = outlier_metrics(book)
    found: list[tuple[str, ...]] = []
    for nodes in book.nodes_by_machine(now):
        node, machine = nodes[0], book.nodes[nodes[0]]
        found.append(_node_row(format_ranges(nodes), machine, odd.get((node, None), ()), now))
        for gpu, track in enumerate(machine.gpus if machine.is_fresh(now) else ()):
            figures = track.latest
            found.append(_gpu_row(gpu, figures, problem_text(figures, odd.get((node, gpu), ()))))
    return found


def _node_row(nodes: str, machine: MachineView, odd: Collection[str], now: float) -> tuple[str, ...]:
    if not machine.is_fresh(now):
        return (f"n{nodes}", *[""] * (len(HARDWARE_COLUMNS) - 2), machine.why or "no data")
    figures = machine.host.latest
    show = _formatter(figures)
    disk = sum(figures.get(name, 0.0) for name in ("disk_read", "disk_write"))
    remark = "; ".join(filter(None, (machine.why, problem_text({}, odd))))
    return (
        f"n{nodes}", "", show("cpu", "%"), share(figures.get("memory_used"), figures.get("memory_total")), "", "",
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
    """A metric that the machines panel can show.

    Attributes:
        name: Displayed name.
        metric: Name of the metric.
        whole: The 100 % value, or the name of the metric with that value; None for the maximum over all GPUs so far.
        is_optional: Whether the metric is offered only if a GPU reports it.
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
    # each reason for throttling is a bit, so the metric has no values between 0 and 100
    GpuMetric("throttling (0 or 100)", "throttle", 1.0),
)


def available_metrics(book: MachineMetrics) -> list[int]:
    """Return the metrics that a pool's GPUs report, as indexes of ``GPU_METRICS``."""
    reported = {name for machine in book.nodes.values() for track in machine.gpus for name in track.names}
    return [place for place, each in enumerate(GPU_METRICS) if not each.is_optional or each.metric in reported]


class MetricScale:
    """Common scale of a metric for all GPUs of a pool, defined by a 100 % value.

    A metric without a fixed 100 % value is scaled to its maximum so far. The constructor scans the whole history, and
    :meth:`update` only the latest values.
    """

    def __init__(self, book: MachineMetrics, shown: GpuMetric) -> None:
        self.metric = shown
        self.most = 0.0
        if shown.whole is None:
            tracks = (track for machine in book.nodes.values() for track in machine.gpus)
            self.most = max((track.maximum(shown.metric) for track in tracks), default=0.0)

    def update(self, book: MachineMetrics) -> None:
        """Raise the maximum to the greatest of the latest values."""
        if self.metric.whole is None:
            tracks = (track for machine in book.nodes.values() for track in machine.gpus)
            self.most = max(self.most, 0.0, *(track.latest.get(self.metric.metric, 0.0) for track in tracks))

    @property
    def label(self) -> str:
        """Name of the metric; if the 100 % value is not fixed, with this value."""
        name, figure, whole, _ = self.metric
        if whole is not None:
            return name
        most = quantity(self.most, GPU_METRIC_DEFINITIONS[figure].unit)
        return f"{name}, % of {most}" if self.most else f"{name}, 0 so far"

    @property
    def whole(self) -> str | float:
        """The 100 % value, or the name of the metric with that value."""
        return (self.most or 1.0) if self.metric.whole is None else self.metric.whole

    def part(self, figures: Mapping[str, float]) -> float | None:
        """Return the value of a GPU as a share of the 100 % value; None if unknown."""
        value, whole = figures.get(self.metric.metric), self.whole
        full = figures.get(whole) if isinstance(whole, str) else whole
        if value is None or not full:
            return None
        return min(1.0, value / full) if self.metric.is_optional else value / full


ANY = MachineRequirements(any_accelerator=True, allocation="cheapest")
# GPUs per machine, and GB per GPU, of the machine that is most common for large trainings
USUAL_COUNT, USUAL_MEMORY = 8, 80.0
_SLACK = 2.0  # GB by which a GPU's memory may differ from its nominal size


class OfferRow(NamedTuple):
    """Row of the accelerator picker.

    Attributes:
        accelerator: The accelerator for the launch, such as ``A100-80GB:8``.
        label: Displayed text.
        search_text: Text for the search, in lower case.
        is_usual: Whether the machine has eight GPUs of 80 GB, the most common machine for large trainings.
    """

    accelerator: str
    label: str
    search_text: str
    is_usual: bool

    def matches(self, typed: str) -> bool:
        """Check whether the row contains each word of the text that the user has typed."""
        return all(word in self.search_text for word in typed.casefold().split())


def offer_rows(offers: Sequence[Offer]) -> list[OfferRow]:
    """Return the rows for offers, sorted by the lower of on-demand and spot price."""
    return [_row(markets) for markets in offers_by_place(matching_offers(offers, ANY))]


def offers_by_place(offers: Iterable[Offer]) -> list[dict[str, Offer]]:
    """Group offers by machine type and place. Each group maps the market ("on-demand" or "spot") to its offer; groups
    are in the order of their first offers.
    """
    places: dict[tuple[str, str, str, str], dict[str, Offer]] = {}
    for each in offers:
        places.setdefault((each.provider, each.instance_type, each.region, each.zone), {})[each.market] = each
    return list(places.values())


def _row(markets: dict[str, Offer]) -> OfferRow:
    best = next(iter(markets.values()))
    memory = f"{best.memory_each_gb:.0f}"
    on_demand, spot = (offer_price(markets.get(market)) for market in ("on-demand", "spot"))
    where = sanitize_line(best.zone or best.region)
    name, kind = sanitize_line(best.accelerator), sanitize_line(best.instance_type)
    amount = f"{best.count:>3} × {memory:>3} GB"
    prices = f"{fit_width(on_demand, -9)} {fit_width(spot, -9)}"
    label = f"{fit_width(name, 12)} {amount}  {prices}  {fit_width(where, 12)} {kind}"
    words = f"{name} {best.count}x{memory}gb {best.count}x {memory}gb {memory} gb {where} {kind} {best.provider}"
    usual = best.count == USUAL_COUNT and abs(best.memory_each_gb - USUAL_MEMORY) <= _SLACK
    return OfferRow(_accelerator_request(best), label, words.casefold(), usual)


OFFERS_HEAD = f"{'':26}  {'ON DEMAND':>9} {'SPOT':>9}  {'ZONE':12} TYPE"


def _accelerator_request(offer: Offer) -> str:
    """Return the accelerator of an offer as a launch option. Includes the memory if the accelerator has several
    variants."""
    try:
        several = len(accelerators.find(offer.accelerator).variants) > 1
        memory = round(offer.memory_each_gb) if several else None
        return str(Accelerator(offer.accelerator, offer.count, memory))
    except UsageError:  # the catalogue does not list the accelerator, or not with this memory
        return f"{offer.accelerator}:{offer.count}"


def offer_price(offer: Offer | None) -> str:
    """Format the hourly price of an offer; "–" without an offer."""
    if offer is None:
        return "–"
    price = offer.billed_hourly
    return "$?/h" if price is None else f"{money(price)}/h"
