"""Plugin ``tensorflow``: TF_CONFIG on every rank, for MultiWorkerMirroredStrategy.

Follows https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from skyward_core.model.errors import PoolError
from skyward_core.plugins.plugin import Plugin, has_cuda, requirement, with_pip
from skyward_core.runtime.framework_rendezvous_and_thread_limits import limit_threads

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo


@dataclass(frozen=True)
class TensorFlow(Plugin):
    """TensorFlow with TF_CONFIG set on every rank, so that ``MultiWorkerMirroredStrategy()`` spans the pool.

    Args:
        version: "latest", an exact version, or constraints such as ">=2.16".
    """

    name: ClassVar[str] = "tensorflow"
    help: ClassVar[str] = "TensorFlow, with TF_CONFIG for MultiWorkerMirroredStrategy"
    place: ClassVar[int] = 4
    needs_peers = "TF_CONFIG, which names every rank's address"
    version: str = field(default="latest", metadata={"help": "version of tensorflow"})

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        package = "tensorflow[and-cuda]" if has_cuda(pool_spec) else "tensorflow"
        return with_pip(image, [requirement(package, self.version)])

    def around_process(self, info: InstanceInfo) -> AbstractContextManager[object]:
        if info.world_size > 1:
            os.environ["TF_CONFIG"] = json.dumps(make_tf_config(info))
            limit_threads(info)
        return nullcontext()


def make_tf_config(info: InstanceInfo) -> dict[str, object]:
    """Return TF_CONFIG: every rank is a worker, at a port that was reserved on its node."""
    workers = [f"{peer.address}:{port}" for peer in info.peers for port in peer.ports]
    if len(workers) != info.world_size:
        raise PoolError(
            f"TF_CONFIG needs a port for each of {info.world_size} ranks, but the nodes reserved {len(workers)}, "
            "because a node did not answer. Run it again."
        )
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": info.rank}}


PLUGIN = TensorFlow
