"""Plugin ``deepspeed``: DeepSpeed's launcher on all nodes, ``deepspeed --hostfile $SKYWARD_HOSTFILE train.py``.

The launcher reads a host file and connects to other nodes with ``pdsh``, which uses ``ssh``; see
https://www.deepspeed.ai/getting-started/#resource-configuration-multi-node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from skyward_core.plugins.built_in.mpi import Mpi
from skyward_core.plugins.plugin import requirement, with_pip

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo


@dataclass(frozen=True)
class Deepspeed(Mpi):
    """DeepSpeed and the requirements of its launcher: a host file, and ``ssh`` between the nodes, as in plugin ``mpi``.

    Args:
        slots: Processes for each node in the host file. None for the number of the node's GPUs, or without GPUs the
            number of its ranks.
        launcher: Program that ``deepspeed`` uses to connect to other nodes. It must be installed on the head node. ""
            if you select another launcher (``deepspeed --launcher openmpi``).
        port: Port of each node's sshd. None for a port derived from the pool's name. No port is used if all nodes are
            on one host.
        version: Version of deepspeed: "latest", an exact version, or constraints such as ">=0.16".
    """

    name: ClassVar[str] = "deepspeed"
    help: ClassVar[str] = "DeepSpeed, and host files and ssh for its launcher"
    place: ClassVar[int] = 14
    conflicts = ("mpi",)  # the plugin mpi cannot be used in addition, because this plugin includes it
    _package: ClassVar[str] = "pdsh"
    launcher: str = field(default="pdsh", metadata={"help": "program that the head node uses to reach other nodes"})
    version: str = field(default="latest", metadata={"help": "version of deepspeed"})

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return with_pip(image, [requirement("deepspeed", self.version)])

    def _needs_launcher(self, info: InstanceInfo) -> bool:
        return info.node == 0 and info.total_nodes > 1


PLUGIN = Deepspeed
