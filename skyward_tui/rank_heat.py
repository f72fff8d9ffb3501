"""Ranks by a figure in place of their state: which figures there are, what each rank's is, and how warm that is.

A shade says it, and not a colour alone: the more of it is filled, the more there is of the figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from skyward_core.front.charts import names_in_order
from skyward_core.views.machines import Track, filled

from .words import number

if TYPE_CHECKING:
    from skyward_core.views.views import PoolView, RunView

STATE = "state"
SHADES = "░▒▓█"
_USE, _MEMORY = "use %", "memory %"


class Heat(NamedTuple):
    """One rank's figure.

    Attributes:
        shade: one of :data:`SHADES`.
        text: the value.
    """

    shade: str
    text: str


class HeatMap(NamedTuple):
    """All ranks' by one figure.

    Attributes:
        of: by rank; who has no figure is not in it.
        legend: from what to what the shades are.
    """

    of: Mapping[int, Heat]
    legend: str


NOTHING = HeatMap({}, "")


def figures(pool: PoolView, run: RunView | None, now: float) -> list[str]:
    """What ranks can be shown by now, their state first."""
    machines = pool.machines
    fresh = machines is not None and any(each.is_fresh(now) for each in machines.nodes.values())
    names = names_in_order(pool.metrics, run.id)[0] if run is not None else []
    return [STATE, *((_USE, _MEMORY) if fresh else ()), *names]


def heat_map(pool: PoolView, run: RunView | None, figure: str, now: float) -> HeatMap:
    """The ranks by one of :func:`figures`. Shares of a machine are of all of it; numbers that ranks send are from the
    least to the greatest of any of them."""
    if figure in (_USE, _MEMORY):
        values = _of_machines(pool, figure, now)
        low, high, ends = 0.0, 100.0, ("0", "100 %")
    else:
        values = {} if run is None or figure == STATE else pool.metrics.latest_of(run.id, figure)
        finite = [value for value in values.values() if isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
        ends = (number(low), number(high))
    if not values:
        return NOTHING
    percent = " %" if figure in (_USE, _MEMORY) else ""
    of = {
        rank: Heat(_shade(value, low, high), f"{value:.0f}{percent}" if percent else number(value))
        for rank, value in values.items()
    }
    return HeatMap(of, f"{ends[0]} {SHADES} {ends[1]}")


def _shade(value: float, low: float, high: float) -> str:
    if not isfinite(value):
        return "!"
    share = (value - low) / (high - low) if high > low else 0.0
    return SHADES[min(len(SHADES) - 1, int(share * len(SHADES)))]


def _of_machines(pool: PoolView, figure: str, now: float) -> dict[int, float]:
    """Of each rank's GPUs the mean; where there are none, of its node."""
    found: dict[int, float] = {}
    nodes = {} if pool.machines is None else pool.machines.nodes
    for rank in range(pool.world_size):
        machine = nodes.get(pool.node_of(rank))
        if machine is None or not machine.is_fresh(now):
            continue
        tracks = _gpus_of(rank % pool.ranks_per_node, pool.ranks_per_node, machine.gpus) or [machine.host]
        values = [value for track in tracks if (value := _value(track, figure)) is not None]
        if values:
            found[rank] = sum(values) / len(values)
    return found


def _gpus_of(local: int, ranks: int, gpus: Sequence[Track]) -> Sequence[Track]:
    """Those that a rank has, where they can be shared out evenly; else all of its node."""
    each, left = divmod(len(gpus), ranks)
    return gpus[local * each : (local + 1) * each] if each and not left else gpus


def _value(track: Track, figure: str) -> float | None:
    if figure == _MEMORY:
        return 100 * filled(track.latest) or None
    return track.latest.get("util", track.latest.get("cpu"))
