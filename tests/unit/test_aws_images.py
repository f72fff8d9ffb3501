"""What a machine's volumes are is known before it is priced: by what was asked for, and by the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import UsageError
from skyward_core.model.offers import MachineRequirements
from skyward_core.providers.aws import instance_offers
from skyward_core.providers.aws.instance_offers import (
    BilledExtras,
    InstanceType,
    NoImage,
    PriceCache,
    find_image,
)

KIND = InstanceType(
    name="m7i.large", architecture="x86_64", accelerator="", count=0, memory_each_gb=0.0, nvidia=False, vcpus=2,
    memory_gb=8.0, efa=False,
)  # fmt: skip


class Calls:
    """EC2, as far as images go."""

    class account:
        endpoint = "played"

    def __init__(self, **volumes: int) -> None:
        self.asked = 0
        self.volumes = {f"/dev/{name}": size for name, size in volumes.items()}

    async def call(self, service: str, region: str, name: str, **params: Any) -> Any:
        assert name == "describe_images"
        self.asked += 1
        if region == "elsewhere":
            return {"Images": []}
        listed = [{"DeviceName": name, "Ebs": {"VolumeSize": size}} for name, size in self.volumes.items()]
        mappings = [*listed, {"DeviceName": "/dev/sdz", "VirtualName": "ephemeral0"}]
        return {"Images": [{"RootDeviceName": "/dev/sda1", "BlockDeviceMappings": mappings, "Name": "mine"}]}


@pytest.fixture(autouse=True)
def market(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))

    async def sold(*_: Any) -> list[InstanceType]:
        return [KIND]

    async def zones(*_: Any) -> dict[str, list[str]]:
        return {KIND.name: ["here-a"]}

    async def beside(*_: Any) -> dict[str, float]:
        return {"gb": 0.01, "address": 0.5}

    async def on_demand(*_: Any) -> dict[str, float]:
        return {KIND.name: 1.0}

    monkeypatch.setattr(instance_offers, "find_instance_types", sold)
    monkeypatch.setattr(instance_offers, "zones_by_type", zones)
    monkeypatch.setattr(instance_offers, "extra_prices", beside)
    monkeypatch.setattr(instance_offers, "on_demand_prices", on_demand)


@pytest.mark.parametrize(
    ("volumes", "wanted", "gb"),
    [
        ({"sda1": 8}, 100, 100),
        ({"sda1": 300}, 100, 300),
        ({"sda1": 300, "sdb": 50}, 400, 450),
        ({}, 100, 100),
    ],
)
async def test_the_volumes_are_priced_as_they_will_be_bought(volumes: dict[str, int], wanted: int, gb: int) -> None:
    calls: Any = Calls(**volumes)
    extras = BilledExtras(wanted, True, "ami-1")
    for _ in range(2):
        (offer,) = (await instance_offers.query_region(calls, "aws", "here", MachineRequirements(), extras)).offers
        assert offer.beside_hourly == pytest.approx(0.01 * gb + 0.5)
    assert calls.asked == 1, "an image never changes"
    image = await find_image(calls, "here", KIND, "ami-1", None)
    assert max(wanted, image.disk_gb) + volumes.get("sdb", 0) == gb


async def test_of_a_published_image_nothing_is_asked_for_a_price() -> None:
    calls: Any = Calls(sda1=300)
    (offer,) = (
        await instance_offers.query_region(calls, "aws", "here", MachineRequirements(), BilledExtras(100, False))
    ).offers
    assert offer.beside_hourly == pytest.approx(1.0) and calls.asked == 0


async def test_a_region_without_the_image_is_left_out_where_there_are_others() -> None:
    calls: Any = Calls(sda1=300)
    extras = BilledExtras(100, False, "ami-1")
    found = await instance_offers.list_offers(calls, "aws", ["elsewhere", "here"], MachineRequirements(), extras)
    assert [each.region for each in found.offers] == ["here"]
    assert any("region elsewhere has no machine image ami-1" in note for note in found.notes)
    with pytest.raises(UsageError, match="has no machine image ami-1"):
        await instance_offers.list_offers(calls, "aws", ["elsewhere"], MachineRequirements(), extras)
    with pytest.raises(NoImage):
        await extras.total_disk_gb(calls, PriceCache("played"), "elsewhere")
