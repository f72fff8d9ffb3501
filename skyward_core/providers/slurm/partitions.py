"""What a cluster's partitions have, as offers: by the word of sinfo, without prices, which Slurm does not tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...model.errors import UsageError
from ...model.offer import Offer, Wish, in_order, nearest
from . import texts
from .texts import Partition


def refuse(wish: Wish) -> None:
    """Refuse what a wish asks that Slurm cannot be told.

    Raises:
        UsageError: it does; says what to say in its place.
    """
    if wish.regions or wish.zones:
        raise UsageError("Slurm has partitions, and neither regions nor zones: say partition=")
    if wish.max_hourly is not None:
        raise UsageError("Slurm tells no prices: leave the highest price out")
    if wish.allocation == "spot":
        raise UsageError("Slurm has no spot machines: say the partition or qos whose jobs can be preempted")
    if wish.architecture or wish.efa:
        raise UsageError("Slurm does not tell architectures and networks of nodes: say constraint=")


def offers(there: Iterable[Partition], wish: Wish, provider: str) -> list[Offer]:
    """What can be had for a wish, each kind of node of each partition once.

    A job takes of a node what it asks for: the GPUs are as many as are wished, where the node has so many.

    Args:
        there: as sinfo tells it; partitions that are down are none.
        provider: its name.
    """
    found: dict[tuple[str, str], Offer] = {}
    for each in there:
        if each.is_up:
            for kind, accelerator, count in _gpus(each, wish):
                offer = _offer(each, kind, accelerator, count, wish, provider)
                found.setdefault((offer.region, offer.instance_type), offer)
    return list(found.values())


def fitting(found: list[Offer], wish: Wish) -> list[Offer]:
    """Those that do, in their order.

    Raises:
        UsageError: none does; says what comes nearest.
    """
    order = in_order(found, wish)
    if not order:
        near = "; ".join(nearest(found, wish))
        raise UsageError(f"Slurm has no node for that{f': {near}' if near else ''}")
    return order


def _gpus(there: Partition, wish: Wish) -> Iterator[tuple[str, str, int]]:
    """Type, name and number of the GPUs that a job may take of a node, for a wish."""
    wanted = wish.accelerator
    if wanted is None:
        if not wish.any_accelerator:
            yield "", "", 0
        for kind, count in there.gpus if wish.any_accelerator else ():
            yield kind, kind or "GPU", count
        return
    fit = texts.gpu_type(wanted.name, wanted.memory_gb, [kind for kind, _ in there.gpus])
    for kind, count in there.gpus:
        if kind in fit:
            yield kind, wanted.name, min(count, wanted.count)


def _offer(there: Partition, kind: str, accelerator: str, count: int, wish: Wish, provider: str) -> Offer:
    gpus = f"-{count}x{kind or 'gpu'}" if count else ""
    wanted = wish.accelerator
    return Offer(
        provider=provider,
        instance_type=f"{there.cpus}cpu-{there.memory_gb:g}gb{gpus}",
        region=there.name,
        accelerator=accelerator,
        count=count,
        memory_each_gb=(wanted and wanted.memory_gb) or 0.0,
        vcpus=there.cpus,
        memory_gb=there.memory_gb,
    )
