"""Guide: threads and processes of a node."""

import skyward as sky


@sky.function
def work(number: int) -> int:
    return number + sky.instance_info().worker * 0


if __name__ == "__main__":
    with sky.Compute(provider=sky.AWS(), worker=sky.Worker(concurrency=2, executor="process")) as compute:
        assert sorted(sky.gather(*(work(i) for i in range(6)), stream=True) >> compute) == list(range(6))
    with sky.Compute(provider=sky.Lambda(), executor=sky.Executor(type="thread", concurrency=2)) as compute:
        assert [*(sky.gather(*(work(i) for i in range(6))) >> compute)] == list(range(6))
