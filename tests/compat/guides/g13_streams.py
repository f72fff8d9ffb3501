"""Guide: streamed values."""

from collections.abc import Iterator

import skyward as sky


@sky.function
def fibonacci(n: int):
    a, b = 0, 1
    for _ in range(n):
        yield a
        a, b = b, a + b


@sky.function
def running_mean(data: Iterator[float]) -> list[float]:
    total, means = 0.0, []
    for count, value in enumerate(data, 1):
        total += value
        means.append(total / count)
    return means


@sky.stream
def squares(n: int):
    for i in range(n):
        yield i * i


if __name__ == "__main__":
    with sky.Compute(provider=sky.Salad(organization="me"), nodes=sky.Nodes(initial=1)) as compute:
        assert list(fibonacci(10) >> compute) == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
        assert running_mean(iter([1.0, 2.0, 3.0])) >> compute == [1.0, 1.5, 2.0]
        assert list(squares(4) >> sky.sky) == [0, 1, 4, 9]
