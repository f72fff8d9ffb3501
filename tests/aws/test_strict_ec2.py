"""Teardowns where EC2 refuses: permissions by tags, forgotten instances, queries that lag behind, failing calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.machines import Machine
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import teardown
from skyward_core.pool.pool import Pool
from skyward_core.providers.aws import boto_calls, instance_lookup_and_end
from skyward_core.store.ledger import Ledger
from tests.aws import Bed, storms
from tests.aws.pools import left, rented
from tests.aws.waiting import until_state

TOKEN = "0123456789abcdef"


@pytest.fixture
def bed(bed_of_client: Bed, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """The bed under the documented policy, and a client with short time-outs whose machines have no hosts."""
    storms.weather(monkeypatch.setattr)
    bed_of_client.require_policy()
    return bed_of_client


@pytest.fixture
def ledger(bed: Bed) -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.close()


def spec(nodes: int = 2, **wishes: Any) -> PoolSpec:
    provider = rented(ssh_from="10.0.0.1/32", **wishes)
    return PoolSpec(name="q", provider=provider, nodes=nodes, options=Options(console=False))


async def create(nodes: int = 2) -> list[Machine]:
    wanted = spec(nodes)
    return await wanted.provider.create(wanted, TOKEN)  # type: ignore[no-any-return]


async def running_pool(ledger: Ledger, nodes: int = 2) -> tuple[Pool, list[Machine]]:
    """Return a pool that is up according to the ledger, and its machines."""
    wanted, made = spec(nodes), await create(nodes)
    row = ledger.record_intent(TOKEN, "q", wanted.provider.to_json(), wanted.describe())
    ledger.record_created(TOKEN, made)
    ledger.set_pool_state(TOKEN, "up")
    return Pool(row, wanted.provider, ledger), made


async def test_pool_ends_if_ec2_has_forgotten_a_replaced_machine(
    bed: Bed, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, made = await running_pool(ledger)
    lost, _ = made
    ledger.record_replacement_intent(TOKEN, 0, "fedcba98", "1.owner")
    new = await spec().provider.replace("q", "fedcba98", 0, [], [lost])
    assert ledger.record_replacement(TOKEN, new)
    await spec().provider.terminate("q", [lost])
    until_state(bed, [lost.id], "terminated")
    bed.forget_ended(0.0)
    monkeypatch.setattr(instance_lookup_and_end, "SETTLE_SECONDS", 0.0)  # an hour has passed
    receipt = await pool.down()
    assert (receipt.ok, receipt.created, sorted(receipt.gone)) == (True, 3, [0, 0, 1])
    assert left(bed) == []


async def test_termination_reaches_other_machines_if_ec2_refuses_one(bed: Bed) -> None:
    made = await create(5)
    bed.lag(instance=3600.0)  # queries show the past
    await spec().provider.terminate("q", made[2:3])
    until_state(bed, [made[2].id], "terminated")
    bed.forget_ended(0.0)
    with pytest.raises(sky.PoolError, match="do not allow TerminateInstances"):
        await spec().provider.terminate("q", made)
    until_state(bed, [each.id for each in made], "terminated")


async def test_expiry_is_tagged_on_other_resources_if_ec2_refuses_one(bed: Bed) -> None:
    made = await create(3)
    bed.lag(instance=3600.0)  # queries show the past
    await spec().provider.terminate("q", made[:1])
    until_state(bed, [made[0].id], "terminated")
    bed.forget_ended(0.0)
    with pytest.raises(sky.PoolError, match="do not allow CreateTags"):
        await spec().provider.date("q", made, 0.0)
    tagged = {each["id"]: each["tags"]["skyward:expires"] for each in bed.instances()}
    assert [tagged[each.id] == "1970-01-01T00:00:00Z" for each in made] == [False, True, True]


@pytest.mark.parametrize("lag", [0.0, 0.4])
async def test_teardown_accepts_denied_deletions_of_resources_that_are_gone(bed: Bed, lag: float) -> None:
    aws, made = spec().provider, await create(2)
    await aws.terminate("q", made)
    until_state(bed, [each.id for each in made], "terminated")
    bed.lag(key_pair=lag, security_group=lag, placement_group=lag)
    ec2 = bed.client()
    for group in ec2.describe_security_groups(GroupNames=[f"skyward-q-{TOKEN}"])["SecurityGroups"]:
        ec2.delete_security_group(GroupId=group["GroupId"])
    ec2.delete_key_pair(KeyName=f"skyward-q-{TOKEN}")
    ec2.delete_placement_group(GroupName=f"skyward-q-{TOKEN}")
    await aws.teardown("q")
    bed.lag()
    assert left(bed) == []


async def test_teardown_reports_denied_deletion_of_resource_that_exists(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await create(1)
    await spec().provider.terminate("q", made)
    bed.deny("DeleteKeyPair")
    with pytest.raises(sky.PoolError, match="do not allow DeleteKeyPair"):
        await spec().provider.teardown("q")
    bed.allow("DeleteKeyPair")
    until_state(bed, [each.id for each in made], "terminated")
    await spec().provider.teardown("q")
    assert left(bed) == []


async def test_teardown_deletes_security_group_that_queries_do_not_show_yet(bed: Bed) -> None:
    bed.lag(security_group=3600.0)
    made = await create(1)
    await spec().provider.terminate("q", made)
    until_state(bed, [each.id for each in made], "terminated")
    await spec().provider.teardown("q")
    bed.lag()
    assert left(bed) == []


async def test_termination_is_repeated_if_ec2_failed_and_machines_have_no_agent(
    bed: Bed, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "RENTED", 10.0)
    pool, _ = await running_pool(ledger)
    bed.fail("TerminateInstances", boto_calls.MAX_TRIES + 1)
    receipt = await pool.down()
    assert (receipt.ok, receipt.gone) == (True, (0, 1))
    assert left(bed) == []


async def test_stopped_machine_is_terminated_again_if_ec2_failed(
    bed: Bed, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "RENTED", 10.0)
    pool, made = await running_pool(ledger, 1)
    bed.allow_all()
    bed.client().stop_instances(InstanceIds=[made[0].id])
    until_state(bed, [made[0].id], "stopped")
    bed.fail("TerminateInstances", boto_calls.MAX_TRIES)
    assert (await pool.down()).ok and left(bed) == []
