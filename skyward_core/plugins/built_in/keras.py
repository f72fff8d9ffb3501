"""Plugin ``keras``: Keras 3, with a backend that is chosen before the import and uses all devices of the rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from skyward_core.model.errors import UsageError
from skyward_core.plugins.built_in.jax import Jax
from skyward_core.plugins.built_in.tensorflow import TensorFlow
from skyward_core.plugins.built_in.torch import Torch
from skyward_core.plugins.plugin import Plugin, with_env, with_pip

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo

Backend = Literal["jax", "torch", "tensorflow"]


@dataclass(frozen=True)
class Keras(Plugin):
    """Keras 3 on a backend.

    With ``jax``, and the plugin ``jax`` before this one, Keras trains data-parallel on all devices of the pool. Each
    rank feeds its own shard, and all ranks must feed the same number of batches. Without the plugin ``jax`` every rank
    trains separately on its own devices. With ``torch`` and ``tensorflow`` this plugin makes the backend's own
    distributed setup (a process group, TF_CONFIG), unless the backend's plugin makes it.

    Args:
        backend: "jax", "torch" or "tensorflow".
        seed: Seed of Keras, NumPy and the backend, the same on every rank. None for a random seed. With ``jax`` on all
            devices, the random seed is the same on all ranks.

    Raises:
        UsageError: If the backend is unknown.
    """

    name: ClassVar[str] = "keras"
    help: ClassVar[str] = "Keras 3 on JAX, PyTorch or TensorFlow"
    place: ClassVar[int] = 3
    backend: Backend = field(default="jax", metadata={"help": "jax, torch or tensorflow"})
    seed: int | None = field(default=None, metadata={"help": "random seed of every rank"})

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            raise UsageError(f"{self.backend!r} is not a backend of Keras. Use {', '.join(get_args(Backend))}.")
        # with the backend jax, the plugin jax connects the ranks, so this plugin needs no peers itself
        if self.backend != "jax":
            object.__setattr__(self, "needs_peers", self._backend_plugin().needs_peers)

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        image = with_env(with_pip(image, ["keras>=3"]), KERAS_BACKEND=self.backend)
        if any(plugin.name == self.backend for plugin in pool_spec.plugins):
            return image  # with the backend's own plugin in the pool, that plugin adds the backend's packages
        return self._backend_plugin().transform(image, pool_spec)

    @contextmanager
    def around_process(self, info: InstanceInfo) -> Iterator[None]:
        os.environ["KERAS_BACKEND"] = self.backend
        if self.backend == "jax":
            _spread_over_devices(self.seed)
            yield
        elif self.backend == "tensorflow" and "TF_CONFIG" in os.environ:
            _set_seed(self.seed)
            yield
        else:
            with self._backend_plugin().around_process(info):
                _set_seed(self.seed)
                yield

    def _backend_plugin(self) -> Plugin:
        plugin: Plugin = {"jax": Jax, "torch": Torch, "tensorflow": TensorFlow}[self.backend]()
        return plugin


def _set_seed(seed: int | None) -> None:
    if seed is not None:
        import keras

        keras.utils.set_random_seed(seed)


def _spread_over_devices(seed: int | None) -> None:
    import jax

    _set_seed(seed)
    if jax.device_count() == 1:
        return
    import keras

    if seed is None and jax.process_count() > 1:
        _share_seed()
    devices = keras.distribution.list_devices()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False))


def _share_seed() -> None:
    """Set the head's seed on every rank. Replicas must start equal, but Keras would choose a seed for each process."""
    import random

    import keras
    import numpy
    from jax.experimental import multihost_utils

    seed = numpy.uint32(random.SystemRandom().randrange(2**32))
    keras.utils.set_random_seed(int(multihost_utils.broadcast_one_to_all(seed)))


PLUGIN = Keras
