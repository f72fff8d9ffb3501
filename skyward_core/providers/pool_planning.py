"""The pool that a user requests, planned against providers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from skyward_core.model.errors import SpecError, UsageError, set_error_field
from skyward_core.model.provider_capabilities import (
    Foresees,
    Offers,
    Plans,
    RunsHere,
    SizesDisk,
    TakesGpus,
    default_nodes,
)
from skyward_core.model.specs import Image, Nodes, Options, PoolSpec, Spec, Worker, generate_pool_name
from skyward_core.plugins.plugin import check_plugins
from skyward_core.providers import provider_class, resolve_provider
from skyward_core.providers.provider import make_provider
from skyward_core.providers.provider_calls import use_cached_answers
from skyward_core.providers.unsupported_providers import UnsupportedProvider
from skyward_core.store import state_folder
from skyward_core.transport.background_loop import submit

if TYPE_CHECKING:  # offers load the accelerator catalog, which a start over SSH does not need
    from skyward_core.model.offers import Allocation, MachineRequirements, RentalPlan, Selection


def make_pool_spec(
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
    ways = [_resolve_spec(each, allocation) for each in machine_alternatives(specs, machines)]
    options = options or Options()
    selection = _merge_values("selection", selection, options.selection)
    worker = _merge_values("worker", worker, options.worker)
    image = _merge_values("image", image, *(each.image for each in ways))
    plugins = _merge_values("plugins", tuple(plugins) or None, *(each.plugins or None for each in ways)) or ()
    ttl = _merge_values("ttl", ttl, *(each.ttl for each in ways), options.ttl)
    options = replace(options, selection=None, worker=None, ttl=ttl or None)
    with set_error_field("plugins"):
        check_plugins(plugins)
    said_nodes = (each.nodes for each in (*ways, Spec(nodes=nodes)))
    counts = {each for each in said_nodes if each is not None}
    if len(counts) > 1:
        raise SpecError("all specs of a pool have as many, and these differ", "nodes")
    provider, accelerator, requirements = choose_provider(ways, selection)
    if not counts:
        counts = {default_nodes(provider)}
    worker = _resolve_concurrency(worker or Worker(), provider, accelerator, ways[0].vcpus)
    if isinstance(provider, TakesGpus) and provider.rank_per_gpu and worker.ranks_per_node == 1:
        worker = replace(worker, ranks_per_node="gpu")
    return PoolSpec(
        name=name or generate_pool_name(script),
        provider=provider,
        nodes=next(iter(counts)),  # type: ignore[arg-type]  # text is none any more
        accelerator=accelerator,
        wish=requirements,
        image=image or Image(),
        plugins=tuple(plugins),
        worker=worker,
        options=options,
    )


def check_types(specs: Sequence[Any], options: Any) -> None:
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


def machine_alternatives(specs: Sequence[Spec], machines: Mapping[str, Any]) -> Sequence[Spec]:
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


def _merge_values(name: str, *said: Any) -> Any:
    """What was said of one thing in several places; None where nothing was.

    Raises:
        SpecError: it was not the same everywhere.
    """
    values = [each for each in said if each is not None]
    if any(each != values[0] for each in values[1:]):
        raise SpecError(f"is said twice, and differs: {' and '.join(f'{each!r:.60}' for each in values)}", name)
    return values[0] if values else None


def _resolve_concurrency(worker: Any, provider: Any, accelerator: Any, vcpus: float | None) -> Any:
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


def _resolve_spec(spec: Spec, allocation: str | None) -> Spec:
    """A spec with its provider and its accelerator made."""
    if not isinstance(spec, Spec):
        raise UsageError(f"ways to have machines are written sky.Spec(...), not {spec!r:.60}")
    with set_error_field("provider"):
        provider = resolve_provider(spec.provider)
    accelerator = spec.accelerator
    # What only some pools need is imported for these alone: somebody waits for the start.
    if accelerator is not None:
        from skyward_core.model import accelerators

        with set_error_field("accelerator"):
            accelerator = accelerators.resolve(accelerator)
            if accelerator is not None and accelerator.part < 1 and isinstance(provider, Offers):
                raise UsageError(
                    f"{provider.name} rents accelerators whole, and {accelerator} is a part of one: say count=1"
                )
    return replace(spec, provider=provider, accelerator=accelerator, allocation=spec.allocation or allocation)


SELECTIONS: tuple[Selection, ...] = ("cheapest", "first")


def choose_provider(ways: Sequence[Spec], selection: str | None) -> tuple[Any, Any, MachineRequirements | None]:
    """The provider that has machines in one of some ways; the accelerator that all of them have; what else is wished.

    Raises:
        UsageError: a provider cannot choose so.
    """
    if selection is None and len(ways) == 1 and not ways[0].chooses:
        return ways[0].provider, ways[0].accelerator, None
    select = next((each for each in SELECTIONS if each == (selection or "cheapest")), None)
    if select is None:
        raise SpecError(f"should be 'cheapest' or 'first' (got {selection!r:.60})", "selection")
    for each in ways:
        provider: Any = each.provider  # made, as its accelerator is
        if not isinstance(provider, Offers):
            said = " and ".join(each.chooses) or ("several specs" if len(ways) > 1 else "selection")
            with set_error_field("provider"):
                raise UsageError(
                    f"provider {provider.name} takes machines as they are, and has no offers to choose from by "
                    f"{said}: leave that out, or name another provider"
                )
    providers = [_configured_provider(each) for each in ways]
    wishes = [_machine_request(each, select) for each in ways]
    if len(ways) == 1:
        return providers[0], ways[0].accelerator, wishes[0]
    from skyward_core.providers.first_available_provider import MultiProvider

    common = {each.accelerator for each in ways}
    return MultiProvider(providers, wishes, select), common.pop() if len(common) == 1 else None, None


def _configured_provider(spec: Spec) -> Any:
    """A spec's provider, in its regions, with its disks."""
    provider: Any = spec.provider
    if spec.disk_gb is not None:
        if not isinstance(provider, SizesDisk):
            raise SpecError(f"provider {provider.name} has machines with disks of their own size", "disk_gb")
        provider = provider.with_disk(spec.disk_gb)
    if not spec.region:
        return provider
    with set_error_field("region"):
        return provider.within(spec.region)


def _machine_request(spec: Spec, selection: Selection) -> MachineRequirements:
    from skyward_core.model.offers import MachineRequirements

    accelerator: Any = spec.accelerator
    return replace(
        MachineRequirements(accelerator=accelerator, selection=selection),
        vcpus=int(spec.vcpus or 0),
        memory_gb=spec.memory_gb or 0.0,
        architecture=spec.architecture or "",
        max_hourly=spec.max_hourly_cost,
        allocation=cast("Allocation", spec.allocation or "on-demand"),
    )


def make_plan(spec: PoolSpec, *, may_remember: bool = False) -> RentalPlan:
    """What a pool would rent, in the order in which it is tried; no attempts where it rents nothing.

    Asks the provider, from any thread but that of the pools.

    Args:
        may_remember: whether what the provider said a minute ago will do, as for a form while somebody types.

    Raises:
        UsageError: nothing fits; says what comes nearest.
        PoolError: machines that are there already cannot be had now.
    """
    from skyward_core.model.offers import RentalPlan

    provider = spec.provider
    if not isinstance(provider, Plans | Foresees):
        return RentalPlan(nodes=spec.most_nodes, attempts=())

    async def ask() -> RentalPlan:
        with use_cached_answers() if may_remember else nullcontext():
            if isinstance(provider, Plans):
                return await provider.plan(spec)
            notes = await provider.foresee(spec)
            return RentalPlan(nodes=spec.most_nodes, attempts=(), notes=tuple(notes))

    return submit(ask()).result()


MACHINE_FIELDS = (
    "vcpus", "memory_gb", "disk_gb", "architecture", "region", "max_hourly_cost", "allocation"
)  # fmt: skip


def resolve_alternatives(ways: Sequence[Spec], override: str | None) -> tuple[list[Spec], list[str]]:
    """The ways in which a pool's machines are really to be had, of those that were asked for; and what is to be said
    of that.

    Args:
        ways: as they were asked for, one at least.
        override: name of the provider that is to serve whatever was asked for; None for none.

    Raises:
        UsageError: none of the ways is to be had here; says what to do.
    """
    nothing: dict[str, Any] = dict.fromkeys(MACHINE_FIELDS)
    named = [_instantiate(each.provider) for each in ways]
    if override is not None:
        first = ways[0]
        stand_ins = [each for each in named if isinstance(each, UnsupportedProvider)]
        asked = " or ".join(dict.fromkeys(_provider_text(each) for each in named if each is not None))
        lost = _ignored_fields(ways, stand_ins)
        notes = [f"--provider {override} in place of {asked or 'its own'}{lost}"] if stand_ins or lost else []
        provider: Any = override
        if state_folder.provider_settings:
            provider = make_provider(provider_class(override), state_folder.provider_settings)
        return [Spec(provider=provider, accelerator=first.accelerator, nodes=first.nodes)], notes
    served: list[Spec] = []
    notes, refusals = [], []
    for way, provider in zip(ways, named, strict=True):
        if not isinstance(provider, UnsupportedProvider):
            served.append(way)
            continue
        try:
            instead = provider.served()
        except UsageError as error:
            refusals.append(error)
            notes.append(f"sky.{provider!r} is left out: machines of {provider.called} are not rented here")
            continue
        notes.append(f"{instead!r} serves for sky.{provider!r}{_ignored_fields([way], [provider])}")
        served.append(replace(way, provider=instead, **nothing))
    if not served:
        raise refusals[0]
    return served, notes


def _instantiate(provider: Any) -> Any:
    """A provider, made where only its class was named."""
    return provider() if isinstance(provider, type) and issubclass(provider, UnsupportedProvider) else provider


def _provider_text(provider: Any) -> str:
    if isinstance(provider, UnsupportedProvider):
        return f"sky.{provider!r}"
    if isinstance(provider, str):
        return provider
    return f"sky.{(provider if isinstance(provider, type) else type(provider)).__name__}"


def _ignored_fields(ways: Sequence[Spec], stand_ins: Sequence[UnsupportedProvider]) -> str:
    """What was said of machines that nobody heeds."""
    given = [name for each in stand_ins for name in each.parameters]
    chosen = [name for name in MACHINE_FIELDS if any(getattr(way, name) is not None for way in ways)]
    names = list(dict.fromkeys([*given, *chosen]))
    return f": {', '.join(names)} {'goes' if len(names) == 1 else 'go'} unheeded" if names else ""
