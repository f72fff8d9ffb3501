"""How long a pool lives on by itself is there to be seen, by those who do not keep it alive."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from tests.support.waiting import wait_until


def spec(name: str, **wishes: float) -> sky.PoolSpec:
    return sky.PoolSpec(
        name=name,
        provider=sky.Local(),
        nodes=1,
        options=sky.Options(console=False, **wishes),  # type: ignore[arg-type]
    )


def test_a_pool_that_nobody_uses_tells_its_end_and_one_in_use_has_none(home: Path) -> None:
    owner = Session()
    pool = owner.create(spec("idle", idle_timeout=90.0)).result(60)
    assert pool.ends_at is None
    owner.detach()
    watcher = Session()
    (seen,) = watcher.refresh().result(60)
    left = seen.lease_left(time.time())
    assert left is not None and 60 < left <= 90
    used = watcher.attach("idle").result(60)
    wait_until(lambda: used.ends_at is None, what="the news that it is in use")
    assert watcher.tear_down("idle").result(60).ok
    watcher.detach()


def test_a_time_to_live_counts_down_also_while_it_is_used(home: Path) -> None:
    owner = Session()
    pool = owner.create(spec("brief", ttl=120.0)).result(60)
    left = pool.lease_left(time.time())
    assert left is not None and 90 < left <= 120
    assert owner.tear_down("brief").result(60).ok
    assert pool.lease_left(time.time()) is None
    owner.detach()


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("way", ["list", "look"])
def test_looking_at_a_pool_all_the_time_keeps_it_no_longer(home: Path, way: str) -> None:
    owner = Session()
    owner.create(spec("watched", idle_timeout=2.0)).result(60)
    owner.detach()

    def gone() -> bool:
        watcher = Session()
        try:
            if way == "look":
                with suppress(sky.PoolError):
                    watcher.observe("watched").result(60)
            return not any(pool.is_live for pool in watcher.refresh().result(60))
        finally:
            watcher.detach()

    wait_until(gone, 60, what="the end of a pool that many look at and nobody uses")
