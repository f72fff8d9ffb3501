"""Guide: first generation's names, without a framework."""

import skyward as sky


@sky.compute
def process(values):
    info = sky.instance_info()
    mine = sky.shard(values)
    if info.is_head:
        print(f"Node {info.node}: {len(mine)} items")
    return [info.node, info.is_head, sum(mine)]


@sky.compute
def variables():
    import os

    return [os.environ[name] for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")]


if __name__ == "__main__":
    with sky.ComputePool(
        provider=sky.AWS(),
        nodes=2,
        accelerator=sky.NVIDIA.A100,
        image=sky.Image(env={"A": "1"}),
        env={"B": "2"},
    ) as pool:
        assert process(list(range(10))) @ pool == [[0, True, 20], [1, False, 25]]
        assert variables() @ pool == [["2", "0", "0", "1", "0"], ["2", "1", "0", "1", "1"]]
