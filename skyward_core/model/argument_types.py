"""Types of arguments for providers, accelerators and plugins. Only type checkers load this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from skyward_core.model.accelerators import Accelerator, Factory
from skyward_core.model.machines import Check, Machine
from skyward_core.model.provider_capability_protocols import ServedByAnother


class HasMachines(Protocol):
    """Minimal interface that distinguishes a provider from other values; ``providers.base.Provider`` is complete."""

    async def create(self, spec: Any, token: str) -> list[Machine]: ...

    async def check(self) -> list[Check]: ...

    def to_json(self) -> dict[str, Any]: ...


class HasHooks(Protocol):
    """Minimal interface that distinguishes a plugin from other values; ``plugins.Plugin`` is the base class."""

    def secrets(self) -> Sequence[str]: ...

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]: ...

    def around_process(self, info: Any) -> AbstractContextManager[object]: ...


ProviderLike: TypeAlias = HasMachines | ServedByAnother | type[HasMachines] | type[ServedByAnother] | str
"""A provider, a provider class that needs no parameters, or a provider's name."""

AcceleratorLike: TypeAlias = Accelerator | Factory | Callable[[], Accelerator] | str
"""An accelerator, an uncalled factory for one accelerator per node, or text such as "A100:8"."""
