"""DeepSpeed's own launcher on all nodes: ``deepspeed --hostfile $SKYWARD_HOSTFILE train.py`` on one of them.

https://www.deepspeed.ai/getting-started/#resource-configuration-multi-node tells of its host files, and of how it comes
to other nodes: by ``pdsh``, and that by ``ssh``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from skyward_core.plugins.built_in.mpi import Mpi
from skyward_core.plugins.plugin import requirement, with_pip

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info import InstanceInfo


@dataclass(frozen=True)
class Deepspeed(Mpi):
    """DeepSpeed and what its launcher needs: a host file, and ``ssh`` between the nodes, as plugin ``mpi`` has them.

    Args:
        slots: processes for each node, in the host file; None for its GPUs, or where it has none its ranks.
        launcher: what ``deepspeed`` comes to other nodes by, which the head must have, or runs fail, and say so; ""
            where you have it use another (``deepspeed --launcher openmpi``).
        port: of each node's sshd; None for one made of the pool's name. Where all nodes are on one host there is none.
        version: of deepspeed: "latest", a bare version to pin, or constraints such as ">=0.16".
    """

    name: ClassVar[str] = "deepspeed"
    help: ClassVar[str] = "DeepSpeed, and host files and ssh for its launcher"
    place: ClassVar[int] = 14
    conflicts = ("mpi",)  # which is part of it
    _package: ClassVar[str] = "pdsh"
    launcher: str = field(default="pdsh", metadata={"help": "what it comes to other nodes by, on the head"})
    version: str = field(default="latest", metadata={"help": "of deepspeed"})

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return with_pip(image, [requirement("deepspeed", self.version)])

    def _needs_launcher(self, info: InstanceInfo) -> bool:
        return info.node == 0 and info.total_nodes > 1


PLUGIN = Deepspeed
