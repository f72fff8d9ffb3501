"""When a pool's machines end, as their account is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.errors import PoolError
from skyward_core.pool import budget_and_expiry
from skyward_core.pool.budget_and_expiry import EXPIRY_MARGIN, Expiry, expiry_time


@pytest.mark.parametrize(
    ("ttl", "seconds", "end"),
    [
        (None, 1800, 10_000 + 1800 + 600),
        (50_000, 1800, 10_000 + 1800 + 600),  # the pool's limit is far off
        (10_000, 1800, 1000 + 10_000),  # born at 1000
        (10_000, 86_400, 1000 + 10_000),
        (5, 1800, 10_000 + 600),  # a run goes on beyond it
    ],
)
def test_it_is_the_lease_s_end_or_that_of_the_pool_s_time(ttl: float | None, seconds: float, end: float) -> None:
    assert expiry_time(10_000, 1000, 600, ttl, seconds) == end + EXPIRY_MARGIN


class Account:
    """A provider that notes what it is told."""

    def __init__(self, refuses: bool = False) -> None:
        self.told: list[float] = []
        self.refuses = refuses
        self.twice = asyncio.Event()

    async def date(self, pool: str, machines: Sequence[Any], at: float) -> None:
        self.told.append(at)
        if len(self.told) == 2:
            self.twice.set()
        if self.refuses:
            raise PoolError("the credentials have expired")


def of(provider: Any, run: str = "done") -> tuple[Expiry, list[str]]:
    said: list[str] = []
    context: Any = SimpleNamespace(
        name="p", provider=provider, machines=[], row=SimpleNamespace(created_at=1000.0),
        options=SimpleNamespace(idle_timeout=600.0, ttl=None),
        view=SimpleNamespace(is_live=True, runs={"r": SimpleNamespace(state=run)}),
        news=SimpleNamespace(emit_warning=said.append),
    )  # fmt: skip
    return Expiry(context), said


async def test_it_is_moved_again_and_again_and_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_and_expiry, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(budget_and_expiry, "PERIOD", 0.01)
    account = Account(refuses=True)
    keeper, said = of(account)
    keeping = asyncio.create_task(keeper.renew())
    await asyncio.wait_for(account.twice.wait(), 30)
    keeping.cancel()
    assert "not up to date: the credentials have expired" in said[0]


async def test_who_leaves_gives_runs_that_go_on_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    for run, told in (
        ("done", []),
        ("running", [10_000.0 + budget_and_expiry.DETACHED_RUN_TIME + 600 + EXPIRY_MARGIN]),
    ):
        account = Account()
        keeper, _ = of(account, run)
        await keeper.extend_for_runs()
        assert account.told == told


async def test_nobody_who_leaves_waits_for_an_account_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stuck(Account):
        async def date(self, pool: str, machines: Sequence[Any], at: float) -> None:
            while not self.twice.is_set():
                with suppress(asyncio.CancelledError):  # as a call of AWS that is under way
                    await self.twice.wait()

    monkeypatch.setattr(budget_and_expiry, "DETACH_TIMEOUT", 0.01)
    stuck = Stuck()
    keeper, _ = of(stuck, "running")
    await asyncio.wait_for(keeper.extend_for_runs(), 30)
    stuck.twice.set()


async def test_a_provider_without_such_an_account_is_told_nothing() -> None:
    keeper, said = of(object(), "running")
    await keeper.renew()
    await keeper.extend_for_runs()
    assert said == []
