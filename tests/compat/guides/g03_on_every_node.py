"""Guide: one call on every node, with broadcast, instance info, shards and selected output."""

import skyward as sky


@sky.function
@sky.stdout(only="head")
def share(values: list) -> dict:
    info = sky.instance_info()
    assert info is not None and info.job_id
    mine = sky.shard(values)
    print(f"node {info.node} of {info.total_nodes}")
    return {"node": info.node, "rank": info.rank, "nodes": info.nodes, "sum": sum(mine), "head": info.is_head}


@sky.function
def aligned(x: list, y: list) -> bool:
    a, b = sky.shard(x, y, shuffle=True, seed=42)
    return all(str(one) == other for one, other in zip(a, b, strict=True)) and type(sky.shard(tuple(x))) is tuple


@sky.function
@sky.stdout(only=sky.is_head)
def caught() -> str:
    received: list = []
    with sky.redirect_output(received.append):
        print("heard")
    return "".join(received)


if __name__ == "__main__":
    with sky.Compute(provider=sky.VastAI(verified_only=True), nodes=2) as compute:
        values = list(range(100))
        found = share(values) @ compute
        assert sum(each["sum"] for each in found) == sum(values)
        assert [(each["node"], each["rank"], each["nodes"], each["head"]) for each in found] == [
            (0, 0, 2, True),
            (1, 1, 2, False),
        ]
        assert aligned(values, [str(each) for each in values]) @ compute == [True, True]
        assert caught() @ sky == ["heard\n", "heard\n"]
