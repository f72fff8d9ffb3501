"""What pools have cost, added up from what the ledger knows of their machines."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import date, datetime, timedelta
from datetime import time as clock
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyward_core.client.run_history import _daily_costs, costs
from skyward_core.model.machines import Machine
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Bill, Receipt, machine_ended_at, make_bills
from skyward_core.store.past_pools import set_hourly_price, unreachable_view
from skyward_tui.cli.main import cli
from tests.support.ledger_runs import record_runs
from tests.support.pool_parts import World

TIMES = st.floats(0, 3e9, allow_nan=False)


class Rented(World):
    rents = True


def machine(name: str, hourly: float | None, launched: float) -> Machine:
    return Machine(name, 0, "h", "", extra={"hourly": hourly, "launched": launched})


def test_a_machine_of_which_nobody_says_when_it_ended_has_when_another_was_in_its_place() -> None:
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
    """One whose machines were given back after some hours, or that goes on."""
    world, token = Rented(), f"t-{name}"
    spec = PoolSpec(name=name, provider=world, options=Options(console=False))
    ledger.record_intent(token, name, world.to_json(), spec.describe())
    ledger.record_created(token, machines)
    record_runs(ledger, opened=[(token, f"r-{name}", ran, "broadcast", 1, time.time())])
    if hours is not None:
        ended = {each.id: each.extra["launched"] + hours * 3600 for each in machines}
        bills = make_bills(ledger.pool(token), machines, ended, None)
        ledger.record_teardown(token, Receipt(name, len(machines), (0,), (), 1.0, bills=bills))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    return Ledger()


def test_pools_are_added_up(ledger: Ledger) -> None:
    day, now = 86400.0, time.time()
    pool(ledger, "over", [machine("a", 10.0, now - day), machine("b", 10.0, now - day)], hours=1.5)
    pool(ledger, "up", [machine("c", 4.0, now - 1800)], hours=None, ran="evaluate")
    pool(ledger, "dear", [machine("d", None, now - day)], hours=1)
    found = costs(now - 30 * day)
    told = {each.pool: each for each in found.pools}
    assert told["over"].dollars == pytest.approx(30.0) and not told["over"].goes_on
    assert told["up"].dollars == pytest.approx(2.0, abs=0.1) and told["up"].goes_on
    assert told["dear"].dollars is None, "nobody knows, and it was not free"
    assert found.dollars == pytest.approx(sum(found.by_day.values())) == pytest.approx(32.0, abs=0.1)
    assert found.by_function["train"] == pytest.approx(30.0)


def test_a_start_that_came_to_nothing_cost_nothing(ledger: Ledger) -> None:
    now = time.time()
    pool(ledger, "refused", [], hours=1)
    assert costs(now - 60).pools == []
    pool(ledger, "starts", [], hours=None)
    assert [(each.pool, each.dollars) for each in costs(now - 60).pools] == [("starts", None)]


def test_what_cannot_be_reached_has_cost_what_it_costs_since_it_was_made(ledger: Ledger) -> None:
    pool(ledger, "far", [machine("a", 2.0, time.time())], hours=None)
    row = ledger.pool("t-far")
    row.spec["options"] = {"budget": 9.0}
    view = unreachable_view(row, "unreachable", "no answer")
    set_hourly_price(view, ledger, row)
    assert (view.price_hourly, view.budget) == (2.0, 9.0)
    assert view.spent(row.created_at + 1800) == pytest.approx(1.0)


def test_only_what_was_spent_in_the_time_that_is_asked_about_counts(ledger: Ledger) -> None:
    now = time.time()
    pool(ledger, "over", [machine("a", 10.0, now - 7200)], hours=2)
    assert costs(now - 3600).dollars == pytest.approx(10.0, abs=0.01)
    assert costs(now + 60).pools == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TIMES, st.floats(0, 40 * 86400), st.floats(0, 100), TIMES)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
def test_days_add_up_to_the_whole(
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


def test_the_command_line_tells_it(ledger: Ledger) -> None:
    said = CliRunner().invoke(cli, ["costs"])
    assert said.exit_code == 0 and "no pool has cost anything" in said.output
    noon = datetime.combine(date.today() - timedelta(days=1), clock(12)).timestamp()  # all of it on one day
    pool(ledger, "over", [machine("a", 10.0, noon)], hours=1.5)
    pool(ledger, "dear", [machine("d", None, noon)], hours=1)
    for by in ("pool", "function", "day"):
        said = CliRunner().invoke(cli, ["costs", "--by", by])
        assert said.exit_code == 0 and said.output.count("$15.00") == 2, said.output
    assert "nobody knows what they cost" in said.output or "nobody knows" in said.stderr
    told = json.loads(CliRunner().invoke(cli, ["costs", "--json"]).stdout)
    assert told["dollars"] == pytest.approx(15.0) and len(told["pools"]) == 2
    wrong = CliRunner().invoke(cli, ["costs", "--since", "yesterday"])
    assert wrong.exit_code == 2 and '"7d"' in wrong.output
