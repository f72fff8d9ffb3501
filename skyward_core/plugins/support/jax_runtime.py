"""JAX's distributed runtime where a plugin knows who takes part, and code that initialises it itself comes behind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from ...model.errors import UsageError
from ...runtime import used_up

PLACE = ("coordinator_address", "num_processes", "process_id")


def share_with_scripts(jax: Any, place: Mapping[str, Any]) -> None:
    """From now on ``jax.distributed.initialize()`` takes what it is not given from this rank's place. Where the runtime
    is up, it is left as it is, if what is asked for agrees with it; where ``shutdown()`` ends it, the process is not
    used any more.

    Args:
        jax: the module.
        place: all arguments that make a rank of this pool.
    """
    initialize, shutdown = jax.distributed.initialize, jax.distributed.shutdown
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def initialize_once(*args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(*args, **kwargs).arguments
        asked = {name: value for name, value in given.items() if value is not None}
        if not jax.distributed.is_initialized():
            missing = {} if asked.keys() & set(PLACE) else dict(place)
            initialize(**missing | asked)
            return
        differ = [name for name in PLACE if name in asked and asked[name] != place[name]]
        if differ:
            wants = ", ".join(f"{name}={asked[name]!r}" for name in differ)
            there = ", ".join(f"{name}={place[name]!r}" for name in PLACE)
            raise UsageError(
                f"jax.distributed.initialize({wants}) asks for another runtime than the one that the plugin jax has "
                f"made of this pool's ranks ({there}): leave these arguments out, or let the function initialise it "
                "alone (init=False)"
            )

    @functools.wraps(shutdown)
    def shut_down() -> None:
        was_up = jax.distributed.is_initialized()
        shutdown()
        if was_up:
            used_up.say("it shut JAX's distributed runtime down")

    jax.distributed.initialize, jax.distributed.shutdown = initialize_once, shut_down
