"""What a script may give for a provider, an accelerator or a plugin, for type checkers: loaded by none who runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from skyward_core.model.accelerators import Accelerator, Factory
from skyward_core.model.machines import Check, Machine
from skyward_core.model.provider_capabilities import ServedByAnother


class HasMachines(Protocol):
    """What tells a provider from other values; ``providers.base.Provider`` is all that one has to have."""

    async def create(self, spec: Any, token: str) -> list[Machine]: ...

    async def check(self) -> list[Check]: ...

    def to_json(self) -> dict[str, Any]: ...


class HasHooks(Protocol):
    """What tells a plugin from other values; ``plugins.Plugin`` is its base."""

    def secrets(self) -> Sequence[str]: ...

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]: ...

    def around_process(self, info: Any) -> AbstractContextManager[object]: ...


ProviderLike: TypeAlias = HasMachines | ServedByAnother | type[HasMachines] | type[ServedByAnother] | str
"""A provider, its class where that needs no parameters, or its name."""

AcceleratorLike: TypeAlias = Accelerator | Factory | Callable[[], Accelerator] | str
"""Accelerators, their uncalled factory for one of them, or text such as "A100:8"."""
