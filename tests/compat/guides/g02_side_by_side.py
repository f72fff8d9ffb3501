"""Guide: several calls at the same time."""

import skyward as sky


@sky.function
def part(values: list) -> int:
    return sum(values)


@sky.function
def times(x: int, y: int) -> int:
    return x * y


if __name__ == "__main__":
    with sky.Compute(provider=sky.AWS()) as compute:
        sums = sky.gather(*[part(each) for each in ([1, 2], [3, 4])]) >> compute
        assert sums == (3, 7) and sums == [3, 7] and [1] + sums == [1, 3, 7]  # noqa: RUF005
        a, b, c = (times(2, 3) & times(4, 5) & part([1])) >> compute
        assert (a, b, c) == (6, 20, 1)
        calls = [part([i] * 10) for i in range(5)]
        assert list(sky.gather(*calls, stream=True) >> compute) == [0, 10, 20, 30, 40]
        assert sorted(sky.gather(*calls, stream=True, ordered=False) >> compute) == [0, 10, 20, 30, 40]
        assert times(6, 7) >> sky == 42
        assert (times(6, 7) > sky.sky).result() == 42
