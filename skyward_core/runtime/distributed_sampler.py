"""PyTorch's distributed sampler, told the pool's topology. Needs torch; import it inside a rank."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DistributedSampler as _Sampler

from skyward_core.runtime.instance_info import instance_info


class DistributedSampler(_Sampler):  # type: ignore[misc]
    """``torch.utils.data.DistributedSampler`` with this rank's place in the pool.

    It needs no process group. Every rank draws the same number of samples: PyTorch's rule pads with samples
    from the front, or drops the tail with ``drop_last``. Call ``set_epoch`` before each epoch, or every
    epoch has the same order.

    Args:
        dataset: a map-style data set.
        shuffle: permute the indices, by ``seed`` and epoch.
        seed: the same on all ranks.
        drop_last: drop the tail rather than pad it.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        info = instance_info()
        super().__init__(
            dataset,
            num_replicas=info.world_size,
            rank=info.rank,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
