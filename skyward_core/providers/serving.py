"""Which provider serves where a script names one that is overridden, or is had under another name, and what goes
unheeded then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..model.errors import UsageError
from ..model.spec import Spec
from ..store import home
from . import by_name
from .elsewhere.stand_in import StandIn
from .making import make

CHOICES = (
    "vcpus", "memory_gb", "disk_gb", "architecture", "region", "max_hourly_cost", "allocation"
)  # fmt: skip


def serving(ways: Sequence[Spec], override: str | None) -> tuple[list[Spec], list[str]]:
    """The ways in which a pool's machines are really to be had, of those that were asked for; and what is to be said
    of that.

    Args:
        ways: as they were asked for, one at least.
        override: name of the provider that is to serve whatever was asked for; None for none.

    Raises:
        UsageError: none of the ways is to be had here; says what to do.
    """
    nothing: dict[str, Any] = dict.fromkeys(CHOICES)
    named = [_called(each.provider) for each in ways]
    if override is not None:
        first = ways[0]
        stand_ins = [each for each in named if isinstance(each, StandIn)]
        asked = " or ".join(dict.fromkeys(_spelled(each) for each in named if each is not None))
        lost = _unheeded(ways, stand_ins)
        notes = [f"--provider {override} in place of {asked or 'its own'}{lost}"] if stand_ins or lost else []
        provider: Any = override
        if home.provider_settings:
            provider = make(by_name(override), home.provider_settings)
        return [Spec(provider=provider, accelerator=first.accelerator, nodes=first.nodes)], notes
    served: list[Spec] = []
    notes, refusals = [], []
    for way, provider in zip(ways, named, strict=True):
        if not isinstance(provider, StandIn):
            served.append(way)
            continue
        try:
            instead = provider.served()
        except UsageError as error:
            refusals.append(error)
            notes.append(f"sky.{provider!r} is left out: machines of {provider.called} are not rented here")
            continue
        notes.append(f"{instead!r} serves for sky.{provider!r}{_unheeded([way], [provider])}")
        served.append(replace(way, provider=instead, **nothing))
    if not served:
        raise refusals[0]
    return served, notes


def _called(provider: Any) -> Any:
    """A provider, made where only its class was named."""
    return provider() if isinstance(provider, type) and issubclass(provider, StandIn) else provider


def _spelled(provider: Any) -> str:
    if isinstance(provider, StandIn):
        return f"sky.{provider!r}"
    if isinstance(provider, str):
        return provider
    return f"sky.{(provider if isinstance(provider, type) else type(provider)).__name__}"


def _unheeded(ways: Sequence[Spec], stand_ins: Sequence[StandIn]) -> str:
    """What was said of machines that nobody heeds."""
    given = [name for each in stand_ins for name in each.parameters]
    chosen = [name for name in CHOICES if any(getattr(way, name) is not None for way in ways)]
    names = list(dict.fromkeys([*given, *chosen]))
    return f": {', '.join(names)} {'goes' if len(names) == 1 else 'go'} unheeded" if names else ""
