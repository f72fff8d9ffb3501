"""Plugin ``jax``: all devices of all ranks in one mesh, initialized before the function runs.

Follows https://docs.jax.dev/en/latest/multi_process.html.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from skyward_core.plugins.plugin import Plugin, has_cuda, requirement, with_pip
from skyward_core.runtime.framework_rendezvous_and_thread_limits import (
    claim_port,
    configure_jax,
    jax_arguments,
    limit_threads,
    patch_jax_initialize,
)
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, set_phase

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec


@dataclass(frozen=True)
class Jax(Plugin):
    """JAX with its distributed runtime initialized on every rank.

    Args:
        cuda: Extra of JAX for CUDA, used if the pool's accelerator supports CUDA ("cuda12", "cuda13"). "cu124", as in
            older API versions, means "cuda12".
        version: "latest", an exact version, or constraints such as ">=0.6".
        init: Initialize the distributed runtime before the function runs. A later ``jax.distributed.initialize()`` in
            the function does nothing if its arguments match. If False, the function makes that call itself, and missing
            arguments are filled in.
    """

    name: ClassVar[str] = "jax"
    help: ClassVar[str] = "JAX, with every device of the pool in one mesh"
    place: ClassVar[int] = 2
    needs_peers = "one mesh of all ranks' devices"
    cuda: str = field(default="cuda12", metadata={"help": "extra of JAX for CUDA"})
    version: str = field(default="latest", metadata={"help": "version of jax"})
    init: bool = field(default=True, metadata={"help": "initialize the runtime before the function runs"})

    def __post_init__(self) -> None:
        if older := re.fullmatch(r"cu(\d\d)\d?", self.cuda):
            object.__setattr__(self, "cuda", f"cuda{older[1]}")

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        package = f"jax[{self.cuda}]" if has_cuda(pool_spec) else "jax"
        return with_pip(image, [requirement(package, self.version)])

    @contextmanager
    def around_process(self, info: InstanceInfo) -> Iterator[None]:
        if info.world_size < 2:
            yield
            return
        place = jax_arguments(info, claim_port(info))
        os.environ.update(
            JAX_COORDINATOR_ADDRESS=place["coordinator_address"],
            JAX_NUM_PROCESSES=str(info.world_size),
            JAX_PROCESS_ID=str(info.rank),
            JAX_LOCAL_DEVICE_COUNT=str(max(1, count_visible_gpus(info))),
        )
        limit_threads(info)
        set_phase("importing")
        import jax

        configure_jax()
        initialize, shutdown = jax.distributed.initialize, jax.distributed.shutdown
        patch_jax_initialize(jax.distributed, lambda: place)
        if self.init:
            set_phase("joining")
            initialize(**place)
        try:
            yield
        finally:
            shutdown()


def count_visible_gpus(info: InstanceInfo) -> int:
    """Return the number of GPUs that a rank sees on its node."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return info.accelerators if shown is None else sum(name.strip() not in ("", "-1") for name in shown.split(","))


PLUGIN = Jax
