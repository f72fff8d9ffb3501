"""``sky.DistributedSampler``, compared with PyTorch's own sampler."""

import pytest

import skyward_core as sky
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, using


@pytest.mark.proof("0.1 s of a processor", after=8)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("length", "world_size"), [(10, 1), (10, 3), (12, 4), (2, 4), (101, 8)])
def test_distributed_sampler_equals_that_of_pytorch(length, world_size, shuffle, drop_last):
    distributed_sampler = pytest.importorskip("torch.utils.data").DistributedSampler
    data = list(range(length))
    drawn = []
    for rank in range(world_size):
        with using(InstanceInfo(rank=rank, world_size=world_size)):
            ours = sky.DistributedSampler(data, shuffle=shuffle, seed=5, drop_last=drop_last)
        theirs = distributed_sampler(
            data, num_replicas=world_size, rank=rank, shuffle=shuffle, seed=5, drop_last=drop_last
        )
        for epoch in (0, 1, 7):
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs)
        drawn += list(ours)
    if not drop_last:
        assert set(drawn) == set(data)


def test_distributed_sampler_off_a_pool_draws_every_index():
    torch_data = pytest.importorskip("torch.utils.data")
    sampler = sky.DistributedSampler(range(5), shuffle=False)
    assert isinstance(sampler, torch_data.Sampler)
    assert list(sampler) == [0, 1, 2, 3, 4]
    batches = [batch.tolist() for batch in torch_data.DataLoader(range(5), sampler=sampler, batch_size=2)]
    assert batches == [[0, 1], [2, 3], [4]]
