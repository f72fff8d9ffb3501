"""A script as people write one, for type checkers: mypy reads it with all other tests, and what it asserts is types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import assert_type

import skyward_core as sky


@sky.function
def one(a: int, b: str = "") -> int:
    return a


@sky.function(timeout=5)
def two(a: int) -> str:
    return str(a)


@sky.function
async def three(a: int) -> float:
    return a / 2


@sky.function
async def four(a: int) -> AsyncIterator[bytes]:
    yield bytes(a)


class Model:
    @sky.function
    def score(self, a: int) -> float:
        return a / 3


async def asynchronous(compute: sky.Compute) -> None:
    assert_type(await one(1).on(compute), int)
    assert_type(await three(1).on_all(compute), list[float])
    assert_type(await (one(1) & two(2)).on(compute), tuple[int, str])
    async with sky.Compute() as other:
        assert_type(other, sky.Compute)


def operators(compute: sky.Compute) -> None:
    assert_type(one(1, b="") >> compute, int)
    assert_type(two(1) @ compute, list[str])
    assert_type(three(1) >> compute, float)
    assert_type(one(1) > compute, sky.RunFuture[int])
    assert_type(Model().score(1) @ compute, list[float])
    assert_type((one(1) & two(2)) >> compute, tuple[int, str])
    assert_type((one(1) & two(2) & three(3)) >> compute, tuple[int, str, float])
    assert_type((one(1) & (two(2) & three(3))) >> compute, tuple[int, str, float])
    assert_type((one(1) & two(2) & three(3) & one(4) & two(5)) >> compute, tuple[int, str, float, int, str])
    assert_type(sky.gather(one(1), two(2)) >> compute, tuple[int, str])
    assert_type(
        sky.gather(one(1), two(2), three(3), one(4), two(5)) >> compute, tuple[int, str, float, int, str]
    )
    assert_type(sky.gather(*[one(n) for n in range(9)]) >> compute, tuple[int, ...])
    assert_type(
        sky.gather(*[one(n) for n in range(9)], stream=True, ordered=False) >> compute,
        Generator[int, None, None],
    )


def streams(compute: sky.Compute) -> None:
    assert_type(four(1) >> compute, Iterator[bytes])
    with sky.Executor(compute) as executor:
        assert_type(executor.submit(pow, 2, 3).result(), int)
