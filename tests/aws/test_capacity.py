"""Capacity Blocks: purchases happen at most once despite lost answers, and machines use a reservation."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client import offers_and_block_purchases
from skyward_core.client.offers_and_block_purchases import list_blocks
from skyward_core.model.accelerators import resolve
from skyward_core.model.errors import NoCapacity, SkywardError, UsageError
from skyward_core.model.offers_and_rental_plans import Block, MachineRequirements, Reservation
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.store.ledger import Ledger, ledger_id
from skyward_tui.cli.commands.offers_capacity_costs import buy, clear, list_offerings
from skyward_tui.cli.console_and_log_printer import Console
from tests.aws import Bed

H100 = MachineRequirements(accelerator=resolve("H100:8"))


@pytest.fixture
def bed(bed_of_client: Bed, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setattr(offers_and_block_purchases, "PURCHASE_POLL_PAUSES", (0.01, 0.01))
    return bed_of_client


def block() -> Block:
    found = list_blocks(H100, 2, 24)
    offers_and_block_purchases.save_listed_blocks(found)
    return found[0]


def read_report(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def states() -> list[tuple[str, str]]:
    with closing(Ledger()) as ledger:
        return [(each.state, each.result) for each in ledger.purchases()]


def test_capacity_block_is_bought_once_and_only_for_its_price(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    capacity_block = block()
    with pytest.raises(UsageError, match=r"costs \$[\d,.]+, not \$1\.00\. Nothing was bought"):
        buy.function(Console(True), capacity_block.id, 1.0, ())
    with pytest.raises(UsageError, match=f"confirm the price with --price {capacity_block.upfront:.2f}"):
        buy.function(Console(True), capacity_block.id, None, ())
    with pytest.raises(UsageError, match="offering cb-0 was not listed on this machine"):
        buy.function(Console(True), "cb-0", 1.0, ())
    assert bed.calls("PurchaseCapacityBlock") == [] and states() == []
    assert buy.function(Console(True), capacity_block.id, capacity_block.upfront, ()) == 0
    bought = read_report(capsys)["bought"]
    assert (bought["instance_type"], bought["count"], bought["is_block"]) == ("p5.48xlarge", 2, True)
    assert states() == [("bought", bought["id"])]
    with pytest.raises(UsageError, match=f"was bought as {bought['id']}, so it is not bought again"):
        buy.function(Console(True), capacity_block.id, capacity_block.upfront, ())
    assert len(bed.calls("PurchaseCapacityBlock")) == 1
    with closing(Ledger()) as one, closing(Ledger()) as other:  # two clients at once
        assert one.record_purchase_intent("t1", {}, {"id": "cb-2"}) and not other.record_purchase_intent(
            "t2", {}, {"id": "cb-2"}
        )
        one.record_purchase("t1", "refused", "sold out")
        assert other.record_purchase_intent("t2", {}, {"id": "cb-2"})
        other.record_purchase("t2", "refused", "sold out")
    assert list_offerings.function(Console(True), "aws", ()) == 0
    assert [each["id"] for each in read_report(capsys)["reservations"]] == [bought["id"]]


def test_purchase_with_a_lost_answer_is_found_and_not_repeated(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    capacity_block = block()
    bed.lose_answer("PurchaseCapacityBlock")
    assert buy.function(Console(True), capacity_block.id, capacity_block.upfront, ()) == 0
    assert len(bed.calls("PurchaseCapacityBlock")) == 1
    assert states() == [("bought", read_report(capsys)["bought"]["id"])]


def test_unconfirmed_purchase_is_reported_as_unknown_and_found_later(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    capacity_block = block()
    bed.lose_answer("PurchaseCapacityBlock")
    bed.deny("DescribeCapacityReservations")
    assert buy.function(Console(True), capacity_block.id, capacity_block.upfront, ()) == 3
    text = read_report(capsys)["error"]["message"]
    assert (
        f"Could not confirm the purchase of {capacity_block.id}" in text
        and "the search failed" in text
        and "after 0.02 s. You may still be charged" in text
    )
    assert states() == [("asked", "")]
    with pytest.raises(UsageError, match="the purchase is not confirmed, so it is not bought again"):
        buy.function(Console(True), capacity_block.id, capacity_block.upfront, ())
    bed.allow("DescribeCapacityReservations")
    assert list_offerings.function(Console(True), "aws", ()) == 0
    assert [state for state, _ in states()] == ["bought"]
    assert len(bed.calls("PurchaseCapacityBlock")) == 1


def test_refused_purchase_is_reported_and_can_be_repeated(bed: Bed) -> None:
    capacity_block = block()
    bed.deny("PurchaseCapacityBlock")
    with pytest.raises(SkywardError, match="do not allow PurchaseCapacityBlock"):
        buy.function(Console(True), capacity_block.id, capacity_block.upfront, ())
    assert [state for state, _ in states()] == ["refused"] and len(bed.calls("PurchaseCapacityBlock")) == 1
    bed.allow("PurchaseCapacityBlock")
    assert buy.function(Console(True), capacity_block.id, capacity_block.upfront, ()) == 0


def test_offering_of_an_earlier_list_is_requested_again(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    capacity_block = block()
    offers_and_block_purchases.save_listed_blocks(list_blocks(H100, 1, 24))
    asked = len(bed.calls("DescribeCapacityBlockOfferings"))
    assert buy.function(Console(True), capacity_block.id, capacity_block.upfront, ()) == 0
    assert len(bed.calls("DescribeCapacityBlockOfferings")) == asked + 1
    (state,) = states()
    assert state == ("bought", read_report(capsys)["bought"]["id"])
    offers_and_block_purchases.save_listed_blocks([replace(capacity_block, id="cb-gone")])
    offers_and_block_purchases.save_listed_blocks([capacity_block])
    with pytest.raises(UsageError, match="offering cb-gone is no longer sold"):
        buy.function(Console(True), "cb-gone", 1.0, ())


def test_purchase_whose_client_was_killed_is_cleared_after_a_search(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capacity_block = block()
    with closing(Ledger()) as ledger:  # and killed
        ledger.record_purchase_intent("t1", sky.AWS(region=capacity_block.region).to_json(), asdict(capacity_block))
    with pytest.raises(UsageError, match=r"was requested \d s ago. Its purchase may be invisible"):
        clear.function(Console(True), capacity_block.id, True)
    monkeypatch.setattr(offers_and_block_purchases, "PENDING_SECONDS", 0.0)
    bed.deny("DescribeCapacityReservations")
    with pytest.raises(SkywardError, match="Could not determine whether"):
        clear.function(Console(True), capacity_block.id, True)
    bed.allow("DescribeCapacityReservations")
    with pytest.raises(UsageError, match="not bought with --yes"):
        clear.function(Console(True), capacity_block.id, False)
    monkeypatch.setattr(Console, "is_terminal", True)
    for typed, state in (("no", "asked"), ("clear", "refused")):
        monkeypatch.setattr(Console, "ask", lambda self, question, typed=typed: typed)
        if typed == "no":
            with pytest.raises(UsageError, match="nothing was changed"):
                clear.function(Console(True), capacity_block.id, False)
        else:
            assert clear.function(Console(True), capacity_block.id, False) == 0
        assert states()[0][0] == state
    assert "no reservation had its tag" in states()[0][1]
    with pytest.raises(UsageError, match="no unconfirmed purchase"):
        clear.function(Console(True), capacity_block.id, True)
    assert buy.function(Console(True), capacity_block.id, capacity_block.upfront, ()) == 0
    assert sorted(state for state, _ in states()) == ["bought", "refused"]


def test_purchase_that_the_account_shows_is_not_cleared(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(offers_and_block_purchases, "PENDING_SECONDS", 0.0)
    capacity_block = block()
    bed.lose_answer("PurchaseCapacityBlock")
    bed.deny("DescribeCapacityReservations")
    assert buy.function(Console(True), capacity_block.id, capacity_block.upfront, ()) == 3
    bed.allow("DescribeCapacityReservations")
    with pytest.raises(UsageError, match="was bought as cr-"):
        clear.function(Console(True), capacity_block.id, True)
    assert [state for state, _ in states()] == ["bought"]


def spec(nodes: int = 1, **provider: Any) -> PoolSpec:
    rented = sky.AWS(**{"region": "us-east-1", "ssh_from": "10.0.0.1/32"} | provider)
    return PoolSpec(name="held", provider=rented, nodes=nodes, options=Options(console=False))


def held() -> Reservation:
    capacity_block = block()
    return offers_and_block_purchases.buy(capacity_block, capacity_block.upfront, {})


def test_reservation_determines_type_zone_and_price_of_machines(bed: Bed) -> None:
    found = held()
    pool_spec = spec(2, reservation=found.id)
    plan = asyncio.run(pool_spec.provider.plan(pool_spec))
    assert {(each.instance_type, each.zone, each.hourly) for each in plan.attempts} == {
        ("p5.48xlarge", found.zone, 0.0)
    }
    assert any("a prepaid Capacity Block; EC2 terminates them at" in note for note in plan.notes)
    assert plan.requests[0]["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    machines = asyncio.run(pool_spec.provider.create(pool_spec, "0123456789abcdef"))
    assert [(each.extra["type"], each.extra["market"]) for each in machines] == [("p5.48xlarge", "capacity-block")] * 2
    (sent,) = (call["params"] for call in bed.calls("RunInstances"))
    target = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    assert sent[target] == found.id and sent["Placement.AvailabilityZone"] == found.zone
    marks = {value for name, value in sent.items() if name.endswith(".Value")}
    assert ledger_id("aws") in marks


def test_options_that_conflict_with_a_reservation_are_refused(bed: Bed) -> None:
    found = held()
    wish = MachineRequirements(allocation="spot")
    for more, kind, text in (
        ({"instance_type": "g5.xlarge"}, UsageError, "has type p5.48xlarge, but g5.xlarge was requested"),
        ({"zones": ["us-east-1f"]}, UsageError, f"has zone {found.zone}, but us-east-1f was requested"),
        ({"region": "us-west-2"}, UsageError, f"no reservation {found.id} in us-west-2"),
        ({"wish": wish}, UsageError, "cannot be combined with allocation='spot'"),
        ({"nodes": 3}, NoCapacity, "has 2 of its 2 machines free, but 3 are needed"),
    ):
        given: dict[str, Any] = {"reservation": found.id} | more
        pool_spec = spec(given.pop("nodes", 1), **{k: v for k, v in given.items() if k != "wish"})
        pool_spec = replace(pool_spec, wish=given.get("wish"))
        with pytest.raises(kind, match=text):
            asyncio.run(pool_spec.provider.create(pool_spec, "0123456789abcdef"))
    assert bed.calls("RunInstances") == []
