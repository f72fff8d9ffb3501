"""Guide: shards of lists, tuples and arrays: several at once, shuffled, and of equal length."""

import skyward as sky


@sky.function
def shares(rows: list, labels: tuple) -> dict:
    info = sky.instance_info()
    mine, names = sky.shard(rows, labels)
    assert type(mine) is list and type(names) is tuple and len(mine) == len(names)
    even = sky.shard(rows, drop_last=True)
    mixed = sky.shard(rows, shuffle=True, seed=7)
    other = sky.shard(rows, node=1 - info.node, total_nodes=2)
    return {"mine": mine, "names": names, "even": even, "mixed": mixed, "other": other}


@sky.function
def mean(values) -> tuple:
    mine = sky.shard(values)
    return float(mine.sum()), len(mine)


if __name__ == "__main__":
    import numpy as np

    rows = list(range(11))
    with sky.Compute(provider=sky.Verda(), nodes=2) as compute:
        first, second = shares(rows, tuple(map(str, rows))) @ compute
        assert sorted(first["mine"] + second["mine"]) == rows == sorted(first["mixed"] + second["mixed"])
        assert first["mixed"] != first["mine"]
        assert len(first["even"]) == len(second["even"]) == 5
        assert first["other"] == second["mine"] and second["names"] == tuple(map(str, second["mine"]))
        parts = mean(np.arange(100.0)) @ compute
        assert sum(total for total, _ in parts) / sum(count for _, count in parts) == 49.5
