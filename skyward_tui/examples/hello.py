"""Sum of the numbers below ``n``: every rank adds up its share.

skyward-tui run example:hello --nodes 4
"""

import skyward_core as sky


@sky.function
def hello(n: int = 1_000_000) -> int:
    """Return the sum of this rank's shard of ``range(n)``."""
    info = sky.instance_info()
    mine = sky.shard(range(n))  # the numbers of this rank; rank 1 of 4 gets 1, 5, 9, ...
    print(f"rank {info.rank} of {info.world_size} on node {info.node}: {len(mine):,} numbers", flush=True)
    return sum(mine)


if __name__ == "__main__":
    # `@` runs the function on every rank and returns a list in rank order. Leaving the block tears the pool down.
    with sky.Compute(provider=sky.Local(), nodes=4) as compute:
        sums = hello(1_000_000) @ compute
    print(f"{' + '.join(map(str, sums))} = {sum(sums)}")
