"""Guide: a plugin built from functions, for all functions of a pool, and durations as texts."""

import os
from contextlib import contextmanager
from dataclasses import replace

import skyward as sky
from skyward.plugins import Plugin


def with_stage(image, cluster):
    assert cluster.spec.nodes == 1
    return replace(image, env={**image.env, "STAGE": "built"})


def counted(fn):
    def inner(*args, **kwargs):
        return [os.environ["STAGE"], os.environ["AROUND"], fn(*args, **kwargs)]

    return inner


@contextmanager
def around(info):
    os.environ["AROUND"] = f"rank {info.rank}"
    yield


opened: list = []


@contextmanager
def at_home(pool, cluster):
    opened.append(pool.name)
    yield


@sky.function
def double(x: int) -> int:
    return 2 * x


if __name__ == "__main__":
    mine = (
        Plugin.create("mine")
        .with_image_transform(with_stage)
        .with_decorator(counted)
        .with_around_process(around)
        .with_around_client(at_home)
    )
    with sky.Compute(provider=sky.JarvisLabs(), plugins=[mine], ttl=sky.time.hours(1)) as compute:
        assert double(4) >> compute == ["built", "rank 0", 8]
        assert opened == [compute.name]
