"""Guide: futures, by the operator and by name, and a function over many items."""

from concurrent.futures import as_completed

import skyward as sky


@sky.function
def square(x: int) -> int:
    return x * x


if __name__ == "__main__":
    with sky.Compute(provider=sky.Vultr(), nodes=2) as compute:
        futures = [square(i) > compute for i in range(4)]
        assert sorted(future.result() for future in as_completed(futures)) == [0, 1, 4, 9]
        assert compute.run_async(square(5)).result(timeout=60) == 25
        assert compute.run(square(6)) == 36 and compute.broadcast(square(2)) == [4, 4]
        assert list(compute.map(square, range(6))) == [0, 1, 4, 9, 16, 25]
        assert compute.is_active and compute.current_nodes() == 2 and compute.concurrency == 2
    assert not compute.is_active
