"""Choice of free GPUs on shared hosts for the nodes of a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import Hint, NoCapacity, PoolError, UsageError, error_hint, error_message
from skyward_core.model.machines_checks_and_gpu_use import GpuUse
from skyward_core.providers.provider import contains_words, split_words
from skyward_core.providers.provider_call_logs_polling_and_cache import AnswerCache
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.model.accelerators import Accelerator
    from skyward_core.model.specs import PoolSpec
    from skyward_core.protocol.frame_types import LookDone
    from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport

GPU_CACHE = AnswerCache()
# smallest accepted ratio of the memory that the driver reports to the accelerator's nominal memory
MEMORY_TOLERANCE = 0.9


@value
class HostGpuUsage(Value):
    """GPU usage of one host.

    Attributes:
        host: Host as written by the user.
        gpus: GPUs that the login user may use.
        why: Why the GPUs could not be inspected; "" if they were inspected.
        reached: Whether the host answered.
        hint: Advice about ``why``.
    """

    host: str
    gpus: Sequence[GpuUse]
    why: str
    reached: bool
    hint: Hint | None = None


async def inspect_host(transport: SSHTransport, host: str) -> HostGpuUsage:
    """Return the GPU usage of a host; leaves nothing on the host."""
    from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import lend_bundle, open_inspection_channel

    try:
        with closing(await open_inspection_channel(transport)) as channel:
            if not channel.facts["nvml"]:
                return HostGpuUsage(host, (), "there is no NVIDIA driver", True)
            await lend_bundle(channel)
            answer: LookDone = await channel.ask("look")
    except (PoolError, UsageError, OSError) as error:
        return HostGpuUsage(host, (), error_message(error).rstrip("."), False, error_hint(error))
    return HostGpuUsage(host, tuple(map(GpuUse.from_json, answer["uses"])), sanitize_line(answer["why"]), True)


def gpus_per_node(spec: PoolSpec) -> int | None:
    """Return the number of free GPUs that each node uses; None for all free GPUs.

    Raises:
        UsageError: If the GPUs of a node cannot be divided evenly among its ranks.
    """
    ranks, accelerator = spec.worker.ranks_per_node, spec.needs.accelerator
    if accelerator is None:
        return ranks if isinstance(ranks, int) else None
    count = accelerator.count
    if isinstance(ranks, int) and count % ranks:
        raise UsageError(
            f"{count} GPUs per node (accelerator={str(accelerator)!r}) cannot be divided among {ranks} ranks: "
            "remove ranks_per_node for one rank per GPU"
        )
    return count


def matching_gpus(gpus: Sequence[GpuUse], accelerator: Accelerator | None) -> list[GpuUse]:
    """Return the GPUs of the requested model, judged by the model name that the driver reports."""
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
    """Choose the hosts of a pool.

    Returns:
        The ``free_gpus`` value of the agent's config, by host. Hosts keep their order; hosts with too few free GPUs are
        omitted. All nodes use the same number of GPUs: the requested number, or the smallest number of free GPUs that
        any host has.

    Raises:
        NoCapacity: If too few hosts have enough free GPUs. The message lists the users of each host's GPUs.
        UsageError: As :func:`gpus_per_node`.
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
    """Return the free GPUs of a host that match the requirements of a node, and the reason if they are too few, or
    "".
    """
    accelerator = None
    if take["accelerator"]:
        from skyward_core.model.accelerators import resolve

        accelerator = resolve(take["accelerator"])
    devices = [gpu.id for gpu in matching_gpus(look.gpus, accelerator) if gpu.is_free]
    enough = len(devices) >= take["count"]
    return devices, "" if enough else f"{take['count']} free GPUs are needed: {_describe_gpus(look)}"


def _shortage_message(looks: Sequence[HostGpuUsage], spec: PoolSpec, count: int, available: int) -> str:
    kind = "GPU" if (accelerator := spec.needs.accelerator) is None else accelerator.name
    many = f"{count} free {kind}{'s' if count > 1 else ''}"
    nodes = f"{spec.least_nodes} node{'s' if spec.least_nodes > 1 else ''} with {many}"
    has = (
        f"only {available} of {len(looks)} hosts {'has' if available == 1 else 'have'}" if available else "no host has"
    )
    return (
        f"{nodes}{' each' if spec.least_nodes > 1 else ''} {'are' if spec.least_nodes > 1 else 'is'} needed, and "
        f"{has} them: {'; '.join(_describe_gpus(look) for look in looks)}"
    )


def _describe_gpus(look: HostGpuUsage) -> str:
    if look.why or not look.gpus:
        return f"{look.host}: {look.why or 'no GPU'}"
    return f"{look.host}: {', '.join(map(str, look.gpus))}"


def describe_choice(looks: Sequence[HostGpuUsage], takes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describe the GPUs that each host's node uses, the users of the other GPUs, and why a host is skipped."""
    return [
        _describe_taken(look, takes[look.host]) if look.host in takes else f"skipped: {_describe_gpus(look)}"
        for look in looks
    ]


def _describe_taken(look: HostGpuUsage, take: Mapping[str, Any]) -> str:
    mine = [gpu for gpu in look.gpus if gpu.id in take["of"]][: take["count"]]
    others = [str(gpu) for gpu in look.gpus if not gpu.is_free]
    named = f"{', '.join(sanitize_line(gpu.number) for gpu in mine)}: {sanitize_line(mine[0].model)}"
    return "; ".join([f"{look.host}: uses {len(mine)} of {len(look.gpus)} GPUs ({named})", *others])
