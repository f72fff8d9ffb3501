"""A reservation is launched into while it is active and has machines enough; else that is said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from skyward_core.model.errors import NoCapacity
from skyward_core.model.offer import Offer, Reservation, Wish
from skyward_core.providers.aws import reservations
from skyward_core.providers.aws.calls import Account, Calls

HELD = Reservation(
    id="cr-1", instance_type="p5.48xlarge", region="r", zone="ra", count=2, free=2, state="active", is_block=True,
    starts_at=1e9, ends_at=1e9 + 86400,
)  # fmt: skip
CALLS = Calls(Account())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "scheduled", "starts_at": 2e9}, "begins at 20.*: start the pool then"),
        ({"state": "payment-pending"}, "begins at"),
        ({"state": "expired"}, "is expired: name another one"),
        ({"state": ""}, "is in no state that EC2 tells"),
        ({"free": 1}, "has 1 of its 2 machines free, and 2 are wanted"),
    ],
)
async def test_what_cannot_be_had_now_lacks_capacity(
    change: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(*_: Any) -> Reservation:
        return replace(HELD, **change)

    monkeypatch.setattr(reservations, "_find", find)
    with pytest.raises(NoCapacity, match=said):
        await reservations.held(CALLS, ["r"], "cr-1", Wish(), 2)


def test_machines_of_a_block_are_paid_and_others_are_not() -> None:
    offer = Offer(provider="aws", instance_type="p5.48xlarge", region="r", hourly=55.0, beside_hourly=0.5)
    block, plain = reservations.Held(HELD), reservations.Held(replace(HELD, is_block=False, ends_at=None))
    assert (block.market, block.offer(offer).billed_hourly) == ("capacity-block", 0.5)
    assert (plain.market, plain.offer(offer).billed_hourly) == ("on-demand", 55.5)
    assert "EC2 ends them at" in block.note and "EC2 ends" not in plain.note
    wish = block.wish(Wish(regions=("a", "b")))
    assert (wish.instance_type, wish.zones, wish.regions) == ("p5.48xlarge", ("ra",), ("r",))


async def test_a_purchase_whose_answer_nobody_can_read_may_have_been_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from skyward_core.model.errors import Unreachable
    from skyward_core.model.offer import Block

    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    block = Block(
        provider="aws", id="cb-1", instance_type="p5.48xlarge", region="r", zone="ra", count=1, hours=24,
        starts_at=datetime.now(UTC).timestamp(), upfront=10.0,
    )  # fmt: skip
    asked: list[str] = []

    def call(self: Any, service: str, region: str, action: str, *more: Any) -> Any:
        asked.append(action)
        raise ValueError("half an answer")

    monkeypatch.setattr(Calls, "_call", call)
    with pytest.raises(Unreachable, match="half an answer"):
        await reservations.buy(CALLS, block, "t")
    assert asked == ["purchase_capacity_block"]
