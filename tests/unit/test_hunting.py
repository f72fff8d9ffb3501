"""Machines that are not to be had at once: a start waits for them as long as it may. The provider is played."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from skyward_core.model.errors import Cancelled, NoCapacity, TooFewHosts
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import startup
from skyward_core.pool.ledger_reconciliation import is_starting
from skyward_core.pool.pool import Pool
from skyward_core.store.ledger import Ledger
from skyward_core.views import events as ev
from tests.support.pool_parts import World
from tests.support.waiting import until


class Full(World):
    """Has nothing for some tries."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0
        self.full_for = 10**9
        self.says: Exception = NoCapacity("no machines to be had: a in zone b: full")
        self.on_create = self._look

    async def _look(self) -> None:
        self.tries += 1
        if self.tries <= self.full_for:
            raise self.says


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Full:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(startup, "PAUSES", (0.01, 0.02))
    return Full()


async def begun(world: Full, ledger: Ledger, wait: float | str) -> tuple[Pool, PoolSpec, list[ev.Event]]:
    options = Options(console=False, grace=0.1, wait_for_capacity=wait)
    spec = PoolSpec(name="q", provider=world, nodes=2, options=options)
    pool = await Pool.register(spec, ledger)
    events: list[ev.Event] = []
    pool.news.subscribe(events.append, None)
    return pool, spec, events


async def test_it_is_tried_again_and_each_try_is_seen(world: Full) -> None:
    with closing(Ledger()) as ledger:
        world.full_for = 2
        pool, spec, events = await begun(world, ledger, "1h")
        await pool.start(spec)
        assert world.tries == 3
        words = [each.detail for each in events if isinstance(each, ev.PoolState)]
        assert sum("a in zone b: full; tried again until 20" in each for each in words) == 2
        again = [each for each in events if isinstance(each, ev.NodePhase) and each.retry_at is not None]
        assert [each.node for each in again] == [0, 1, 0, 1] and again[0].detail == "none to be had"
        assert (await pool.down()).ok


@pytest.mark.parametrize("wait", [0, 0.05])
async def test_when_the_time_is_over_the_last_answer_is_the_error(world: Full, wait: float) -> None:
    with closing(Ledger()) as ledger:
        pool, spec, _ = await begun(world, ledger, wait)
        with pytest.raises(NoCapacity, match="a in zone b: full"):
            await pool.start(spec)
        assert (world.tries == 1) == (wait == 0) and ledger.live_pools() == []


async def test_hosts_of_ones_own_become_no_more(world: Full) -> None:
    with closing(Ledger()) as ledger:
        world.says = TooFewHosts("2 nodes and 1 host")
        pool, spec, _ = await begun(world, ledger, "1h")
        with pytest.raises(TooFewHosts):
            await pool.start(spec)
        assert world.tries == 1


async def test_a_teardown_meanwhile_ends_it(world: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "PAUSES", (60.0, 60.0))
    with closing(Ledger()) as ledger:
        pool, spec, _ = await begun(world, ledger, "1h")
        starting = asyncio.create_task(pool.start(spec))
        await until(lambda: world.tries == 1)
        assert is_starting(ledger.pool(pool.row.token))
        receipt = await pool.down()
        with pytest.raises(Cancelled):
            await starting
        assert receipt.ok and receipt.created == 0 and world.tries == 1


async def test_who_comes_meanwhile_knows_that_it_is_still_being_made(world: Full) -> None:
    with closing(Ledger()) as ledger:
        pool, _, _ = await begun(world, ledger, "2h")
        an_hour_ago = pool.row.created_at - 3600
        ledger._write([("UPDATE pools SET created_at=? WHERE token=?", (an_hour_ago, pool.row.token))])
        assert is_starting(ledger.pool(pool.row.token))
        assert (await pool.down()).ok
