"""PyTorch's distributed sampler with the pool's topology. Requires torch, so import it inside a rank."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DistributedSampler as _Sampler

from skyward_core.runtime.instance_info_and_attempt import instance_info


class DistributedSampler(_Sampler):  # type: ignore[misc]
    """``torch.utils.data.DistributedSampler`` with this rank's place in the pool.

    No process group is required. Every rank draws the same number of samples: PyTorch pads with samples from the front,
    or drops the tail with ``drop_last``. Call ``set_epoch`` before each epoch, otherwise every epoch has the same
    order.

        sampler = sky.DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    Args:
        dataset: Map-style data set.
        shuffle: Whether to permute the indices by ``seed`` and epoch.
        seed: Seed of the permutation, the same on all ranks.
        drop_last: Whether to drop the tail instead of padding.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        info = instance_info()
        super().__init__(
            dataset, num_replicas=info.world_size, rank=info.rank, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
