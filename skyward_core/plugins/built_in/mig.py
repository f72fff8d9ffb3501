"""Plugin ``mig``: GPUs divided into MIG slices, one slice for each process of a rank.

Profiles and commands: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.plugins.plugin import Plugin
from skyward_core.runtime.visible_nvidia_gpus import is_in_mig_mode, mig_slices, nvml

if TYPE_CHECKING:
    from skyward_core.model.accelerators import Accelerator
    from skyward_core.model.specs import PoolSpec
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo

_PROFILE = re.compile(r"(?P<plain>(?P<slices>\d)g\.\d+gb)(?P<extra>\+[\w.]+)?")


@dataclass(frozen=True)
class Mig(Plugin):
    """One MIG slice for each rank. With ``Worker(concurrency=)``, one slice for each worker process of a rank.

    Args:
        profile: Compute slices and memory of each slice, such as "3g.40gb".

    Raises:
        UsageError: If the profile is invalid.
    """

    name: ClassVar[str] = "mig"
    help: ClassVar[str] = "GPUs cut into MIG slices, one per rank"
    place: ClassVar[int] = 7
    gang: ClassVar[bool] = False
    profile: str = field(default="3g.40gb", metadata={"help": "compute slices and memory of each MIG slice"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "profile", self.profile.lower())
        slices_per_gpu(self.profile)

    def bootstrap(self, pool_spec: PoolSpec) -> Sequence[str]:
        from skyward_core.model.accelerators import resolve

        profile = shlex.quote(self.profile)
        each = ",".join([self.profile] * slices_per_gpu(self.profile, resolve(pool_spec.accelerator)))
        return (
            f"nvidia-smi -L | grep -q 'MIG {profile} ' || "
            f"{{ nvidia-smi -mig 1 && nvidia-smi mig -cgi {each} -C; }} || "
            f"{{ echo 'cannot create MIG slices of {profile}:"
            " the GPUs lack the profile or are in use, or this user is not root' >&2; exit 1; }",
        )

    def around_process(self, info: InstanceInfo) -> AbstractContextManager[object]:
        slices = list_node_slices(self.profile)
        each = info.workers_per_rank
        if info.ranks_per_node * each > len(slices):
            has = f"node {info.node} has {len(slices)} MIG slices of {self.profile}"
            needed, use = f"{info.ranks_per_node} ranks", f"ranks_per_node={max(1, len(slices) // each)}"
            if each > 1:
                needed += f" of {each} processes"
                use += f", concurrency={min(each, max(1, len(slices)))}"
            raise PoolError(f"{has}, but {needed} need one each. Use Worker({use}) or another profile.")
        os.environ["CUDA_VISIBLE_DEVICES"] = slices[info.local_rank * each + info.worker]
        return nullcontext()


def slices_per_gpu(profile: str, gpu: Accelerator | None = None) -> int:
    """Return the number of slices of a profile that one GPU provides: 7 for "1g.10gb", 3 for "2g.20gb", 2 for
    "3g.40gb".

    The number comes from the catalogue: for a given GPU the minimum over its memory sizes, otherwise the maximum over
    all GPUs. For an unknown profile, the number of compute slices (the first digit) decides how many fit into seven.

    Raises:
        UsageError: If the profile is invalid, or if the GPU does not have it.
    """
    match = _PROFILE.fullmatch(profile)
    if match is None or not 1 <= int(match["slices"]) <= 7:
        raise UsageError(f"{profile!r} is not a MIG profile. Use a profile such as 1g.10gb, 2g.20gb or 3g.40gb.")
    from skyward_core.model.accelerators.catalog import entries

    if gpu is not None:
        count = replace(gpu, count=1, mig=match["plain"]).slices
    else:
        known = [entry.mig[match["plain"]] for entry in entries() if match["plain"] in entry.mig]
        count = max(known, default=7 // int(match["slices"]))
    # at most one instance of this profile, because a GPU has only one set of media extensions
    return 1 if match["extra"] == "+me" else count


def list_node_slices(profile: str) -> list[str]:
    """Return the UUIDs of this node's MIG slices of a profile, ordered by GPU.

    Raises:
        PoolError: If there is no NVIDIA driver, or if no GPU is in MIG mode.
    """
    with nvml() as pynvml:
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        cut = [gpu for gpu in gpus if is_in_mig_mode(gpu)]
        if not cut:
            names = ", ".join(sorted({str(pynvml.nvmlDeviceGetName(gpu)) for gpu in gpus})) or "no GPU"
            raise PoolError(f"no GPU of this node is in MIG mode ({names}). As root run: nvidia-smi -mig 1")
        return [
            str(pynvml.nvmlDeviceGetUUID(part))
            for gpu in cut
            for part in mig_slices(gpu)
            if str(pynvml.nvmlDeviceGetName(part)).endswith(f"MIG {profile}")
        ]


PLUGIN = Mig
