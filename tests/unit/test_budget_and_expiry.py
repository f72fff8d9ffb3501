"""Budgets, costs and expiry times of pools. The provider and the agents are fakes with high prices."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from datetime import date, datetime, timedelta
from datetime import time as clock
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import skyward_core as sky
from skyward_core.client.pool_costs import _daily_costs, cost_today, costs
from skyward_core.model.errors import LedgerError, PoolError, SpecError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import budget_and_cloud_expiry_date
from skyward_core.pool.budget_and_cloud_expiry_date import EXPIRY_MARGIN, Expiry, expiry_time
from skyward_core.pool.pool import Pool
from skyward_core.store.ledger import Ledger
from skyward_core.store.past_pool_views import set_hourly_price, unreachable_view
from skyward_core.store.receipts_and_bills import Bill, Receipt, machine_ended_at, make_bills
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView
from skyward_tui.cli.main import cli
from skyward_tui.text.json_output import pool_json
from skyward_tui.text.number_time_and_run_state_format import hourly
from tests.support.ledger_runs import record_runs
from tests.support.pool_parts import World
from tests.support.waiting import until

HOURLY = 3600.0 * 10  # of each of two machines


class Dear(World):
    """Provider whose machines cost ``hourly`` dollars; None for an unknown price."""

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


async def test_budget_warns_at_80_percent_and_ends_the_pool_at_100(world: Dear) -> None:
    async with started(world, 20.0) as watched:
        await until(lambda: watched.states == ["near", "spent"])
        near = watched.pool.view.spent(watched.news[0].at)
        assert 16.0 <= near < 20.0 <= watched.pool.view.spent(watched.news[1].at)
        assert any("of its budget of $20.00; at $72,000.00/h the rest lasts" in each for each in watched.to_argv)
        receipt = await watched.pool.down()
    assert receipt.notes == ("its budget of $20.00 is spent",)
    assert sorted(set(world.ended)) == ["m0", "m1"]


async def test_user_who_is_asked_may_raise_the_budget(world: Dear) -> None:
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
async def test_budget_raised_by_another_client_applies_here(
    world: Dear, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_and_cloud_expiry_date, "CHECK_INTERVAL", 0.01)
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


async def test_budget_is_not_raised_if_the_ledger_cannot_save_it(world: Dear, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(world, 1e6) as watched:

        def full(token: str, dollars: float) -> None:
            raise LedgerError("no room")

        monkeypatch.setattr(watched.pool.context.ledger, "set_budget", full)
        with pytest.raises(LedgerError):
            watched.pool.context.limits.budget.raise_to(2e6)
        assert watched.pool.view.budget == 1e6


@pytest.mark.parametrize("back", [0.0, 3600.0])
async def test_pool_ends_if_the_budget_question_is_not_answered(
    world: Dear, monkeypatch: pytest.MonkeyPatch, back: float
) -> None:
    monkeypatch.setattr(budget_and_cloud_expiry_date, "ANSWER_TIMEOUT", 0.05)
    real = time.time
    async with started(world, 1.0, asks=True) as watched:
        await until(lambda: "asked" in watched.states)
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: real() - back)
            await until(lambda: watched.states[-1:] == ["spent"])


async def test_spending_is_counted_although_the_clock_was_set_back(
    world: Dear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_and_cloud_expiry_date, "CHECK_INTERVAL", 0.01)
    real = time.time
    async with started(world, 40.0) as watched:
        await until(lambda: watched.pool.view.spent(time.time()) > 0)
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: real() - 3600)
            await until(lambda: watched.states[-1:] == ["spent"])


async def test_unknown_price_is_reported_as_unenforced_budget(world: Dear) -> None:
    world.hourly = None
    async with started(world, 1.0) as watched:
        await until(lambda: any("the budget is not enforced" in each for each in watched.to_argv))
        assert watched.states == [] and not world.ended


def test_spent_budget_stops_the_runs_of_a_real_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))

    class Dear(sky.Local):
        price_hourly = HOURLY

    @sky.function
    def forever() -> None:
        threading.Event().wait()

    options = sky.Options(console=False, grace=0.1, budget=10.0)
    message = r"pool dear ends: its budget of \$10\.00 is spent"
    with (
        sky.Compute(provider=Dear(), name="dear", options=options) as compute,
        pytest.raises(sky.Cancelled, match=message),
    ):
        forever() @ compute
    receipt = compute.receipt
    assert receipt is not None and receipt.ok and receipt.notes == ("its budget of $10.00 is spent",)
    assert receipt.spent is not None and receipt.spent >= 10.0 and "; cost $1" in str(receipt)
    (costs_of_pool,) = costs(0.0).pools
    assert costs_of_pool.dollars == pytest.approx(receipt.spent) and costs_of_pool.functions == ("forever",)


@pytest.mark.parametrize("wrong", [0, -1, "much", float("nan"), float("inf"), True])
def test_invalid_budget_is_rejected(wrong: Any) -> None:
    with pytest.raises(SpecError, match="budget"):
        Options(budget=wrong)


# Machines that are rented at a price that nobody says are not shown as free.


def test_rented_pool_needs_confirmation_and_has_unknown_price() -> None:
    spec = PoolSpec(name="p", provider=sky.AWS(region="us-east-1")).describe()
    view = PoolView("p", spec=spec)
    assert view.has_unknown_price and view.needs_confirmation
    assert hourly(view) == "$?/h" and pool_json(view)["price_hourly"] is None
    free = PoolView("p", spec=PoolSpec(name="p", provider=sky.Local()).describe())
    assert not free.has_unknown_price and not free.needs_confirmation
    assert hourly(free) == "" and pool_json(free)["price_hourly"] == 0
    view.price_hourly = 7.5
    assert hourly(view) == "$7.50/h" and not view.has_unknown_price


# What pools have cost, added up from what the ledger knows of their machines.

TIMES = st.floats(0, 3e9, allow_nan=False)


class Rented(World):
    rents = True


def machine(name: str, hourly: float | None, launched: float) -> Machine:
    return Machine(name, 0, "h", "", extra={"hourly": hourly, "launched": launched})


def test_machine_without_end_time_ends_when_it_is_replaced() -> None:
    first, second, third = (machine(name, 1.0, at) for name, at in (("a", 10.0), ("b", 50.0), ("c", 90.0)))
    other = Machine("d", 1, "h", "", extra={"launched": 20.0})
    every = [third, second, other, first]
    assert (machine_ended_at(first, every), machine_ended_at(second, every)) == (50.0, 90.0)
    assert machine_ended_at(replace(first, extra=first.extra | {"ended": 40.0}), every) == 40.0
    before = time.time()
    assert machine_ended_at(third, every) >= before and machine_ended_at(other, every) >= before
    assert machine_ended_at(Machine("e", 0, "h", ""), every) >= before, (
        "of a provider that does not say when it made it"
    )


def pool(ledger: Ledger, name: str, machines: list[Machine], *, hours: float | None, ran: str = "train") -> None:
    """Pool whose machines were terminated after some hours, or that still runs."""
    world, token = Rented(), f"t-{name}"
    spec = PoolSpec(name=name, provider=world, options=Options(console=False))
    ledger.record_intent(token, name, world.to_json(), spec.describe())
    ledger.record_created(token, machines)
    record_runs(ledger, opened=[(token, f"r-{name}", ran, "broadcast", 1, time.time())])
    if hours is not None:
        ended = {each.id: each.extra["launched"] + hours * 3600 for each in machines}
        bills = make_bills(ledger.pool(token), machines, ended, None)
        ledger.record_teardown(token, Receipt(name, len(machines), (0,), (), 1.0, bills=bills))


def test_costs_are_summed_over_pools(ledger: Ledger) -> None:
    day, now = 86400.0, time.time()
    pool(ledger, "over", [machine("a", 10.0, now - day), machine("b", 10.0, now - day)], hours=1.5)
    pool(ledger, "up", [machine("c", 4.0, now - 1800)], hours=None, ran="evaluate")
    pool(ledger, "dear", [machine("d", None, now - day)], hours=1)
    found = costs(now - 30 * day)
    data = {each.pool: each for each in found.pools}
    assert data["over"].dollars == pytest.approx(30.0) and not data["over"].goes_on
    assert data["up"].dollars == pytest.approx(2.0, abs=0.1) and data["up"].goes_on
    assert data["dear"].dollars is None, "nobody knows, and it was not free"
    assert found.dollars == pytest.approx(sum(found.by_day.values())) == pytest.approx(32.0, abs=0.1)
    assert found.by_function["train"] == pytest.approx(30.0)


def test_cost_of_today_begins_at_midnight(ledger: Ledger) -> None:
    now = time.time()
    pool(ledger, "over", [machine("a", 10.0, now - 2 * 86400)], hours=24 + 23)
    pool(ledger, "up", [machine("b", 2.0, now - 3 * 86400)], hours=None)
    spent = costs(now - 4 * 86400).by_day[time.strftime("%Y-%m-%d", time.localtime(now))]
    assert cost_today() == pytest.approx(spent, abs=0.01) and spent < 12 * 24


def test_failed_start_without_machines_costs_nothing(ledger: Ledger) -> None:
    now = time.time()
    pool(ledger, "refused", [], hours=1)
    assert costs(now - 60).pools == []
    pool(ledger, "starts", [], hours=None)
    assert [(each.pool, each.dollars) for each in costs(now - 60).pools] == [("starts", None)]


def test_unreachable_pool_costs_its_hourly_price_since_creation(ledger: Ledger) -> None:
    pool(ledger, "far", [machine("a", 2.0, time.time())], hours=None)
    row = ledger.pool("t-far")
    row.spec["options"] = {"budget": 9.0}
    view = unreachable_view(row, "unreachable", "no answer")
    set_hourly_price(view, ledger, row)
    assert (view.price_hourly, view.budget) == (2.0, 9.0)
    assert view.spent(row.created_at + 1800) == pytest.approx(1.0)


def test_costs_count_only_the_requested_period(ledger: Ledger) -> None:
    now = time.time()
    pool(ledger, "over", [machine("a", 10.0, now - 7200)], hours=2)
    assert costs(now - 3600).dollars == pytest.approx(10.0, abs=0.01)
    assert costs(now + 60).pools == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TIMES, st.floats(0, 40 * 86400), st.floats(0, 100), TIMES)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
def test_daily_costs_sum_to_the_total(
    monkeypatch: pytest.MonkeyPatch, zone: str, at: float, seconds: float, hourly: float, since: float
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    bill = Bill("m", at, at + seconds, hourly)
    days = dict(_daily_costs(bill, since))
    counted = max(0.0, bill.until - max(at, since))
    assert sum(days.values()) == pytest.approx(hourly * counted / 3600, abs=1e-6)
    for day, dollars in days.items():
        begins = datetime.fromisoformat(day).timestamp()
        ends = datetime.fromisoformat(str(date.fromisoformat(day) + timedelta(days=1))).timestamp()
        assert dollars <= hourly * (ends - begins) / 3600 + 1e-6, "no more than a day has"
        assert ends > max(at, since) and begins < bill.until


def test_costs_command_prints_totals_and_json(ledger: Ledger) -> None:
    done = CliRunner().invoke(cli, ["costs"])
    assert done.exit_code == 0 and "no costs in that time" in done.output
    noon = datetime.combine(date.today() - timedelta(days=1), clock(12)).timestamp()  # all of it on one day
    pool(ledger, "over", [machine("a", 10.0, noon)], hours=1.5)
    pool(ledger, "dear", [machine("d", None, noon)], hours=1)
    for by in ("pool", "function", "day"):
        done = CliRunner().invoke(cli, ["costs", "--by", by])
        assert done.exit_code == 0 and done.output.count("$15.00") == 2, done.output
    assert "the cost of 1 pool is unknown" in done.output + done.stderr
    report = json.loads(CliRunner().invoke(cli, ["costs", "--json"]).stdout)
    assert report["dollars"] == pytest.approx(15.0) and len(report["pools"]) == 2
    wrong = CliRunner().invoke(cli, ["costs", "--since", "yesterday"])
    assert wrong.exit_code == 2 and '"7d"' in wrong.output


# Expiry times of machines, as their account is told.


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
def test_expiry_time_depends_on_lease_and_time_to_live(ttl: float | None, seconds: float, end: float) -> None:
    assert expiry_time(10_000, 1000, 600, ttl, seconds) == end + EXPIRY_MARGIN


class Account:
    """Provider that records its calls."""

    def __init__(self, refuses: bool = False) -> None:
        self.dates: list[float] = []
        self.refuses = refuses
        self.twice = asyncio.Event()

    async def date(self, pool: str, machines: Sequence[Any], at: float) -> None:
        self.dates.append(at)
        if len(self.dates) == 2:
            self.twice.set()
        if self.refuses:
            raise PoolError("the credentials have expired")


def expiry_and_messages(provider: Any, run: str = "done") -> tuple[Expiry, list[str]]:
    messages: list[str] = []
    context: Any = SimpleNamespace(
        name="p", provider=provider, machines=[], row=SimpleNamespace(created_at=1000.0),
        options=SimpleNamespace(idle_timeout=600.0, ttl=None),
        view=SimpleNamespace(is_live=True, runs={"r": SimpleNamespace(state=run)}),
        news=SimpleNamespace(emit_warning=messages.append),
    )  # fmt: skip
    return Expiry(context), messages


async def test_expiry_is_renewed_and_refusal_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_and_cloud_expiry_date, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(budget_and_cloud_expiry_date, "PERIOD", 0.01)
    account = Account(refuses=True)
    keeper, messages = expiry_and_messages(account)
    keeping = asyncio.create_task(keeper.renew())
    await asyncio.wait_for(account.twice.wait(), 30)
    keeping.cancel()
    assert "in the account: the credentials have expired" in messages[0]


async def test_detaching_client_extends_expiry_for_running_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    for run, dates in (
        ("done", []),
        ("running", [10_000.0 + budget_and_cloud_expiry_date.DETACHED_RUN_TIME + 600 + EXPIRY_MARGIN]),
    ):
        account = Account()
        keeper, _ = expiry_and_messages(account, run)
        await keeper.extend_for_runs()
        assert account.dates == dates


async def test_detaching_client_does_not_wait_for_a_silent_account(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Account):
        async def date(self, pool: str, machines: Sequence[Any], at: float) -> None:
            while not self.twice.is_set():
                with suppress(asyncio.CancelledError):  # as a call of AWS that is under way
                    await self.twice.wait()

    monkeypatch.setattr(budget_and_cloud_expiry_date, "DETACH_TIMEOUT", 0.01)
    stuck = Stuck()
    keeper, _ = expiry_and_messages(stuck, "running")
    await asyncio.wait_for(keeper.extend_for_runs(), 30)
    stuck.twice.set()
