"""Offers: which of them a wish is tried with, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.model.accelerators import Accelerator
from skyward_core.model.offers import (
    ALLOCATIONS,
    MachineRequirements,
    Offer,
    matching_offers,
    mismatch_reason,
)

T4 = Offer(
    provider="aws", instance_type="g4dn.12xlarge", region="us-east-1", zone="us-east-1a", accelerator="T4", count=4,
    memory_each_gb=16, vcpus=48, memory_gb=192, hourly=3.912, beside_hourly=0.02,
)  # fmt: skip
PLAIN = Offer(
    provider="aws",
    instance_type="m7i.large",
    region="us-east-1",
    zone="us-east-1a",
    vcpus=2,
    memory_gb=8,
    hourly=0.1,
)


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (MachineRequirements(accelerator=Accelerator("T4", 4)), ""),
        (
            MachineRequirements(accelerator=Accelerator("T4", 4), vcpus=48, memory_gb=192, max_hourly=3.932),
            "",
        ),
        (MachineRequirements(instance_type="g4dn.12xlarge"), ""),
        (MachineRequirements(accelerator=Accelerator("T4", 1)), "has 4 T4"),
        (MachineRequirements(accelerator=Accelerator("A100", 4)), "has 4 T4"),
        (MachineRequirements(), "has 4 T4"),
        (MachineRequirements(instance_type="g4dn.xlarge"), "is no g4dn.xlarge"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), vcpus=49), "has 48 vCPUs"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), memory_gb=192.5), "has 192 GB of memory"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), architecture="arm64"), "is x86_64"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), efa=True), "has no EFA"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), allocation="spot"), "is on-demand"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), regions=("eu-west-1",)), "is in us-east-1"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), zones=("us-east-1b",)), "is in us-east-1a"),
        # What is billed beside the machine counts.
        (MachineRequirements(accelerator=Accelerator("T4", 4), max_hourly=3.92), "costs $3.93/h"),
    ],
)
def test_an_offer_is_refused_for_what_it_lacks(wish: MachineRequirements, why: str) -> None:
    assert mismatch_reason(T4, wish) == why


def test_a_machine_of_unknown_price_is_below_no_limit() -> None:
    unknown = replace(T4, hourly=None)
    assert mismatch_reason(unknown, MachineRequirements(accelerator=Accelerator("T4", 4))) == ""
    assert "no known price" in mismatch_reason(
        unknown, MachineRequirements(accelerator=Accelerator("T4", 4), max_hourly=100.0)
    )


def test_memory_is_compared_as_makers_round_it() -> None:
    large = replace(T4, accelerator="A100", count=8, memory_each_gb=79.6)
    assert mismatch_reason(large, MachineRequirements(accelerator=Accelerator("A100", 8, memory_gb=80.0))) == ""
    assert "of 79.6 GB" in mismatch_reason(
        large, MachineRequirements(accelerator=Accelerator("A100", 8, memory_gb=40.0))
    )


def test_spot_comes_first_where_it_is_to_be_had() -> None:
    spot = replace(T4, market="spot", zone="us-east-1b", hourly=9.0)
    wish = MachineRequirements(accelerator=Accelerator("T4", 4), allocation="spot-if-available")
    assert matching_offers([T4, spot], wish) == [spot, T4]
    assert matching_offers([T4, spot], replace(wish, allocation="cheapest")) == [T4, spot]
    assert matching_offers([T4, spot], replace(wish, allocation="spot")) == [spot]
    assert matching_offers([T4, spot], replace(wish, allocation="on-demand")) == [T4]


def test_of_equal_prices_the_region_that_was_named_first_comes_first() -> None:
    there = replace(T4, region="eu-west-1", zone="eu-west-1a")
    wish = MachineRequirements(accelerator=Accelerator("T4", 4), regions=("us-east-1", "eu-west-1"))
    assert matching_offers([there, T4], wish) == [T4, there]
    assert matching_offers([there, T4], replace(wish, regions=("eu-west-1", "us-east-1"))) == [there, T4]


OFFERS = st.builds(
    Offer,
    provider=st.just("aws"),
    instance_type=st.sampled_from(["a.large", "b.large"]),
    region=st.sampled_from(["r1", "r2", "r3"]),
    zone=st.sampled_from(["", "z1", "z2"]),
    market=st.sampled_from(["on-demand", "spot"]),
    vcpus=st.just(2),
    hourly=st.none() | st.floats(0.01, 10),
)
WISHES = st.builds(
    MachineRequirements,
    vcpus=st.integers(0, 3),
    regions=st.sampled_from([(), ("r1",), ("r2", "r1")]),
    max_hourly=st.none() | st.floats(0.01, 10),
    allocation=st.sampled_from(ALLOCATIONS),
)


@given(st.lists(OFFERS, max_size=12), WISHES, st.randoms())
def test_the_order_is_the_offers_own(offers: list[Offer], wish: MachineRequirements, dice: object) -> None:
    """However they come, they are tried in one order, none that is refused, and no dearer one before a cheaper one."""
    order = matching_offers(offers, wish)
    dice.shuffle(offers)  # type: ignore[attr-defined]
    assert matching_offers(offers, wish) == order
    assert sorted(map(repr, order)) == sorted(repr(each) for each in offers if not mismatch_reason(each, wish))
    for market in ("on-demand", "spot"):
        prices = [each.billed_hourly for each in order if each.market == market]
        known = [price for price in prices if price is not None]
        assert known == sorted(known) and prices[: len(known)] == known
