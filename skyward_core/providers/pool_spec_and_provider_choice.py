"""Translation of a user's pool request into a pool specification, a choice of provider and a rental plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from skyward_core import providers
from skyward_core.model import provider_capability_protocols as capabilities
from skyward_core.model.errors import SpecError, UsageError, set_error_field
from skyward_core.model.provider_settings_schema import make_provider
from skyward_core.model.specs import Image, Nodes, Options, PoolSpec, Spec, Worker, generate_pool_name
from skyward_core.plugins.plugin import check_plugins
from skyward_core.providers import provider_class, resolve_provider
from skyward_core.providers.provider_call_logs_polling_and_cache import use_cached_answers
from skyward_core.providers.unsupported_providers import UnsupportedProvider
from skyward_core.transport.background_loop import submit

# only for type checks, because importing offers loads the accelerator catalog, which a pool over SSH does not need
if TYPE_CHECKING:
    from skyward_core.model.offers_and_rental_plans import Allocation, MachineRequirements, RentalPlan, Selection


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
    """Return the specification of a requested pool.

    Args:
        script: Script that requests the pool; names the pool if ``name`` is None.
        specs: Alternative machine specifications.
        machines: Fields of the only machine specification. Used if ``specs`` is empty.
        The other arguments are those of ``sky.Compute``.

    Raises:
        SkywardError: If a value is invalid. The error names the field.
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
    counts = {each.nodes for each in (*ways, Spec(nodes=nodes)) if each.nodes is not None}
    if len(counts) > 1:
        raise SpecError("all Spec values of a pool must have the same number of nodes", "nodes")
    provider, accelerator, requirements = choose_provider(ways, selection)
    if not counts:
        counts = {capabilities.default_nodes(provider)}
    worker = _resolve_concurrency(worker or Worker(), provider, accelerator, ways[0].vcpus)
    if isinstance(provider, capabilities.TakesGpus) and provider.rank_per_gpu and worker.ranks_per_node == 1:
        worker = replace(worker, ranks_per_node="gpu")
    return PoolSpec(
        name=name or generate_pool_name(script),
        provider=provider,
        nodes=next(iter(counts)),  # type: ignore[arg-type]  # Spec has converted texts
        accelerator=accelerator,
        wish=requirements,
        image=image or Image(),
        plugins=tuple(plugins),
        worker=worker,
        options=options,
    )


def check_types(specs: Sequence[Any], options: Any) -> None:
    """Check the types of ``sky.Compute`` arguments that are read before the specification is validated.

    Raises:
        UsageError: If a value has the wrong type. The error shows the correct form.
    """
    for each in specs:
        if not isinstance(each, Spec):
            is_provider = hasattr(each, "name") or hasattr(each, "called")
            name = "name" if isinstance(each, str) else "provider" if is_provider else ""
            how = f": sky.Compute({name}=...)" if name else ""
            raise UsageError(
                f"sky.Compute takes sky.Spec(...) values by position, everything else by name{how} (got {each!r:.60})"
            )
    if not isinstance(options, Options | None):
        raise SpecError(f"should be sky.Options(...) (got {type(options).__name__})", "options")


def machine_alternatives(specs: Sequence[Spec], machines: Mapping[str, Any]) -> Sequence[Spec]:
    """Return the alternative machine specifications of a pool.

    Args:
        specs: The given specifications.
        machines: Fields of the only specification. Used if ``specs`` is empty.

    Raises:
        UsageError: If both are given.
    """
    if specs and (given := [name for name, value in machines.items() if value is not None]):
        raise UsageError(
            f"{' and '.join(given)} cannot be combined with Spec values: move {' and '.join(given)} into each Spec"
        )
    return specs or (Spec(**machines),)


def _merge_values(name: str, *given: Any) -> Any:
    """Return the value of a field that several arguments may give; None if no argument gives a value.

    Raises:
        SpecError: If the values differ.
    """
    values = [each for each in given if each is not None]
    if any(each != values[0] for each in values[1:]):
        raise SpecError(f"different values are given: {' and '.join(f'{each!r:.60}' for each in values)}", name)
    return values[0] if values else None


def _resolve_concurrency(worker: Any, provider: Any, accelerator: Any, vcpus: float | None) -> Any:
    """Return a worker whose concurrency is a number (see :class:`Worker`).

    Raises:
        SpecError: If the concurrency is "auto" and the specification has no accelerator and no number of vCPUs.
    """
    if not isinstance(worker, Worker) or worker.concurrency != "auto":
        return worker  # the validation of the specification later rejects a value of any other type
    if accelerator is not None:
        number = accelerator.slices
    elif vcpus is not None:
        number = int(vcpus)
    elif isinstance(provider, capabilities.RunsHere):
        number = os.cpu_count() or 1
    else:
        raise SpecError(
            f'"auto" requires accelerator= or vcpus= with provider {provider.name}. Set one of them, or pass a number',
            "concurrency",
        )
    return replace(worker, concurrency=max(1, int(number)))


def _resolve_spec(spec: Spec, allocation: str | None) -> Spec:
    """Return a machine specification in which provider and accelerator are instances instead of names."""
    if not isinstance(spec, Spec):
        raise UsageError(f"expected sky.Spec(...), got {spec!r:.60}")
    with set_error_field("provider"):
        provider = resolve_provider(spec.provider)
    accelerator = spec.accelerator
    # Imported late, because few pools need this module and the import would delay the start of all others.
    if accelerator is not None:
        from skyward_core.model import accelerators

        with set_error_field("accelerator"):
            accelerator = accelerators.resolve(accelerator)
            if accelerator is not None and accelerator.part < 1 and isinstance(provider, capabilities.Offers):
                raise UsageError(
                    f"{provider.name} rents whole accelerators, and {accelerator} is a part of one: set count=1"
                )
    return replace(spec, provider=provider, accelerator=accelerator, allocation=spec.allocation or allocation)


SELECTIONS: tuple[Selection, ...] = ("cheapest", "first")


def choose_provider(ways: Sequence[Spec], selection: str | None) -> tuple[Any, Any, MachineRequirements | None]:
    """Choose the provider of a pool.

    Returns:
        The provider, the accelerator if it is the same in all specs, and the other machine requirements, if any.

    Raises:
        UsageError: If a provider cannot select machines by these requirements.
    """
    if selection is None and len(ways) == 1 and not ways[0].chooses:
        return ways[0].provider, ways[0].accelerator, None
    select = next((each for each in SELECTIONS if each == (selection or "cheapest")), None)
    if select is None:
        raise SpecError(f"should be 'cheapest' or 'first' (got {selection!r:.60})", "selection")
    for each in ways:
        provider: Any = each.provider  # after ``_resolve_spec``, the provider is an instance
        if not isinstance(provider, capabilities.Offers):
            fields = " and ".join(each.chooses) or ("several specs" if len(ways) > 1 else "selection")
            with set_error_field("provider"):
                raise UsageError(
                    f"provider {provider.name} has no offers to choose from by {fields}: remove {fields}, "
                    "or choose another provider"
                )
    providers = [_configured_provider(each) for each in ways]
    requirements = [_machine_request(each, select) for each in ways]
    if len(ways) == 1:
        return providers[0], ways[0].accelerator, requirements[0]
    from skyward_core.providers.first_available_provider import MultiProvider

    common = {each.accelerator for each in ways}
    return MultiProvider(providers, requirements, select), common.pop() if len(common) == 1 else None, None


def _configured_provider(spec: Spec) -> Any:
    """Return the provider of a machine specification, restricted to its regions and with its disk size."""
    provider: Any = spec.provider
    if spec.disk_gb is not None:
        if not isinstance(provider, capabilities.SizesDisk):
            raise SpecError(f"provider {provider.name} does not support disk sizes", "disk_gb")
        provider = provider.with_disk(spec.disk_gb)
    if not spec.region:
        return provider
    with set_error_field("region"):
        return provider.within(spec.region)


def _machine_request(spec: Spec, selection: Selection) -> MachineRequirements:
    from skyward_core.model.offers_and_rental_plans import MachineRequirements

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
    """Return what a pool would rent, in the order of attempts; no attempts if the provider rents nothing.

    Queries the provider. Call it from any thread except the background loop's.

    Args:
        may_remember: Whether cached answers of the provider are acceptable, for example while the user edits a form.

    Raises:
        UsageError: If no offer fits. The error names the nearest ones.
        PoolError: If existing machines are not available now.
    """
    from skyward_core.model.offers_and_rental_plans import RentalPlan

    provider = spec.provider
    capabilities.check_host_count(provider, spec.least_nodes)
    if not isinstance(provider, capabilities.Plans | capabilities.Foresees):
        return RentalPlan(nodes=spec.most_nodes, attempts=())

    async def ask() -> RentalPlan:
        with use_cached_answers() if may_remember else nullcontext():
            if isinstance(provider, capabilities.Plans):
                return await provider.plan(spec)
            return RentalPlan(nodes=spec.most_nodes, attempts=(), notes=tuple(await provider.foresee(spec)))

    return submit(ask()).result()


MACHINE_FIELDS = (
    "vcpus", "memory_gb", "disk_gb", "architecture", "region", "max_hourly_cost", "allocation"
)  # fmt: skip


def resolve_alternatives(ways: Sequence[Spec], override: str | None) -> tuple[list[Spec], list[str]]:
    """Return the machine specifications that this library supports, and notes about changes to the requested ones.

    Args:
        ways: The requested specifications, at least one.
        override: Name of the provider that replaces the requested ones; None for no replacement.

    Raises:
        UsageError: If this library supports none of the specifications. The error names alternatives.
    """
    nothing: dict[str, Any] = dict.fromkeys(MACHINE_FIELDS)
    named = [_instantiate(each.provider) for each in ways]
    if override is not None:
        first = ways[0]
        stand_ins = [each for each in named if isinstance(each, UnsupportedProvider)]
        asked = " or ".join(dict.fromkeys(_provider_text(each) for each in named if each is not None))
        lost = _ignored_fields(ways, stand_ins)
        notes = [f"--provider {override} replaces {asked or 'the default'}{lost}"] if stand_ins or lost else []
        provider: Any = override
        if providers.override_settings:
            provider = make_provider(provider_class(override), providers.override_settings)
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
            notes.append(f"sky.{provider!r} is skipped: renting machines of {provider.called} is not supported")
            continue
        notes.append(f"{instead!r} replaces sky.{provider!r}{_ignored_fields([way], [provider])}")
        served.append(replace(way, provider=instead, **nothing))
    if not served:
        raise refusals[0]
    return served, notes


def _instantiate(provider: Any) -> Any:
    """Return an instance of a provider. If the user gave a class, create the instance."""
    return provider() if isinstance(provider, type) and issubclass(provider, UnsupportedProvider) else provider


def _provider_text(provider: Any) -> str:
    if isinstance(provider, UnsupportedProvider):
        return f"sky.{provider!r}"
    if isinstance(provider, str):
        return provider
    return f"sky.{(provider if isinstance(provider, type) else type(provider)).__name__}"


def _ignored_fields(ways: Sequence[Spec], stand_ins: Sequence[UnsupportedProvider]) -> str:
    """Return a note on fields that do not apply, because another provider replaces the requested ones; "" for none."""
    given = [name for each in stand_ins for name in each.parameters]
    chosen = [name for name in MACHINE_FIELDS if any(getattr(way, name) is not None for way in ways)]
    names = list(dict.fromkeys([*given, *chosen]))
    return f" (ignored: {', '.join(names)})" if names else ""
