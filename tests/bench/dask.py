"""10,000 small tasks by ``compute.map`` on a pool with the plugin dask, against as many processes of bare Dask."""

from __future__ import annotations

from typing import Any

from . import work
from .fresh import in_turn
from .metric import Bar, Metric
from .peers import dask_local

RANKS, TASKS = 4, 10_000


def measure() -> list[Metric]:
    ours, theirs = in_turn(1, "dask:ours", "dask:bare")
    return [Metric("map_per_s", TASKS / ours, TASKS / theirs, Bar(ratio_at_least=0.8))]


def bare() -> float:
    """Seconds of a map of Dask's own client."""
    with dask_local(RANKS) as client:
        identity = work.identity()
        client.gather(client.map(identity, range(100), pure=False))

        def mapped() -> None:
            _expect(client.gather(client.map(identity, range(TASKS), pure=False)))

        return work.best_s(mapped, rounds=2)


def ours() -> float:
    """Seconds of the same by the pool's map."""
    import skyward_core as sky

    plugins, options = [sky.plugins.dask(dashboard=False)], sky.Options(console=False)
    with sky.Compute(provider=sky.Local(), nodes=RANKS, plugins=plugins, options=options) as compute:
        identity = sky.function(work.identity())
        list(compute.map(identity, range(100)))
        return work.best_s(lambda: _expect(list(compute.map(identity, range(TASKS)))), rounds=2)


def _expect(found: list[Any]) -> None:
    if found != list(range(TASKS)):
        raise RuntimeError("the measured work went wrong")
