"""Typed script as users write it. mypy checks it with all other tests, and its assertions are about types."""

# mypy: warn_unused_ignores
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, assert_type

import skyward_core as sky


def asked_for() -> None:
    sky.Compute(provider=sky.Local(), nodes=4, worker=sky.Worker(concurrency=2, executor="thread"))
    sky.Compute(provider="local", accelerator="A100:8", plugins=[sky.plugins.torch(), sky.plugins.huggingface()])
    sky.Compute(provider=sky.Local, accelerator=sky.accelerators.A100)
    sky.Compute(provider=sky.AWS(), accelerator=sky.accelerators.H100(count=8, memory="80GB"), ttl=600)
    sky.Compute(provider=sky.SSH(hosts=["me@host"]), image=sky.Image(pip=["numpy"]))
    sky.Compute(provider=sky.Slurm(), options=sky.Options(cluster=False), nodes=sky.Nodes(min=1, max=2))
    sky.Compute(provider=sky.RunPod(), accelerator=sky.accelerators.Custom("X1"), cpus=4)
    sky.Compute(sky.Spec(provider=sky.AWS(), plugins=(sky.plugins.jax(),)), sky.Spec(provider=sky.Lambda))
    # What makes no sense is refused, too: an ignore that hides nothing is an error of its own.
    sky.Compute(provider=4)  # type: ignore[arg-type]
    sky.Compute(accelerator=8)  # type: ignore[arg-type]
    sky.Compute(plugins=["torch"])  # type: ignore[list-item]
    sky.Compute(worker=4)  # type: ignore[arg-type]
    sky.Compute(sky.Spec(plugins=[3]))  # type: ignore[list-item]
    sky.Compute(provder=sky.Local())  # type: ignore[call-arg]
    with sky.attach("training") as compute:
        assert_type(one(1) >> compute, int)
        assert_type(compute.plugins, Sequence[sky.plugins.Plugin])


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
    one("1")  # type: ignore[arg-type]
    Model().score("1")  # type: ignore[arg-type]
    assert_type((one(1) & two(2)) >> compute, tuple[int, str])
    assert_type((one(1) & two(2) & three(3)) >> compute, tuple[int, str, float])
    assert_type((one(1) & (two(2) & three(3))) >> compute, tuple[int, str, float])
    assert_type((one(1) & two(2) & three(3) & one(4) & two(5)) >> compute, tuple[int, str, float, int, str])
    assert_type(sky.gather(one(1), two(2)) >> compute, tuple[int, str])
    assert_type(sky.gather(one(1), two(2), three(3), one(4), two(5)) >> compute, tuple[int, str, float, int, str])
    assert_type(sky.gather(*[one(n) for n in range(9)]) >> compute, tuple[int, ...])
    assert_type(
        sky.gather(*[one(n) for n in range(9)], stream=True, ordered=False) >> compute, Generator[int, None, None]
    )


def by_names(compute: sky.Compute) -> None:
    assert_type(compute.run(one(1)), int)
    assert_type(compute.run(one(1) & two(2)), tuple[int, str])
    assert_type(compute.broadcast(three(1)), list[float])
    assert_type(compute.run_async(two(1)), sky.RunFuture[str])
    assert_type(compute.map(one, range(3)), Iterator[int])
    assert_type(compute.map(three, range(3), ordered=False), Iterator[float])
    assert_type(compute.map(len, ["a", "b"]), Iterator[int])


def streams(compute: sky.Compute) -> None:
    assert_type(four(1) >> compute, Iterator[bytes])
    with sky.Executor(compute) as executor:
        assert_type(executor.submit(pow, 2, 3).result(), int)


def by_older_words(compute: sky.Compute) -> None:
    info = sky.instance_info()
    assert_type([peer.address for peer in info.peers], list[str])
    assert_type(",".join(info.peers), str)
    assert_type(info.accelerator.name, str)
    assert_type(info.accelerator.memory_gb, float | None)
    pending: sky.Pending[int] = one(1).with_timeout(5).with_retry(None)
    assert_type(pending >> compute, int)
    group: sky.Group[tuple[int, str]] = (one(1) & two(2)).with_timeout(5)
    assert_type(group >> compute, tuple[int, str])
    assert_type(compute.run_parallel(group), tuple[int, str])
    assert_type(compute.start(two(1)), sky.RunFuture[str])
    assert_type(compute.stream(four(1)), Iterator[bytes])
    assert_type(sky.time.hours(2), float)
    assert_type(sky.shard([1, 2], [0.5, 1.0], seed="s"), tuple[list[int], list[float]])
    sky.Compute(provider=sky.Local(), plugins=[sky.plugins.Plugin.create("mine").with_decorator(quiet)])
    sky.Compute(provider=sky.Local(), plugins=[sky.plugins.around_process("mine", place)])
    sky.function(retry=3)  # type: ignore[call-overload]


def quiet(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def place(info: sky.Info) -> AbstractContextManager[None]:
    return nullcontext()


def trials(compute: sky.Compute) -> None:
    with sky.ComputePool(provider=sky.AWS(), accelerator=sky.NVIDIA.A100, provision_timeout=60) as pool:
        assert_type(one(1) @ pool, list[int])
    with sky.Compute.attached("training") as other:
        assert_type(one(1) >> other, int)
    try:
        _ = one(1) >> compute
    except sky.TaskFailedError as error:
        assert_type(error.root_cause.rank, int)
