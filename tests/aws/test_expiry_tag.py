"""Machines and their disks say when they end, in few calls."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from skyward_core.model.specs import PoolSpec
from skyward_core.providers.aws import boto_calls, instance_tags
from tests.aws import Bed
from tests.aws.pools import rented


def test_all_of_a_pool_say_so_in_one_call(simulated_bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    for name, text in simulated_bed.environment().items():
        monkeypatch.setenv(name, text)
    boto_calls.shared_calls.cache_clear()
    provider = rented(ssh_from="127.0.0.1/32")
    ec2 = simulated_bed.client()

    def told() -> set[str]:
        machines = [each for some in ec2.describe_instances()["Reservations"] for each in some["Instances"]]
        marks = [instance_tags.parse_tags(each) for each in (*machines, *ec2.describe_volumes()["Volumes"])]
        assert len(marks) == 6
        return {each[instance_tags.EXPIRES] for each in marks}

    made = asyncio.run(provider.create(PoolSpec(name="p", provider=provider, nodes=3), "t" * 16))
    (at_first,) = told()  # 5 minutes to start, the lease of 10, and 5 beyond it
    assert abs((instance_tags.tagged_expiry({instance_tags.EXPIRES: at_first}) or 0) - time.time() - 20 * 60) < 60
    asyncio.run(provider.date("p", made, 1_893_456_000.0))
    assert (
        told() == {"2030-01-01T00:00:00Z"}
        and instance_tags.tagged_expiry({instance_tags.EXPIRES: told().pop()}) == 1_893_456_000.0
    )
    assert len(simulated_bed.calls("CreateTags")) == 1
