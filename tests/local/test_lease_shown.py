"""How long a pool lives on by itself is there to be seen, by those who do not keep it alive."""

from __future__ import annotations

import time
from pathlib import Path

from faults import wait_until

import skyward_core as sky
from skyward_core.session import Session


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
    assert watcher.down("idle").result(60).ok
    watcher.detach()


def test_a_time_to_live_counts_down_also_while_it_is_used(home: Path) -> None:
    owner = Session()
    pool = owner.create(spec("brief", ttl=120.0)).result(60)
    left = pool.lease_left(time.time())
    assert left is not None and 90 < left <= 120
    assert owner.down("brief").result(60).ok
    assert pool.lease_left(time.time()) is None
    owner.detach()
