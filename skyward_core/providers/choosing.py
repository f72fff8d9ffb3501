"""Machines that somebody chooses: by their size, their place, their price, or among several providers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from ..model.capabilities import Offers, SizesDisk
from ..model.errors import SpecError, UsageError
from ..model.offer import Allocation, Selection, Wish
from ..model.spec import Spec
from ..model.wrong_field import of_field
from .several import Several

SELECTIONS: tuple[Selection, ...] = ("cheapest", "first")


def chosen_among(ways: Sequence[Spec], selection: str | None) -> tuple[Any, Any, Wish | None]:
    """The provider that has machines in one of some ways; the accelerator that all of them have; what else is wished.

    Raises:
        UsageError: a provider cannot choose so.
    """
    select = next((each for each in SELECTIONS if each == (selection or "cheapest")), None)
    if select is None:
        raise SpecError(f"should be 'cheapest' or 'first' (got {selection!r:.60})", "selection")
    for each in ways:
        provider: Any = each.provider  # made, as its accelerator is
        if not isinstance(provider, Offers):
            said = " and ".join(each.chooses) or ("several specs" if len(ways) > 1 else "selection")
            with of_field("provider"):
                raise UsageError(
                    f"provider {provider.name} takes machines as they are, and has no offers to choose from by "
                    f"{said}: leave that out, or name another provider"
                )
    providers = [_placed(each) for each in ways]
    wishes = [_wish(each, select) for each in ways]
    if len(ways) == 1:
        return providers[0], ways[0].accelerator, wishes[0]
    common = {each.accelerator for each in ways}
    return Several(providers, wishes, select), common.pop() if len(common) == 1 else None, None


def _placed(spec: Spec) -> Any:
    """A spec's provider, in its regions, with its disks."""
    provider: Any = spec.provider
    if spec.disk_gb is not None:
        if not isinstance(provider, SizesDisk):
            raise SpecError(f"provider {provider.name} has machines with disks of their own size", "disk_gb")
        provider = provider.with_disk(spec.disk_gb)
    if not spec.region:
        return provider
    with of_field("region"):
        return provider.within(spec.region)


def _wish(spec: Spec, selection: Selection) -> Wish:
    accelerator: Any = spec.accelerator
    return replace(
        Wish(accelerator=accelerator, selection=selection),
        vcpus=int(spec.vcpus or 0),
        memory_gb=spec.memory_gb or 0.0,
        architecture=spec.architecture or "",
        max_hourly=spec.max_hourly_cost,
        allocation=cast("Allocation", spec.allocation or "on-demand"),
    )
