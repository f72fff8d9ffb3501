"""What a check says of an account, before anything is made."""

from __future__ import annotations

import pytest

import skyward_core as sky
from skyward_core.model.machines import Check
from tests.aws import Bed


@pytest.fixture
def cloud(simulated_bed: Bed, monkeypatch: pytest.MonkeyPatch) -> Bed:
    for name, text in simulated_bed.environment().items():
        monkeypatch.setenv(name, text)
    return simulated_bed


async def lines(**wishes: object) -> dict[str, Check]:
    provider = sky.AWS(**{"region": "us-east-1"} | wishes)  # type: ignore[arg-type]
    return {each.subject: each for each in await provider.check()}


async def test_who_what_and_how_much(cloud: Bed) -> None:
    cloud.quota("L-DB2E81BA", 0)
    cloud.quota("L-3819A6DF", 64)
    told = await lines()
    assert [each.state for each in told.values()] == ["ok"] * 4
    assert "123456789012" in told["AWS credentials"].detail
    assert "us-east-1a" in told["us-east-1"].detail
    assert "G and VT 0 on demand, 64 spot" in told["quotas in us-east-1"].detail
    made = {"RunInstances", "ImportKeyPair", "CreateSecurityGroup", "CreatePlacementGroup"}
    tried = [each for each in cloud.calls() if each["action"] in made]
    assert len(tried) == 4 and cloud.instances() == [], "dry runs make nothing"


async def test_what_is_not_allowed_is_named(cloud: Bed) -> None:
    cloud.deny("RunInstances")
    cloud.deny("ImportKeyPair")
    cloud.deny("ListServiceQuotas")
    told = await lines()
    assert told["permissions in us-east-1"].state == "fail"
    assert "may not do ImportKeyPair, RunInstances:" in told["permissions in us-east-1"].detail
    assert told["quotas in us-east-1"].state == "warn" and "ListServiceQuotas" in told["quotas in us-east-1"].detail


async def test_an_account_without_gpus_is_warned_of_it(cloud: Bed) -> None:
    for code in ("L-DB2E81BA", "L-3819A6DF", "L-417A185B", "L-7212CCBC", "L-C4BD4855"):
        cloud.quota(code, 0)
    quotas = (await lines())["quotas in us-east-1"]
    assert quotas.state == "warn" and quotas.detail.endswith("none of G and VT, P")


async def test_credentials_that_have_expired_and_a_region_without_a_network(cloud: Bed) -> None:
    cloud.no_default_vpc("us-east-1")
    told = await lines()
    assert told["us-east-1"].state == "fail" and "no default VPC" in told["us-east-1"].detail
    cloud.expire_credentials()
    (said,) = (await lines()).values()
    assert said.state == "fail" and "expired" in said.detail
