"""The pool that is asked for: what was said of it, and what holds where nothing was."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..model.capabilities import Offers, RunsHere, TakesGpus, default_nodes
from ..model.errors import SpecError, UsageError
from ..model.node_range import Nodes
from ..model.spec import Image, Options, PoolSpec, Spec, Worker, made_up_name
from ..model.wrong_field import of_field
from ..plugins.base import check_plugins
from . import resolve


def pool_spec(
    script: str,
    *specs: Spec,
    name: str | None = None,
    nodes: int | Nodes | str | None = None,
    image: Image | None = None,
    plugins: Sequence[Any] = (),
    worker: Worker | None = None,
    options: Options | None = None,
    selection: str | None = None,
    allocation: str | None = None,
    ttl: float | None = None,
    **machines: Any,
) -> PoolSpec:
    """All that a pool is asked for.

    Args:
        script: what wants the pool, which is called after it where it has no name.
        specs: ways to have its machines.
        machines: the other fields of the only one, where there is none of these.

    The others are those of ``sky.Compute``.

    Raises:
        SkywardError: a value makes no sense; says of which field.
    """
    ways = [_made(each, allocation) for each in ways_of(specs, machines)]
    options = options or Options()
    selection = _once("selection", selection, options.selection)
    worker = _once("worker", worker, options.worker)
    image = _once("image", image, *(each.image for each in ways))
    plugins = _once("plugins", tuple(plugins) or None, *(each.plugins or None for each in ways)) or ()
    ttl = _once("ttl", ttl, *(each.ttl for each in ways), options.ttl)
    options = replace(options, selection=None, worker=None, ttl=ttl or None)
    with of_field("plugins"):
        check_plugins(plugins)
    said_nodes = (each.nodes for each in (*ways, Spec(nodes=nodes)))
    counts = {each for each in said_nodes if each is not None}
    if len(counts) > 1:
        raise SpecError("all specs of a pool have as many, and these differ", "nodes")
    provider, accelerator, wish = _had(ways, selection)
    if not counts:
        counts = {default_nodes(provider)}
    worker = _counted(worker or Worker(), provider, accelerator, ways[0].vcpus)
    if isinstance(provider, TakesGpus) and provider.rank_per_gpu and worker.ranks_per_node == 1:
        worker = replace(worker, ranks_per_node="gpu")
    return PoolSpec(
        name=name or made_up_name(script),
        provider=provider,
        nodes=next(iter(counts)),  # type: ignore[arg-type]  # text is none any more
        accelerator=accelerator,
        wish=wish,
        image=image or Image(),
        plugins=tuple(plugins),
        worker=worker,
        options=options,
    )


def check_kinds(specs: Sequence[Any], options: Any) -> None:
    """See whether what is looked into before it is checked as a whole is of its kind.

    Raises:
        UsageError: it is not; says how it is written.
    """
    for each in specs:
        if not isinstance(each, Spec):
            name = (
                "name"
                if isinstance(each, str)
                else "provider"
                if hasattr(each, "name") or hasattr(each, "called")
                else ""
            )
            how = f": sky.Compute({name}=...)" if name else ""
            raise UsageError(
                f"sky.Compute takes sky.Spec(...) values by position, all else by name{how} (got {each!r:.60})"
            )
    if not isinstance(options, Options | None):
        raise SpecError(f"should be sky.Options(...) (got {type(options).__name__})", "options")


def ways_of(specs: Sequence[Spec], machines: Mapping[str, Any]) -> Sequence[Spec]:
    """The ways to have a pool's machines.

    Args:
        specs: as they were given.
        machines: the fields of the only one, where there is none of these.

    Raises:
        UsageError: both say it.
    """
    if specs and (said := [name for name, value in machines.items() if value is not None]):
        raise UsageError(f"{' and '.join(said)} beside a Spec: each Spec says that itself")
    return specs or (Spec(**machines),)


def _once(name: str, *said: Any) -> Any:
    """What was said of one thing in several places; None where nothing was.

    Raises:
        SpecError: it was not the same everywhere.
    """
    values = [each for each in said if each is not None]
    if any(each != values[0] for each in values[1:]):
        raise SpecError(
            f"is said twice, and differs: {' and '.join(f'{each!r:.60}' for each in values)}", name
        )
    return values[0] if values else None


def _counted(worker: Any, provider: Any, accelerator: Any, vcpus: float | None) -> Any:
    """A worker whose concurrency is a number: see :class:`Worker`.

    Raises:
        SpecError: it is "auto", and nothing says how many.
    """
    if not isinstance(worker, Worker) or worker.concurrency != "auto":
        return worker  # what is no worker is refused with all else that is wrong
    if accelerator is not None:
        number = accelerator.slices
    elif vcpus is not None:
        number = int(vcpus)
    elif isinstance(provider, RunsHere):
        number = os.cpu_count() or 1
    else:
        raise SpecError(
            f'"auto" goes by accelerator= or vcpus=, and {provider.name} is asked for without: say how many',
            "concurrency",
        )
    return replace(worker, concurrency=max(1, int(number)))


def _made(spec: Spec, allocation: str | None) -> Spec:
    """A spec with its provider and its accelerator made."""
    if not isinstance(spec, Spec):
        raise UsageError(f"ways to have machines are written sky.Spec(...), not {spec!r:.60}")
    with of_field("provider"):
        provider = resolve(spec.provider)
    accelerator = spec.accelerator
    # What only some pools need is imported for these alone: somebody waits for the start.
    if accelerator is not None:
        from ..model import accelerators

        with of_field("accelerator"):
            accelerator = accelerators.resolve(accelerator)
            if accelerator is not None and accelerator.part < 1 and isinstance(provider, Offers):
                raise UsageError(
                    f"{provider.name} rents accelerators whole, and {accelerator} is a part of one: say count=1"
                )
    return replace(spec, provider=provider, accelerator=accelerator, allocation=spec.allocation or allocation)


def _had(ways: Sequence[Spec], selection: str | None) -> tuple[Any, Any, Any]:
    """The provider that has the machines in one of these ways, their accelerator, and what else is wished."""
    chosen = selection is not None or len(ways) > 1 or any(each.chooses for each in ways)
    if not chosen:
        return ways[0].provider, ways[0].accelerator, None
    from .choosing import chosen_among

    return chosen_among(ways, selection)
