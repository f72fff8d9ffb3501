"""The order of a pool's nodes follows that of EC2's network, as far as EC2 tells it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import NoCapacity
from skyward_core.model.machines import Machine

pytest.importorskip("boto3")
from skyward_core.providers.aws import account_resources, ec2_errors, zones_and_placement
from skyward_core.providers.aws.account_resources import SecurityResources
from skyward_core.providers.aws.ec2_errors import CallFailed, CapacityRefused
from skyward_core.providers.aws.instance_launch import InstanceLaunch, LaunchAttempt, LaunchParameters
from skyward_core.providers.aws.instance_offers import BootImage, InstanceType
from skyward_core.providers.aws.launch_journal_and_keys import LaunchJournal
from skyward_core.providers.aws.zones_and_placement import Zone, sort_by_topology


def machines(names: str) -> list[Machine]:
    return [Machine(name, node, "", "") for node, name in enumerate(names)]


@pytest.mark.parametrize(
    ("paths", "order"),
    [
        ({}, "abcdef"),
        (dict(zip("abcdef", ["xp1", "xp2", "xq1", "xp1", "xp2", "xq1"], strict=True)), "adbecf"),
        (dict(zip("abcdef", ["x1", "y1", "x2", "y2", "x1", "y1"], strict=True)), "aecbfd"),
        ({"a": "x1", "d": "x1"}, "adbcef"),
        ({"b": "", "e": "x", "f": "x"}, "abcdef"),
    ],
)
def test_those_below_one_node_of_the_network_follow_one_another(paths: dict[str, str], order: str) -> None:
    assert "".join(each.id for each in sort_by_topology(machines("abcdef"), paths)) == order


def test_each_layer_s_neighbours_stand_together_however_they_were_launched() -> None:
    chance = random.Random(7)
    for _ in range(200):
        names = "abcdefghij"
        paths = {name: "".join(chance.choice("xyz") for _ in range(3)) for name in names if chance.random() < 0.9}
        found = sort_by_topology(machines(names), paths)
        assert sorted(each.id for each in found) == list(names)
        for depth in (1, 2, 3):
            above = [paths.get(each.id, each.id)[:depth] for each in found]
            changes = [one for one, other in pairwise(above) if one != other]
            assert len(changes) == len(set(above)) - 1, "no node of the network is come back to"


class Full:
    """EC2 without a machine; what it was asked for is counted."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def call(self, service: str, region: str, name: str, **params: Any) -> Any:
        self.sent.append(params["Placement"].get("GroupName"))
        raise CapacityRefused("there is none", "InsufficientInstanceCapacity")


def launching(
    calls: Any, monkeypatch: pytest.MonkeyPatch, group: str | None = None
) -> tuple[InstanceLaunch, LaunchAttempt]:
    """A launch of two machines in a placement group, of a pool whose key and group are there."""

    async def own(*_: Any) -> SecurityResources:
        return SecurityResources(key="k", group="sg-1")

    async def image(_: LaunchAttempt) -> BootImage:
        return BootImage("ami-1", "/dev/sda1", 8, "ubuntu")

    monkeypatch.setattr(account_resources, "create_security_resources", own)
    kind = InstanceType(
        name="g5.xlarge", architecture="x86_64", accelerator="A10G", count=1, memory_each_gb=24.0, nvidia=True,
        vcpus=4, memory_gb=16.0, efa=False, cluster=True,
    )  # fmt: skip
    wishes = LaunchParameters(
        count=2, least=2, token="t1", node=None, ttl=None, boot_deadman=30, deadman=30, own_address="10.0.0.1/32",
        group=group, profile=None, disk_gb=None, public=True, account="1",
    )  # fmt: skip
    place = Zone(zone="r-a", region="r", subnet="subnet-1", vpc="vpc-1")
    launch = InstanceLaunch(calls, LaunchJournal("p", "t1"), wishes, image, lambda machines: None)
    return launch, LaunchAttempt(place, kind, grouped=True)


@pytest.mark.parametrize(("has_group", "sent"), [(True, ["skyward-p-t1", None]), (False, [None])])
async def test_where_there_is_no_group_the_same_is_not_asked_for_twice(
    has_group: bool, sent: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))

    async def make(*_: Any) -> None:
        if not has_group:
            raise CallFailed("you may not", "UnauthorizedOperation")

    monkeypatch.setattr(zones_and_placement, "create_placement_group", make)
    calls: Any = Full()
    launch, attempt = launching(calls, monkeypatch)
    with pytest.raises(NoCapacity, match="there is none"):
        await launch.launch_machines([attempt])
    assert calls.sent == sent


class NotYet(Full):
    """The same, once it knows of what was made for the pool."""

    def __init__(self, *codes: str) -> None:
        super().__init__()
        self.codes = list(codes)

    async def call(self, service: str, region: str, name: str, **params: Any) -> Any:
        if self.codes:
            code = self.codes.pop(0)
            raise CallFailed(f"there is none ({code})", code)
        return await super().call(service, region, name, **params)


async def test_machines_wait_for_what_ec2_does_not_know_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def made(*_: Any) -> None:
        return None

    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(zones_and_placement, "create_placement_group", made)
    monkeypatch.setattr(ec2_errors, "POLL_PAUSES", (0.0, 0.0))
    calls = NotYet("InvalidKeyPair.NotFound", "InvalidPlacementGroup.Unknown", "InvalidGroup.NotFound")
    launch, attempt = launching(calls, monkeypatch)
    with pytest.raises(NoCapacity):
        await launch.launch_machines([attempt])
    assert calls.codes == [] and calls.sent == ["skyward-p-t1", None]
    launch, attempt = launching(NotYet("InvalidGroup.NotFound"), monkeypatch, group="sg-of-mine")
    with pytest.raises(CallFailed, match=r"InvalidGroup\.NotFound"):
        await launch.launch_machines([attempt])
