"""JAX's distributed runtime where we know who takes part, and code that initialises it itself comes behind.

``jax.distributed.initialize()`` finds out by itself who takes part on clusters that JAX knows. A pool is none of these,
so it is told there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import used_up
from .info import InstanceInfo

MODULE = "jax.distributed"
PLACE = ("coordinator_address", "num_processes", "process_id")

_shared = False


def place_of(info: InstanceInfo, port: int) -> dict[str, Any]:
    """What ``jax.distributed.initialize()`` has to be told.

    Args:
        info: the rank's place.
        port: of the head node, at which rank 0 listens.
    """
    address = f"{info.head_addr}:{port}"
    return {
        "coordinator_address": address,
        "num_processes": info.world_size,
        "process_id": info.rank,
        "cluster_detection_method": "deactivate",
        "coordinator_bind_address": address,
    }


def configure() -> None:
    """Set what JAX would have otherwise, before its runtime is there."""
    import jax

    # Between processes XLA's CPU client reduces by gloo only where it is told so.
    if jax.config.jax_cpu_collectives_implementation in (None, "none"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The preemption service takes SIGTERM for itself, which would leave a cancelled rank running.
    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", False)


def share_with_scripts(distributed: Any, place: Callable[[], Mapping[str, Any]]) -> None:
    """From now on ``jax.distributed.initialize()`` takes what it is not given from this rank's place. Where the runtime
    is up, it is left as it is, if what is asked for agrees with it; where ``shutdown()`` ends it, the process is not
    used any more.

    Args:
        distributed: the module ``jax.distributed``.
        place: gives all arguments that make a rank of this pool.
    """
    import functools
    import inspect

    global _shared
    _shared = True
    initialize, shutdown = distributed.initialize, distributed.shutdown
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def initialize_once(*args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(*args, **kwargs).arguments
        asked = {name: value for name, value in given.items() if value is not None}
        here = place()
        if not distributed.is_initialized():
            configure()
            missing = {} if asked.keys() & set(PLACE) else dict(here)
            initialize(**missing | asked)
            return
        differ = [name for name in PLACE if name in asked and asked[name] != here[name]]
        if differ:
            from ..model.errors import (
                UsageError,  # here, for every rank loads this module while somebody waits
            )

            wants = ", ".join(f"{name}={asked[name]!r}" for name in differ)
            there = ", ".join(f"{name}={here[name]!r}" for name in PLACE)
            raise UsageError(
                f"jax.distributed.initialize({wants}) asks for another runtime than the one that there is of this "
                f"pool's ranks ({there}): leave these arguments out, or let the function initialise it alone "
                "(init=False of the plugin jax)"
            )

    @functools.wraps(shutdown)
    def shut_down() -> None:
        was_up = distributed.is_initialized()
        shutdown()
        if was_up:
            used_up.say("it shut JAX's distributed runtime down")

    distributed.initialize, distributed.shutdown = initialize_once, shut_down


def share_once_imported(place: Callable[[], Mapping[str, Any]]) -> None:
    """The same, as soon as somebody imports JAX; nothing where a plugin has done it.

    Args:
        place: see :func:`share_with_scripts`.
    """

    def share(distributed: ModuleType) -> None:
        if not _shared:
            share_with_scripts(distributed, place)

    once_imported(MODULE, share)


def once_imported(name: str, use: Callable[[ModuleType], None]) -> None:
    """Call a function with a module as soon as it is imported; now, if it is already."""
    if (there := sys.modules.get(name)) is not None:
        use(there)
    else:
        sys.meta_path.insert(0, _OnceFinder(name, use))


class _OnceFinder:
    """Finds the one module as the finders behind it do."""

    def __init__(self, name: str, use: Callable[[ModuleType], None]) -> None:
        self._name, self._use = name, use

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if (spec := finder.find_spec(fullname, path, target)) and spec.loader is not None:
                spec.loader = _OnceLoader(spec.loader, self._use)  # type: ignore[assignment]  # has all that it has
                return spec
        return None


class _OnceLoader:
    """Loads the module as its own loader does, which it has again afterwards."""

    def __init__(self, own: Any, use: Callable[[ModuleType], None]) -> None:
        self._own, self._use = own, use

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._own.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        self._use(module)
