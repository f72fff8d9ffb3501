"""What a pool may cost. The provider and the agents are played; its prices are high, so that nobody waits for long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.run_history import costs
from skyward_core.model.errors import LedgerError, SpecError
from skyward_core.model.machines import Machine
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import budget_and_expiry
from skyward_core.pool.pool import Pool
from skyward_core.store.ledger import Ledger
from skyward_core.views import events
from tests.support.pool_parts import World
from tests.support.waiting import until

HOURLY = 3600.0 * 10  # of each of two machines


class Dear(World):
    """Each machine costs ``hourly``; None where nobody knows."""

    rents = True
    hourly: float | None = HOURLY

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        made = await super().create(spec, token)
        return [replace(each, extra=each.extra | {"hourly": self.hourly}) for each in made]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dear:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    return Dear()


class Watched:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.news: list[events.BudgetNews] = []
        self.to_argv: list[str] = []
        pool.news.subscribe(self._hear, None)

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.BudgetNews):
            self.news.append(event)
        elif isinstance(event, events.PoolState):
            self.to_argv.append(event.detail)

    @property
    def states(self) -> list[str]:
        return [each.state for each in self.news]


@asynccontextmanager
async def started(world: Dear, dollars: float | None, *, asks: bool = False) -> AsyncIterator[Watched]:
    options = Options(console=False, grace=0.1, budget=dollars)
    spec = PoolSpec(name="q", provider=world, nodes=2, options=options)
    ledger = Ledger()
    pool = await Pool.register(spec, ledger)
    watched = Watched(pool)
    pool.context.limits.budget.prompts_user = asks
    await pool.start(spec)
    yield watched
    assert (await pool.down()).ok
    ledger.close()


async def test_it_is_said_at_four_fifths_and_ended_at_the_whole(world: Dear) -> None:
    async with started(world, 20.0) as watched:
        await until(lambda: watched.states == ["near", "spent"])
        near = watched.pool.view.spent(watched.news[0].at)
        assert 16.0 <= near < 20.0 <= watched.pool.view.spent(watched.news[1].at)
        assert any("of its budget of $20.00; at $72,000.00/h the rest lasts" in each for each in watched.to_argv)
        receipt = await watched.pool.down()
    assert receipt.notes == ("its budget of $20.00 is spent",)
    assert sorted(set(world.ended)) == ["m0", "m1"]


async def test_who_is_asked_may_raise_it(world: Dear) -> None:
    async with started(world, 1.0, asks=True) as watched:
        await until(lambda: "asked" in watched.states)
        assert watched.pool.view.budget_ends_at is not None and not world.ended
        watched.pool.context.limits.budget.raise_to(1e6)
        await until(lambda: watched.states[-1] == "within")
        assert watched.pool.view.budget == 1e6 and watched.pool.view.budget_ends_at is None
        assert not world.ended and not watched.pool.context.leaving
        pool = watched.pool
        assert pool.context.ledger.pool(pool.row.token).spec["options"]["budget"] == 1e6
        later = Pool(pool.context.ledger.pool(pool.row.token), world, pool.context.ledger, observer=True)
        assert later.row.spec["options"] == pool.row.spec["options"] | {"budget": 1e6}


@pytest.mark.parametrize("asks", [True, False])
async def test_what_another_client_allows_holds_here(world: Dear, asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_and_expiry, "LOOK", 0.01)
    async with started(world, 1e3 if asks else 1e6, asks=asks) as watched:
        pool = watched.pool
        if asks:
            pool.view.spent_before = 1e3
            await until(lambda: "asked" in watched.states)
        with closing(Ledger()) as other:
            other.set_budget(pool.row.token, 2e6)
        pool.view.spent_before = 1.5e6
        await until(lambda: pool.view.budget == 2e6)
        assert watched.states[-1] in ("within", "near") and not pool.context.leaving and not world.ended


async def test_what_cannot_be_written_down_is_not_allowed(world: Dear, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(world, 1e6) as watched:

        def full(token: str, dollars: float) -> None:
            raise LedgerError("no room")

        monkeypatch.setattr(watched.pool.context.ledger, "set_budget", full)
        with pytest.raises(LedgerError):
            watched.pool.context.limits.budget.raise_to(2e6)
        assert watched.pool.view.budget == 1e6


@pytest.mark.parametrize("back", [0.0, 3600.0])
async def test_where_nobody_answers_it_ends(world: Dear, monkeypatch: pytest.MonkeyPatch, back: float) -> None:
    monkeypatch.setattr(budget_and_expiry, "ANSWER_TIMEOUT", 0.05)
    real = time.time
    async with started(world, 1.0, asks=True) as watched:
        await until(lambda: "asked" in watched.states)
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: real() - back)
            await until(lambda: watched.states[-1:] == ["spent"])


async def test_what_is_spent_is_counted_where_the_clock_is_set_back(
    world: Dear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_and_expiry, "LOOK", 0.01)
    real = time.time
    async with started(world, 40.0) as watched:
        await until(lambda: watched.pool.view.spent(time.time()) > 0)
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: real() - 3600)
            await until(lambda: watched.states[-1:] == ["spent"])


async def test_a_price_that_nobody_knows_is_said(world: Dear) -> None:
    world.hourly = None
    async with started(world, 1.0) as watched:
        await until(lambda: any("its budget cannot be watched" in each for each in watched.to_argv))
        assert watched.states == [] and not world.ended


@pytest.mark.parametrize("hourly", [HOURLY, None])
async def test_without_a_budget_nobody_looks(world: Dear, hourly: float | None) -> None:
    world.hourly = hourly
    async with started(world, None) as watched:
        await asyncio.wait_for(watched.pool.context.limits.budget.watch(), 10)  # it has nothing to wait for
        assert watched.states == [] and not any("budget" in each for each in watched.to_argv)


async def test_a_price_may_come_to_nothing(world: Dear) -> None:
    async with started(world, 1e6) as watched:
        view = watched.pool.view
        view.spent_before, view.price_hourly = 0.9e6, 0.0
        watching = asyncio.create_task(watched.pool.context.limits.budget.watch())
        await until(lambda: watched.states == ["near"] or watching.done())
        watching.cancel()
        assert any(each.endswith("of its budget of $1,000,000.00") for each in watched.to_argv)


def test_the_runs_of_a_real_pool_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))

    class Dear(sky.Local):
        price_hourly = HOURLY

    @sky.function
    def forever() -> None:
        threading.Event().wait()

    options = sky.Options(console=False, grace=0.1, budget=10.0)
    said = r"pool dear ends: its budget of \$10\.00 is spent"
    with (
        sky.Compute(provider=Dear(), name="dear", options=options) as compute,
        pytest.raises(sky.Cancelled, match=said),
    ):
        forever() @ compute
    receipt = compute.receipt
    assert receipt is not None and receipt.ok and receipt.notes == ("its budget of $10.00 is spent",)
    assert receipt.spent is not None and receipt.spent >= 10.0 and "; cost $1" in str(receipt)
    (told,) = costs(0.0).pools
    assert told.dollars == pytest.approx(receipt.spent) and told.functions == ("forever",)


@pytest.mark.parametrize("wrong", [0, -1, "much", float("nan"), float("inf"), True])
def test_what_is_no_budget(wrong: Any) -> None:
    with pytest.raises(SpecError, match="budget"):
        Options(budget=wrong)
