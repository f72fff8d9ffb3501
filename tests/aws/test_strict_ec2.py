"""Teardowns where EC2 refuses: permissions by tags, forgotten instances, queries that lag behind, failing calls."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import Unreachable
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import teardown
from skyward_core.pool.pool import Pool
from skyward_core.pool.unrecorded_machines_and_gone_pools import close_if_gone
from skyward_core.providers.aws import boto_calls, instances_and_leftovers
from skyward_core.providers.aws.instance_tags_and_launch_journal import LaunchJournal
from skyward_core.providers.provider_call_logs_polling_and_cache import IncompleteSearch
from skyward_core.store.ledger import Ledger
from tests.aws import Bed, storms
from tests.aws.killed import client
from tests.aws.pools import left, rented
from tests.aws.waiting import until_state
from tests.lab.tools import wait_until

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
    pool_spec = spec(nodes)
    return await pool_spec.provider.create(pool_spec, TOKEN)  # type: ignore[no-any-return]


async def running_pool(ledger: Ledger, nodes: int = 2) -> tuple[Pool, list[Machine]]:
    """Return a pool that is up according to the ledger, and its machines."""
    pool_spec, made = spec(nodes), await create(nodes)
    row = ledger.record_intent(TOKEN, "q", pool_spec.provider.to_json(), pool_spec.describe())
    ledger.record_created(TOKEN, made)
    ledger.set_pool_state(TOKEN, "up")
    return Pool(row, pool_spec.provider, ledger), made


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
    monkeypatch.setattr(instances_and_leftovers, "SETTLE_SECONDS", 0.0)  # an hour has passed
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


@pytest.mark.proof("0.3 s of a processor", after=1)
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


async def test_start_without_answer_waits_until_ec2_shows_its_machines(bed: Bed, ledger: Ledger) -> None:
    bed.lag(instance=0.9)
    bed.lose_answer("RunInstances", boto_calls.MAX_TRIES)
    pool = await Pool.register(spec(), ledger)
    with pytest.raises(Unreachable, match="did not answer RunInstances"):
        await pool.start(spec())
    row = ledger.pool(pool.row.token)
    assert row.receipt is not None and (row.receipt["created"], row.receipt["gone"]) == (2, [0, 1])
    bed.lag()
    assert left(bed) == []


async def test_pool_is_not_closed_while_requested_machines_may_appear(bed: Bed, ledger: Ledger) -> None:
    pool_spec = spec()
    row = ledger.record_intent(TOKEN, "q", pool_spec.provider.to_json(), pool_spec.describe())
    ledger.release_pool(TOKEN)  # its client is gone
    bed.lag(instance=0.9)
    bed.lose_answer("RunInstances", boto_calls.MAX_TRIES)
    with pytest.raises(Unreachable):
        await create()
    with pytest.raises(IncompleteSearch, match=r"has not confirmed the request for 2 machines\. .* within [1-4] s"):
        await close_if_gone(ledger.pool(TOKEN), pool_spec.provider, ledger)
    assert ledger.pool(TOKEN).ended_at is None
    receipt = await Pool(row, pool_spec.provider, ledger).down()
    assert (receipt.ok, receipt.created) == (True, 2)
    bed.lag()
    assert left(bed) == []


async def test_known_machines_are_ended_before_the_search_for_others_is_complete(
    bed: Bed, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool_spec, made = spec(), await create()
    row = ledger.record_intent(TOKEN, "q", pool_spec.provider.to_json(), pool_spec.describe())
    ledger.record_created(TOKEN, made[:1])
    alive: list[int] = []

    async def search(*_: Any) -> list[Machine]:
        alive.append(sum(each["state"] not in ("terminated", "shutting-down") for each in bed.instances()))
        if len(alive) == 1:
            raise IncompleteSearch("EC2 has not confirmed a request", made[1:], 0.1)
        return made

    monkeypatch.setattr(teardown, "find_machines", search)
    receipt = await Pool(row, pool_spec.provider, ledger).down()
    assert alive == [2, 0]
    assert (receipt.ok, receipt.created) == (True, 2)


async def test_request_that_ec2_never_executed_ends_the_wait(bed: Bed, ledger: Ledger) -> None:
    pool_spec = spec()
    row = ledger.record_intent(TOKEN, "q", pool_spec.provider.to_json(), pool_spec.describe())
    ledger.release_pool(TOKEN)
    bed.fail("RunInstances", boto_calls.MAX_TRIES)
    with pytest.raises(Unreachable):
        await create()
    receipt = await Pool(row, pool_spec.provider, ledger).down()
    assert (receipt.ok, receipt.created) == (True, 0)
    assert left(bed) == [] and bed.instances() == []


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("ends", [True, False])
async def test_machines_that_full_disk_kept_out_of_ledger_are_ended_or_named(
    bed: Bed, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(teardown, "RENTED", 1.0)
    if not ends:
        bed.deny("TerminateInstances")
    pool = await Pool.register(spec(8), ledger)
    ((pages,),) = ledger._read("PRAGMA page_count")
    ledger._read(f"PRAGMA max_page_count={pages}")
    with pytest.raises(sky.SkywardError, match="is full") as caught:
        await pool.start(spec(8))
    assert ledger.machines(pool.row.token) == []
    made = {each["id"] for each in bed.instances()}
    if ends:
        assert {each["state"] for each in bed.instances()} == {"terminated"}
    else:
        assert len(made) == 8 and all(name in str(caught.value) for name in made)
    monkeypatch.setattr(teardown, "RENTED", 60.0)
    ledger._read("PRAGMA max_page_count=1000000")
    bed.allow("TerminateInstances")
    receipt = await pool.down()
    assert receipt.ok and set(receipt.machines) == made and left(bed) == []


async def test_answer_that_full_disk_kept_out_of_journal_names_its_machines(
    bed: Bed, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = LaunchJournal.add

    def full(self: LaunchJournal, what: str, **facts: Any) -> None:
        if what == "answer":
            raise sky.PoolError("cannot record the requests of pool q: No space left on device")
        add(self, what, **facts)

    monkeypatch.setattr(LaunchJournal, "add", full)
    bed.lag(instance=0.6)
    pool = await Pool.register(spec(), ledger)
    with pytest.raises(sky.PoolError, match="No space left") as caught:
        await pool.start(spec())
    made = {each["id"] for each in bed.instances()}
    assert len(made) == 2 and all(name in str(caught.value) for name in made)
    bed.lag()
    assert left(bed) == []


def test_start_whose_credentials_ended_is_named_listed_and_ended_later(
    bed: Bed, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.boot(60)
    session = Session()
    starting = session.create(spec())
    wait_until(lambda: bool(bed.calls("RunInstances")) and len(bed.instances()) == 2, "the request")
    bed.expire_credentials()
    with pytest.raises(sky.PoolError, match="Its teardown is incomplete") as caught:
        starting.result(60)
    made = {each["id"] for each in bed.instances()}
    assert all(name in str(caught.value) for name in made)
    session.detach()
    later = Session()
    (view,) = later.refresh(over=True).result(60)
    assert view.is_live and "credentials have expired" in view.detail
    bed.renew_credentials()
    bed.boot(0.0)
    until_state(bed, list(made), "running")
    (view,) = later.refresh(over=True).result(60)
    assert "is incomplete: its start or teardown failed, and no agent runs on any of its 2 machines" in view.detail
    receipt = later.tear_down("q").result(60)
    later.detach()
    assert receipt.ok and set(receipt.machines) == made and left(bed) == []


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("expired", [False, True])
def test_interrupted_start_prints_receipt_with_cost_and_machines(bed: Bed, tmp_path: Path, expired: bool) -> None:
    bed.boot(60)
    with client("none", bed, tmp_path, stormy=True) as starting:
        wait_until(lambda: len(bed.instances()) == 2, "the request")
        made = [each["id"] for each in bed.instances()]
        if expired:
            bed.expire_credentials()
        starting.send_signal(signal.SIGINT)
        assert starting.wait(60) != 0
    output = (tmp_path / "said").read_text()
    assert "never retrieved" not in output
    (line,) = [each for each in output.splitlines() if each.startswith("pool pair did not start: created 2, ")]
    assert "cost $" in line and set(line.rpartition("; machines: ")[2].split(", ")) == set(made)
    assert ("unaccounted 0" in line) != expired


def test_failed_start_whose_machines_nobody_recorded_is_not_reported_as_gone(bed: Bed, ledger: Ledger) -> None:
    pool_spec = spec()
    ledger.record_intent(TOKEN, "q", pool_spec.provider.to_json(), pool_spec.describe())
    ledger.set_pool_state(TOKEN, "failed")
    made = asyncio.run(create())
    bed.expire_credentials()
    session = Session()
    (view,) = session.refresh(over=True).result(60)
    assert view.is_live and "credentials have expired" in view.detail and "exists any more" not in view.detail
    bed.renew_credentials()
    (view,) = session.refresh(over=True).result(60)
    assert "no agent runs on any of its 2 machines" in view.detail
    receipt = session.tear_down("q").result(60)
    session.detach()
    assert receipt.ok and set(receipt.machines) == {each.id for each in made} and left(bed) == []
