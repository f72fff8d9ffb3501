"""Choice of free GPUs on shared hosts for the nodes of a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import NoCapacity, PoolError, UsageError, error_message
from skyward_core.model.machines import GpuUse
from skyward_core.providers.provider import contains_words, split_words
from skyward_core.providers.provider_calls import AnswerCache
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.model.accelerators import Accelerator
    from skyward_core.model.specs import PoolSpec
    from skyward_core.protocol.frame_types import LookDone
    from skyward_core.transport.ssh.ssh_transport import SSHTransport

GPU_CACHE = AnswerCache()
MEMORY_TOLERANCE = 0.9  # of what the maker counts, at least, is what a driver counts


@value
class HostGpuUsage(Value):
    """What a look at a host has told.

    Attributes:
        host: as the person calls it.
        gpus: each that our user may use there.
        why: why none could be looked at, in words; "" where they could.
        reached: whether the host answered at all.
    """

    host: str
    gpus: Sequence[GpuUse]
    why: str
    reached: bool


async def inspect_host(transport: SSHTransport, host: str) -> HostGpuUsage:
    """Look at a host, and leave nothing there."""
    from skyward_core.transport.ssh.ssh_transport import lend_bundle, open_inspection_channel

    try:
        channel = await open_inspection_channel(transport)
        try:
            if not channel.facts["nvml"]:
                return HostGpuUsage(host, (), "there is no NVIDIA driver", True)
            await lend_bundle(channel)
            told: LookDone = await channel.ask("look")
        finally:
            channel.close()
    except (PoolError, UsageError, OSError) as error:
        return HostGpuUsage(host, (), error_message(error).rstrip("."), False)
    return HostGpuUsage(host, tuple(map(GpuUse.from_json, told["uses"])), sanitize_line(told["why"]), True)


def gpus_per_node(spec: PoolSpec) -> int | None:
    """How many free GPUs each node takes; None for all that there are.

    Raises:
        UsageError: they cannot be shared out among its ranks.
    """
    ranks, accelerator = spec.worker.ranks_per_node, spec.needs.accelerator
    if accelerator is None:
        return ranks if isinstance(ranks, int) else None
    count = accelerator.count
    if isinstance(ranks, int) and count % ranks:
        raise UsageError(
            f"{count} GPUs on each node, as accelerator={str(accelerator)!r} says, cannot be shared out among "
            f"{ranks} ranks: leave ranks_per_node out for a rank on each of them"
        )
    return count


def matching_gpus(gpus: Sequence[GpuUse], accelerator: Accelerator | None) -> list[GpuUse]:
    """Those that are of a kind, as far as a driver's name of one tells."""
    if accelerator is None:
        return list(gpus)
    names = [split_words(name) for name in (accelerator.name, *accelerator.entry.aliases)]
    return [
        gpu
        for gpu in gpus
        if any(contains_words(split_words(gpu.model), name) for name in names)
        and (accelerator.mig is None or accelerator.mig in gpu.model.lower())
        and (
            accelerator.memory_gb is None
            or accelerator.mig is not None
            or (gpu.total or 0) >= MEMORY_TOLERANCE * accelerator.memory_gb * 1e9
        )
    ]


def choose_hosts(looks: Sequence[HostGpuUsage], spec: PoolSpec) -> dict[str, dict[str, Any]]:
    """The hosts that a pool has, and of each what its node takes, as ``free_gpus`` of an agent's config has it.

    Hosts come in their order, those with too few free GPUs left out. All nodes take as many: the fewest that one of
    them has, where the pool does not say how many.

    Raises:
        NoCapacity: too few hosts have enough; says of each who has its GPUs.
        UsageError: as :func:`wanted`.
    """
    count, accelerator = gpus_per_node(spec), spec.needs.accelerator
    free = {look.host: [gpu.id for gpu in matching_gpus(look.gpus, accelerator) if gpu.is_free] for look in looks}
    hosts = [host for host, devices in free.items() if len(devices) >= (count or 1)]
    if len(hosts) < spec.least_nodes:
        raise NoCapacity(_shortage_message(looks, spec, count or 1, len(hosts)))
    hosts = hosts[: spec.most_nodes]
    each = count or min(len(free[host]) for host in hosts)
    kind = "" if accelerator is None else str(accelerator)
    return {host: {"of": free[host], "count": each, "accelerator": kind} for host in hosts}


def free_gpus(look: HostGpuUsage, take: Mapping[str, Any]) -> tuple[list[str], str]:
    """The free GPUs of a host that are as those that a node takes; and why it cannot take them there, or ""."""
    accelerator = None
    if take["accelerator"]:
        from skyward_core.model.accelerators import resolve

        accelerator = resolve(take["accelerator"])
    devices = [gpu.id for gpu in matching_gpus(look.gpus, accelerator) if gpu.is_free]
    enough = len(devices) >= take["count"]
    return devices, "" if enough else f"{take['count']} free GPUs are needed: {_describe_gpus(look)}"


def _shortage_message(looks: Sequence[HostGpuUsage], spec: PoolSpec, count: int, there: int) -> str:
    kind = "GPU" if (accelerator := spec.needs.accelerator) is None else accelerator.name
    many = f"{count} free {kind}{'s' if count > 1 else ''}"
    nodes = f"{spec.least_nodes} node{'s' if spec.least_nodes > 1 else ''} with {many}"
    has = f"only {there} of {len(looks)} hosts {'has' if there == 1 else 'have'}" if there else "no host has"
    return (
        f"{nodes}{' each' if spec.least_nodes > 1 else ''} {'are' if spec.least_nodes > 1 else 'is'} needed, and "
        f"{has} that: {'; '.join(_describe_gpus(look) for look in looks)}"
    )


def _describe_gpus(look: HostGpuUsage) -> str:
    if look.why or not look.gpus:
        return f"{look.host}: {look.why or 'no GPU'}"
    return f"{look.host}: {', '.join(map(str, look.gpus))}"


def describe_choice(looks: Sequence[HostGpuUsage], takes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What each host's node takes, and who has the other GPUs; why a host is left out."""
    return [
        _describe_taken(look, takes[look.host]) if look.host in takes else f"left out: {_describe_gpus(look)}"
        for look in looks
    ]


def _describe_taken(look: HostGpuUsage, take: Mapping[str, Any]) -> str:
    free = [gpu for gpu in look.gpus if gpu.id in take["of"]]
    mine = free[: take["count"]]
    others = [str(gpu) for gpu in look.gpus if not gpu.is_free]
    named = f"{', '.join(sanitize_line(gpu.number) for gpu in mine)}: {sanitize_line(mine[0].model)}"
    says = f"{look.host}: takes {len(mine)} of {len(look.gpus)} GPUs ({named})"
    return "; ".join([says, *others])
